// What the benches print and write: figures that follow from each other, of one repeat each.
#include <fmt/core.h>

#include <cmath>
#include <set>

#include "tests/cli_testing.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

constexpr double kExact = 1e-9;  // relative, of what is computed of the same numbers

class BenchFiguresTest : public ProgramTest {
 protected:
  void SetUp() override {
    ASSERT_EQ(setenv("XDG_CACHE_HOME", dir_.c_str(), 1), 0);
    ASSERT_EQ(Run("model synth --arch tiny --out " + model_).exit_code, 0);
    fs::current_path(KVCAKE_SOURCE_DIR);  // where the text and the model of servers are
  }
  void TearDown() override {
    fs::current_path(here_);
    ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
  }

  // What a bench writes; what it prints is in printed_.
  json Measure(const std::string& arguments) {
    const Outcome outcome = Run("bench " + arguments + " --json " + dir_ + "/json");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    printed_ = outcome.out;
    return json::parse(Read(dir_ + "/json"));
  }
  json OfTiny(const std::string& arguments) {
    return Measure(arguments + " --repeats 1 --threads 2 --model " + model_);
  }
  static double Of(const json& row, const char* name) { return row[name].get<double>(); }
  static void ExpectSame(double value, double expected, const std::string& what) {
    EXPECT_NEAR(value, expected, kExact * std::abs(expected)) << what;
  }

  const fs::path here_ = fs::current_path();
  const std::string model_ = dir_ + "/tiny";
  std::string printed_;
};

TEST_F(BenchFiguresTest, TtftComparesTheRunsOfEachCell) {
  const json rows = OfTiny(
      "ttft --context 1024 --link-gbit 0.5 inf --latencies 0 2ms "
      "--present 1 0.5 --variant-ratios 0.5 --compute-share 1 0.125 --svg '' "
      "--dir " +
      dir_);
  double sum = 0, least = 1e9;
  std::vector<json> cakes;
  for (size_t i = 0; i < rows.size();) {
    const json& compute = rows[i++];
    ASSERT_EQ(compute["policy"], "compute");
    const bool ran = rows[i]["policy"] == "load";
    const json load = ran ? rows[i++] : json();
    const json &published = rows[i++], &cake = rows[i++];
    ASSERT_EQ(published["policy"], "cake-published");
    ASSERT_EQ(cake["policy"], "cake");
    for (const json& row : {compute, load, published, cake}) {
      if (row.is_null()) continue;
      EXPECT_EQ(row["repeats"], json::array({row["ttft_s"]}));
      EXPECT_EQ(row["bound_s"], cake["bound_s"]);
      ExpectSame(Of(row, "efficiency"), Of(row, "bound_s") / Of(row, "ttft_s"), row.dump());
      EXPECT_LE(Of(row, "bound_s"), Of(compute, "ttft_s"));
      EXPECT_LE(Of(row, "bound_fractional_s"), Of(row, "bound_s") * (1 + kExact));
    }
    const double load_s = Of(cake, "load_s"), cake_s = Of(cake, "ttft_s");
    const double compute_s = Of(compute, "ttft_s");
    if (ran) {
      EXPECT_EQ(cake["load_s"], load["ttft_s"]);
    }
    ExpectSame(Of(cake, "against_better"), cake_s / std::min(compute_s, load_s), cake.dump());
    ExpectSame(Of(cake, "overlap"), cake_s / load_s + cake_s / compute_s, cake.dump());
    if (!cake["link_gbit"].is_null()) {
      ExpectSame(Of(cake, "ratio"), load_s / compute_s, cake.dump());
    }
    if (cake["link_gbit"] == 0.5) {  // 256 bytes a token
      EXPECT_GE(load_s, 0.9 * 1024 * 256 * 8 / 0.5e9);
    }
    if (cake["latency_ms"] == 2) {
      EXPECT_GE(load_s, 2e-3);
    }
    EXPECT_THAT(printed_,
                HasSubstr(fmt::format("{:>9.3f} {:>8.3f}{} {:>9.3f} {:>9.3f} {:>9.3f} {:>8.1f}% "
                                      "{:>5.2f}x {:>7.2f} ",
                                      compute_s, load_s, ran ? " " : "~", Of(published, "ttft_s"),
                                      cake_s, Of(cake, "bound_s"), 100 * Of(cake, "efficiency"),
                                      Of(cake, "against_better"), Of(cake, "overlap"))));
    sum += Of(cake, "efficiency");
    least = std::min(least, Of(cake, "efficiency"));
    cakes.push_back(cake);
  }
  std::vector<std::string> cells;
  for (const json& cake : cakes) {
    cells.push_back(fmt::format("{} of compute, {}, {} ms, {} there", Of(cake, "compute_share"),
                                cake["link_gbit"].dump(), Of(cake, "latency_ms"),
                                Of(cake, "present")));
  }
  std::vector<std::string> expected;
  for (const char* share : {"1", "0.125"}) {
    for (const char* cell : {"0.5, 0 ms, 1 there", "\"as it is\", 0 ms, 1 there",
                             "null, 2 ms, 1 there", "null, 0 ms, 0.5 there"}) {
      expected.push_back(fmt::format("{} of compute, {}", share, cell));
    }
  }
  EXPECT_EQ(cells, expected) << "variants one at a time";
  const auto count = static_cast<double>(cakes.size());
  EXPECT_THAT(printed_, HasSubstr(fmt::format("\n    1024 {:>6} {:>8.3f} {:>7.3f} ", count,
                                              sum / count, least)));
  EXPECT_THAT(printed_, HasSubstr(fmt::format("least efficient:\n  {:.3f} (", least)));
}

