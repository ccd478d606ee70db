// How long does a slice of x tokens take after L others? What tools/fit_slices.py makes profiles
// of.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"

namespace kvcake::bench {
namespace {

struct SliceCell {
  int prefix = 0, tokens = 0;
  std::vector<double> seconds = {};  // a value each repeat
};

// Slices of a prompt whose pages hold random keys and values already.
class SliceRun {
 public:
  static Result<SliceRun> Create(const SlicesOptions& options, const std::string& dir) {
    ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
    RuntimeOptions runtime_options{
        .model_dir = dir, .threads = options.threads, .path = options.path};
    const int chunk_tokens = runtime_options.chunk_tokens;
    SliceRun run;
    int end = 0, longest = 0;
    for (int prefix : options.prefixes) {
      for (int tokens : options.tokens) {
        if (prefix > config.max_positions - tokens) continue;
        run.cells_.push_back({.prefix = prefix, .tokens = tokens});
        end = std::max(end, prefix + tokens);
        longest = std::max(longest, tokens);
      }
    }
    if (run.cells_.empty()) {
      return Fail(ErrorCode::kInvalidArgument, "{}: its context of {} has room for none of these",
                  dir, config.max_positions);
    }
    const int pages = (end + chunk_tokens - 1) / chunk_tokens;
    runtime_options.slice_tokens = std::max(longest, chunk_tokens);
    SetPageBytes(
        (pages + kSparePages) * TransformerModel::LayoutFor(config, chunk_tokens).page_bytes(),
        &runtime_options);
    ASSIGN_OR_RETURN(run.runtime_, Runtime::Create(runtime_options));
    run.tokens_ = RandomPrompt(longest, config.vocab_size, 1);
    ASSIGN_OR_RETURN(run.pages_,
                     DrawPages(*run.runtime_, pages, RandomPage(run.runtime_->pool().layout())));
    return run;
  }

  // One repeat of everything; the first is not kept, and warms up.
  Status Measure(bool keep) {
    const std::vector<PageId> pages = IdsOf(pages_);
    for (SliceCell& cell : cells_) {
      const Slice slice{
          .tokens = std::span(tokens_).first(cell.tokens), .start = cell.prefix, .pages = pages};
      const TimePoint start = Clock::Real().Now();
      RETURN_IF_ERROR(runtime_->model().Forward({&slice, 1}).map([](const auto&) {}));
      if (keep) cell.seconds.push_back((Clock::Real().Now() - start).count());
    }
    return {};
  }

  nlohmann::ordered_json Report(const std::string& name) const {
    auto slices = nlohmann::ordered_json::array();
    for (const SliceCell& cell : cells_) {
      std::vector<double> ms;
      for (double s : cell.seconds) ms.push_back(1e3 * s);
      fmt::print("{:<14} {:>7} {:>7} {:>28} {:>10.0f}\n", name, cell.prefix, cell.tokens,
                 Spread(ms, 2), cell.tokens / Median(cell.seconds));
      slices.push_back(
          {{"prefix", cell.prefix}, {"tokens", cell.tokens}, {"seconds", cell.seconds}});
    }
    const KvLayout& layout = runtime_->pool().layout();
    return {{"model", name},
            {"device", DeviceName(runtime_->model().numeric_path())},
            {"cpu", CpuName()},
            {"layers", layout.layers},
            {"kv_bytes_per_token", layout.bytes_per_token()},
            {"max_positions", runtime_->config().max_positions},
            {"slices", std::move(slices)}};
  }

 private:
  std::unique_ptr<Runtime> runtime_;
  std::vector<int32_t> tokens_;
  PageTable pages_;
  std::vector<SliceCell> cells_;
};

}  // namespace

Status RunSlices(const SlicesOptions& options) {
  RETURN_IF_ERROR(CheckDevice(options.path));
  fmt::print("{}\n{:<14} {:>7} {:>7} {:>28} {:>10}\n", DeviceName(options.path), "model", "after",
             "tokens", "ms (min - max)", "tokens/s");
  auto json = nlohmann::ordered_json::array();
  for (const std::string& name : ModelNames(options.model_dir, options.archs)) {
    ASSIGN_OR_RETURN(const std::string dir, ModelDirOf(options.model_dir, name));
    ASSIGN_OR_RETURN(SliceRun run, SliceRun::Create(options, dir));
    for (int repeat = 0; repeat <= options.repeats; ++repeat) {
      RETURN_IF_ERROR(run.Measure(/*keep=*/repeat > 0));
    }
    json.push_back(run.Report(name));
  }
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
