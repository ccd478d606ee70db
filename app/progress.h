// A bar on stderr, when that is a terminal. Leaves nothing behind.
#pragma once

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace kvcake {

class ProgressLine {
 public:
  ~ProgressLine() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
  }
  // `done` of `total`, and a word on them.
  void Draw(double done, double total, const std::string& text) {
    constexpr int kWidth = 50;
    if (!terminal_) return;
    const int filled = total > 0 ? static_cast<int>(kWidth * std::min(done / total, 1.0)) : kWidth;
    const std::string line = fmt::format("\r[{}{}] {}\x1b[K", std::string(filled, '#'),
                                         std::string(kWidth - filled, '.'), text);
    if (line == last_) return;
    fmt::print(stderr, "{}", line);
    last_ = line;
    drawn_ = true;
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  bool drawn_ = false;
  std::string last_;
};

}  // namespace kvcake
