// Do several stores together deliver what their rates add up to? One restoration that loads
// everything, from each store alone and from all of them, and the same with both lanes.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/scratch_dir.h"

namespace kvcake::bench {
namespace {

constexpr std::array kTierPolicies = {Policy::kLoad, Policy::kCake};

// When the last chunk had come from a store.
double LoadedAt(const RestoreReport& report) {
  double end_s = 0;
  for (const TimelineEntry& entry : report.timeline) {
    if (entry.lane != "compute" && entry.outcome == Outcome::kPublished) {
      end_s = std::max(end_s, entry.end_s);
    }
  }
  return end_s;
}

// One store, or all of them.
struct TierRow {
  std::string name;
  std::unique_ptr<Runtime> runtime;
  std::vector<double> load_s, load_ttft_s, cake_ttft_s;
  std::map<std::string, int> tokens_loaded;  // load-only, the last repeat
};

Result<TierRow> Open(const TiersOptions& options, std::vector<StoreOptions> stores,
                     const std::string& name) {
  RuntimeOptions runtime = options.runtime;
  runtime.stores = std::move(stores);
  SetPageBytes(runtime.ram_capacity_bytes, &runtime);
  TierRow row{.name = name,
              .runtime = {},
              .load_s = {},
              .load_ttft_s = {},
              .cake_ttft_s = {},
              .tokens_loaded = {}};
  ASSIGN_OR_RETURN(row.runtime, Runtime::Create(runtime));
  return row;
}

Status Run(TierRow& row, const std::vector<int32_t>& prompt, Policy policy,
           std::vector<int32_t>* answer, bool measured) {
  ASSIGN_OR_RETURN(const Completion done,
                   RunCold(*row.runtime, prompt, policy, kAnswerTokens, /*store=*/false));
  if (answer->empty()) *answer = done.tokens;
  if (done.tokens != *answer) {
    return Fail(ErrorCode::kCorrupt, "{} gave another answer than computing", row.name);
  }
  if (!measured) return {};
  if (policy == Policy::kCake) {
    row.cake_ttft_s.push_back(done.ttft_s);
    return {};
  }
  const int chunk = row.runtime->options().chunk_tokens;
  if (done.report.loaded() < static_cast<int>(prompt.size()) / chunk * chunk) {
    return Fail(ErrorCode::kIo, "{}: only {} of {} tokens were loaded", row.name,
                done.report.loaded(), prompt.size());
  }
  row.load_s.push_back(LoadedAt(done.report));
  row.load_ttft_s.push_back(done.ttft_s);
  row.tokens_loaded = done.report.tokens_loaded;
  return {};
}

// Each store gets the whole prompt; the last row is all of them.
Result<std::vector<TierRow>> Prepare(const TiersOptions& options,
                                     const std::vector<StoreOptions>& all,
                                     std::vector<int32_t>* prompt, std::vector<int32_t>* answer) {
  std::vector<TierRow> rows;
  for (size_t i = 0; i < all.size(); ++i) {
    ASSIGN_OR_RETURN(TierRow row, Open(options, {all[i]}, fmt::format("store {} alone", i + 1)));
    if (i == 0) *prompt = RandomPrompt(options.context, row.runtime->config().vocab_size, 1);
    ASSIGN_OR_RETURN(const Completion done, RunCold(*row.runtime, *prompt, Policy::kCompute,
                                                    kAnswerTokens, /*store=*/true));
    *answer = done.tokens;
    rows.push_back(std::move(row));
  }
  ASSIGN_OR_RETURN(TierRow both, Open(options, all, "all at once"));
  rows.push_back(std::move(both));
  // The planner learns each store's rate by using it, as it does in use.
  for (TierRow& row : rows) {
    RETURN_IF_ERROR(Run(row, *prompt, Policy::kLoad, answer, /*measured=*/false));
  }
  return rows;
}

void Print(const std::vector<TierRow>& rows, uint64_t bytes, nlohmann::ordered_json* json) {
  fmt::print("{:<16} {:>24} {:>8} {:>22} {:>22}\n", "", "loaded after, s", "MB/s",
             "TTFT of load, s", "TTFT of cake, s");
  for (const TierRow& row : rows) {
    fmt::print("{:<16} {:>24} {:>8.1f} {:>22} {:>22}\n", row.name, Spread(row.load_s, 3),
               static_cast<double>(bytes) / 1e6 / Median(row.load_s), Spread(row.load_ttft_s, 3),
               Spread(row.cake_ttft_s, 3));
    (*json)["rows"].push_back({{"name", row.name},
                               {"load_s", Median(row.load_s)},
                               {"load_ttft_s", Median(row.load_ttft_s)},
                               {"cake_ttft_s", Median(row.cake_ttft_s)},
                               {"tokens_loaded", row.tokens_loaded}});
  }
  // Compares within each repeat, whose runs were made together.
  const TierRow& all = rows.back();
  std::vector<double> of_best, of_sum, cake_of_best;
  for (size_t i = 0; i < all.load_s.size(); ++i) {
    double rate = 0, best_s = rows[0].load_s[i], cake_s = rows[0].cake_ttft_s[i];
    for (size_t r = 0; r + 1 < rows.size(); ++r) {
      rate += 1 / rows[r].load_s[i];
      best_s = std::min(best_s, rows[r].load_s[i]);
      cake_s = std::min(cake_s, rows[r].cake_ttft_s[i]);
    }
    of_best.push_back(all.load_s[i] / best_s);
    of_sum.push_back(1 / (rate * all.load_s[i]));
    cake_of_best.push_back(all.cake_ttft_s[i] / cake_s);
  }
  fmt::print("loading from all: {} of the best store's time, at {} of their rates added\n",
             Spread(of_best, 2), Spread(of_sum, 3));
  fmt::print("cake with all: {} of the best store's time to first token\n",
             Spread(cake_of_best, 2));
  (*json)["load_time_of_best"] = Median(of_best);
  (*json)["rate_of_sum"] = Median(of_sum);
  (*json)["cake_ttft_of_best"] = Median(cake_of_best);
}

}  // namespace

Status RunTiers(const TiersOptions& options) {
  TiersOptions used = options;
  if (options.runtime.stores.size() == 1) {
    return Fail(ErrorCode::kInvalidArgument, "give --store twice or more, or not at all");
  }
  if (options.context < options.runtime.chunk_tokens) {
    return Fail(ErrorCode::kInvalidArgument, "--context {} is too short: at least {} tokens",
                options.context, options.runtime.chunk_tokens);
  }
  ScratchDir scratch;
  if (options.runtime.stores.empty()) {
    ASSIGN_OR_RETURN(scratch, ScratchDir::Make("", "tiers"));
    for (const double rate : {200e6, 100e6}) {
      used.runtime.stores.push_back(
          {.dir = fmt::format("{}/{}", scratch.path(), rate), .load_rate_bytes_per_s = rate});
    }
  }
  ASSIGN_OR_RETURN(used.runtime.model_dir, ModelDirOf(options.runtime.model_dir, options.arch));
  std::vector<int32_t> prompt, answer;
  ASSIGN_OR_RETURN(auto rows, Prepare(used, used.runtime.stores, &prompt, &answer));
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (const Policy policy : kTierPolicies) {
      for (TierRow& row : rows) {
        RETURN_IF_ERROR(Run(row, prompt, policy, &answer, /*measured=*/true));
      }
    }
  }
  const Runtime& all = *rows.back().runtime;
  const uint64_t chunks = prompt.size() / all.options().chunk_tokens;
  fmt::print("{}, {}, {} tokens ({} chunks), {} repeats\n", CpuName(), used.runtime.model_dir,
             prompt.size(), chunks, options.repeats);
  nlohmann::ordered_json json = {{"tokens", prompt.size()}, {"rows", nlohmann::json::array()}};
  Print(rows, chunks * rows.back().runtime->pool().layout().page_bytes(), &json);
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