TEST_F(BenchFiguresTest, ChangesCompareTheRunsOfEachRow) {
  const json rows = OfTiny("changes --context 1024 --dir " + dir_);
  ASSERT_EQ(rows.size(), 13u);
  double sum = 0, least = 1e9;
  for (const json& row : rows) {
    const auto seconds = [&](const char* of) { return row[of][0].get<double>(); };
    const double bound_s = seconds("bound_s"), cake_s = seconds("cake_s");
    const double better_s = std::min(seconds("compute_s"), seconds("load_s"));
    const std::string what = row.dump();
    ExpectSame(Of(row, "efficiency"), bound_s / cake_s, what);
    ExpectSame(Of(row, "efficiency_published"), bound_s / seconds("published_s"), what);
    ExpectSame(Of(row, "efficiency_static"), bound_s / seconds("static_s"), what);
    ExpectSame(Of(row, "against_better"), cake_s / better_s, what);
    EXPECT_LE(bound_s, seconds("compute_s")) << what;
    EXPECT_THAT(printed_, HasSubstr(fmt::format(
                              "{:<27} {:>8.3f} {:>8.3f} {:>9.3f} {:>8.3f} {:>8.3f} "
                              "{:>8.3f} {:>7.3f} {:>9.3f} {:>7.3f} {:>6.3f}x\n",
                              row["change"].get<std::string>(), seconds("compute_s"),
                              seconds("load_s"), seconds("published_s"), seconds("static_s"),
                              cake_s, bound_s, bound_s / cake_s, bound_s / seconds("published_s"),
                              bound_s / seconds("static_s"), cake_s / better_s)));
    sum += bound_s / cake_s;
    least = std::min(least, bound_s / cake_s);
  }
  EXPECT_THAT(printed_, HasSubstr(fmt::format("mean {:.3f}, least {:.3f}", sum / 13, least)));
}

TEST_F(BenchFiguresTest, LoadWritesEveryRowThatItPrints) {
  const Outcome outcome = Run("bench load --bytes 1MiB --chunk-bytes 256KiB --repeats 1 --dir " +
                              dir_ + " --json " + dir_ + "/json");
  if (outcome.err.find("apt-get install fio") != std::string::npos) GTEST_SKIP() << outcome.err;
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::vector<std::string> ops;
  for (const json& row : json::parse(Read(dir_ + "/json"))) {
    ops.push_back(row["op"]);
    const double rate = row["bytes_per_s"], fio = row["fio_bytes_per_s"], cpu = row["cpu_share"];
    EXPECT_THAT(outcome.out,
                HasSubstr(fmt::format("{:<6} {:>8.1f} {:>10.0f} {:>10.0f} {:>8.1f}% {:>10.1f}% ",
                                      ops.back(), 0.25, rate / 1e6, fio / 1e6, 100 * rate / fio,
                                      100 * cpu)));
  }
  EXPECT_THAT(ops, testing::ElementsAre("read", "beside", "write", "verify"));
}

