#include "bench/haproxy.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "bench/harness.h"
#include "bench/serve_client.h"
#include "io/file_system.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kHaproxyLogMax = 64 << 20;
constexpr int kHaproxyStarts = 20;  // on other ports, if some are taken after all
constexpr std::chrono::milliseconds kHaproxyPause{20};
constexpr std::chrono::seconds kCheckMax{30};

}  // namespace

Result<std::unique_ptr<Haproxy>> Haproxy::Start(Balance balance, std::span<const uint16_t> servers,
                                                const std::string& dir) {
  ASSIGN_OR_RETURN(const std::string program, FindProgram("haproxy", "haproxy"));
  const std::string config = dir + "/haproxy.cfg", log = dir + "/haproxy.log";
  for (int i = 0; i < kHaproxyStarts; ++i) {
    ASSIGN_OR_RETURN(HeldPort held, HeldPort::Hold());
    const uint16_t port = held.port();
    RETURN_IF_ERROR(WriteFile(config, HaproxyConfig(balance, port, servers)));
    held.Release();
    ASSIGN_OR_RETURN(ChildProcess process,
                     ChildProcess::Start({program, "-db", "-f", config}, log));
    while (!process.Ended()) {
      // Whoever took the port first would answer, too, while HAProxy ends for want of it.
      if (HttpClient().Connect(port) && !process.Ended()) {
        return std::unique_ptr<Haproxy>(new Haproxy(std::move(process), port, log));
      }
      std::this_thread::sleep_for(kHaproxyPause);
    }
  }
  ASSIGN_OR_RETURN(const std::string said, ReadText(FileSystem::Real(), log, kHaproxyLogMax));
  return Fail(ErrorCode::kIo, "{} does not start: {}", program, said);
}

Result<std::string> Haproxy::Log() const {
  return ReadText(FileSystem::Real(), log_, kHaproxyLogMax);
}

Status Haproxy::WaitFor(int server, bool there) const {
  const auto deadline = std::chrono::steady_clock::now() + kCheckMax;
  for (;;) {
    ASSIGN_OR_RETURN(const std::string log, Log());
    if (LastState(log, BalancedServerName(server)) == (there ? "UP" : "DOWN")) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      return Fail(ErrorCode::kDeadline, "HAProxy does not find server {} {}: {}", server,
                  there ? "ready" : "gone", log);
    }
    std::this_thread::sleep_for(kHaproxyPause);
  }
}

}  // namespace kvcake::bench
