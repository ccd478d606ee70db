#include "bench/policy_lab.h"

#include <fmt/core.h>

#include <map>

#include "base/cpu.h"
#include "bench/traffic_report.h"
#include "model/config.h"
#include "model/emulated_profile.h"
#include "model/transformer.h"

namespace kvcake::bench {
namespace {

constexpr int kChunkTokens = 128;

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

}  // namespace

Result<PolicyLab> PolicyLab::Open(const PolicyLabOptions& options) {
  PolicyLab lab(options);
  ASSIGN_OR_RETURN(lab.dir_, ScratchDir::Make("", "policies"));
  RETURN_IF_ERROR(lab.Calibrate());
  return lab;
}

double PolicyLab::RateFor(double ratio) const {
  return options_.document_tokens * bytes_per_token_ / (ratio * compute_s_);
}

Result<std::unique_ptr<ServeChild>> PolicyLab::Start(const std::vector<std::string>& more) const {
  std::vector<std::string> flags = {"--model",    options_.model_dir, "--ram-capacity",
                                    options_.ram, "--queue-max",      "8192"};
  if (!options_.emulate.empty()) {
    flags.insert(flags.end(), {"--emulate", options_.emulate, "--threads", "1"});
  } else if (options_.threads > 0) {
    flags.insert(flags.end(), {"--threads", std::to_string(options_.threads)});
  }
  flags.insert(flags.end(), more.begin(), more.end());
  return ServeChild::Start(options_.program.empty() ? "/proc/self/exe" : options_.program, flags,
                           dir() + "/log");
}

TrafficOptions PolicyLab::Ask(const ServeChild& server, Policy policy) {
  TrafficOptions traffic;
  traffic.url = fmt::format("http://127.0.0.1:{}", server.port());
  traffic.ignore_eos = true;
  traffic.extra_body = fmt::format(R"({{"kvcake": {{"policy": "{}"}}}})", PolicyName(policy));
  return traffic;
}

Status PolicyLab::Calibrate() {
  ASSIGN_OR_RETURN(const auto server, Start({}));
  WorkloadOptions asked;
  asked.name = "random-prefill";  // a document is all of the prompt: no question is
  asked.num_prompts = 5;
  asked.input_tokens = options_.document_tokens;
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
  fmt::print("{}; {}: a document of {:.0f} tokens takes {:.3f} s to compute\n", CpuName(),
             options_.emulate.empty() ? options_.model_dir : options_.emulate,
             summary.input_tokens_mean, compute_s_);
  return {};
}

Result<Workload> PolicyLab::Make(const std::string& name, double load) const {
  WorkloadOptions asked;
  asked.name = name;
  asked.seed = options_.seed;
  if (name != "trace") asked.request_rate = 1;
  asked.output_tokens = 16;
  asked.num_documents = options_.documents;
  asked.document_tokens = options_.document_tokens;
  asked.repeat_count = options_.repeat_count;
  asked.num_users = options_.documents;
  asked.num_rounds = options_.repeat_count;
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
    for (WorkloadRequest& r : workload.requests) r.at_s *= work_s / load / last_s;
  }
  return workload;
}

Result<TrafficResult> PolicyLab::Run(const Workload& workload, double bytes_per_s, Policy policy,
                                     const std::vector<std::string>& flags) const {
  ASSIGN_OR_RETURN(const ScratchDir store, ScratchDir::Make(dir(), "store"));
  std::vector<std::string> all = {"--store", store.path(), "--load-rate",
                                  fmt::format("{:.0f}", bytes_per_s)};
  all.insert(all.end(), flags.begin(), flags.end());
  ASSIGN_OR_RETURN(const auto server, Start(all));
  TrafficOptions traffic = Ask(*server, policy);
  traffic.characters_per_token = characters_per_token_;
  ASSIGN_OR_RETURN(TrafficResult result, RunTraffic(traffic, workload));
  for (const TrafficAnswer& answer : result.answers) {
    if (answer.answer.ok()) continue;
    return Fail(ErrorCode::kIo, "a request has failed: {}", answer.answer.error);
  }
  return result;
}

Status CompareAnswers(const TrafficResult& result, std::vector<std::string>* texts) {
  for (size_t i = 0; i < result.answers.size(); ++i) {
    const std::string& text = result.answers[i].answer.text;
    if (texts->size() <= i) texts->push_back(text);
    if (text == (*texts)[i]) continue;
    return Fail(ErrorCode::kCorrupt, "request {} was answered in two ways", i);
  }
  return {};
}

}  // namespace kvcake::bench
