#include "bench/workload.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "io/file_system.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kTraceBytesMax = 1 << 30;
constexpr int kRandomPrompts = 100;
constexpr int kRequestsMax = 10'000'000;

// In [0, 1), the same everywhere.
double Unit(std::mt19937_64& rng) { return static_cast<double>(rng() >> 11) * 0x1p-53; }

// The document of each request.
Result<std::vector<int>> DocumentOrder(const WorkloadOptions& options) {
  std::vector<int> order;
  const bool interleave = options.repeat_mode == "interleave";
  for (int i = 0; i < options.num_documents * options.repeat_count; ++i) {
    order.push_back(interleave ? i / options.repeat_count : i % options.num_documents);
  }
  if (options.repeat_mode == "random") {
    std::mt19937_64 rng(options.seed);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[rng() % i]);
  } else if (!interleave && options.repeat_mode != "tile") {
    return Fail(ErrorCode::kInvalidArgument,
                "--repeat-mode {} is not known: it is random, tile or interleave",
                options.repeat_mode);
  }
  return order;
}

std::vector<double> ArrivalsOf(const WorkloadOptions& options, size_t count) {
  return Arrivals(static_cast<int>(count), options.request_rate, options.arrivals == "poisson",
                  options.seed);
}

Status LongDocQa(const WorkloadOptions& options, Workload* workload) {
  ASSIGN_OR_RETURN(const std::vector<int> order, DocumentOrder(options));
  const std::vector<double> at_s = ArrivalsOf(options, order.size());
  std::vector<int> asked(options.num_documents);
  for (size_t i = 0; i < order.size(); ++i) {
    const int document = order[i];
    const std::string question =
        fmt::format("Question {} about document {}", ++asked[document], document);
    workload->requests.push_back(
        {.at_s = at_s[i],
         .conversation = static_cast<int>(i),
         .text = {{fmt::format("Document {}", document), options.document_tokens},
                  {question, options.question_tokens}},
         .max_tokens = options.output_tokens});
  }
  return {};
}

// Everyone's first rounds, then everyone's second, ...: a user's rounds are num_users / rate apart.
void MultiRoundChat(const WorkloadOptions& options, Workload* workload) {
  workload->system = {"System prompt", options.shared_system_tokens};
  const int count = options.num_users * options.num_rounds;
  const std::vector<double> at_s = ArrivalsOf(options, count);
  for (int i = 0; i < count; ++i) {
    const int user = i % options.num_users, round = i / options.num_users;
    WorkloadRequest request{.at_s = at_s[i],
                            .conversation = user,
                            .round = round,
                            .text = {},
                            .max_tokens = options.output_tokens};
    if (round == 0 && options.user_history_tokens > 0) {
      request.text.push_back(
          {fmt::format("History of user {}", user), options.user_history_tokens});
    }
    request.text.push_back(
        {fmt::format("Question {} of user {}", round + 1, user), options.question_tokens});
    workload->requests.push_back(std::move(request));
  }
}

void RandomPrefill(const WorkloadOptions& options, Workload* workload) {
  const int count = options.num_prompts > 0 ? options.num_prompts : kRandomPrompts;
  const std::vector<double> at_s = ArrivalsOf(options, count);
  std::mt19937_64 rng(options.seed);
  for (int i = 0; i < count; ++i) {
    const double share = 1 + options.range_ratio * (2 * Unit(rng) - 1);
    const int tokens = std::max(1, static_cast<int>(std::lround(options.input_tokens * share)));
    workload->requests.push_back({.at_s = at_s[i],
                                  .conversation = i,
                                  .text = {{fmt::format("Text {}", i), tokens}},
                                  .max_tokens = options.output_tokens});
  }
}

Status FromTrace(const WorkloadOptions& options, Workload* workload) {
  if (options.trace.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--workload trace needs --trace FILE");
  }
  if (std::isfinite(options.request_rate)) {
    return Fail(ErrorCode::kInvalidArgument,
                "a trace says itself when requests arrive: --time-scale makes it faster or slower, "
                "--request-rate does not");
  }
  ASSIGN_OR_RETURN(const std::string text,
                   ReadText(FileSystem::Real(), options.trace, kTraceBytesMax));
  ASSIGN_OR_RETURN(workload->requests, ParseTrace(text, options.trace, options));
  return {};
}

Status Check(const WorkloadOptions& options) {
  if (options.arrivals != "poisson" && options.arrivals != "fixed") {
    return Fail(ErrorCode::kInvalidArgument, "--arrivals {} is not known: it is poisson or fixed",
                options.arrivals);
  }
  if (!(options.request_rate > 0)) {
    return Fail(ErrorCode::kInvalidArgument, "--request-rate must be above 0, or inf");
  }
  const auto many = [](int a, int b) { return static_cast<int64_t>(a) * b > kRequestsMax; };
  if (many(options.num_documents, options.repeat_count) ||
      many(options.num_users, options.num_rounds)) {
    return Fail(ErrorCode::kInvalidArgument, "a workload has at most {} requests", kRequestsMax);
  }
  return {};
}

}  // namespace

std::vector<double> Arrivals(int count, double rate, bool poisson, uint64_t seed) {
  std::mt19937_64 rng(seed ^ 0x5bd1e995);  // not the stream that lengths and orders are drawn from
  std::vector<double> at_s;
  double now = 0;
  for (int i = 0; i < count; ++i) {
    at_s.push_back(now);
    if (std::isfinite(rate)) now += (poisson ? -std::log1p(-Unit(rng)) : 1) / rate;
  }
  return at_s;
}

Result<Workload> MakeWorkload(const WorkloadOptions& options) {
  RETURN_IF_ERROR(Check(options));
  Workload workload{.name = options.name, .seed = options.seed, .system = {}, .requests = {}};
  if (options.name == "long-doc-qa") {
    RETURN_IF_ERROR(LongDocQa(options, &workload));
  } else if (options.name == "multi-round-chat") {
    MultiRoundChat(options, &workload);
  } else if (options.name == "random-prefill") {
    RandomPrefill(options, &workload);
  } else if (options.name == "trace") {
    RETURN_IF_ERROR(FromTrace(options, &workload));
  } else {
    return Fail(ErrorCode::kInvalidArgument,
                "--workload {} is not known: it is long-doc-qa, multi-round-chat, random-prefill "
                "or trace",
                options.name);
  }
  const auto count = static_cast<size_t>(options.num_prompts);
  if (count > 0 && count < workload.requests.size()) workload.requests.resize(count);
  return workload;
}

}  // namespace kvcake::bench