TEST_F(BenchFiguresTest, TiersHoldAllStoresAgainstEachAlone) {
  const json result = OfTiny("tiers --context 1024");
  const json& rows = result["rows"];
  ASSERT_EQ(rows.size(), 3u);
  constexpr double kBytes = 8 * (128 * 256 + 4096);  // eight chunks, each with its header
  double rate = 0, best_s = 1e9, cake_s = 1e9;
  for (size_t i = 0; i < rows.size(); ++i) {
    int loaded = 0;
    for (const auto& [tier, tokens] : rows[i]["tokens_loaded"].items()) loaded += tokens.get<int>();
    EXPECT_EQ(loaded, 1024) << rows[i];
    EXPECT_LE(Of(rows[i], "load_s"), Of(rows[i], "load_ttft_s"));
    if (i == 2) break;
    EXPECT_GT(Of(rows[i], "load_s"), 0.8 * kBytes / (i == 0 ? 200e6 : 100e6)) << "its rate";
    rate += 1 / Of(rows[i], "load_s");
    best_s = std::min(best_s, Of(rows[i], "load_s"));
    cake_s = std::min(cake_s, Of(rows[i], "cake_ttft_s"));
  }
  const double all_s = Of(rows[2], "load_s");
  ExpectSame(Of(result, "load_time_of_best"), all_s / best_s, result.dump());
  ExpectSame(Of(result, "rate_of_sum"), 1 / (rate * all_s), result.dump());
  ExpectSame(Of(result, "cake_ttft_of_best"), Of(rows[2], "cake_ttft_s") / cake_s, result.dump());
  for (const json& row : rows) {
    const auto spread = [&](const char* of) {
      return fmt::format("{0:.3f} ({0:.3f} - {0:.3f})", Of(row, of));
    };
    EXPECT_THAT(printed_, HasSubstr(fmt::format("{:>24} {:>8.1f} {:>22} {:>22}\n", spread("load_s"),
                                                kBytes / 1e6 / Of(row, "load_s"),
                                                spread("load_ttft_s"), spread("cake_ttft_s"))));
  }
}

TEST_F(BenchFiguresTest, StartupHoldsTheFirstForwardPassAgainstLoadingOnce) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  const json rows = OfTiny("startup");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["cache"], "warm");
  EXPECT_EQ(rows[1]["cache"], "cold");
  for (const json& row : rows) {
    EXPECT_EQ(row["weights_bytes"], fs::file_size(model_ + "/model.safetensors"));
    EXPECT_EQ(row["repeats"], json::array({row["first_forward_s"]}));
    ExpectSame(Of(row, "ratio"), Of(row, "first_forward_s") / Of(row, "load_once_s"), row.dump());
    const auto spread = [](double s) { return fmt::format("{0:.2f} ({0:.2f} - {0:.2f})", s); };
    EXPECT_THAT(printed_,
                HasSubstr(fmt::format(
                    "{:<6} {:>22} {:>26} {:>26} {:>24}\n", row["cache"].get<std::string>(),
                    spread(Of(row, "read_s")), spread(Of(row, "load_once_s")),
                    spread(Of(row, "first_forward_s")), spread(Of(row, "ratio")))));
  }
}

