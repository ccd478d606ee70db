// What systemd is told of the process, where it asks to be (Type=notify, WatchdogSec): the protocol
// of sd_notify(3), which is a datagram, without its library.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace kvcake {

class ServiceManager {
 public:
  struct Options {
    std::string socket = {};               // a path, or @ and an abstract name; empty: nobody asks
    std::optional<Seconds> watchdog = {};  // a sign of life is wanted within each such time
  };
  // As $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID say.
  static Options FromEnvironment();

  explicit ServiceManager(Options options) : options_(std::move(options)) {}
  // Ends the signs of life.
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Any thread. "READY=1", "STOPPING=1", "STATUS=..."; done when nobody asks.
  Status Notify(std::string_view state) const { return Send(state, 0); }
  // The same without waiting for a manager that is busy: an error then, and it is not told.
  Status NotifyAtOnce(std::string_view state) const;
  // Gives signs of life, from a thread of its own, as long as `healthy` says so. Once.
  void Watch(std::function<bool()> healthy);

 private:
  Status Send(std::string_view state, int flags) const;
  void Run(const std::function<bool()>& healthy) EXCLUDES(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvcake
