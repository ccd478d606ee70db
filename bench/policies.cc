#include "bench/policies.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/harness.h"
#include "bench/scratch_dir.h"
#include "bench/serve_child.h"
#include "bench/traffic.h"
#include "bench/traffic_report.h"
#include "model/emulated_profile.h"

namespace kvcake::bench {
namespace {

constexpr int kChunkTokens = 128;

// Seconds and tokens a second of one run.
struct Seen {
  double p50_s = 0, p95_s = 0, tokens_per_s = 0, hit_rate = 0;
};

// Tokens of each request's prompt, what its conversation has said before included.
std::vector<int> PromptTokens(const Workload& workload) {
  std::map<int, int> said;
  std::vector<int> tokens;
  for (const WorkloadRequest& request : workload.requests) {
    int& sum = said.try_emplace(request.conversation, workload.system.tokens).first->second;
    for (const TextPiece& piece : request.text) sum += piece.tokens;
    tokens.push_back(sum);
    sum += request.max_tokens;
  }
  return tokens;
}

class PoliciesBench {
 public:
  PoliciesBench(const PoliciesOptions& options, std::string dir)
      : options_(options),
        dir_(std::move(dir)),
        program_(options.program.empty() ? "/proc/self/exe" : options.program) {}

  Status Run() {
    RETURN_IF_ERROR(Calibrate());
    fmt::print("{:<17} {:>8} | {:^26} | {:^26} | {:^26} | {:^13}\n", "", "load /", "TTFT p50, s",
               "TTFT p95, s", "tokens/s", "cake / best");
    fmt::print("{:<17} {:>8} |", "workload", "compute");
    for (int i = 0; i < 3; ++i) fmt::print(" {:>8} {:>8} {:>8} |", "compute", "load", "cake");
    fmt::print(" {:>6} {:>6}\n", "p50", "p95");
    for (const std::string& name : options_.workloads) {
      ASSIGN_OR_RETURN(const Workload workload, Make(name));
      for (const double ratio : options_.ratios) RETURN_IF_ERROR(Measure(workload, ratio));
    }
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  Result<std::unique_ptr<ServeChild>> Start(std::vector<std::string> more) const {
    std::vector<std::string> flags = {"--model",    options_.model_dir, "--ram-capacity",
                                      options_.ram, "--queue-max",      "8192"};
    if (!options_.emulate.empty()) {
      flags.insert(flags.end(), {"--emulate", options_.emulate, "--threads", "1"});
    } else if (options_.threads > 0) {
      flags.insert(flags.end(), {"--threads", std::to_string(options_.threads)});
    }
    flags.insert(flags.end(), more.begin(), more.end());
    return ServeChild::Start(program_, flags, dir_ + "/log");
  }

  static TrafficOptions Ask(const ServeChild& server, Policy policy) {
    TrafficOptions traffic;
    traffic.url = fmt::format("http://127.0.0.1:{}", server.port());
    traffic.ignore_eos = true;
    traffic.extra_body = fmt::format(R"({{"kvcake": {{"policy": "{}"}}}})", PolicyName(policy));
    return traffic;
  }

  // What computing a document takes, and what its KV cache weighs.
  Status Calibrate() {
    ASSIGN_OR_RETURN(const auto server, Start({}));
    WorkloadOptions asked;
    asked.num_documents = 3;
    asked.repeat_count = 1;
    asked.document_tokens = options_.document_tokens;
    asked.output_tokens = 1;
    asked.seed = options_.seed + 1000;
    ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(asked));
    TrafficOptions traffic = Ask(*server, Policy::kCompute);
    traffic.max_concurrency = 1;
    ASSIGN_OR_RETURN(const TrafficResult result, RunTraffic(traffic, workload));
    const TrafficSummary summary = Summarize(result);
    if (summary.failed > 0) {
      return Fail(ErrorCode::kIo, "the server does not answer: {}",
                  summary.errors.begin()->second.first);
    }
    compute_s_ = summary.ttft.p50 / 1e3;
    characters_per_token_ = result.characters_per_token;
    if (options_.emulate.empty()) {
      ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options_.model_dir));
      const KvLayout layout = TransformerModel::LayoutFor(config, kChunkTokens);
      bytes_per_token_ = static_cast<double>(layout.page_bytes()) / kChunkTokens;
    } else {
      ASSIGN_OR_RETURN(const EmulatedProfile profile, LoadEmulatedProfile(options_.emulate));
      bytes_per_token_ = static_cast<double>(profile.kv_bytes_per_token);
    }
    fmt::print(
        "{}; {}: a document of {:.0f} tokens takes {:.3f} s to compute; {} repeats, medians\n",
        CpuName(), options_.emulate.empty() ? options_.model_dir : options_.emulate,
        summary.input_tokens_mean, compute_s_, options_.repeats);
    return {};
  }

