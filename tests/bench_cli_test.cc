// The benches that also measure a CUDA device, on the CPU: what their flags choose and their JSON
// says.
#include <fmt/core.h>

#include "ops/cuda_device.h"
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class BenchCliTest : public ProgramTest {
 protected:
  void SetUp() override { ASSERT_EQ(Run("model synth --arch tiny --out " + model_).exit_code, 0); }

  // What a bench of the tiny model writes.
  json Measure(const std::string& arguments) const {
    const Outcome outcome =
        Run("bench " + arguments + " --model " + model_ + " --threads 2 --json " + dir_ + "/json");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(Read(dir_ + "/json"));
  }

  const std::string model_ = dir_ + "/tiny";
};

TEST_F(BenchCliTest, TtftTakesLinksByTheirRateAndSharesOfTheCompute) {
  const json rows = Measure(
      "ttft --context 512 1024 --compute-share 1 0.25 --link-gbit 0.05 inf "
      "--latencies 0 --present 0.5 --repeats 1 --no-published --svg " +
      dir_ + "/ttft.svg --dir " + dir_);
  int cakes = 0, loads = 0;
  for (const json& row : rows) {
    EXPECT_NE(row["policy"], "cake-published");
    EXPECT_GT(row["ratio"], 0);
    if (row["policy"] == "load") {  // which is run, however slow the link, where chunks are missing
      ++loads;
      // 256 bytes a token, headers apart; no read beats the link but by its burst.
      const double bytes = 0.5 * row["context"].get<double>() * 256;
      if (row["link_gbit"] == 0.05) {
        EXPECT_GT(row["ttft_s"].get<double>(), 0.8 * bytes / (0.05e9 / 8));
      } else {
        EXPECT_EQ(row["link_gbit"], "as it is");
      }
    }
    if (row["policy"] != "cake") continue;
    ++cakes;
    EXPECT_EQ(row["other_answers"], 0);
    EXPECT_GT(row["efficiency"], 0);
    EXPECT_GT(row["load_s"], 0);
  }
  EXPECT_EQ(cakes, 2 * 2 * 2) << "contexts, shares, links";
  EXPECT_EQ(loads, cakes);
  EXPECT_THAT(Read(dir_ + "/ttft.svg"), HasSubstr("<svg"));
  EXPECT_EQ(Run("bench ttft --link-gbit 7 --ratios 1").exit_code, 2);
}

TEST_F(BenchCliTest, TtftFailsWhereNoPromptFitsIntoTheContext) {
  const Outcome outcome = Run("bench ttft --context 16384 --repeats 1 --model " + model_ +
                              " --svg " + dir_ + "/ttft.svg --dir " + dir_);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("its context of 16384 has no room for 16384 tokens"));
  EXPECT_THAT(outcome.err, HasSubstr("--context"));
}

// Hours may lie between the flags and what becomes of the results.
TEST_F(BenchCliTest, WhatCannotCountIsRefusedBeforeAnythingIsMeasured) {
  const auto refused = [&](const std::string& flags, const std::string& why) {
    const Outcome outcome = Run("bench " + flags);
    EXPECT_NE(outcome.exit_code, 0) << flags;
    EXPECT_EQ(outcome.out, "") << flags;
    EXPECT_THAT(outcome.err, HasSubstr(why)) << flags;
  };
  refused("startup --arch tiny --json " + dir_, dir_ + " is a directory");
  refused("ttft --arch tiny --svg " + dir_, dir_ + " is a directory");
  refused("ttft --full --arch tiny", "--arch excludes --full");
  refused("startup --model " + dir_ + "/none", dir_ + "/none");
  refused("prefill --model " + model_ + " --tokens 128 16385", "--tokens 16385 is longer than");
  refused("runahead --arch .", "--arch: . not in");
  refused("load --store redis://127.0.0.1:1 --encrypted", "excludes --");
  refused("load --bytes 0 --dir " + dir_, "--bytes");
  refused("serve --url http://127.0.0.1:1 --workload random-prefill --num-users 3",
          "--num-users is of --workload multi-round-chat, and random-prefill is asked for");
  refused("papers --decode-cores 7", "--decode-cores requires --codecs");
}

