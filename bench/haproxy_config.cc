#include "bench/haproxy_config.h"

#include <fmt/core.h>

#include <algorithm>

namespace kvcake::bench {
namespace {

// A line of the log: the server, how the session ended ("--" is as it should), and the status.
constexpr std::string_view kRequest = "request ";

// Waits and tries are those of deploy/haproxy.cfg; checks come oftener, as a bench is short, and a
// configuration of a thread is enough for it. A request that no answer has begun for is tried once
// more elsewhere.
constexpr const char* kConfig = R"(global
  log stdout format raw local0
  maxconn 4096
  nbthread 1

defaults
  mode http
  log global
  log-format "request %s %ts %ST"
  timeout connect 5s
  timeout check 3s
  timeout client 65m
  timeout server 65m
  timeout http-request 75s
  option http-no-delay
  option abortonclose
  retries 1
  option redispatch 1
  retry-on conn-failure empty-response 503
  option httpchk
  http-check send meth GET uri /ready ver HTTP/1.1 hdr Host localhost
  http-check expect status 200
  default-server check inter 200ms fall 3 rise 1

frontend clients
  bind 127.0.0.1:{}
  option http-buffer-request
  default_backend servers

backend servers
)";
constexpr const char* kRoundRobin = "  balance roundrobin\n";
constexpr const char* kPrefix = R"(  balance hash req.body,bytes(0,1024)
  hash-type consistent
  hash-balance-factor 200
)";

// The next word of a line, which it is removed from.
std::string_view TakeWord(std::string_view* line) {
  const size_t end = std::min(line->find(' '), line->size());
  const std::string_view word = line->substr(0, end);
  line->remove_prefix(std::min(end + 1, line->size()));
  return word;
}

}  // namespace

std::string_view BalanceName(Balance balance) {
  return balance == Balance::kPrefix ? "prefix" : "roundrobin";
}

std::string BalancedServerName(int server) { return fmt::format("s{}", server); }

std::string HaproxyConfig(Balance balance, uint16_t port, std::span<const uint16_t> servers) {
  std::string config = fmt::format(fmt::runtime(kConfig), port);
  config += balance == Balance::kPrefix ? kPrefix : kRoundRobin;
  for (size_t i = 0; i < servers.size(); ++i) {
    config += fmt::format("  server {} 127.0.0.1:{}\n", BalancedServerName(static_cast<int>(i)),
                          servers[i]);
  }
  return config;
}

std::map<std::string, BalancedRequests> CountBalanced(std::string_view log) {
  std::map<std::string, BalancedRequests> counts;
  while (!log.empty()) {
    std::string_view line = log.substr(0, log.find('\n'));
    log.remove_prefix(std::min(line.size() + 1, log.size()));
    if (!line.starts_with(kRequest)) continue;
    line.remove_prefix(kRequest.size());
    BalancedRequests& count = counts[std::string(TakeWord(&line))];
    ++count.all;
    const std::string_view end = TakeWord(&line);
    // "SC" is a server that could not be connected with.
    if (end.starts_with('S') && !end.starts_with("SC")) ++count.cut;
  }
  return counts;
}

std::string_view LastState(std::string_view log, std::string_view server) {
  const std::string of = fmt::format("Server servers/{} is ", server);
  const size_t last = log.rfind(of);
  if (last == std::string_view::npos) return {};
  log.remove_prefix(last + of.size());
  return log.substr(0, log.find_first_of(", \n"));
}

}  // namespace kvcake::bench
