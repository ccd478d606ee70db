#include "bench/traffic_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/harness.h"

namespace kvcake::bench {
namespace {

using nlohmann::ordered_json;

// What the tokens after the first took, each; nothing where there are none.
std::optional<double> SecondsPerToken(const Answer& answer) {
  const int tokens = answer.completion_tokens.value_or(static_cast<int>(answer.token_s.size()));
  if (tokens < 2) return std::nullopt;
  return (answer.token_s.back() - answer.token_s.front()) / (tokens - 1);
}

double PerSecond(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

ordered_json ToJson(const TrafficAnswer& of) {
  const Answer& answer = of.answer;
  ordered_json json = {{"conversation", of.conversation},
                       {"round", of.round},
                       {"due_s", of.due_s},
                       {"sent_s", of.sent_s}};
  if (!answer.ok()) {
    json["error_kind"] = answer.error_kind;
    json["error"] = answer.error;
    return json;
  }
  json["ttft_s"] = of.ttft_s();
  json["end_s"] = answer.end_s;
  json["finish_reason"] = answer.finish_reason;
  if (answer.prompt_tokens) json["prompt_tokens"] = *answer.prompt_tokens;
  if (answer.cached_tokens) json["cached_tokens"] = *answer.cached_tokens;
  if (answer.completion_tokens) json["completion_tokens"] = *answer.completion_tokens;
  json["itl_s"] = ordered_json::array();
  for (size_t i = 1; i < answer.token_s.size(); ++i) {
    json["itl_s"].push_back(answer.token_s[i] - answer.token_s[i - 1]);
  }
  return json;
}

}  // namespace

LatencySummary LatencySummary::Of(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::sort(seconds.begin(), seconds.end());
  const auto ms = [&](double q) { return 1e3 * Quantile(seconds, q); };
  return {.mean = 1e3 * sum / static_cast<double>(seconds.size()),
          .p50 = ms(0.5),
          .p90 = ms(0.9),
          .p95 = ms(0.95),
          .p99 = ms(0.99)};
}

double TrafficSummary::requests_per_s() const {
  return PerSecond(static_cast<double>(completed), duration_s);
}
double TrafficSummary::output_tokens_per_s() const {
  return PerSecond(static_cast<double>(output_tokens), duration_s);
}
double TrafficSummary::tokens_per_s() const {
  return PerSecond(static_cast<double>(input_tokens + output_tokens), duration_s);
}

TrafficSummary Summarize(const TrafficResult& result) {
  TrafficSummary summary;
  summary.duration_s = result.duration_s;
  std::vector<double> ttft, tpot, itl, e2el, delay;
  int64_t planned = 0, cached = 0, may_be_cached = 0;
  for (const TrafficAnswer& one : result.answers) {
    const Answer& answer = one.answer;
    if (!answer.ok()) {
      TrafficErrors& errors = summary.errors[answer.error_kind];
      if (errors.count++ == 0) errors.first = answer.error;
      ++summary.failed;
      continue;
    }
    ++summary.completed;
    planned += one.planned_tokens;
    summary.input_tokens += answer.prompt_tokens.value_or(0);
    summary.output_tokens +=
        answer.completion_tokens.value_or(static_cast<int>(answer.token_s.size()));
    if (answer.cached_tokens && answer.prompt_tokens) {
      cached += *answer.cached_tokens;
      may_be_cached += *answer.prompt_tokens;
    }
    ttft.push_back(one.ttft_s());
    if (const auto each = SecondsPerToken(answer)) tpot.push_back(*each);
    for (size_t i = 1; i < answer.token_s.size(); ++i) {
      itl.push_back(answer.token_s[i] - answer.token_s[i - 1]);
    }
    e2el.push_back(answer.end_s - one.sent_s);
    delay.push_back(one.sent_s - one.due_s);
  }
  if (summary.completed > 0) {
    const auto count = static_cast<double>(summary.completed);
    summary.planned_tokens_mean = static_cast<double>(planned) / count;
    summary.input_tokens_mean = static_cast<double>(summary.input_tokens) / count;
  }
  if (may_be_cached > 0) {
    summary.hit_rate = static_cast<double>(cached) / static_cast<double>(may_be_cached);
  }
  summary.ttft = LatencySummary::Of(std::move(ttft));
  summary.tpot = LatencySummary::Of(std::move(tpot));
  summary.itl = LatencySummary::Of(std::move(itl));
  summary.e2el = LatencySummary::Of(std::move(e2el));
  summary.delay = LatencySummary::Of(std::move(delay));
  return summary;
}

std::string TrafficTable(const TrafficSummary& summary) {
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    out += fmt::format("{:<36} {:>12}\n", name, value);
  };
  const auto count = [](int64_t value) { return std::to_string(value); };
  const auto decimals = [](double value) { return fmt::format("{:.2f}", value); };
  line("Successful requests:", count(static_cast<int64_t>(summary.completed)));
  line("Failed requests:", count(static_cast<int64_t>(summary.failed)));
  line("Benchmark duration (s):", decimals(summary.duration_s));
  line("Total input tokens:", count(summary.input_tokens));
  line("Total generated tokens:", count(summary.output_tokens));
  line("Mean prompt (tokens):", fmt::format("{:.0f}", summary.input_tokens_mean));
  line("  as asked for:", fmt::format("{:.0f}", summary.planned_tokens_mean));
  line("Cached prompt tokens:",
       summary.hit_rate ? fmt::format("{:.1f}%", 100 * *summary.hit_rate) : "not told");
  line("Request throughput (req/s):", decimals(summary.requests_per_s()));
  line("Output token throughput (tok/s):", decimals(summary.output_tokens_per_s()));
  line("Total token throughput (tok/s):", decimals(summary.tokens_per_s()));
  out += fmt::format("{:<26} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "", "mean", "p50", "p90", "p95",
                     "p99");
  const auto row = [&](const char* name, const LatencySummary& of) {
    out += fmt::format("{:<26} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f} {:>10.2f}\n", name, of.mean,
                       of.p50, of.p90, of.p95, of.p99);
  };
  row("Time to first token (ms)", summary.ttft);
  row("Time per token (ms)", summary.tpot);
  row("Inter-token latency (ms)", summary.itl);
  row("End-to-end latency (ms)", summary.e2el);
  row("Sent late by (ms)", summary.delay);
  for (const auto& [kind, errors] : summary.errors) {
    out += fmt::format("{} failed, {}: {}\n", errors.count, kind, errors.first);
  }
  return out;
}

ordered_json TrafficJson(const TrafficResult& result, const TrafficSummary& summary) {
  ordered_json json = {{"model_id", result.model},
                       {"duration", summary.duration_s},
                       {"completed", summary.completed},
                       {"failed", summary.failed},
                       {"total_input_tokens", summary.input_tokens},
                       {"total_output_tokens", summary.output_tokens},
                       {"request_throughput", summary.requests_per_s()},
                       {"output_throughput", summary.output_tokens_per_s()},
                       {"total_token_throughput", summary.tokens_per_s()},
                       {"mean_prompt_tokens", summary.input_tokens_mean},
                       {"mean_prompt_tokens_asked", summary.planned_tokens_mean},
                       {"characters_per_token", result.characters_per_token}};
  if (summary.hit_rate) json["hit_rate"] = *summary.hit_rate;
  const auto add = [&](const std::string& name, const LatencySummary& of) {
    json["mean_" + name] = of.mean;
    json["median_" + name] = of.p50;
    json["p90_" + name] = of.p90;
    json["p95_" + name] = of.p95;
    json["p99_" + name] = of.p99;
  };
  add("ttft_ms", summary.ttft);
  add("tpot_ms", summary.tpot);
  add("itl_ms", summary.itl);
  add("e2el_ms", summary.e2el);
  add("delay_ms", summary.delay);
  json["errors"] = ordered_json::object();
  for (const auto& [kind, errors] : summary.errors) {
    json["errors"][kind] = {{"count", errors.count}, {"first", errors.first}};
  }
  if (result.checked > 0) {
    json["checked"] = result.checked;
    json["checked_cached"] = result.checked_cached;
    json["differences"] = ordered_json::array();
    for (const TrafficDifference& difference : result.differences) {
      ordered_json one = {{"request", difference.request}, {"position", difference.position}};
      if (!difference.error.empty()) one["error"] = difference.error;
      one["run"] = difference.run;
      one["cold"] = difference.cold;
      json["differences"].push_back(std::move(one));
    }
  }
  json["requests"] = ordered_json::array();
  for (const TrafficAnswer& answer : result.answers) json["requests"].push_back(ToJson(answer));
  return json;
}

}  // namespace kvcake::bench
