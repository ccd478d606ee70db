#include "engine/runtime.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/cpu.h"
#include "base/log_testing.h"
#include "base/temp_dir_testing.h"
#include "cake/cost_file.h"
#include "model/synth.h"
#include "store/memory_tier.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

class RuntimeTest : public testing::Test {
 protected:
  RuntimeTest() {
    options_.model_dir = dir_ + "/model";
    options_.stores = {{.dir = dir_ + "/store"}};
    options_.ram_capacity_bytes = 64 << 20;
    options_.chunk_tokens = 32;
    options_.slice_tokens = 128;
    options_.threads = 2;
    EXPECT_TRUE(WriteSynthModel("tiny", options_.model_dir));
  }

  Request Ask() {
    std::mt19937 rng(1);
    Request request;
    for (int i = 0; i < 600; ++i) request.prompt.push_back(static_cast<int32_t>(rng() % 512));
    request.max_tokens = 4;
    return request;
  }
  // A long prompt and a short one that another has nothing in common with: who is answered first.
  std::vector<int> AnswerTwo(Policy policy) {
    const auto runtime = Runtime::Create(options_).value();
    std::vector<int> answered;
    for (int i = 0; i < 2; ++i) {
      Request request = Ask();
      if (i == 1) request.prompt.assign(request.prompt.end() - 70, request.prompt.end());
      request.max_tokens = 1;
      request.policy = policy;
      request.on_token = [&answered, i](const TokenEvent&) {
        answered.push_back(i);
        return true;
      };
      EXPECT_TRUE(runtime->engine().Submit(std::move(request)));
    }
    while (runtime->engine().Step().value()) {
    }
    runtime->engine().FlushStore();
    return answered;
  }
  std::string CostFile() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/store")) {
      if (entry.path().filename().string().starts_with("cost-")) return entry.path();
    }
    return "";
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
  RuntimeOptions options_;
};

TEST_F(RuntimeTest, WhatOneProcessLearntAndKeptTheNextOneUses) {
  std::vector<int32_t> tokens;
  {
    const auto runtime = Runtime::Create(options_).value();
    tokens = runtime->engine().Answer(Ask()).value().tokens;
  }
  ASSERT_NE(CostFile(), "");
  {
    const auto runtime = Runtime::Create(options_).value();
    Request request = Ask();
    request.policy = Policy::kLoad;
    const Completion done = runtime->engine().Answer(request).value();
    EXPECT_EQ(done.tokens, tokens);
    EXPECT_EQ(done.report.loaded(), 600 / 32 * 32);
  }
  ComputeCost cost;
  auto pool = PagePool::Create({.layers = 1, .kv_heads = 1, .head_dim = 16}, 1 << 20).value();
  MemoryTier tier({.layout = pool->layout()});
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  LoadCosts({{CostFile(), {.compute = cost, .restorer = *restorer}}});
  EXPECT_TRUE(cost.fit().known());
}

// Chunks of int8 weights are not those of bf16 weights, whichever were kept first.
TEST_F(RuntimeTest, WeightsOfAnotherFormatFindNothing) {
  const auto loaded = [&](WeightFormat format) {
    options_.weights = format;
    const auto runtime = Runtime::Create(options_).value();
    Request request = Ask();
    request.policy = Policy::kLoad;
    const int tokens = runtime->engine().Answer(request).value().report.loaded();
    runtime->engine().FlushStore();
    return tokens;
  };
  EXPECT_EQ(loaded(WeightFormat::kInt8), 0);
  EXPECT_EQ(loaded(WeightFormat::kBf16), 0);
  EXPECT_EQ(loaded(WeightFormat::kInt8), 600 / 32 * 32);
  EXPECT_EQ(loaded(WeightFormat::kBf16), 600 / 32 * 32);
}

TEST_F(RuntimeTest, PinsItsThreads) {
  const std::vector<int> allowed = AllowedCpus();
  std::thread([&] {  // this one is moved
    options_.cpus = {allowed.back()};
    options_.threads = 0;
    const auto runtime = Runtime::Create(options_).value();
    EXPECT_EQ(runtime->threads().size(), 1);
    EXPECT_EQ(AllowedCpus(), options_.cpus);
    options_.threads = 2;
    const auto refused = Runtime::Create(options_);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("--cpu-list"), std::string::npos);
  })
      .join();
  EXPECT_EQ(AllowedCpus(), allowed);
}