TEST_F(BenchCliTest, SlicesAreWhatEachCellAsksFor) {
  const json models = Measure("slices --prefix 0 256 16300 --tokens 16 128 --repeats 2");
  ASSERT_EQ(models.size(), 1u);
  EXPECT_EQ(models[0]["layers"], 2);
  EXPECT_EQ(models[0]["kv_bytes_per_token"], 256);
  EXPECT_EQ(models[0]["max_positions"], 16384);
  ASSERT_EQ(models[0]["slices"].size(), 5u) << "the sixth is beyond the context";
  for (const json& slice : models[0]["slices"]) {
    ASSERT_EQ(slice["seconds"].size(), 2u);
    EXPECT_GT(slice["seconds"][0], 0);
  }
  EXPECT_EQ(models[0]["slices"][3]["prefix"], 256);
  EXPECT_EQ(models[0]["slices"][3]["tokens"], 128);
}

TEST_F(BenchCliTest, DecodeHoldsSpeedsAgainstTheLimitsOfTheSameRun) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator the matmul rate takes minutes";
  const json rows = Measure(
      "decode --weights bf16 --sequences 1 2 --context 100 --steps 2 "
      "--mixed-decodes 2 --slice-tokens 64 --repeats 1");
  ASSERT_EQ(rows.size(), 3u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rows[i]["sequences"], i + 1);
    EXPECT_GT(rows[i]["bandwidth_bytes_per_s"], 1e8);
    EXPECT_EQ(rows[i]["repeats"], json::array({rows[i]["tok_per_s"]}));
    EXPECT_NEAR(rows[i]["share_of_roofline"].get<double>(),
                rows[i]["tok_per_s"].get<double>() / rows[i]["roofline_tok_per_s"].get<double>(),
                1e-9);
  }
  const json& mixed = rows[2];
  EXPECT_EQ(mixed["measure"], "mixed");
  // The bound is the slice, the attention and the products of the decoding rows.
  const double parts_s = mixed["slice_s"].get<double>() + mixed["attention_s"].get<double>();
  EXPECT_LT(mixed["over_bound"].get<double>(), mixed["mixed_s"].get<double>() / parts_s);
  EXPECT_GT(mixed["over_bound"].get<double>(), 0.5 * mixed["mixed_s"].get<double>() / parts_s);
}

TEST_F(BenchCliTest, LoadMeasuresASliceBesideLoads) {
  // What comes before fio, which need not be here.
  Run("bench load --bytes 1MiB --chunk-bytes 1MiB --repeats 1 --beside " + model_ + " --dir " +
      dir_ + " --json " + dir_ + "/json");
  const json row = json::parse(Read(dir_ + "/json"))[0];
  EXPECT_EQ(row["op"], "beside");
  EXPECT_EQ(row["slice_tokens"], 512);
  EXPECT_GT(row["bytes_per_s"], 0);
  EXPECT_NEAR(row["slowdown"].get<double>(),
              row["beside_s"].get<double>() / row["alone_s"].get<double>(), 1e-6);
}