  Result<Workload> Make(const std::string& name) const {
    WorkloadOptions asked;
    asked.name = name;
    asked.seed = options_.seed;
    if (name != "trace") asked.request_rate = 1;
    asked.output_tokens = 16;
    asked.num_documents = options_.documents;
    asked.document_tokens = options_.document_tokens;
    asked.repeat_count = 4;
    asked.num_users = options_.documents;
    asked.num_rounds = 4;
    asked.user_history_tokens = options_.document_tokens / 2;
    asked.shared_system_tokens = options_.document_tokens / 8;
    asked.question_tokens = 128;
    asked.trace = options_.trace;
    asked.length_scale = options_.length_scale;
    if (name == "trace") asked.num_prompts = options_.trace_requests;
    ASSIGN_OR_RETURN(Workload workload, MakeWorkload(asked));
    // As fast as keeps the asked share of the time busy if all were computed.
    double work_s = 0;
    for (const int tokens : PromptTokens(workload)) {
      work_s += compute_s_ * tokens / options_.document_tokens;
    }
    const double last_s = workload.requests.back().at_s;
    if (last_s > 0) {
      for (WorkloadRequest& r : workload.requests) r.at_s *= work_s / options_.load / last_s;
    }
    return workload;
  }

  Result<TrafficResult> RunOnce(const Workload& workload, double rate, Policy policy) {
    ASSIGN_OR_RETURN(const ScratchDir store, ScratchDir::Make(dir_, "store"));
    ASSIGN_OR_RETURN(const auto server,
                     Start({"--store", store.path(), "--load-rate", fmt::format("{:.0f}", rate)}));
    TrafficOptions traffic = Ask(*server, policy);
    traffic.characters_per_token = characters_per_token_;
    ASSIGN_OR_RETURN(TrafficResult result, RunTraffic(traffic, workload));
    for (const TrafficAnswer& answer : result.answers) {
      if (answer.answer.ok()) continue;
      return Fail(ErrorCode::kIo, "a request has failed: {}", answer.answer.error);
    }
    return result;
  }

  // Every policy gives the same answers.
  Status Compare(const TrafficResult& result, std::vector<std::string>* texts) const {
    for (size_t i = 0; i < result.answers.size(); ++i) {
      const std::string& text = result.answers[i].answer.text;
      if (texts->size() <= i) texts->push_back(text);
      if (text == (*texts)[i]) continue;
      return Fail(ErrorCode::kCorrupt, "request {} was answered in two ways", i);
    }
    return {};
  }

  Status Measure(const Workload& workload, double ratio) {
    const double rate = options_.document_tokens * bytes_per_token_ / (ratio * compute_s_);
    std::array<std::vector<Seen>, kPolicies.size()> seen;
    std::vector<std::string> texts;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (size_t p = 0; p < kPolicies.size(); ++p) {
        ASSIGN_OR_RETURN(const TrafficResult result, RunOnce(workload, rate, kPolicies[p]));
        RETURN_IF_ERROR(Compare(result, &texts));
        const TrafficSummary summary = Summarize(result);
        seen[p].push_back({.p50_s = summary.ttft.p50 / 1e3,
                           .p95_s = summary.ttft.p95 / 1e3,
                           .tokens_per_s = summary.tokens_per_s(),
                           .hit_rate = summary.hit_rate.value_or(0)});
      }
    }
    Report(workload.name, ratio, rate, seen);
    return {};
  }

  void Report(const std::string& name, double ratio, double rate,
              const std::array<std::vector<Seen>, kPolicies.size()>& seen) {
    const auto median = [&](size_t policy, double Seen::*of) {
      std::vector<double> values;
      for (const Seen& s : seen[policy]) values.push_back(s.*of);
      return Median(std::move(values));
    };
    fmt::print("{:<17} {:>8} |", name, ratio);
    for (double Seen::*of : {&Seen::p50_s, &Seen::p95_s}) {
      fmt::print(" {:>8.3f} {:>8.3f} {:>8.3f} |", median(0, of), median(1, of), median(2, of));
    }
    fmt::print(" {:>8.0f} {:>8.0f} {:>8.0f} |", median(0, &Seen::tokens_per_s),
               median(1, &Seen::tokens_per_s), median(2, &Seen::tokens_per_s));
    const auto of_best = [&](double Seen::*of) {
      return median(2, of) / std::min(median(0, of), median(1, of));
    };
    fmt::print(" {:>5.2f}x {:>5.2f}x\n", of_best(&Seen::p50_s), of_best(&Seen::p95_s));
    for (size_t p = 0; p < kPolicies.size(); ++p) {
      json_.push_back({{"workload", name},
                       {"ratio", ratio},
                       {"bytes_per_s", rate},
                       {"policy", PolicyName(kPolicies[p])},
                       {"ttft_s_p50", median(p, &Seen::p50_s)},
                       {"ttft_s_p95", median(p, &Seen::p95_s)},
                       {"tokens_per_s", median(p, &Seen::tokens_per_s)},
                       {"hit_rate", median(p, &Seen::hit_rate)}});
      for (const Seen& s : seen[p]) {
        json_.back()["repeats"].push_back({{"ttft_s_p50", s.p50_s}, {"ttft_s_p95", s.p95_s}});
      }
    }
  }

  const PoliciesOptions& options_;
  const std::string dir_;
  const std::string program_;
  double compute_s_ = 0, bytes_per_token_ = 0, characters_per_token_ = 0;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

}  // namespace

Status RunPolicies(const PoliciesOptions& options) {
  ASSIGN_OR_RETURN(const ScratchDir dir, ScratchDir::Make("", "policies"));
  return PoliciesBench(options, dir.path()).Run();
}

}  // namespace kvcake::bench