TEST_F(BenchFiguresTest, ScheduleComparesBothOrders) {
  const json result = OfTiny(
      "schedule --crowds 2 --context 1024 --burst 2 --answer-tokens 3 "
      "--ratios 0.5 2 --svg " +
      dir_ + "/s.svg");
  const json& cells = result["cells"];
  ASSERT_EQ(cells.size(), 4u);
  double best = -1, ratio_of_best = 0;
  for (size_t i = 0; i < cells.size(); i += 2) {
    const json &fcfs = cells[i], &adaptive = cells[i + 1];
    EXPECT_EQ(fcfs["schedule"], "fcfs");
    EXPECT_EQ(adaptive["schedule"], "adaptive");
    EXPECT_EQ(fcfs["ratio"], adaptive["ratio"]);
    for (const json& cell : {fcfs, adaptive}) {
      EXPECT_LE(Of(cell, "fresh_ttft_s_p50"), Of(cell, "fresh_ttft_s_p95"));
      EXPECT_LE(Of(cell, "fresh_end_s"), Of(cell, "finish_s"));
      EXPECT_LE(Of(cell, "restored_ttft_s"), Of(cell, "finish_s"));
      // The second of two is the later one; both end two gaps after they have begun.
      EXPECT_NEAR(Of(cell, "fresh_end_s"),
                  (Of(cell, "fresh_ttft_s_p50") + Of(cell, "fresh_ttft_s_p95")) / 2 +
                      2e-3 * Of(cell, "fresh_itl_ms"),
                  1e-9);
    }
    const double gain = Of(fcfs, "finish_s") / Of(adaptive, "finish_s") - 1;
    if (gain > best) best = gain, ratio_of_best = Of(fcfs, "ratio");
    EXPECT_THAT(printed_,
                HasSubstr(fmt::format(
                    "{:>7.1f} | {:>7.3f} {:>8.3f} {:>5.1f}% | {:>6.3f} {:>8.3f} "
                    "| {:>6.3f} {:>8.3f} |",
                    Of(fcfs, "gbit_per_s"), Of(fcfs, "finish_s"), Of(adaptive, "finish_s"),
                    100 * gain, Of(fcfs, "fresh_ttft_s_p50"), Of(adaptive, "fresh_ttft_s_p50"),
                    Of(fcfs, "fresh_ttft_s_p95"), Of(adaptive, "fresh_ttft_s_p95"))));
  }
  ExpectSame(Of(cells[0], "gbit_per_s"), 4 * Of(cells[2], "gbit_per_s"), "a slower link");
  EXPECT_THAT(Read(dir_ + "/s.svg"), HasSubstr(fmt::format("load / compute {}<", ratio_of_best)))
      << "the best cell";
}

TEST_F(BenchFiguresTest, QualityComparesEachWayWithThePlainOneAtTheSamePositions) {
  fs::create_directory(dir_ + "/text");
  for (const char* name : {"names.txt", "optparse.txt"}) {
    fs::copy_file(KVCAKE_SOURCE_DIR "/models/demo/held_out/" + std::string(name),
                  dir_ + "/text/" + name);
  }
  // No way but the plain one has the plain one's loss to the bit, and the restored one.
  const Outcome outcome =
      Run("bench quality --window-tokens 300 --lookup-tokens 512 --lookups 9 "
          "--max-perplexity-change 0 --model models/demo --text " +
          dir_ + "/text --out " + dir_ + "/quality --json " + dir_ + "/json");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("perplexity moved by"));
  const json runs = json::parse(Read(dir_ + "/json"))["runs"];
  ASSERT_GE(runs.size(), 3u);
  const json& plain = runs[0];
  EXPECT_EQ(plain["name"], "plain");
  EXPECT_EQ(runs[1]["name"], "restored");
  EXPECT_EQ(runs.back()["name"], "int8");
  EXPECT_EQ(runs[1]["positions"], plain["positions"].get<int>() - 128) << "behind what is loaded";
  for (const json& run : runs) {
    const bool same = run["name"] == "plain" || run["name"] == "restored";
    EXPECT_EQ(run["mean_abs_nll_difference"] == 0, same) << run;
    EXPECT_EQ(run["top1_agreement"] == 1, same) << run;
    ExpectSame(Of(run, "perplexity"), std::exp(Of(run, "mean_nll")), run.dump());
    if (run["positions"] == plain["positions"]) {
      EXPECT_NEAR(Of(run, "perplexity_change"), Of(run, "perplexity") / Of(plain, "perplexity") - 1,
                  1e-9);
    }
    const json& lookups = run["lookups"][0];
    EXPECT_EQ(lookups["asked"], 9);
    EXPECT_THAT(
        outcome.out,
        HasSubstr(fmt::format("{:>9} {:>10.4f} {:>+8.3f}% {:>8.2f}% {:>9.5f} {:>7.1f}%\n",
                              run["positions"].get<int>(), Of(run, "perplexity"),
                              100 * Of(run, "perplexity_change"), 100 * Of(run, "top1_agreement"),
                              Of(run, "mean_abs_nll_difference"), Of(lookups, "right") / 9 * 100)));
  }
}

