#include "server/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace kvcake {
namespace {

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<uint64_t> Number(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

ServiceManager::Options ServiceManager::FromEnvironment() {
  Options options{.socket = Environment("NOTIFY_SOCKET")};
  const std::string pid = Environment("WATCHDOG_PID");
  const auto micros = Number(Environment("WATCHDOG_USEC"));
  const bool ours = pid.empty() || Number(pid) == static_cast<uint64_t>(getpid());
  if (micros && *micros > 0 && ours) options.watchdog = Seconds(static_cast<double>(*micros) / 1e6);
  return options;
}

ServiceManager::~ServiceManager() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

Status ServiceManager::Send(std::string_view state, int flags) const {
  const std::string& name = options_.socket;
  if (name.empty()) return {};
  const auto fail = [&](const char* what) {
    return Fail(ErrorCode::kIo, "cannot {} NOTIFY_SOCKET {}: {}", what, name, std::strerror(errno));
  };
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (name.size() >= sizeof(address.sun_path)) {
    return Fail(ErrorCode::kInvalidArgument, "NOTIFY_SOCKET {} is too long", name);
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return fail("make a socket for");
  const ssize_t sent = ::sendto(socket, state.data(), state.size(), flags | MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address), size);
  const Status status = sent < 0 ? fail("write to") : Status();
  ::close(socket);
  return status;
}

Status ServiceManager::NotifyAtOnce(std::string_view state) const {
  return Send(state, MSG_DONTWAIT);
}

void ServiceManager::Watch(std::function<bool()> healthy) {
  if (!options_.watchdog || options_.socket.empty()) return;
  thread_ = std::thread([this, healthy = std::move(healthy)] { Run(healthy); });
}

// Twice as often as is asked for, as the manual recommends.
void ServiceManager::Run(const std::function<bool()>& healthy) {
  MutexLock lock(mutex_);
  while (!stop_) {
    lock.Unlock();
    if (healthy()) (void)Send("WATCHDOG=1", MSG_DONTWAIT);  // the next one may get through
    lock.Lock();
    const TimePoint next = Clock::Real().Now() + *options_.watchdog / 2;
    while (!stop_ && changed_.WaitUntil(mutex_, next)) {
    }
  }
}

}  // namespace kvcake
