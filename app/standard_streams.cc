#include "app/standard_streams.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace kvcake {

Status FlushStdout() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return Fail(ErrorCode::kIo, "cannot write to stdout: {}",
              errno != 0 ? std::strerror(errno) : "what was printed before has failed");
}

}  // namespace kvcake
