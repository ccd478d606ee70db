#include "lib/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "base/mutex.h"

namespace kvcake {
namespace {

class LibrarySink : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    MutexLock lock(mutex_);
    if (function_ == nullptr) return to_stderr_.log(message);
    const std::string text(message.payload.data(), message.payload.size());
    function_(context_, static_cast<int>(message.level), text.c_str());
  }
  void flush() override { to_stderr_.flush(); }
  void set_pattern(const std::string& pattern) override { to_stderr_.set_pattern(pattern); }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    to_stderr_.set_formatter(std::move(formatter));
  }
  void Set(kvcake_log_function function, void* context) {
    MutexLock lock(mutex_);
    function_ = function;
    context_ = context;
  }

 private:
  spdlog::sinks::stderr_color_sink_mt to_stderr_;
  Mutex mutex_;
  kvcake_log_function function_ GUARDED_BY(mutex_) = nullptr;
  void* context_ GUARDED_BY(mutex_) = nullptr;
};

// Never destroyed, as threads may log as the process ends.
const std::shared_ptr<LibrarySink>& Sink() {
  static const auto* const sink = new std::shared_ptr(std::make_shared<LibrarySink>());
  return *sink;
}

// Not by std::call_once, after whose exception ThreadSanitizer waits for ever.
void Install() {
  [[maybe_unused]] static const bool installed = [] {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("kvcake", Sink()));
    return true;
  }();
}

}  // namespace

void InstallLog() {
  if (spdlog::default_logger()->name().empty()) Install();
}

void SetLog(kvcake_log_function function, void* context) {
  if (function != nullptr) Install();
  Sink()->Set(function, context);
}

}  // namespace kvcake
