// What HAProxy is told by a bench, and what it tells.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace kvcake::bench {

// Which server gets a request: the next one, or the one that the body's first KiB decides, where a
// prompt's beginning is. Both are lines of deploy/haproxy.cfg.
enum class Balance { kRoundRobin, kPrefix };
std::string_view BalanceName(Balance balance);  // "roundrobin", "prefix"

// Its name in the configuration and in the log: "s0", ...
std::string BalancedServerName(int server);

// Listens at `port` of 127.0.0.1, for servers at these ports of the same machine.
std::string HaproxyConfig(Balance balance, uint16_t port, std::span<const uint16_t> servers);

// What the log says of the requests that a server had.
struct BalancedRequests {
  int all = 0;
  int cut = 0;  // requests that the server had and did not answer to the end
};
// By the servers' names, from a log of HaproxyConfig's. Requests that were tried at another server
// count at the last one.
std::map<std::string, BalancedRequests> CountBalanced(std::string_view log);

// What the log said of a server last: "UP" or "DOWN"; nothing where checks have changed nothing.
std::string_view LastState(std::string_view log, std::string_view server);

}  // namespace kvcake::bench
