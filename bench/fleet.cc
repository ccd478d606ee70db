#include "bench/fleet.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/cpu.h"
#include "base/descriptors.h"
#include "bench/fleet_report.h"
#include "bench/fleet_servers.h"
#include "bench/fleet_workload.h"
#include "bench/harness.h"
#include "bench/policy_lab.h"
#include "bench/redis_cluster.h"
#include "bench/scratch_dir.h"
#include "bench/traffic.h"
#include "bench/traffic_report.h"
#include "model/emulated.h"

namespace kvcake::bench {
namespace {

constexpr int kMasters = 3;
constexpr int kFleetChunk = 128;
constexpr int kMoreQuestions = 4;  // about each document, while a server is killed
constexpr int kSparePageCount = 256;
constexpr double kKillAfter = 0.25;  // this share of the requests is answered
constexpr int kRetries = 3;          // how often a lost request is asked again

// An arrangement of servers.
struct Arrangement {
  int servers = 1;
  bool shared = false;
  Balance balance = Balance::kRoundRobin;
};

class FleetBench {
 public:
  explicit FleetBench(const FleetOptions& options) : options_(options) {}

  Status Run() {
    RETURN_IF_ERROR(Prepare());
    fmt::print("{}; {}: {} documents of {} tokens, {} questions each, {} requests at once, {}\n",
               CpuName(), options_.profile, options_.documents, options_.document_tokens,
               options_.questions, options_.concurrency,
               options_.load_rate.empty() ? "a store as fast as it is here"
                                          : "a link of " + options_.load_rate + " to the store");
    fmt::print("{}", FleetHeader());
    RETURN_IF_ERROR(Measure({.servers = 1, .shared = cluster_ != nullptr}).map(Drop));
    for (const bool shared : {false, true}) {
      if (shared && cluster_ == nullptr) continue;
      for (const Balance balance : {Balance::kRoundRobin, Balance::kPrefix}) {
        ASSIGN_OR_RETURN(const auto fleet, Measure({options_.servers, shared, balance}));
        if (!shared) continue;
        // Either part needs the documents in the store, and each its own balance: a fleet that
        // sends a document anywhere gives the new server something of all of them, and one that
        // sends it to one place has it in no other server's memory.
        RETURN_IF_ERROR(balance == Balance::kRoundRobin ? Join(*fleet) : Kill(*fleet));
      }
    }
    fmt::print("{}", FleetGoals(rows_));
    if (!options_.json.empty()) RETURN_IF_ERROR(WriteJson(options_.json, Json()));
    if (joined_) RETURN_IF_ERROR(joined_->Check());
    return killed_ ? killed_->Check() : Status();
  }

 private:
  static void Drop(const std::unique_ptr<FleetServers>&) {}

  Status Prepare() {
    // One of the balancer's turns goes to the question which model is served.
    if (options_.store != "none" && options_.documents < options_.servers + 2) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--documents {}: {} servers and one that joins need {} for each to be asked",
                  options_.documents, options_.servers, options_.servers + 2);
    }
    RETURN_IF_ERROR(FindProgram("haproxy", "haproxy").map([](const std::string&) {}));
    ASSIGN_OR_RETURN(dir_, ScratchDir::Make(options_.dir, "fleet"));
    ASSIGN_OR_RETURN(workload_, MakeFleetWorkload({.seed = options_.seed,
                                                   .documents = options_.documents,
                                                   .document_tokens = options_.document_tokens,
                                                   .questions = options_.questions,
                                                   .more_questions = kMoreQuestions,
                                                   .answer_tokens = options_.answer_tokens}));
    ASSIGN_OR_RETURN(const FleetPrompts prompts,
                     FleetPrompts::Open(options_.text, options_.model_dir));
    characters_per_token_ = prompts.characters_per_token();
    ASSIGN_OR_RETURN(traffic_, prompts.Of(workload_.traffic));
    ASSIGN_OR_RETURN(joining_, prompts.Of(workload_.joining));
    ASSIGN_OR_RETURN(killing_, prompts.Of(workload_.killing));
    chunks_ = CountChunks(traffic_, kFleetChunk);
    ASSIGN_OR_RETURN(const EmulatedProfile profile, LoadEmulatedProfile(options_.profile));
    page_bytes_ = EmulatedModel::LayoutFor(profile, kFleetChunk).page_bytes();
    if (options_.store != "none") {
      ASSIGN_OR_RETURN(cluster_, RedisCluster::Start(kMasters, dir_.path()));
    }
    return {};
  }