TEST_F(BenchCliTest, FleetComparesServersThatShareWithThoseThatDoNot) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  std::ofstream(dir_ + "/p.json")
      << R"({"name": "p", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 8192,)"
      << R"( "attention": "causal", "c0": 0.02, "b": 1e-4, "a": 0})";
  const std::string bench =
      "bench fleet --servers 2 --questions 2 --document-length 512 --answer-tokens 4 "
      "--max-concurrency 2 --model " KVCAKE_SOURCE_DIR "/models/demo --text " KVCAKE_SOURCE_DIR
      "/models/demo/held_out --profile " +
      dir_ + "/p.json --dir " + dir_ + " --json " + dir_ + "/json";
  const Outcome few = Run(bench + " --documents 3");
  EXPECT_EQ(few.exit_code, 1);
  if (few.err.find("is not installed") != std::string::npos) GTEST_SKIP() << few.err;
  EXPECT_THAT(few.err, HasSubstr("--documents 3"));
  const Outcome outcome = Run(bench + " --documents 4");
  if (outcome.err.find("is not installed") != std::string::npos) GTEST_SKIP() << outcome.err;
  // Whether it then fails is a matter of time: documents of four chunks are too short for what it
  // demands of a server that joins.
  ASSERT_TRUE(fs::exists(dir_ + "/json")) << outcome.err;
  const json result = json::parse(Read(dir_ + "/json"));
  ASSERT_EQ(result["rows"].size(), 5u);
  EXPECT_EQ(result["rows"][0]["servers"], 1);
  EXPECT_EQ(result["rows"][0]["computed_twice"], 0);
  // The first of two questions computes the document, and the second finds it.
  EXPECT_GT(result["rows"][0]["hit_share"], 0.3);
  EXPECT_LT(result["rows"][0]["hit_share"], 0.5);
  std::vector<std::string> arrangements;
  for (const json& row : result["rows"]) {
    arrangements.push_back(row["store"].get<std::string>() + " " +
                           row["balance"].get<std::string>());
    EXPECT_LT(row["hit_share"], 1);
    EXPECT_GT(row["requests_per_s"], 0);
    EXPECT_GE(row["chunks_computed"], row["chunks_distinct"]);
  }
  EXPECT_THAT(arrangements, testing::ElementsAre("redis none", "none roundrobin", "none prefix",
                                                 "redis roundrobin", "redis prefix"));
  EXPECT_GT(result["join"]["requests"], 0);
  // How many are lost, and whether those find a server when they are asked again, is a matter of
  // when HAProxy notices that one is gone.
  const json& kill = result["kill"];
  EXPECT_EQ(kill["servers"], 2);
  EXPECT_LE(kill["lost"], kill["requests"]);
  EXPECT_LE(kill["answered"], kill["lost"]);
  EXPECT_GE(kill["running"].get<int>() + kill["lost_elsewhere"].get<int>(), kill["lost"]);
}

