#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvcake {
namespace {

Result<std::string> ReadOpen(int fd, const std::string& path, uint64_t bytes_max) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return Fail(ErrorCode::kIo, "cannot read {}: {}", path, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) return Fail(ErrorCode::kIo, "{} is not a regular file", path);
  if (static_cast<uint64_t>(info.st_size) > bytes_max) {
    return Fail(ErrorCode::kResourceExhausted, "{}: {} bytes, more than the limit of {}", path,
                info.st_size, bytes_max);
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  const ssize_t bytes = ReadFully(fd, text);
  if (bytes != info.st_size) {
    return Fail(ErrorCode::kIo, "cannot read {}: {}", path,
                bytes < 0 ? std::strerror(errno) : "it has become shorter");
  }
  return text;
}

Error CannotOpen(const std::string& path) {
  return {errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo,
          fmt::format("cannot open {}: {}", path, std::strerror(errno))};
}

}  // namespace

Result<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return tl::unexpected(CannotOpen(path));
  Result<std::string> text = ReadOpen(fd, path, bytes_max);
  close(fd);
  return text;
}

ssize_t ReadFully(int fd, std::span<char> to) {
  size_t done = 0;
  while (done < to.size()) {
    const ssize_t bytes = read(fd, to.data() + done, to.size() - done);
    if (bytes == 0) break;
    if (bytes > 0) {
      done += bytes;
    } else if (errno != EINTR) {
      return -1;
    }
  }
  return static_cast<ssize_t>(done);
}

Status CheckReadable(std::string_view flag, const std::string& path) {
  if (access(path.c_str(), R_OK) == 0) return {};
  const Error error = CannotOpen(path);
  return Fail(error.code, "{}: {}", flag, error.message);
}

}  // namespace kvcake