  // Each server's memory holds all that is asked: what it has not, it never had.
  std::vector<std::string> Flags(const Arrangement& of) const {
    const uint64_t pages = 2 * chunks_.distinct + kSparePageCount;
    std::vector<std::string> flags = {"--model",        options_.model_dir,
                                      "--emulate",      options_.profile,
                                      "--threads",      "1",
                                      "--queue-max",    "8192",
                                      "--ram-capacity", std::to_string(pages * page_bytes_)};
    if (of.shared) {
      const std::string prefix = fmt::format("{}-{}", of.servers, BalanceName(of.balance));
      flags.insert(flags.end(), {"--store", cluster_->Url(prefix)});
      if (!options_.load_rate.empty()) {
        flags.insert(flags.end(), {"--load-rate", options_.load_rate});
      }
    }
    return flags;
  }

  TrafficOptions Ask(const FleetServers& fleet) const {
    TrafficOptions traffic;
    traffic.url = fleet.url();
    traffic.text = options_.text;
    traffic.characters_per_token = characters_per_token_;
    traffic.ignore_eos = true;
    traffic.max_concurrency = options_.concurrency;
    return traffic;
  }

  // Asks all questions of the traffic and adds a row. The servers still run then.
  Result<std::unique_ptr<FleetServers>> Measure(const Arrangement& of) {
    const bool joins = of.shared && of.servers > 1 && of.balance == Balance::kRoundRobin;
    ASSIGN_OR_RETURN(auto fleet, FleetServers::Start({.servers = of.servers,
                                                      .spare = joins,
                                                      .balance = of.balance,
                                                      .program = options_.program,
                                                      .flags = Flags(of),
                                                      .dir = dir_.path()}));
    ASSIGN_OR_RETURN(const TrafficResult result, RunTraffic(Ask(*fleet), workload_.traffic));
    RETURN_IF_ERROR(CheckPrompts(result, traffic_));
    RETURN_IF_ERROR(CompareAnswers(result, &answers_));
    RETURN_IF_ERROR(fleet->WaitUntilIdle());
    ASSIGN_OR_RETURN(const ServerCounts counts, fleet->Counts());
    const TrafficSummary summary = Summarize(result);
    const auto distinct = static_cast<double>(chunks_.distinct);
    rows_.push_back({.servers = of.servers,
                     .store = of.shared ? options_.store : "none",
                     .balance = std::string(of.servers > 1 ? BalanceName(of.balance) : "none"),
                     .hit_share = summary.hit_rate.value_or(0),
                     .computed_twice = ComputedTwice(counts.chunks_computed, distinct,
                                                     static_cast<double>(chunks_.shared)),
                     .ttft_p50_s = summary.ttft.p50 / 1e3,
                     .ttft_p95_s = summary.ttft.p95 / 1e3,
                     .requests_per_s = summary.requests_per_s(),
                     .computed = counts.chunks_computed,
                     .distinct = distinct,
                     .written_twice = counts.written_twice});
    fmt::print("{}", FleetLine(rows_.back()));
    return fleet;
  }

  // Fails where a request did, or where a server counts other tokens than the chunks are counted
  // of.
  static Status CheckPrompts(const TrafficResult& result, const std::vector<PromptIds>& prompts) {
    for (size_t i = 0; i < result.answers.size(); ++i) {
      const Answer& answer = result.answers[i].answer;
      if (!answer.ok()) {
        return Fail(ErrorCode::kIo, "request {} has failed: {}: {}", i, answer.error_kind,
                    answer.error);
      }
      if (answer.prompt_tokens.value_or(0) != static_cast<int>(prompts[i].size())) {
        return Fail(ErrorCode::kCorrupt, "prompt {} has {} tokens, and of a server {}", i,
                    prompts[i].size(), answer.prompt_tokens.value_or(0));
      }
    }
    return {};
  }

  Status Join(FleetServers& fleet) {
    JoinRow row{.servers = options_.servers,
                .possible_share = KnownShare(joining_, traffic_, kFleetChunk)};
    RETURN_IF_ERROR(fleet.Join());
    ASSIGN_OR_RETURN(const TrafficResult result, RunTraffic(Ask(fleet), workload_.joining));
    RETURN_IF_ERROR(CheckPrompts(result, joining_));
    RETURN_IF_ERROR(fleet.WaitUntilIdle());
    const int last = fleet.size() - 1;
    ASSIGN_OR_RETURN(const ServerCounts counts, fleet.Counts(last));
    row.requests = counts.requests;
    row.prompt_tokens = counts.prompt_tokens;
    row.cached_share = counts.prompt_tokens > 0 ? counts.cached_tokens / counts.prompt_tokens : 0;
    row.chunks_loaded = counts.chunks_loaded;
    fmt::print("{}", JoinLine(row));
    joined_ = row;
    return {};
  }

