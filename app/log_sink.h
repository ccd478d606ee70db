// A log that keeps nobody waiting.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace kvcake {

// Writes to stderr. Where who reads that stands still, lines are lost, and counted in a line that
// follows when there is one again; where it has gone, and SIGPIPE is ignored, all are.
class LogSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  LogSink();
  ~LogSink() override;

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}

 private:
  std::string Line(const spdlog::details::log_msg& message);
  // False: it was not taken, or not to its end.
  bool Write(const std::string& line);
  bool HasRoom();

  const int fd_;
  const bool colors_;
  std::optional<TimePoint> lost_at_;  // the last line
  int lost_ = 0;                      // that were not told of
  bool torn_ = false;                 // the last line that was written lacks its end
};

}  // namespace kvcake
