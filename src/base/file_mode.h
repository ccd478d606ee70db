// Whether a file with a secret is its owner's alone.
#pragma once

#include <sys/types.h>

#include <string>

namespace kvcake {

inline constexpr mode_t kOthers = 077;  // the group, and everybody
inline constexpr mode_t kEverybody = 07;

// What is wrong with a file of that mode, and the remedy, to follow its name in a message; empty
// where none of `forbidden` may use it.
std::string ModeFault(mode_t mode, const std::string& path, mode_t forbidden = kOthers);
// Looks at the file's mode; empty, too, where there is no such file.
std::string ModeFault(const std::string& path, mode_t forbidden = kOthers);

}  // namespace kvcake
