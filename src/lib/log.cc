#include "lib/log.h"

#include <pthread.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

#include "base/mutex.h"

namespace kvcake {
namespace {

// Has no lock but its own, which a child of fork can do without.
class LibrarySink : public spdlog::sinks::sink {
 public:
  void log(const spdlog::details::log_msg& message) override {
    MutexLock lock(mutex_);
    if (function_ == nullptr) return to_stderr_.log(message);
    const std::string text(message.payload.data(), message.payload.size());
    function_(context_, static_cast<int>(message.level), text.c_str());
  }
  void flush() override {
    MutexLock lock(mutex_);
    to_stderr_.flush();
  }
  void set_pattern(const std::string& pattern) override {
    MutexLock lock(mutex_);
    to_stderr_.set_pattern(pattern);
  }
  void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
    MutexLock lock(mutex_);
    to_stderr_.set_formatter(std::move(formatter));
  }
  void Set(kvcake_log_function function, void* context) {
    MutexLock lock(mutex_);
    function_ = function;
    context_ = context;
  }
  // For a process's only thread, as that of `parents`: whoever else had its lock is not there to
  // give it back. It stays as it is.
  void TakeOver(std::shared_ptr<LibrarySink> parents) {
    parents->mutex_.AssertHeld();
    Set(parents->function_, parents->context_);
    parents_ = std::move(parents);
  }

 private:
  Mutex mutex_;
  spdlog::sinks::stderr_color_sink_st to_stderr_ GUARDED_BY(mutex_);
  kvcake_log_function function_ GUARDED_BY(mutex_) = nullptr;
  void* context_ GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<LibrarySink> parents_;
};

// Never destroyed, as threads may log as the process ends.
spdlog::logger* logger = nullptr;

std::shared_ptr<LibrarySink>& Sink() {
  static auto* const sink = new std::shared_ptr(std::make_shared<LibrarySink>());
  return *sink;
}

// In a child's only thread.
void AfterFork() {
  auto renewed = std::make_shared<LibrarySink>();
  renewed->TakeOver(Sink());
  Sink() = std::move(renewed);
  logger->sinks() = {Sink()};
}

// Not by std::call_once, after whose exception ThreadSanitizer waits for ever.
void Install() {
  [[maybe_unused]] static const bool installed = [] {
    auto ours = std::make_shared<spdlog::logger>("kvcake", Sink());
    static const auto* const kept = new std::shared_ptr(ours);
    logger = kept->get();
    spdlog::set_default_logger(std::move(ours));
    pthread_atfork(nullptr, nullptr, AfterFork);
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
