// Files that others may have put there, read whole.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvcake {

// A regular file, through links; what waits for a writer, or never ends, is none, and is not waited
// for. kNotFound: no such file; kResourceExhausted: it has more than bytes_max.
Result<std::string> ReadFile(const std::string& path, uint64_t bytes_max);

// Reads what an open file has from its place on, however many calls that takes: fewer bytes than
// `to` has room for where it ends. -1, with errno, where it cannot be read.
ssize_t ReadFully(int fd, std::span<char> to);

// Whether the file, of any kind, that `flag` names may be read. Else kNotFound or kIo, with the
// flag and the reason, which libraries that are given its path do not tell. It is not opened: a
// pipe would lose its writer.
Status CheckReadable(std::string_view flag, const std::string& path);

}  // namespace kvcake
