// When a leader looks names up, and how often: a name server may be slow, or change its mind.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "comm/tcp_join_testing.h"

namespace {

// Knows the names that end in ".test"; other lookups are the system's.
std::function<std::string(std::string_view)>& NameServer() {
  static std::function<std::string(std::string_view)> server;
  return server;
}

}  // namespace

// In the place of the C library's.
extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Lookup = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto system = reinterpret_cast<Lookup>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool ours = node != nullptr && std::string_view(node).ends_with(".test");
  return system(ours ? NameServer()(node).c_str() : node, service, hints, found);
}

namespace kvcake {
namespace {

using namespace testing_util;

// The patience of one that waits for a caller's first word does not have to outlast lookups.
TEST(TcpLookupTest, NobodyIsCalledBeforeAllAreFound) {
  const TcpListener first = ListenLocally(), second = ListenLocally();
  std::atomic<int> lookups = 0;
  NameServer() = [&](std::string_view) {
    ++lookups;
    for (const TcpListener* listener : {&first, &second}) {
      pollfd called = {.fd = listener->fd(), .events = POLLIN, .revents = 0};
      EXPECT_EQ(poll(&called, 1, 0), 0) << "before lookup " << lookups << " has ended";
    }
    return "127.0.0.1";
  };
  const std::vector<std::string> workers = {fmt::format("first.test:{}", first.port()),
                                            fmt::format("second.test:{}", second.port())};
  EXPECT_FALSE(GatherWorkers(workers, {}, {.patience = Seconds(0.01)}));
  EXPECT_EQ(lookups, 2);
}

TEST(TcpLookupTest, ALeaderConnectsWithWhomItHasGathered) {
  JoinOptions options = kPatient;
  options.key = *ClusterKey::Of("a secret of this cluster's", "test");
  options.connect = Seconds(10);
  Waiting worker(options);
  int lookups = 0;
  NameServer() = [&](std::string_view) { return ++lookups == 1 ? "127.0.0.1" : "192.0.2.1"; };
  const auto leader =
      GatherWorkers(std::vector{fmt::format("moves.test:{}", worker.port())}, {}, options);
  ASSERT_TRUE(leader) << leader.error().message;
  EXPECT_TRUE(worker.Joined());
  EXPECT_EQ(lookups, 1);
}

// A name server that takes 5 s does so once, however many ranks there are.
TEST(TcpLookupTest, NamesAreLookedUpSideBySide) {
  Mutex mutex;
  CondVar begun;
  int lookups = 0;
  NameServer() = [&](std::string_view) {
    MutexLock lock(mutex);
    ++lookups;
    begun.NotifyAll();
    const TimePoint deadline = Clock::Real().Now() + Seconds(10);
    while (lookups < 2 && begun.WaitUntil(mutex, deadline)) {
    }
    EXPECT_EQ(lookups, 2) << "the other one waits for this";
    return "127.0.0.1";
  };
  const std::vector<std::string> names = {"first.test:9", "second.test:9"};
  EXPECT_FALSE(GatherWorkers(names, {}, {.patience = Seconds(0.01)}));
  lookups = 0;
  const TcpListener last = ListenLocally();
  EXPECT_FALSE(ConnectTcp(
      last, {.rank = 2, .addresses = {names[0], names[1], "this one"}, .timeout = Seconds(0.01)}));
}

}  // namespace
}  // namespace kvcake
