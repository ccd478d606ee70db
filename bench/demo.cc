// The tour: questions about a long document under each policy, at three link speeds.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/lanes_svg.h"
#include "bench/lookups.h"
#include "store/store_dir.h"

namespace kvcake::bench {
namespace {

constexpr int kQuestionTokens = 64;  // room that the document leaves in the context

const std::vector<Fact> kFacts = {{"hidden village", "4719", 0.10},
                                  {"ancient lantern", "8253", 0.45},
                                  {"golden tower", "6048", 0.80}};

struct Link {
  const char* name;
  double load_per_compute;  // 0: as fast as the disk
  int repeats;              // the shorter loading takes, the more its noise is of it
};
constexpr std::array kLinks = {Link{"slow link (loading takes 4x computing)", 4, 5},
                               Link{"balanced link", 1, 9}, Link{"this disk", 0, 21}};

Result<std::vector<int32_t>> PlantedDocument(const Runtime& runtime, const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  if (text.str().empty()) {
    return Fail(ErrorCode::kInvalidArgument, "cannot read {}, or it is empty", path);
  }
  // Whole chunks: all of it can be kept.
  const int chunk = runtime.options().chunk_tokens;
  const int room = runtime.config().max_positions - kQuestionTokens - kAnswerTokens;
  return PlantFacts(runtime.tokenizer(), text.str(), kFacts, room / chunk * chunk);
}

struct DemoRow {
  std::vector<double> ttft_s;
  Completion last;
  std::string answer;
};

void PrintRow(Policy policy, const DemoRow& row, const Fact& fact, double better) {
  const RestoreReport& report = row.last.report;
  const bool right = row.answer == fact.code;
  fmt::print("  {:<9} {:>9.1f} ms {:>8} {:>8} {:>10}   {:<8} {}\n", PolicyName(policy),
             Median(row.ttft_s) * 1e3, report.tokens_computed, report.loaded(),
             policy == Policy::kCake ? fmt::format("{:.2f}x", Median(row.ttft_s) / better) : "",
             row.answer, right ? "right" : "wrong");
  std::fflush(stdout);
}

// One question under every policy, interleaved; fails when the policies disagree.
Result<std::array<DemoRow, kPolicies.size()>> MeasureLink(Runtime& runtime,
                                                          const std::vector<int32_t>& prompt,
                                                          int repeats) {
  std::array<DemoRow, kPolicies.size()> rows;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    // Only the document is kept between runs, as in life: the question is new each time.
    ASSIGN_OR_RETURN(auto done, RunPolicies(runtime, prompt, /*store=*/false));
    for (size_t i = 0; i < kPolicies.size(); ++i) {
      rows[i].ttft_s.push_back(done[i].ttft_s);
      rows[i].answer = AnswerIn(runtime.tokenizer().Decode(done[i].tokens));
      rows[i].last = std::move(done[i]);
    }
  }
  return rows;
}

}  // namespace

Status RunDemo(const DemoOptions& options) {
  const std::string store = options.out_dir + "/kv-store";
  (void)ClearStore(store);  // of the last tour, if there was one
  ASSIGN_OR_RETURN(const auto runtime,
                   Runtime::Create({.model_dir = options.model_dir,
                                    .stores = {{.dir = store, .load_rate_bytes_per_s = 1e12}},
                                    .threads = options.threads}));
  ASSIGN_OR_RETURN(const auto document, PlantedDocument(*runtime, options.document));
  const double bytes = static_cast<double>(document.size() / runtime->options().chunk_tokens *
                                           runtime->pool().layout().page_bytes());
  fmt::print(
      "{}, {} threads. {} tokens of {}, with {} facts planted in them;\n"
      "its KV cache takes {:.1f} MB and is kept in {}.\n\n",
      CpuName(), runtime->threads().size(), document.size(), options.document, kFacts.size(),
      bytes / 1e6, store);

  // The first run computes everything and keeps it; the next ones tell how long computing takes.
  std::vector<double> compute_s;
  for (int i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(const Completion done,
                     RunCold(*runtime, document, Policy::kCompute, 1, /*store=*/true));
    compute_s.push_back(done.ttft_s);
  }
  for (size_t i = 0; i < kLinks.size(); ++i) {
    const Link& link = kLinks[i];
    runtime->link()->SetRate(
        link.load_per_compute > 0 ? bytes / (link.load_per_compute * Median(compute_s)) : 1e12);
    ASSIGN_OR_RETURN(const auto prompt, Ask(runtime->tokenizer(), document, kFacts[i].name));
    ASSIGN_OR_RETURN(const auto rows, MeasureLink(*runtime, prompt, link.repeats));
    fmt::print("{}: what is the code of the {}? (said {:.0f}% into the document; {} repeats)\n",
               link.name, kFacts[i].name, 100 * kFacts[i].depth, link.repeats);
    fmt::print("  {:<9} {:>12} {:>8} {:>8} {:>10}   {}\n", "policy", "first token", "computed",
               "loaded", "vs better", "answer");
    const double better = std::min(Median(rows[0].ttft_s), Median(rows[1].ttft_s));
    for (size_t p = 0; p < kPolicies.size(); ++p) {
      PrintRow(kPolicies[p], rows[p], kFacts[i], better);
    }
    fmt::print("\n");
    if (link.load_per_compute == 1) {
      const std::string picture = options.out_dir + "/lanes.svg";
      RETURN_IF_ERROR(WriteFile(
          picture, DrawLanes("compute and load, a balanced link",
                             {rows[0].last.report, rows[1].last.report, rows[2].last.report})));
    }
  }
  fmt::print("The same answers under every policy. Picture of the balanced link: {}/lanes.svg\n",
             options.out_dir);
  return {};
}

}  // namespace kvcake::bench