TEST_F(BenchCliTest, CodecsAreMeasuredBesideMemcpyOnAModelsNumbers) {
  const Outcome outcome = Run("bench codecs --model " KVCAKE_SOURCE_DIR
                              "/models/demo --tokens 300 --repeats 1 --arch smollm2-135m --json " +
                              dir_ + "/json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::map<std::string, int> rows;
  for (const json& row : json::parse(Read(dir_ + "/json"))) {
    ++rows[row["codec"]];
    EXPECT_GT(row["encode_bytes_per_s"], 0);
    EXPECT_GT(row["decode_bytes_per_s"], 0);
    const double bits = row["bits_per_value"];
    const auto gb = [&](const char* of) {
      return fmt::format("{0:.2f} ({0:.2f} - {0:.2f})", row[of].get<double>() / 1e9);
    };
    EXPECT_THAT(outcome.out,
                HasSubstr(fmt::format("{:>7.3f} {:>7.3f}x {:>22} {:>22}\n", bits, 16 / bits,
                                      gb("encode_bytes_per_s"), gb("decode_bytes_per_s"))));
    if (row["codec"] == "memcpy") {
      EXPECT_EQ(bits, 16);
    }
    if (row["codec"] == "int8") {
      EXPECT_GE(bits, 8);
    }
    const std::map<std::string, double> most = {{"memcpy", 16},      {"lossless", 12.3},
                                                {"int8", 8.4},       {"cachegen", 4},
                                                {"cachegen-2", 3.5}, {"kvquant3", 4}};
    if (most.contains(row["codec"])) {  // of few chunks, one the first
      EXPECT_LE(bits, most.at(row["codec"]));
    }
  }
  EXPECT_EQ(rows["memcpy"], 2) << "of two shapes";
  EXPECT_GE(rows["lossless"], 2);
  EXPECT_GE(rows["int8"], 2);
  EXPECT_GE(rows["cachegen"], 2);
  EXPECT_GE(rows["cachegen-2"], 2);
  EXPECT_GE(rows["kvquant3"], 2);
  EXPECT_EQ(Run("bench codecs --tokens 5 --model " KVCAKE_SOURCE_DIR "/models/demo").exit_code, 1);
}

TEST_F(BenchCliTest, QualityOfACodecIsWhatItsNumbersDoToTheModel) {
  const std::string bench =
      "bench quality --model " KVCAKE_SOURCE_DIR
      "/models/demo --kv-context 512 --kv-scored 64 --lookup-tokens 512 --lookups 9";
  fs::create_directory(dir_ + "/text");
  fs::copy_file(KVCAKE_SOURCE_DIR "/models/demo/held_out/names.txt", dir_ + "/text/names.txt");
  fs::copy_file(KVCAKE_SOURCE_DIR "/models/demo/held_out/optparse.txt", dir_ + "/text/a.txt");
  const Outcome outcome =
      Run(bench + " --kv-codec lossless int8 --text " + dir_ + "/text --json " + dir_ + "/json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(Read(dir_ + "/json"));
  ASSERT_GE(rows.size(), 2u);
  EXPECT_EQ(rows[0]["name"], "lossless");
  EXPECT_EQ(rows[0]["kld"], 0);
  EXPECT_EQ(rows[0]["perplexity_change"], 0);
  EXPECT_EQ(rows[0]["relative_rms_k"], 0);
  EXPECT_EQ(rows[1]["name"], "int8");
  EXPECT_GT(rows[1]["kld"], 0);
  EXPECT_LT(rows[1]["kld"], 0.001);
  EXPECT_GT(rows[1]["relative_rms_k"], 0.0005);
  EXPECT_LT(rows[1]["relative_rms_k"], 0.01);
  EXPECT_LT(rows[1]["relative_rms_v"], 0.01);
  EXPECT_GT(rows[1]["top1_agreement"], 0.98);
  EXPECT_GE(rows[1]["payload_bits_per_value"], 8);
  EXPECT_LE(rows[1]["payload_bits_per_value"], 8.4);
  ASSERT_EQ(rows[1]["lookups"].size(), 1u);
  EXPECT_EQ(rows[1]["lookups"][0]["asked"], 9);
  EXPECT_GE(rows[1]["lookups"][0]["right"], 8);

  const Outcome unknown = Run(bench + " --kv-codec zip");
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_THAT(unknown.err, HasSubstr("zip"));
  EXPECT_EQ(Run(bench + " --kv-codec raw").exit_code, 1);
  const Outcome cut = Run("bench quality --model " KVCAKE_SOURCE_DIR
                          "/models/demo --kv-codec int8 --kv-context 500");
  EXPECT_EQ(cut.exit_code, 1);
  EXPECT_THAT(cut.err, HasSubstr("--kv-context"));
}

TEST_F(BenchCliTest, CodecsWithTablesAnswerAsWellAsTheyPromise) {
  const Outcome fit =
      Run("codec fit --model " KVCAKE_SOURCE_DIR "/models/demo --text " KVCAKE_SOURCE_DIR
          "/docs/architecture.md --tokens 4096 --out " +
          dir_ + "/tables");
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  fs::create_directory(dir_ + "/text");
  for (const char* name : {"optparse.txt", "names.txt"}) {
    fs::copy_file(KVCAKE_SOURCE_DIR "/models/demo/held_out/" + std::string(name),
                  dir_ + "/text/" + name);
  }
  const std::string bench = "bench quality --model " KVCAKE_SOURCE_DIR
                            "/models/demo --kv-context 1024 --kv-scored 512 --lookup-tokens 1024 "
                            "--lookups 18 --text " +
                            dir_ + "/text";
  const Outcome outcome = Run(bench + " --kv-codec cachegen kvquant3 --codec-tables " + dir_ +
                              "/tables/cachegen-1.tables " + dir_ + "/tables/cachegen-2.tables " +
                              dir_ + "/tables/kvquant3-1.tables --json " + dir_ + "/json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(Read(dir_ + "/json"));
  struct Gate {
    std::string name;
    double bits, change;
    int lookups_lost;
  };
  // A few windows: wider than what bench quality says over the whole text.
  const std::vector<Gate> gates = {
      {"cachegen", 3.5, 0.02, 1}, {"cachegen-2", 3.0, 0.05, 2}, {"kvquant3", 3.7, 0.06, 2}};
  for (size_t i = 0; i < gates.size(); ++i) {
    EXPECT_EQ(rows[i]["name"], gates[i].name);
    EXPECT_LE(rows[i]["payload_bits_per_value"], gates[i].bits) << gates[i].name;
    EXPECT_LE(rows[i]["perplexity_change"], gates[i].change) << gates[i].name;
    const auto of = [&](const char* name) { return rows[i][name].get<double>(); };
    EXPECT_NEAR(of("perplexity_change"), of("perplexity") / of("plain_perplexity") - 1, 1e-9);
    EXPECT_LT(of("top1_agreement"), 1) << gates[i].name;
    const json lookups = rows[i]["lookups"][0];
    EXPECT_THAT(outcome.out,
                HasSubstr(fmt::format(
                    "{:>7.3f} {:>10.4f} {:>+8.3f}% {:>10.6f} {:>8.2f}% {:>9.5f} "
                    "{:>9.5f} {:>7.1f}%\n",
                    of("payload_bits_per_value"), of("perplexity"), 100 * of("perplexity_change"),
                    of("kld"), 100 * of("top1_agreement"), of("relative_rms_k"),
                    of("relative_rms_v"), 100 * lookups["right"].get<double>() / 18)));
    EXPECT_GE(lookups["right"], lookups["plain_right"].get<int>() - gates[i].lookups_lost)
        << gates[i].name;
  }

  const Outcome missing = Run(bench + " --kv-codec cachegen");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("kvcake codec fit"));
  const Outcome unused =
      Run(bench + " --kv-codec int8 --codec-tables " + dir_ + "/tables/cachegen-1.tables");
  EXPECT_EQ(unused.exit_code, 1);
  EXPECT_THAT(unused.err, HasSubstr("--codec-tables"));
}

// The models differ in nothing but how RoPE turns: they have one shape, and the same weights.
TEST_F(BenchCliTest, TablesOfAnotherModelAreRefused) {
  const std::string other = dir_ + "/other";
  fs::create_directory(other);
  for (const auto& entry : fs::directory_iterator(KVCAKE_SOURCE_DIR "/models/demo")) {
    if (entry.is_regular_file()) {
      fs::create_symlink(entry.path(), other + "/" + entry.path().filename().string());
    }
  }
  json config = json::parse(Read(other + "/config.json"));
  config["rope_theta"] = 2 * config.value("rope_theta", 1e4);
  fs::remove(other + "/config.json");
  std::ofstream(other + "/config.json") << config;
  const Outcome fit =
      Run("codec fit --tokens 1024 --model " + other +
          " --text " KVCAKE_SOURCE_DIR "/docs/architecture.md --out " + dir_ + "/tables");
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const std::string tables = dir_ + "/tables/kvquant3-1.tables";
  const std::string run = " --prompt-file " KVCAKE_SOURCE_DIR
                          "/README.md --max-tokens 1 --json --kv-codec kvquant3 --store " +
                          dir_ + "/store --codec-tables " + tables + " --model ";
  const Outcome ours = Run("run" + run + other);
  ASSERT_EQ(ours.exit_code, 0) << ours.err;
  EXPECT_EQ(ours.err.find("another model"), std::string::npos) << ours.err;
  const Outcome wrong = Run("run" + run + KVCAKE_SOURCE_DIR "/models/demo");
  EXPECT_EQ(wrong.exit_code, 0) << "it is computed";
  EXPECT_THAT(wrong.err, HasSubstr(tables + ": the tables of codec kvquant3 are those of another "
                                            "model of the same shape"));
  const Outcome quality = Run("bench quality --model " KVCAKE_SOURCE_DIR
                              "/models/demo --kv-codec kvquant3 --codec-tables " +
                              tables);
  EXPECT_EQ(quality.exit_code, 1);
  EXPECT_THAT(quality.err, HasSubstr("another model"));
}

TEST_F(BenchCliTest, AFitTakesWindowsThatBeginAlikeAndSaysWhatHasNoRoom) {
  std::ofstream text(dir_ + "/text");
  for (int i = 0; i < 40'000; ++i) text << "ab ";
  text.close();
  const std::string fit = "codec fit --model " KVCAKE_SOURCE_DIR "/models/demo --text " + dir_ +
                          "/text --out " + dir_ + "/tables --tokens 8600";
  EXPECT_EQ(Run(fit).exit_code, 0) << "its second window is its first";
  const Outcome little = Run(fit + " --ram-capacity 16MiB");
  EXPECT_EQ(little.exit_code, 1);
  EXPECT_THAT(little.err, HasSubstr("--ram-capacity has"));
  EXPECT_THAT(little.err, HasSubstr("lower --tokens"));
}

TEST_F(BenchCliTest, AFitAsksForAPlaceBeforeItComputes) {
  std::ofstream(dir_ + "/text") << "less than a chunk";
  const Outcome outcome = Run("codec fit --model " KVCAKE_SOURCE_DIR "/models/demo --text " + dir_ +
                              "/text --out " + dir_ + "/text/tables");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("cannot make directory " + dir_ + "/text/tables: Not a dir"));
}

TEST_F(BenchCliTest, TiersRefuseAPromptWithoutAChunk) {
  const Outcome outcome = Run("bench tiers --repeats 1 --context 100 --model " + model_);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--context 100"));
}

TEST_F(BenchCliTest, QualityRefusesWindowsWithNothingToScoreOnARestoredChunk) {
  const Outcome outcome =
      Run("bench quality --window-tokens 128 --lookup-tokens 512 --lookups 9 --out " + dir_ +
          "/quality --model " KVCAKE_SOURCE_DIR "/models/demo");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--window-tokens 128"));
}

TEST_F(BenchCliTest, SlicesBeyondAnyContextAreRefused) {
  const Outcome outcome = Run("bench slices --prefix 2147483647 --model " + model_);
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("has room for none"));
}

TEST_F(BenchCliTest, ServeAsksForNothingThatItsWarmUpHasLeftInMemory) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  const Outcome outcome =
      Run("bench serve --streams 2 --requests 3 --answer-tokens 2 --idle 0 --sequence 0 "
          "--model " KVCAKE_SOURCE_DIR "/models/demo --dir " +
          dir_ + " --json " + dir_ + "/json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(Read(dir_ + "/json"))["traffic"];
  ASSERT_EQ(rows.size(), 4u);
  for (const json& row : rows) {
    EXPECT_GT(row["prompt_tokens"], 128) << "a chunk that could be in memory";
    EXPECT_EQ(row["cached_tokens"], 0) << row;
    const auto of = [&](const char* name) { return row[name].get<double>(); };
    EXPECT_LE(of("steps_s"), of("wall_s")) << "one step at a time";
    EXPECT_NEAR(of("wall_over_steps"), of("wall_s") / of("steps_s"), 1e-9);
    EXPECT_LE(of("overhead_ms_p50"), of("overhead_ms_p99"));
    EXPECT_THAT(outcome.out,
                HasSubstr(fmt::format("{:>7.0f} {:>7.0f} {:>9.2f} {:>12.1f} {:>9.2f} {:>9.2f} "
                                      "{:>6.0f} {:>13.3f}\n",
                                      of("prompt_tokens"), of("steps"),
                                      1e3 * of("steps_s") / of("steps"), of("delivery_us_per_step"),
                                      of("overhead_ms_p50"), of("overhead_ms_p99"),
                                      of("overhead_ms_p99_goal"), of("wall_over_steps"))));
  }
}

TEST_F(BenchCliTest, ScheduleSaysWhatDoesNotFitIntoTheContext) {
  ASSERT_EQ(setenv("XDG_CACHE_HOME", dir_.c_str(), 1), 0);
  const auto outcome = [&](const std::string& flags) {
    return Run("bench schedule --crowds 0 --svg " + dir_ + "/s.svg --model " + model_ + flags);
  };
  const Outcome answers = outcome(" --context 1024 --answer-tokens 16000");
  EXPECT_EQ(answers.exit_code, 1);
  EXPECT_THAT(answers.err, HasSubstr("--context 1024 and --answer-tokens 16000"));
  EXPECT_THAT(answers.err, HasSubstr("16384"));
  ASSERT_EQ(unsetenv("XDG_CACHE_HOME"), 0);
}

TEST_F(BenchCliTest, PlannerSaysWhatAStepCostsAndThatCakeReadsAsFastAsLoad) {
  const Outcome outcome =
      Run("bench planner --restorations 1 3 --chunks 1024 16 --ratios 0.01 1 --steps 3 --json " +
          dir_ + "/json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json rows = json::parse(Read(dir_ + "/json"));
  const auto keys = [](const json& row) {
    std::vector<std::string> names;
    for (const auto& [name, value] : row.items()) names.push_back(name);
    return names;
  };
  ASSERT_EQ(rows.size(), 2u * 2 + 1);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(keys(rows[i]), testing::UnorderedElementsAre("restorations", "chunks", "ratio",
                                                             "us_per_step", "share_of_step"));
    EXPECT_EQ(rows[i]["restorations"], i < 2 ? 1 : 3);
    EXPECT_EQ(rows[i]["chunks"], i < 2 ? 1024 : 16);
    EXPECT_EQ(rows[i]["ratio"], i % 2 == 0 ? 0.01 : 1.0);
    EXPECT_GT(rows[i]["us_per_step"], 0);
    EXPECT_NEAR(rows[i]["share_of_step"].get<double>(),
                rows[i]["us_per_step"].get<double>() * 1e-6 / 0.1, 1e-9);
  }
  const json& reads = rows[4];
  EXPECT_THAT(keys(reads), testing::UnorderedElementsAre("chunks", "ratio", "load_reads_per_s",
                                                         "cake_reads_per_s", "cake_to_load"));
  EXPECT_EQ(reads["chunks"], 1024);
  EXPECT_EQ(reads["ratio"], 0.01);
  EXPECT_NEAR(reads["load_reads_per_s"].get<double>(), 1 / (0.01 * 0.025), 40);
  EXPECT_NEAR(reads["cake_to_load"].get<double>(), 1, 0.02);
  EXPECT_THAT(outcome.out, HasSubstr("reads a second by load"));
  EXPECT_EQ(Run("bench planner --restorations 1 2 --chunks 4").exit_code, 1);
}

TEST_F(BenchCliTest, PlannerHasNoQuotientWhereALinkIsGivenUp) {
  const Outcome outcome = Run(
      "bench planner --restorations 1 --chunks 8 --ratios 1e6 --steps 1 --json " + dir_ + "/json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("0.0 reads a second by load, 0.0 by cake\n"));
  EXPECT_EQ(json::parse(Read(dir_ + "/json"))[1]["cake_to_load"], nullptr);
}

TEST_F(BenchCliTest, CudaIsRefusedWhereThereIsNone) {
  if (CudaDevice::Get()) GTEST_SKIP() << "there is a CUDA device";
  for (const std::string bench : {"decode", "load", "slices", "ttft"}) {
    const Outcome outcome = Run("bench " + bench + " --backend cuda");
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr("built without CUDA: ./dev build --cuda"),
                                            HasSubstr("no CUDA device can be used")));
  }
}

}  // namespace
}  // namespace kvcake