TEST_F(BenchFiguresTest, SimulateRunsTheScenariosOfItsSeedsAndNamesTheWorst) {
  const json result = Measure("simulate --scenarios 12 --seed 5");
  EXPECT_EQ(result["scenarios"], 12);
  EXPECT_EQ(result["classes"].back()["scenarios"], 12);
  const auto by = [&](const char* list, const char* of, int sign) {
    std::vector<double> values;
    std::set<int> seeds;
    for (const json& row : result[list]) {
      EXPECT_TRUE(seeds.insert(row["seed"].get<int>()).second) << "twice";
      EXPECT_GE(row["seed"], 5);
      EXPECT_LT(row["seed"], 5 + 12);
      values.push_back(sign * Of(row, of));
      EXPECT_THAT(printed_,
                  HasSubstr(fmt::format("seed {}: {:.3f}, {:.2f}x better;", row["seed"].get<int>(),
                                        Of(row, "efficiency"), Of(row, "against_better"))));
    }
    EXPECT_GT(values.size(), 1u);
    EXPECT_TRUE(std::ranges::is_sorted(values)) << list;
  };
  by("least_efficient", "efficiency", 1);
  by("worst_against_better", "against_better", -1);
}

// A few questions are soon answered.
constexpr const char* kServers =
    " --document-length 256 --num-documents 2 --repeat-count 2 --repeats 1 ";

TEST_F(BenchFiguresTest, PoliciesAreHeldAgainstTheBetterLane) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  // Most documents have left the memory when they are asked about again.
  const json rows = Measure(
      "policies --workload long-doc-qa --ratios 4 --document-length 256 --num-documents 48 "
      "--repeat-count 2 --repeats 1 --ram-capacity 8MiB");
  ASSERT_EQ(rows.size(), 3u);
  const char* const policies[] = {"compute", "load", "cake"};
  for (size_t i = 0; i < 3; ++i) {
    const json& row = rows[i];
    EXPECT_EQ(row["policy"], policies[i]);
    EXPECT_EQ(row["bytes_per_s"], rows[0]["bytes_per_s"]);
    EXPECT_EQ(row["repeats"][0]["ttft_s_p50"], row["ttft_s_p50"]);
    EXPECT_EQ(row["repeats"][0]["ttft_s_p95"], row["ttft_s_p95"]);
    EXPECT_LE(Of(row, "ttft_s_p50"), Of(row, "ttft_s_p95"));
    EXPECT_LE(Of(row, "ttft_s_mean"), Of(row, "ttft_s_p95"));
  }
  EXPECT_GT(Of(rows[1], "hit_rate"), 1.5 * Of(rows[0], "hit_rate")) << "each has its own policy";
  EXPECT_LT(Of(rows[1], "hit_rate"), 0.27) << "two chunks of every second prompt";
  constexpr std::string_view kBefore = "a document of ";
  const size_t tokens_at = printed_.find(kBefore);
  ASSERT_NE(tokens_at, std::string::npos) << printed_;
  EXPECT_NEAR(std::atoi(printed_.c_str() + tokens_at + kBefore.size()), 256, 16)
      << "links are held against a document without a question";
  // The link takes four times as long as a document is computed, as far as the line says it.
  const size_t at = printed_.find(" takes ");
  ASSERT_NE(at, std::string::npos);
  const double compute_s = std::atof(printed_.c_str() + at + 7);
  constexpr double kTokenBytes = 266240 / 128.0;  // of models/demo, with a chunk's header
  EXPECT_NEAR(Of(rows[0], "bytes_per_s") * 4 * compute_s / (256 * kTokenBytes), 1, 0.8);
  const auto three = [&](const char* of) {
    return fmt::format(" {:>8.3f} {:>8.3f} {:>8.3f} |", Of(rows[0], of), Of(rows[1], of),
                       Of(rows[2], of));
  };
  const auto of_best = [&](const char* of) {
    return Of(rows[2], of) / std::min(Of(rows[0], of), Of(rows[1], of));
  };
  EXPECT_THAT(printed_,
              HasSubstr(three("ttft_s_p50") + three("ttft_s_p95") +
                        fmt::format(" {:>8.0f} {:>8.0f} {:>8.0f} | {:>5.2f}x {:>5.2f}x {:>5.2f}x\n",
                                    Of(rows[0], "tokens_per_s"), Of(rows[1], "tokens_per_s"),
                                    Of(rows[2], "tokens_per_s"), of_best("ttft_s_p50"),
                                    of_best("ttft_s_mean"), of_best("ttft_s_p95"))));
}

