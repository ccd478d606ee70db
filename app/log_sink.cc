#include "app/log_sink.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <utility>

namespace kvcake {
namespace {

// A reader gets some time to come around; one that did not, none for a while: who logs may serve
// everybody.
constexpr int kPatienceMs = 100;
constexpr Seconds kPause{10};

std::string_view ColorOf(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "\033[31m\033[1m";
  if (level == spdlog::level::warn) return "\033[33m\033[1m";
  return level == spdlog::level::info ? "\033[32m" : "\033[36m";
}

// stderr opened anew, where writing to it could wait: others have it too, and may want to. A
// terminal that says it has room may have less than a line needs, and so may a pipe of several
// writers.
int OpenUnwaiting() {
  struct stat stream;
  const bool waits = fstat(STDERR_FILENO, &stream) == 0 &&
                     (S_ISFIFO(stream.st_mode) || isatty(STDERR_FILENO) != 0);
  const int fd = waits ? open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
  return fd >= 0 ? fd : STDERR_FILENO;
}

}  // namespace

LogSink::LogSink()
    : fd_(OpenUnwaiting()),
      colors_(spdlog::details::os::in_terminal(stderr) && spdlog::details::os::is_color_terminal()),
      formatter_(std::make_unique<spdlog::pattern_formatter>()) {}

LogSink::~LogSink() {
  if (fd_ != STDERR_FILENO) close(fd_);
}

void LogSink::set_pattern(const std::string& pattern) {
  set_formatter(std::make_unique<spdlog::pattern_formatter>(pattern));
}

void LogSink::set_formatter(std::unique_ptr<spdlog::formatter> formatter) {
  MutexLock lock(mutex_);
  formatter_ = std::move(formatter);
}

void LogSink::log(const spdlog::details::log_msg& message) {
  MutexLock lock(mutex_);
  if (lost_ > 0) {
    const std::string text =
        fmt::format("lines of the log are lost, as nobody took them: {}", lost_);
    if (Write(Line({message.time, {}, message.logger_name, spdlog::level::warn, text}))) lost_ = 0;
  }
  if (lost_ > 0 || !Write(Line(message))) {
    ++lost_;
    lost_at_ = Clock::Real().Now();
  }
}

std::string LogSink::Line(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t buffer;
  formatter_->format(message, buffer);
  std::string line(buffer.data(), buffer.size());
  const size_t begin = message.color_range_start, end = message.color_range_end;
  if (colors_ && begin < end) {
    line.insert(end, "\033[0m").insert(begin, ColorOf(message.level));
  }
  return line;
}

bool LogSink::Write(const std::string& line) {
  std::string_view left = line;
  if (torn_ && HasRoom()) torn_ = write(fd_, "\n", 1) != 1;
  if (torn_) return false;
  // What a pipe that is writable takes without waiting.
  while (!left.empty() && HasRoom()) {
    const ssize_t written = write(fd_, left.data(), std::min<size_t>(left.size(), PIPE_BUF));
    if (written < 0 && errno != EINTR) break;
    left.remove_prefix(std::max<ssize_t>(written, 0));
  }
  torn_ = !left.empty() && left.size() < line.size();
  return left.empty();
}

bool LogSink::HasRoom() {
  const bool patient = !lost_at_ || Clock::Real().Now() - *lost_at_ > kPause;
  pollfd stream{.fd = fd_, .events = POLLOUT, .revents = 0};
  int ready;
  do {
    ready = poll(&stream, 1, patient ? kPatienceMs : 0);
  } while (ready < 0 && errno == EINTR);
  return ready == 1 && stream.revents == POLLOUT;
}

}  // namespace kvcake
