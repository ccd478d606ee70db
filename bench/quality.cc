// Does a way of running the model change what it says?
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/codec_quality.h"
#include "bench/harness.h"
#include "bench/held_out.h"
#include "bench/lookup_documents.h"
#include "model/score.h"
#include "ops/compute.h"
#include "store/store_dir.h"

namespace kvcake::bench {
namespace {

// One way of running the model.
struct Way {
  std::string name;
  NumericPath path = NumericPath::kUnknown;
  WeightFormat weights = WeightFormat::kBf16;
  bool restored = false;  // what can be kept is loaded from a store instead of computed
};

// A text scored by one way. Positions that were not scored are NaN and -1.
struct Scored {
  std::vector<double> nll;   // of the token after each position
  std::vector<int32_t> top;  // the likeliest one
};

struct Task {
  std::vector<std::vector<int32_t>> windows;
  std::vector<std::vector<Document>> documents;  // of each of lookup_tokens
};

struct WayOutcome {
  std::vector<Scored> windows;
  std::vector<std::vector<std::string>> answers;  // of each of lookup_tokens
  std::vector<int> right;
};

// The same for the same files and options on every machine.
Result<Task> MakeTask(const Tokenizer& tokenizer, const QualityOptions& options,
                      const std::string& dir, int context) {
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadHeldOut(dir));
  Task task;
  std::string all;
  for (const std::string& text : texts) {
    ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode(text));
    tokens.resize(std::min<size_t>(tokens.size(), std::min(options.window_tokens, context)));
    task.windows.push_back(std::move(tokens));
    all += text;
  }
  ASSIGN_OR_RETURN(task.documents,
                   LookupDocuments(tokenizer, dir, all, options.lookup_tokens, options.lookups));
  return task;
}

// Loads what a cold run of `tokens` keeps, and returns its pages.
Result<PageTable> Restore(Runtime& runtime, const std::vector<int32_t>& tokens) {
  RETURN_IF_ERROR(RunCold(runtime, tokens, Policy::kCompute, 1, /*store=*/true));
  ASSIGN_OR_RETURN(const Completion done,
                   RunCold(runtime, tokens, Policy::kLoad, 1, /*store=*/false));
  PageTable pages;
  for (const ChunkKey& key :
       ChunkKeys(runtime.model().identity().Root(), tokens, runtime.options().chunk_tokens)) {
    std::optional<PageHandle> page = runtime.pool().Lookup(key);
    if (page) pages.push_back(std::move(*page));
  }
  if (done.report.loaded() == 0 || pages.empty()) {
    return Fail(ErrorCode::kNotFound, "nothing of {} tokens could be restored from {}",
                tokens.size(), runtime.options().stores.at(0).Place());
  }
  return pages;
}

Result<Scored> ScoreWindow(Runtime& runtime, const std::vector<int32_t>& tokens, bool restored) {
  PageTable table;
  std::vector<PageId> kept;
  if (restored) {
    ASSIGN_OR_RETURN(table, Restore(runtime, tokens));
    table.resize((table.size() + 1) / 2);  // the rest is computed on top of it, and scored
    kept = IdsOf(table);
  }
  Scored scored{.nll = std::vector<double>(tokens.size(), std::nan("")),
                .top = std::vector<int32_t>(tokens.size(), -1)};
  RETURN_IF_ERROR(VisitLogits(runtime.model(), runtime.pool(), tokens,
                              {.slice_tokens = runtime.options().slice_tokens, .kept = kept},
                              [&](int position, std::span<const float> logits) {
                                const auto top =
                                    std::max_element(logits.begin(), logits.end()) - logits.begin();
                                scored.top[position] = static_cast<int32_t>(top);
                                const size_t next = static_cast<size_t>(position) + 1;
                                if (next < tokens.size()) {
                                  scored.nll[position] =
                                      NegativeLogLikelihood(logits, tokens[next]);
                                }
                              }));
  return scored;
}

