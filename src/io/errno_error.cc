// What errno says, as an error that a person can do something about.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>

#include "io/file_system.h"

namespace kvcake {
namespace {

ErrorCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ENODATA:
      return ErrorCode::kNotFound;
    case EOPNOTSUPP:
    case ENOTTY:  // a control that the file system does not know
      return ErrorCode::kUnsupported;
    case ENOSPC:  // bytes or inodes
    case EDQUOT:
      return ErrorCode::kNoSpace;
    case EMFILE:
    case ENFILE:
    case ERANGE:
      return ErrorCode::kResourceExhausted;
    case ELOOP:  // O_NOFOLLOW met a symbolic link
    case EISDIR:
    case ENXIO:  // a socket
      return ErrorCode::kCorrupt;
    case EACCES:
    case EPERM:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kIo;
  }
}

// What a person can do about it; may be empty.
const char* RemedyOf(int error) {
  switch (error) {
    case ENOSPC:
      return "; free space on that file system";
    case EDQUOT:
      return "; free space or raise the quota";
    case EROFS:
      return "; mount that file system writable";
    case EACCES:
    case EPERM:
      return "; let this user read and write there";
    case EMFILE:
    case ENFILE:
      return "; raise the limit of open files (ulimit -n)";
    case EFBIG:
      return "; raise the limit of a file's size (ulimit -f)";
    case ELOOP:
      return "; symbolic links are not followed";
    case EIO:
      return "; the device may be failing: see the kernel's log";
    default:
      return "";
  }
}

}  // namespace

Error ErrnoError(int error, const char* action, const std::string& path) {
  return {CodeOf(error),
          fmt::format("cannot {} {}: {}{}", action, path, std::strerror(error), RemedyOf(error))};
}

}  // namespace kvcake
