#include "comm/local_comms_testing.h"

#include <fmt/core.h>
#include <unistd.h>

#include <future>
#include <utility>

#include "base/check.h"
#include "comm/certificates_testing.h"
#include "comm/local_join.h"
#include "comm/memory_comm.h"
#include "comm/tcp_comm.h"

namespace kvcake::testing_util {

namespace {

Comms NewComms(int size, TcpCommOptions options) {
  std::vector<TcpListener> listeners;
  for (int rank = 0; rank < size; ++rank) {
    auto listener = TcpListener::Open("127.0.0.1:0");
    CHECK(listener.has_value());
    options.addresses.push_back(fmt::format("127.0.0.1:{}", listener->port()));
    listeners.push_back(std::move(*listener));
  }
  std::vector<std::future<Result<std::unique_ptr<Comm>>>> connecting;
  for (int rank = 0; rank < size; ++rank) {
    options.rank = rank;
    connecting.push_back(std::async(std::launch::async, [&listener = listeners[rank], options] {
      return ConnectTcp(listener, options);
    }));
  }
  Comms comms;
  for (auto& one : connecting) {
    auto comm = one.get();
    CHECK(comm.has_value());
    comms.push_back(std::move(*comm));
  }
  return comms;
}

}  // namespace

Comms NewLocalTcpComms(int size, uint64_t aside_bytes_max) {
  return NewComms(size, {.addresses = {}, .aside_bytes_max = aside_bytes_max});
}

Comms NewLocalTlsComms(int size) {
  static const Authority authority;
  return NewComms(size, {.addresses = {}, .tls = IssueLoaded(authority, "rank")});
}

Comms NewSocketPairComms(int size) {
  std::vector<int> leaders, workers;
  for (int rank = 0; rank + 1 < size; ++rank) {
    const auto ends = NewControlSockets();
    CHECK(ends.has_value());
    leaders.push_back(ends->leader);
    workers.push_back(ends->worker);
  }
  auto leader = GatherLocalWorkers(leaders);
  CHECK(leader.has_value());
  Comms comms;
  for (const int worker : workers) {
    auto comm = AwaitLocalLeader(worker, {});
    CHECK(comm.has_value());
    comms.push_back(std::move(*comm));
  }
  comms.push_back(std::move(*leader));
  for (const int fd : leaders) close(fd);
  for (const int fd : workers) close(fd);
  return comms;
}

Comms NewLocalComms(bool tcp, int size, uint64_t aside_bytes_max) {
  return tcp ? NewLocalTcpComms(size, aside_bytes_max) : NewMemoryComms(size);
}

}  // namespace kvcake::testing_util