TEST_F(RuntimeTest, ADamagedCostFileTeachesNothingAndHarmsNothing) {
  { Runtime::Create(options_).value()->engine().Answer(Ask()).value(); }
  const std::string path = CostFile();
  for (const char* text : {"", "{", "[]", "{\"compute\": 3, \"tiers\": {}}", "{\"tiers\": {}}",
                           "{\"compute\": {\"samples\": \"x\"}, \"tiers\": []}"}) {
    SCOPED_TRACE(text);
    std::ofstream(path, std::ios::trunc) << text;
    const auto runtime = Runtime::Create(options_).value();
    EXPECT_EQ(runtime->engine().Answer(Ask()).value().tokens.size(), 4u);
  }
}

TEST_F(RuntimeTest, NothingIsKeptOfCostsWhereItIsNotWanted) {
  options_.keep_costs = false;
  { Runtime::Create(options_).value()->engine().Answer(Ask()).value(); }
  EXPECT_EQ(CostFile(), "");
}

// What one has measured would mislead another.
TEST_F(RuntimeTest, EachWayOfRunningKeepsItsCostsApart) {
  const std::string trace = dir_ + "/trace";
  std::ofstream(trace) << "0 1e9 0\n";
  int ways = 0;
  const auto run = [&] {
    { ASSERT_TRUE(Runtime::Create(options_)); }
    int files = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + "/store")) {
      files += entry.path().filename().string().starts_with("cost-");
    }
    EXPECT_EQ(files, ways);
  };
  StoreOptions& store = options_.stores[0];
  const auto change = [&](auto& option, auto value) {
    option = value;
    ++ways;
    run();
  };
  change(options_.threads, 1);
  run();
  change(options_.threads, 2);
  change(store.load_rate_bytes_per_s, 1e9);
  change(store.load_latency, Seconds(1e-6));
  store.load_rate_bytes_per_s.reset();
  change(store.load_trace, trace);
}

// What was used once is known to the next process.
TEST_F(RuntimeTest, ASecondUseMayBeAnotherProcesss) {
  options_.store_writes = StoreWrites::kSecondUse;
  for (const uint64_t written : {0, 600 / 32}) {
    const auto runtime = Runtime::Create(options_).value();
    ASSERT_TRUE(runtime->engine().Answer(Ask()));
    runtime->engine().FlushStore();
    EXPECT_EQ(runtime->engine().write_stats().written, written);
  }
}

TEST_F(RuntimeTest, ChunksAreClaimedOfPromptsThatTakeLongEnough) {
  const auto claims = [&](int32_t first) {
    Request request = Ask();
    request.prompt[0] = first;
    { Runtime::Create(options_).value()->engine().Answer(request).value(); }
    const std::filesystem::recursive_directory_iterator all(dir_ + "/store");
    return std::any_of(begin(all), end(all),
                       [](const auto& entry) { return entry.path().filename() == "claims"; });
  };
  options_.single_flight_min = Seconds(1000);
  EXPECT_FALSE(claims(1));
  options_.single_flight_min = Seconds(0);
  options_.single_flight = false;
  EXPECT_FALSE(claims(2));
  options_.single_flight = true;
  EXPECT_TRUE(claims(3));
}

TEST_F(RuntimeTest, WhileAnAnswerIsWrittenStepsAreAsShortAsTheyAreToBe) {
  options_.stores.clear();
  options_.step_max = Seconds(1e-9);
  const auto runtime = Runtime::Create(options_).value();
  Engine& engine = runtime->engine();
  int most = 0;
  engine.SetStepObserver([&](const StepRecord& step) {
    if (step.decoded > 0) most = std::max(most, step.fresh + step.restored);
  });
  Request written = Ask();
  written.prompt.resize(20);
  written.max_tokens = 64;
  ASSERT_TRUE(engine.Submit(written));
  ASSERT_TRUE(engine.Step());
  ASSERT_TRUE(engine.Submit(Ask()));
  while (engine.Step().value()) {
  }
  EXPECT_EQ(most, 32) << "a chunk";
}