TEST_F(BenchFiguresTest, OutagesAreHeldAgainstTheSamePolicyWithoutThem) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  const json rows = Measure(std::string("outages") + kServers);
  ASSERT_EQ(rows.size(), 9u);
  const char* const policies[] = {"compute", "load", "cake"};
  for (size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    EXPECT_EQ(row["link"] == "as it should be", i < 3) << row;
    EXPECT_EQ(row["policy"], policies[i % 3]);
    EXPECT_EQ(row["requests"], 4);
    EXPECT_LE(Of(row, "ttft_s_p50"), Of(row, "ttft_s_p95"));
    // The largest of four values is both.
    EXPECT_EQ(row["ttft_s_p95"], row["ttft_s_p99"]);
    const double times = Of(row, "ttft_s_p99") / Of(rows[i % 3], "ttft_s_p99");
    ExpectSame(Of(row, "p99_to_without"), times, row.dump());
    EXPECT_THAT(printed_,
                HasSubstr(fmt::format("{:<24} {:>8} | {:>8.3f} {:>8.3f} {:>8.3f} | {:>11.2f}x ",
                                      row["link"].get<std::string>(), policies[i % 3],
                                      Of(row, "ttft_s_p50"), Of(row, "ttft_s_p95"),
                                      Of(row, "ttft_s_p99"), times)));
  }
}

TEST_F(BenchFiguresTest, CapacityIsTheHighestRateThatKeepsTheLimit) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  const json rows = Measure(std::string("capacity --ratios 1") + kServers);
  ASSERT_EQ(rows.size(), 3u);
  std::string line = fmt::format("{:>8} |", 1);
  for (const json& row : rows) {
    const double limit_s = Of(row, "ttft_s_max");
    EXPECT_THAT(printed_, HasSubstr(fmt::format("takes {:.3f} s", limit_s / 2)))
        << "twice a document's time";
    double most = 0, p95_s = 0, load_most = 0;
    for (const json& rung : row["tried"]) {
      // Four prompts of 384 tokens are six documents' time, between the first and the last of them.
      EXPECT_NEAR(Of(rung, "requests_per_s") * 6 * (limit_s / 2) / Of(rung, "load"), 3, 0.3);
      load_most = std::max(load_most, Of(rung, "load"));
      if (Of(rung, "ttft_s_p95") > limit_s || Of(rung, "requests_per_s") < most) continue;
      most = Of(rung, "requests_per_s");
      p95_s = Of(rung, "ttft_s_p95");
    }
    EXPECT_EQ(row["requests_per_s"], most) << row;
    const bool is_top = most > 0 && std::ranges::none_of(row["tried"], [&](const json& rung) {
                          return Of(rung, "ttft_s_p95") > limit_s;
                        });
    EXPECT_EQ(row["at_least"], is_top) << row;
    line +=
        fmt::format(" {:>9} {:>7.3f} |", fmt::format("{}{:.3f}", is_top ? ">=" : "", most), p95_s);
  }
  EXPECT_THAT(printed_, HasSubstr(line));
}

}  // namespace
}  // namespace kvcake
