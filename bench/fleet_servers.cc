#include "bench/fleet_servers.h"

#include <fmt/core.h>

#include <chrono>
#include <thread>

#include "bench/metrics_text.h"
#include "bench/serve_client.h"

namespace kvcake::bench {
namespace {

constexpr std::chrono::seconds kIdleMax{30};
constexpr std::chrono::milliseconds kIdlePause{20};

}  // namespace

ServerCounts& ServerCounts::operator+=(const ServerCounts& other) {
  requests += other.requests;
  prompt_tokens += other.prompt_tokens;
  cached_tokens += other.cached_tokens;
  chunks_computed += other.chunks_computed;
  chunks_loaded += other.chunks_loaded;
  written_twice += other.written_twice;
  running += other.running;
  writes += other.writes;
  return *this;
}

ServerCounts CountsIn(std::string_view metrics) {
  return {.requests = MetricSum(metrics, "vllm:request_success_total"),
          .prompt_tokens = MetricSum(metrics, "vllm:prompt_tokens_total"),
          .cached_tokens = MetricSum(metrics, "vllm:prefix_cache_hits_total"),
          .chunks_computed = MetricSum(metrics, "kvcake_chunks_computed_total"),
          .chunks_loaded = MetricSum(metrics, "kvcake_chunks_loaded_total"),
          .written_twice = MetricSum(metrics, "kvcake_tier_computed_twice_total"),
          .running = MetricSum(metrics, "vllm:num_requests_running"),
          .writes = MetricSum(metrics, "kvcake_writes_in_flight")};
}

Result<std::unique_ptr<FleetServers>> FleetServers::Start(FleetServersOptions options) {
  std::unique_ptr<FleetServers> fleet(new FleetServers(std::move(options)));
  const FleetServersOptions& of = fleet->options_;
  std::vector<uint16_t> ports;
  for (int i = 0; i < of.servers; ++i) {
    ASSIGN_OR_RETURN(auto server, fleet->StartServer(i, 0));
    ports.push_back(server->port());
    fleet->servers_.push_back(std::move(server));
  }
  if (of.spare) {
    ASSIGN_OR_RETURN(fleet->spare_port_, HeldPort::Hold());
    ports.push_back(fleet->spare_port_.port());
    fleet->servers_.push_back(nullptr);
  }
  ASSIGN_OR_RETURN(fleet->balancer_, Haproxy::Start(of.balance, ports, of.dir));
  // The balancer believes in a server until checks have failed.
  if (of.spare) RETURN_IF_ERROR(fleet->balancer_->WaitFor(of.servers, false));
  return fleet;
}

Result<std::unique_ptr<ServeChild>> FleetServers::StartServer(int server, uint16_t port) const {
  return ServeChild::Start(options_.program.empty() ? "/proc/self/exe" : options_.program,
                           options_.flags, fmt::format("{}/server-{}.log", options_.dir, server),
                           port);
}

std::string FleetServers::url() const {
  return fmt::format("http://127.0.0.1:{}", balancer_->port());
}

Status FleetServers::Join() {
  const int last = size() - 1;
  spare_port_.Release();
  ASSIGN_OR_RETURN(servers_[last], StartServer(last, spare_port_.port()));
  return balancer_->WaitFor(last, true);
}

Result<ServerCounts> FleetServers::Counts(int server) const {
  HttpClient client;
  RETURN_IF_ERROR(client.Connect(servers_[server]->port()));
  ASSIGN_OR_RETURN(const std::string text, client.Ask("GET", "/metrics"));
  return CountsIn(text);
}

Result<ServerCounts> FleetServers::Counts() const {
  ServerCounts sum;
  for (int i = 0; i < size(); ++i) {
    if (!IsThere(i)) continue;
    ASSIGN_OR_RETURN(const ServerCounts counts, Counts(i));
    sum += counts;
  }
  return sum;
}

Status FleetServers::WaitUntilIdle() const {
  const auto deadline = std::chrono::steady_clock::now() + kIdleMax;
  for (;;) {
    ASSIGN_OR_RETURN(const ServerCounts counts, Counts());
    if (counts.running == 0 && counts.writes == 0) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      return Fail(ErrorCode::kDeadline, "{} requests still run and {} chunks are not written",
                  counts.running, counts.writes);
    }
    std::this_thread::sleep_for(kIdlePause);
  }
}

}  // namespace kvcake::bench
