// What a run of a workload comes to.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/traffic.h"

namespace kvcake::bench {

// Milliseconds; all 0 where there is nothing.
struct LatencySummary {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;

  static LatencySummary Of(std::vector<double> seconds);
};

struct TrafficErrors {
  size_t count = 0;
  std::string first;  // what the first one said
};

// Sums up the answers that came whole; `errors` are of the others.
struct TrafficSummary {
  size_t completed = 0, failed = 0;
  double duration_s = 0;
  int64_t input_tokens = 0, output_tokens = 0;
  double planned_tokens_mean = 0, input_tokens_mean = 0;  // of a prompt: as asked, as it was
  // The share of the prompts' tokens that the server says it did not compute; absent: it says
  // nothing.
  std::optional<double> hit_rate;
  LatencySummary ttft;   // from sending to the first token
  LatencySummary tpot;   // a token after the first: the mean of each answer of at least two
  LatencySummary itl;    // between two events with text
  LatencySummary e2el;   // from sending to the end
  LatencySummary delay;  // between the moment a request was due and its sending
  std::map<std::string, TrafficErrors> errors;  // by kind

  double requests_per_s() const;
  double output_tokens_per_s() const;
  double tokens_per_s() const;  // of prompts and answers
};

TrafficSummary Summarize(const TrafficResult& result);

// For people, with lines as `vllm bench serve` has them.
std::string TrafficTable(const TrafficSummary& summary);
// With vLLM's names where it has one, and every request.
nlohmann::ordered_json TrafficJson(const TrafficResult& result, const TrafficSummary& summary);
// A picture of the times to first token over the run, coloured by what was cached.
std::string DrawTraffic(const TrafficResult& result, const std::string& title);

}  // namespace kvcake::bench