// Two prompts, the second much shorter than the first.
TEST_F(RuntimeTest, PromptsAreComputedAsTheScheduleSays) {
  options_.stores.clear();
  for (const Schedule schedule : {Schedule::kFcfs, Schedule::kAdaptive}) {
    options_.schedule = schedule;
    const bool in_order = schedule == Schedule::kFcfs;
    EXPECT_EQ(AnswerTwo(Policy::kCake), (in_order ? std::vector{0, 1} : std::vector{1, 0}));
  }
  options_.restore_wait_max = Seconds(0);
  EXPECT_EQ(AnswerTwo(Policy::kCake), (std::vector{0, 1})) << "the first is not kept waiting";
}

TEST_F(RuntimeTest, PromptsAreLoadedInTheOrderThatIsAskedFor) {
  AnswerTwo(Policy::kCompute);
  const auto page_bytes = Runtime::Create(options_).value()->pool().layout().page_bytes();
  options_.stores[0].load_rate_bytes_per_s = static_cast<double>(page_bytes) / 4e-3;
  options_.load_order = LoadOrder::kFifo;
  EXPECT_EQ(AnswerTwo(Policy::kLoad), (std::vector{0, 1}));
}

// One is written, one waits for nearly all pages, and a third would fit beside the first.
TEST_F(RuntimeTest, AnAnswerIsPassedOverForAsLongAsItMayBe) {
  options_.stores.clear();
  const auto page_bytes = Runtime::Create(options_).value()->pool().layout().page_bytes();
  options_.ram_capacity_bytes = 12 * page_bytes;
  for (const Seconds most : {Seconds(0), Seconds(1000)}) {
    options_.pass_over_max = most;
    const auto runtime = Runtime::Create(options_).value();
    Engine& engine = runtime->engine();
    for (const auto& [prompt, answer] : {std::pair(20, 300), std::pair(352, 4), std::pair(20, 4)}) {
      Request request = Ask();
      request.prompt.resize(prompt);
      request.max_tokens = answer;
      ASSERT_TRUE(engine.Submit(request));
      ASSERT_TRUE(engine.Step());
    }
    EXPECT_EQ(engine.running(), most > Seconds(0) ? 2u : 1u);
  }
}

TEST_F(RuntimeTest, AStoreThatIsSilentForTheStallTimeoutIsGivenUp) {
  { Runtime::Create(options_).value()->engine().Answer(Ask()).value(); }
  options_.stores[0].load_latency = Seconds(3600);
  options_.stall_timeout = Seconds(0.1);
  const testing_util::CapturedLog log;
  {
    const auto runtime = Runtime::Create(options_).value();
    Request request = Ask();
    request.policy = Policy::kLoad;
    const Completion done = runtime->engine().Answer(request).value();
    EXPECT_EQ(done.report.tokens_computed, 600);
    EXPECT_GT(done.report.chunks_failed, 0);
  }
  const std::string begins = "nothing has come from disk for ", text = log.str();
  const size_t at = text.find(begins);
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_LT(std::stoi(text.substr(at + begins.size())), 30) << "seconds: the default";
}

TEST_F(RuntimeTest, WeightsThatTheModelHasNoPlaceForAreToldOf) {
  options_.stores.clear();
  {
    const testing_util::CapturedLog log;
    ASSERT_TRUE(Runtime::Create(options_));
    EXPECT_EQ(log.str(), "");
  }
  const std::string path = options_.model_dir + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config["num_hidden_layers"] = config["num_hidden_layers"].get<int>() - 1;
  std::ofstream(path) << config;
  const testing_util::CapturedLog log;
  ASSERT_TRUE(Runtime::Create(options_));
  EXPECT_NE(log.str().find("tensors are not used"), std::string::npos) << log.str();
}

// Reads that still pass a slow link when everything is torn down.
TEST_F(RuntimeTest, EndsWithReadsInFlight) {
  { Runtime::Create(options_).value()->engine().Answer(Ask()).value(); }
  options_.stores[0].load_rate_bytes_per_s = 1000;
  const auto runtime = Runtime::Create(options_).value();
  Request request = Ask();
  request.policy = Policy::kLoad;
  ASSERT_TRUE(runtime->engine().Submit(request));
  ASSERT_TRUE(runtime->engine().Submit(Ask()));
  ASSERT_TRUE(runtime->engine().Step());
}

