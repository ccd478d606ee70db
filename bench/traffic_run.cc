#include "bench/traffic_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/dump_json.h"
#include "bench/harness.h"
#include "bench/traffic_report.h"

namespace kvcake::bench {
namespace {

constexpr size_t kDifferencesShown = 5;
constexpr size_t kDifferenceBytes = 40;

// From a little before the first byte that differs.
std::string Excerpt(const std::string& text, size_t position) {
  const size_t from = position > kDifferenceBytes / 2 ? position - kDifferenceBytes / 2 : 0;
  return nlohmann::json(text.substr(std::min(from, text.size()), kDifferenceBytes))
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void PrintDifference(const TrafficResult& result, const TrafficDifference& difference) {
  const TrafficAnswer& answer = result.answers[difference.request];
  const std::string which = fmt::format("request {} (conversation {}, round {})",
                                        difference.request, answer.conversation, answer.round);
  if (!difference.error.empty()) {
    return fmt::print("{} was not answered cold: {}\n", which, difference.error);
  }
  fmt::print("{} differs from byte {}: {} in the run, {} cold\n", which, difference.position,
             Excerpt(difference.run, difference.position),
             Excerpt(difference.cold, difference.position));
}

Status Verdict(const TrafficResult& result, const TrafficSummary& summary) {
  if (summary.completed == 0) {
    const auto& [kind, errors] = *summary.errors.begin();
    return Fail(ErrorCode::kIo, "no request was answered: {}: {}", kind, errors.first);
  }
  if (result.checked == 0) return {};
  if (result.checked_cached > 0) {
    fmt::print("{} of the {} cold runs had cached tokens: the server ignores cache_salt\n",
               result.checked_cached, result.checked);
  }
  if (result.differences.empty()) {
    fmt::print("{} answers checked: each is what the server {}\n", result.checked,
               result.checked_cached == 0 ? "computes from nothing" : "answers when asked again");
    return {};
  }
  for (size_t i = 0; i < std::min(result.differences.size(), kDifferencesShown); ++i) {
    PrintDifference(result, result.differences[i]);
  }
  return Fail(ErrorCode::kCorrupt, "{} of {} answers are not what the server answers cold",
              result.differences.size(), result.checked);
}

}  // namespace

Status RunTrafficBench(const TrafficBenchOptions& options) {
  ASSIGN_OR_RETURN(const Workload workload, MakeWorkload(options.workload));
  ASSIGN_OR_RETURN(const TrafficResult result, RunTraffic(options.traffic, workload));
  const TrafficSummary summary = Summarize(result);
  const std::string title =
      fmt::format("{}: {} requests to {} at {}", workload.name, workload.requests.size(),
                  result.model, options.traffic.url);
  fmt::print("{}\n{}", title, TrafficTable(summary));
  if (!options.json.empty()) {
    nlohmann::ordered_json json = {
        {"workload", workload.name}, {"url", options.traffic.url}, {"seed", workload.seed}};
    json.update(TrafficJson(result, summary));
    RETURN_IF_ERROR(WriteFile(options.json, DumpJson(json, 2) + "\n"));
  }
  if (!options.svg.empty()) RETURN_IF_ERROR(WriteFile(options.svg, DrawTraffic(result, title)));
  return Verdict(result, summary);
}

}  // namespace kvcake::bench
