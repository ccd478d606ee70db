// What is logged while a test looks.
#pragma once

#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvcake::testing_util {

// Made before the threads that log, and gone after them. Lines are messages alone, the last
// thousand of them. Any thread.
class CapturedLog {
 public:
  CapturedLog() {
    const auto logger = std::make_shared<spdlog::logger>("test", sink_);
    logger->set_pattern("%v");
    spdlog::set_default_logger(logger);
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::vector<std::string> Lines() const { return sink_->last_formatted(); }
  std::string str() const {
    std::string text;
    for (const std::string& line : Lines()) text += line;
    return text;
  }
  // How many lines have the text in them.
  ptrdiff_t Count(std::string_view text) const {
    return std::ranges::count_if(
        Lines(), [&](const std::string& line) { return line.find(text) != line.npos; });
  }

 private:
  static constexpr size_t kLinesMax = 1000;
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> sink_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(kLinesMax);
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

}  // namespace kvcake::testing_util
