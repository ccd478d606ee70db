#include "base/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/file_mode.h"
#include "base/read_file.h"

namespace kvcake {
namespace {

constexpr const char* kWhiteSpace = " \t\r\n";
constexpr size_t kWhiteSpaceMax = 64;

// Reads an open file, whose name may be another's by now.
Result<std::string> ReadOpen(int fd, const std::string& file, std::string_view flag,
                             size_t bytes_max) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return Fail(ErrorCode::kIo, "{} {}: {}", flag, file, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument, "{} {} is no file", flag, file);
  }
  if (const std::string fault = ModeFault(info.st_mode, file); !fault.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "{} {} {}", flag, file, fault);
  }
  std::string text(bytes_max + kWhiteSpaceMax, '\0');
  const ssize_t bytes = ReadFully(fd, text);
  if (bytes < 0) {
    return Fail(ErrorCode::kIo, "{} {}: {}", flag, file, std::strerror(errno));
  }
  text.resize(bytes);
  text = WithoutSpaceAtEnd(std::move(text));
  if (text.size() > bytes_max) text.resize(bytes_max + 1);
  return text;
}

}  // namespace

std::string WithoutSpaceAtEnd(std::string text) {
  text.erase(text.find_last_not_of(kWhiteSpace) + 1);
  return text;
}

Result<std::string> ReadSecretFile(const std::string& file, std::string_view flag,
                                   size_t bytes_max) {
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Fail(ErrorCode::kIo, "cannot open {} {}: {}", flag, file, std::strerror(errno));
  }
  Result<std::string> text = ReadOpen(fd, file, flag, bytes_max);
  close(fd);
  return text;
}

}  // namespace kvcake