Result<std::vector<std::string>> AnswerAll(Runtime& runtime, const Document& document,
                                           bool restored) {
  if (restored) RETURN_IF_ERROR(Restore(runtime, document.tokens));
  std::vector<std::string> answers;
  for (const Fact& fact : document.facts) {
    ASSIGN_OR_RETURN(const Completion done, AskFor(runtime, document, fact));
    answers.push_back(AnswerIn(runtime.tokenizer().Decode(done.tokens)));
  }
  return answers;
}

Result<WayOutcome> RunWay(const Way& way, const Task& task, const QualityOptions& options) {
  std::vector<StoreOptions> stores;
  if (way.restored) {
    stores.push_back({.dir = options.out_dir + "/kv-store"});
    (void)ClearStore(stores[0].dir);  // of the last time
  }
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create({.model_dir = options.model_dir,
                                                        .stores = stores,
                                                        .threads = options.threads,
                                                        .path = way.path,
                                                        .weights = way.weights}));
  WayOutcome outcome;
  for (const auto& window : task.windows) {
    ASSIGN_OR_RETURN(outcome.windows.emplace_back(), ScoreWindow(*runtime, window, way.restored));
  }
  for (const auto& documents : task.documents) {
    std::vector<std::string>& answers = outcome.answers.emplace_back();
    int& right = outcome.right.emplace_back(0);
    for (const Document& document : documents) {
      ASSIGN_OR_RETURN(const auto some, AnswerAll(*runtime, document, way.restored));
      for (size_t i = 0; i < some.size(); ++i) right += some[i] == document.facts[i].code;
      answers.insert(answers.end(), some.begin(), some.end());
    }
  }
  if (way.restored) RETURN_IF_ERROR(ClearStore(stores[0].dir));
  return outcome;
}

struct Comparison {
  int64_t positions = 0;
  double mean_nll = 0;
  double change = 0;      // of the mean loss, from the plain run's at the same positions
  double difference = 0;  // mean |change| of a loss
  double agreement = 0;   // share of positions with the same likeliest token
};

Comparison Compare(const WayOutcome& outcome, const WayOutcome& plain) {
  Comparison all;
  int64_t tops = 0;
  for (size_t w = 0; w < outcome.windows.size(); ++w) {
    const Scored &a = outcome.windows[w], &b = plain.windows[w];
    for (size_t i = 0; i < a.nll.size(); ++i) {
      if (a.top[i] >= 0) {
        ++tops;
        all.agreement += a.top[i] == b.top[i];
      }
      if (std::isnan(a.nll[i])) continue;
      ++all.positions;
      all.mean_nll += a.nll[i];
      all.change += a.nll[i] - b.nll[i];
      all.difference += std::abs(a.nll[i] - b.nll[i]);
    }
  }
  all.agreement /= std::max<int64_t>(1, tops);
  for (double* sum : {&all.mean_nll, &all.change, &all.difference}) {
    *sum /= std::max<int64_t>(1, all.positions);
  }
  return all;
}

nlohmann::ordered_json Report(const Way& way, const WayOutcome& outcome, const Comparison& result,
                              const QualityOptions& options) {
  nlohmann::ordered_json lookups = nlohmann::ordered_json::array();
  std::string shares;
  for (size_t i = 0; i < options.lookup_tokens.size(); ++i) {
    const size_t asked = outcome.answers[i].size();
    lookups.push_back(
        {{"tokens", options.lookup_tokens[i]}, {"asked", asked}, {"right", outcome.right[i]}});
    shares += fmt::format("{:>7.1f}%", 100.0 * outcome.right[i] / asked);
  }
  fmt::print("{:<10} {:<9} {:>9} {:>10.4f} {:>+8.3f}% {:>8.2f}% {:>9.5f} {}\n", way.name,
             NumericPathName(way.path), result.positions, std::exp(result.mean_nll),
             100 * std::expm1(result.change), 100 * result.agreement, result.difference, shares);
  std::fflush(stdout);
  return {{"name", way.name},
          {"numeric_path", NumericPathName(way.path)},
          {"weights", WeightFormatName(way.weights)},
          {"positions", result.positions},
          {"mean_nll", result.mean_nll},
          {"perplexity", std::exp(result.mean_nll)},
          {"perplexity_change", std::expm1(result.change)},
          {"top1_agreement", result.agreement},
          {"mean_abs_nll_difference", result.difference},
          {"lookups", std::move(lookups)}};
}