  // The server that has the most to do, and how many requests it has; -1 where none has any.
  static Result<int> Busiest(const FleetServers& fleet, int* running) {
    int busiest = -1;
    *running = 0;
    for (int i = 0; i < fleet.size(); ++i) {
      if (!fleet.IsThere(i)) continue;
      ASSIGN_OR_RETURN(const ServerCounts counts, fleet.Counts(i));
      if (static_cast<int>(counts.running) <= *running) continue;
      busiest = i;
      *running = static_cast<int>(counts.running);
    }
    return busiest;
  }

  Status Kill(FleetServers& fleet) {
    KillRow row{.servers = options_.servers,
                .requests = static_cast<int>(killing_.size()),
                .possible_share = KnownShare(killing_, traffic_, kFleetChunk)};
    int victim = -1;
    double loaded_before = 0;
    Status status;
    TrafficOptions traffic = Ask(fleet);
    traffic.retries = kRetries;
    const auto kill = [&]() -> Status {
      ASSIGN_OR_RETURN(victim, Busiest(fleet, &row.running));
      if (victim < 0) return {};
      fleet.Kill(victim);
      return fleet.Counts().map([&](const ServerCounts& c) { loaded_before = c.chunks_loaded; });
    };
    traffic.progress = [&](const TrafficProgress& progress) {
      const double done = static_cast<double>(progress.done);
      if (!status || victim >= 0 || done < kKillAfter * row.requests) return;
      status = kill();
    };
    ASSIGN_OR_RETURN(const TrafficResult result, RunTraffic(traffic, workload_.killing));
    RETURN_IF_ERROR(status);
    RETURN_IF_ERROR(fleet.WaitUntilIdle());
    ASSIGN_OR_RETURN(const ServerCounts counts, fleet.Counts());
    row.chunks_loaded = counts.chunks_loaded - loaded_before;
    ASSIGN_OR_RETURN(const std::string log, fleet.balancer().Log());
    CountLost(result, CountBalanced(log), BalancedServerName(victim), &row);
    fmt::print("{}", KillLine(row));
    killed_ = row;
    return {};
  }

  static void CountLost(const TrafficResult& result,
                        const std::map<std::string, BalancedRequests>& balanced,
                        const std::string& victim, KillRow* row) {
    int cut_there = 0, cut_elsewhere = 0;
    for (const auto& [server, requests] : balanced) {
      (server == victim ? cut_there : cut_elsewhere) += requests.cut;
    }
    double prompt_tokens = 0, cached_tokens = 0;
    for (const TrafficAnswer& of : result.answers) {
      if (of.tries == 1 && of.answer.ok()) continue;
      ++row->lost;
      if (!of.answer.ok()) continue;
      ++row->answered;
      prompt_tokens += of.answer.prompt_tokens.value_or(0);
      cached_tokens += of.answer.cached_tokens.value_or(0);
    }
    // A request may have come between the look at the server and its end.
    row->running = std::max(row->running, cut_there);
    row->lost_elsewhere = std::max(cut_elsewhere, row->lost - cut_there);
    row->cached_share = prompt_tokens > 0 ? cached_tokens / prompt_tokens : 0;
  }

  nlohmann::ordered_json Json() const {
    nlohmann::ordered_json json = {{"cpu", CpuName()},
                                   {"profile", options_.profile},
                                   {"documents", options_.documents},
                                   {"document_tokens", options_.document_tokens},
                                   {"questions", options_.questions},
                                   {"concurrency", options_.concurrency},
                                   {"seed", options_.seed},
                                   {"load_rate", options_.load_rate},
                                   {"rows", nlohmann::ordered_json::array()}};
    for (const FleetRow& row : rows_) json["rows"].push_back(ToJson(row));
    if (joined_) json["join"] = ToJson(*joined_);
    if (killed_) json["kill"] = ToJson(*killed_);
    return json;
  }

  const FleetOptions& options_;
  ScratchDir dir_;
  FleetWorkload workload_;
  std::vector<PromptIds> traffic_, joining_, killing_;  // prompts of the workload's parts
  double characters_per_token_ = 0;
  ChunkCounts chunks_;  // what the traffic has
  uint64_t page_bytes_ = 0;
  std::unique_ptr<RedisCluster> cluster_;  // null: nothing is shared
  std::vector<std::string> answers_;       // the first to each request of the traffic
  std::vector<FleetRow> rows_;
  std::optional<JoinRow> joined_;  // these two where something is shared
  std::optional<KillRow> killed_;
};

}  // namespace

Status RunFleet(const FleetOptions& options) {
  RaiseDescriptorLimit();
  RunInBackground();  // clients elsewhere would interrupt nobody here
  return FleetBench(options).Run();
}

}  // namespace kvcake::bench
