// A log that keeps nobody waiting.
#pragma once

#include <spdlog/formatter.h>
#include <spdlog/sinks/sink.h>

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcake {

// Writes to stderr. While its reader stands still lines are lost, and counted in a line that comes
// when it reads again; where it has gone, and SIGPIPE is ignored, all are.
class LogSink : public spdlog::sinks::sink {
 public:
  LogSink();
  ~LogSink() override;

  void log(const spdlog::details::log_msg& message) override;
  void flush() override {}
  void set_pattern(const std::string& pattern) override;
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override;

 private:
  std::string Line(const spdlog::details::log_msg& message) REQUIRES(mutex_);
  // False: it was not taken, or not to its end.
  bool Write(const std::string& line) REQUIRES(mutex_);
  bool HasRoom() REQUIRES(mutex_);

  const int fd_;
  const bool colors_;
  Mutex mutex_;
  std::unique_ptr<spdlog::formatter> formatter_ GUARDED_BY(mutex_);
  std::optional<TimePoint> lost_at_ GUARDED_BY(mutex_);  // the last line
  int lost_ GUARDED_BY(mutex_) = 0;                      // that were not told of
  bool torn_ GUARDED_BY(mutex_) = false;  // the last line that was written lacks its end
};

}  // namespace kvcake