Status CheckOutcome(const Way& way, const WayOutcome& outcome, const Comparison& result,
                    const WayOutcome& plain, double change_max) {
  if (way.restored &&
      (result.difference != 0 || result.agreement != 1 || outcome.answers != plain.answers)) {
    return Fail(ErrorCode::kCorrupt, "restored chunks did not give exactly what computing gives");
  }
  if (std::abs(std::expm1(result.change)) > change_max) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: perplexity moved by {:+.3f}%, more than the {:.3f}% allowed "
                "(--max-perplexity-change)",
                way.name, 100 * std::expm1(result.change), 100 * change_max);
  }
  return {};
}

std::vector<Way> WaysOfThisMachine() {
  std::vector<Way> ways = {{.name = "plain", .path = BestPath()},
                           {.name = "restored", .path = BestPath(), .restored = true}};
  if (BestPath() != NumericPath::kF32Fma && PathAvailable(NumericPath::kF32Fma)) {
    ways.push_back({.name = "f32", .path = NumericPath::kF32Fma});
  }
  ways.push_back({.name = "int8", .path = BestPath(), .weights = WeightFormat::kInt8});
  return ways;
}

}  // namespace

Status RunQuality(const QualityOptions& options) {
  if (!options.kv_codecs.empty()) return RunCodecQuality(options);
  // A restored chunk, a token that sees it, and the one that this token predicts.
  if (const int least = RuntimeOptions{}.chunk_tokens + 2; options.window_tokens < least) {
    return Fail(ErrorCode::kInvalidArgument,
                "--window-tokens {} leaves nothing to score on restored chunks: at least {}",
                options.window_tokens, least);
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::string dir =
      options.text_dir.empty() ? options.model_dir + "/held_out" : options.text_dir;
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model_dir));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Load(options.model_dir));
  ASSIGN_OR_RETURN(const Task task, MakeTask(tokenizer, options, dir, config.max_positions));
  size_t tokens = 0;
  for (const auto& window : task.windows) tokens += window.size();
  fmt::print("{}. Held-out text: {} tokens in {} windows; lookups among {} facts, exact.\n\n",
             CpuName(), tokens, task.windows.size(), kFactsPerDocument);
  fmt::print("{:<10} {:<9} {:>9} {:>10} {:>9} {:>9} {:>9} ", "run", "path", "positions",
             "perplexity", "change", "top-1", "|d nll|");
  for (const int n : options.lookup_tokens) fmt::print("{:>8}", n);
  fmt::print("\n");

  nlohmann::ordered_json runs = nlohmann::ordered_json::array();
  WayOutcome plain;
  Status status;
  for (const Way& way : WaysOfThisMachine()) {
    ASSIGN_OR_RETURN(WayOutcome outcome, RunWay(way, task, options));
    if (runs.empty()) plain = outcome;
    const Comparison result = Compare(outcome, plain);
    runs.push_back(Report(way, outcome, result, options));
    if (status) status = CheckOutcome(way, outcome, result, plain, options.perplexity_change_max);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  fmt::print(
      "\nchange, top-1 and |d nll|: against the plain run at the same positions. {:.0f} s.\n",
      took.count());
  if (!options.json.empty()) {
    RETURN_IF_ERROR(WriteJson(options.json, {{"model", options.model_dir},
                                             {"cpu", CpuName()},
                                             {"seconds", took.count()},
                                             {"runs", std::move(runs)}}));
  }
  return status;
}

}  // namespace kvcake::bench