// A fast and a slow directory, each with half of the prompt: both lanes load, and each tier's cost
// is kept beside it.
TEST_F(RuntimeTest, SeveralStoresAreLoadedFromAtOnce) {
  const std::vector<StoreOptions> both = {{.dir = dir_ + "/store"}, {.dir = dir_ + "/store2"}};
  Request first_half = Ask();
  first_half.prompt.resize(320);
  ASSERT_TRUE(Runtime::Create(options_).value()->engine().Answer(first_half));
  options_.stores = {both[1]};
  const auto plain = Runtime::Create(options_).value()->engine().Answer(Ask()).value().tokens;
  options_.stores = both;
  const auto ask = [&] {
    const auto runtime = Runtime::Create(options_).value();
    Request request = Ask();
    request.policy = Policy::kLoad;
    const Completion done = runtime->engine().Answer(request).value();
    runtime->engine().FlushStore();
    EXPECT_EQ(done.tokens, plain);
    EXPECT_EQ(done.report.loaded(), 600 / 32 * 32);
    return std::pair(done.report.tokens_loaded, runtime->stores()[0]->Stats().chunks);
  };
  auto [loaded, kept] = ask();
  EXPECT_GE(loaded["disk2"], (600 / 32 - 320 / 32) * 32) << "the first does not have them";
  EXPECT_EQ(kept, 320u / 32);
  options_.promote = true;
  EXPECT_EQ(ask().second, 600u / 32) << "now it has";
  for (const char* store : {"/store", "/store2"}) {
    bool found = false;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ + store)) {
      found |= entry.path().filename().string().starts_with("cost-");
    }
    EXPECT_TRUE(found) << store;
  }
}

TEST_F(RuntimeTest, WithoutAStoreEveryPageIsTheRequests) {
  const auto pages_of = [](Runtime& runtime) { return runtime.engine().tokens_max() / 32; };
  const auto stored = Runtime::Create(options_).value();
  const auto expected = stored->engine().Answer(Ask()).value().tokens;
  options_.stores.clear();
  EXPECT_EQ(pages_of(*Runtime::Create(options_).value()), pages_of(*stored) + 16);
  options_.rank_tokens_max = 64;  // ranks send chunks
  EXPECT_EQ(pages_of(*Runtime::Create(options_).value()), pages_of(*stored));
  options_.rank_tokens_max = 0;

  const uint64_t page = stored->model().layout().page_bytes();
  options_.ram_capacity_bytes = 19 * page;  // 604 tokens
  const auto tight = Runtime::Create(options_).value();
  EXPECT_EQ(pages_of(*tight), 19);
  EXPECT_EQ(tight->engine().Answer(Ask()).value().tokens, expected);
  options_.stores = {{.dir = dir_ + "/store"}};
  EXPECT_EQ(pages_of(*Runtime::Create(options_).value()), 3);
  options_.ram_capacity_bytes = 16 * page;
  EXPECT_NE(Runtime::Create(options_).error().message.find("reads from stores have 16"),
            std::string::npos);
}

TEST_F(RuntimeTest, NamesTheModelWithOrWithoutASlash) {
  KvIdentity identity;
  for (const char* dir : {"models/demo", "models/demo/", "models/x/../demo"}) {
    EXPECT_NE(DescribeIdentity(identity, dir).find("\"demo\""), std::string::npos) << dir;
  }
}

TEST_F(RuntimeTest, AStoreSaysWhoseChunksItHas) {
  { Runtime::Create(options_).value()->engine().Answer(Ask()).value(); }
  const auto roots = ListStore(dir_ + "/store").value();
  ASSERT_EQ(roots.size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(roots[0].description).at("model"), "model");
}

TEST_F(RuntimeTest, RefusesSenselessSizes) {
  const auto refused = [&](auto change) {
    RuntimeOptions options = options_;
    change(options);
    const auto runtime = Runtime::Create(options);
    return runtime ? "" : runtime.error().message;
  };
  EXPECT_NE(refused([](auto& o) { o.chunk_tokens = 100; }).find("--chunk-tokens"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.slice_tokens = 16; }).find("--slice-tokens"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.slice_tokens = (1 << 16) + 1; }).find("--slice-tokens"),
            std::string::npos);
  EXPECT_NE(refused([&](auto& o) {
              o.stores.clear();
              for (int i = 0; i < 9; ++i)
                o.stores.push_back({.dir = fmt::format("{}/{}", dir_, i)});
            }).find("8 times, not 9"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.stores.push_back(o.stores[0]); }).find("the same directory"),
            std::string::npos);
  EXPECT_NE(refused([](auto& o) { o.ram_capacity_bytes = 5; }).find("--ram-capacity"),
            std::string::npos);
}

}  // namespace
}  // namespace kvcake
