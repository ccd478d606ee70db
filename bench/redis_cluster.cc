#include "bench/redis_cluster.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "io/file_system.h"

namespace kvcake::bench {
namespace {

constexpr std::string_view kRedisPackage = "redis-server", kRedisReady = "Ready to accept";
constexpr uint64_t kRedisLogMax = 1 << 20;
constexpr int kRedisStarts = 20;  // on other ports, if some are taken after all
constexpr int kSlots = 16384;
constexpr std::chrono::seconds kAgreeMax{30};
constexpr std::chrono::milliseconds kRedisPause{20};

}  // namespace

Result<std::unique_ptr<RedisCluster>> RedisCluster::Start(int masters, const std::string& dir) {
  ASSIGN_OR_RETURN(std::string server, FindProgram("redis-server", kRedisPackage));
  ASSIGN_OR_RETURN(std::string cli, FindProgram("redis-cli", kRedisPackage));
  std::unique_ptr<RedisCluster> cluster(new RedisCluster(std::move(server), std::move(cli), dir));
  for (int i = 0; i < masters; ++i) RETURN_IF_ERROR(cluster->StartNode());
  RETURN_IF_ERROR(cluster->Join());
  return cluster;
}

std::string RedisCluster::Url(const std::string& prefix) const {
  std::string url = "redis+cluster://";
  for (const Node& node : nodes_) url += fmt::format("127.0.0.1:{},", node.port);
  url.back() = '?';
  return url + "prefix=" + prefix;
}

Status RedisCluster::StartNode() {
  const std::string dir = fmt::format("{}/redis-{}", dir_, nodes_.size());
  std::error_code ignored;
  std::filesystem::create_directories(dir, ignored);
  Node node;
  for (int i = 0; i < kRedisStarts; ++i) {
    ASSIGN_OR_RETURN(const bool started, TryStart(&node, dir));
    if (!started) continue;
    nodes_.push_back(std::move(node));
    return {};
  }
  ASSIGN_OR_RETURN(const std::string log, ReadText(FileSystem::Real(), dir + "/log", kRedisLogMax));
  return Fail(ErrorCode::kIo, "{} does not start: {}", server_, log);
}

Result<bool> RedisCluster::TryStart(Node* node, const std::string& dir) const {
  ASSIGN_OR_RETURN(HeldPort port, HeldPort::Hold());
  ASSIGN_OR_RETURN(HeldPort bus_port, HeldPort::Hold());
  node->port = port.port();
  node->bus_port = bus_port.port();
  const std::string log = dir + "/log";
  port.Release();
  bus_port.Release();
  ASSIGN_OR_RETURN(node->process,
                   ChildProcess::Start(
                       {server_, "--bind", "127.0.0.1", "--port", std::to_string(node->port),
                        "--save", "", "--appendonly", "no", "--dir", dir, "--cluster-enabled",
                        "yes", "--cluster-port", std::to_string(node->bus_port),
                        "--cluster-node-timeout", "10000", "--cluster-require-full-coverage", "no"},
                       log));
  for (;;) {
    const bool ended = node->process.Ended();
    ASSIGN_OR_RETURN(const std::string text, ReadText(FileSystem::Real(), log, kRedisLogMax));
    if (text.find(kRedisReady) != std::string::npos) return true;
    if (ended) return false;
    std::this_thread::sleep_for(kRedisPause);
  }
}

Status RedisCluster::Join() {
  const int masters = static_cast<int>(nodes_.size());
  for (int i = 0; i < masters; ++i) {
    const int first = i * kSlots / masters, last = (i + 1) * kSlots / masters - 1;
    RETURN_IF_ERROR(
        Tell(nodes_[i], {"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)}));
    RETURN_IF_ERROR(Tell(nodes_[0], {"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[i].port),
                                     std::to_string(nodes_[i].bus_port)}));
  }
  const auto deadline = std::chrono::steady_clock::now() + kAgreeMax;
  const std::string known = fmt::format("cluster_known_nodes:{}", masters);
  for (const Node& node : nodes_) {
    for (;;) {
      ASSIGN_OR_RETURN(const std::string info, Ask(node, {"CLUSTER", "INFO"}));
      // All slots count, too: a cluster that need not have them calls itself ok before.
      if (info.find("cluster_state:ok") != std::string::npos &&
          info.find(fmt::format("cluster_slots_ok:{}", kSlots)) != std::string::npos &&
          info.find(known) != std::string::npos) {
        break;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        return Fail(ErrorCode::kDeadline, "the Redis cluster does not form: {}", info);
      }
      std::this_thread::sleep_for(kRedisPause);
    }
  }
  return {};
}

Result<std::string> RedisCluster::Ask(const Node& node,
                                      const std::vector<std::string>& command) const {
  std::vector<std::string> words = {cli_, "-p", std::to_string(node.port)};
  words.insert(words.end(), command.begin(), command.end());
  const std::string log = dir_ + "/redis-cli";
  ASSIGN_OR_RETURN(ChildProcess cli, ChildProcess::Start(std::move(words), log));
  const int exit_code = cli.Wait();
  ASSIGN_OR_RETURN(std::string said, ReadText(FileSystem::Real(), log, kRedisLogMax));
  said.erase(said.find_last_not_of(" \r\n") + 1);
  if (exit_code == 0) return said;
  return Fail(ErrorCode::kIo, "{} fails to ask Redis {}, exit code {}: {}", cli_,
              fmt::join(command, " "), exit_code, said);
}

Status RedisCluster::Tell(const Node& node, const std::vector<std::string>& command) const {
  ASSIGN_OR_RETURN(const std::string said, Ask(node, command));
  if (said == "OK") return {};  // redis-cli exits with 0 after an error, too
  return Fail(ErrorCode::kIo, "Redis answers {} with: {}", fmt::join(command, " "), said);
}

}  // namespace kvcake::bench
