// Whether what a Runtime is told comes to the parts that it is made of; runtime_test.cc has more.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "base/log_testing.h"
#include "base/temp_dir_testing.h"
#include "engine/engine_testing.h"
#include "engine/runtime.h"
#include "io/syncs_testing.h"

namespace kvcake {
namespace {

constexpr int kAskedTokens = 600;
constexpr int kAskedChunks = kAskedTokens / kChunk;

class RuntimeOptionsTest : public testing::Test {
 protected:
  RuntimeOptionsTest() {
    options_.model_dir = ModelDir();
    options_.stores = {{.dir = dir_.path() + "/store"}};
    options_.ram_capacity_bytes = 64 << 20;
    options_.chunk_tokens = kChunk;
    options_.slice_tokens = kSlice;
    options_.threads = 2;
  }
  static Request Ask(int tokens = kAskedTokens, int max_tokens = 1, uint32_t seed = 1) {
    Request request;
    request.prompt = Prompt(tokens, seed);
    request.max_tokens = max_tokens;
    return request;
  }
  void Answer() {
    runtime_ = Runtime::Create(options_).value();
    ASSERT_TRUE(runtime_->engine().Answer(Ask()));
    runtime_->engine().FlushStore();
  }

  const TempDir dir_;
  RuntimeOptions options_;
  std::unique_ptr<Runtime> runtime_;
};

TEST_F(RuntimeOptionsTest, ChunksAreSyncedOnlyWhereTheyAreToSurviveAPowerCut) {
  options_.keep_costs = false;
  for (const bool durable : {false, true}) {
    options_.durable = durable;
    options_.stores[0].dir = dir_.path() + (durable ? "/durable" : "/not");
    const int before = SyncsSoFar();
    Answer();
    EXPECT_EQ(runtime_->engine().write_stats().written, uint64_t{kAskedChunks});
    EXPECT_EQ(SyncsSoFar() > before, durable);
  }
}

// Eighteen chunks come at once, and a store that takes its time has room for one. Claimed chunks
// would come twice, as what is dropped while a prompt is computed has another chance at its end.
TEST_F(RuntimeOptionsTest, NoMorePagesWaitToBeWrittenThanMay) {
  options_.stores[0].write_stall_share = 1;
  options_.stores[0].write_stall = Seconds(0.05);
  options_.write_queue_share = 1e-9;
  options_.single_flight = false;
  Answer();
  const WriteBehindStats stats = runtime_->engine().write_stats();
  EXPECT_GT(stats.dropped_full, 0u);
  EXPECT_EQ(stats.dropped_full + stats.written, uint64_t{kAskedChunks});
}

// The second of two directories is where chunks are claimed. What the queue drops is not to be
// waited for there.
TEST_F(RuntimeOptionsTest, WhatIsNotKeptAfterAllIsNoLongerClaimedWhereItWas) {
  const std::string shared = dir_.path() + "/shared";
  options_.stores.push_back({.dir = shared, .writes = StoreWrites::kAlways});
  for (StoreOptions& store : options_.stores) {
    store.write_stall_share = 1;
    store.write_stall = Seconds(0.05);
  }
  options_.write_queue_share = 1e-9;
  options_.single_flight_min = Seconds(0);
  Answer();  // what computing costs is known then
  const uint64_t dropped = runtime_->engine().write_stats().dropped_full;
  ASSERT_TRUE(runtime_->engine().Answer(Ask(kAskedTokens, 1, 2)));
  runtime_->engine().FlushStore();
  EXPECT_GT(runtime_->engine().write_stats().dropped_full, dropped);
  const ChunkKey last =
      ChunkKeys(runtime_->model().identity().Root(), Prompt(kChunk, 3), kChunk)[0];
  std::promise<void> claimed;
  ASSERT_TRUE(runtime_->stores()[1]->Claim(
      {.keys = {last}, .done = [&](const auto&) { claimed.set_value(); }}));
  claimed.get_future().get();  // after all that was given back
  const std::filesystem::recursive_directory_iterator all(shared);
  const auto is_claim = [](const auto& entry) {
    return entry.path().parent_path().filename() == "claims";
  };
  EXPECT_EQ(std::count_if(begin(all), end(all), is_claim), 1);
}

// The model's pages are so large that none is made, nor used.
TEST_F(RuntimeOptionsTest, MorePagesThanMemoryIsLeftForAreWarnedOf) {
  options_.model_dir = dir_.path() + "/model";
  ASSERT_TRUE(WriteSynthModel("tiny", options_.model_dir));
  const std::string path = options_.model_dir + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config["num_hidden_layers"] = 4096;
  config["num_attention_heads"] = config["num_key_value_heads"] = 64;
  config["head_dim"] = 128;
  std::ofstream(path) << config;
  options_.chunk_tokens = options_.slice_tokens = 1 << 14;
  options_.ram_capacity_bytes = 2ull << 40;
  const testing_util::CapturedLog log;
  const auto refused = Runtime::Create(options_);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, testing::HasSubstr("holds no page"));
  EXPECT_EQ(log.Count("--ram-capacity is 2097152 MiB, and this process may take"), 1);
}

// A step has a row for each token of a prompt that is scored, and one for each answer beside it.
TEST_F(RuntimeOptionsTest, PromptsAreScoredInFullStepsBesideAnswers) {
  options_.stores.clear();
  options_.max_sequences = 9;
  options_.slice_tokens = kChunk;
  runtime_ = Runtime::Create(options_).value();
  Engine& engine = runtime_->engine();
  for (int i = 0; i < 8; ++i) {
    Request answer = Ask(4, 200);
    ASSERT_TRUE(engine.Submit(std::move(answer)));
  }
  while (engine.Step().value() && engine.running() < 8) {
  }
  Request scored = Ask(4 * kChunk);
  scored.logprobs = scored.prompt_logprobs = true;
  int most = 0;
  engine.SetStepObserver(
      [&](const StepRecord& step) { most = std::max(most, step.decoded + step.fresh); });
  ASSERT_TRUE(engine.Submit(std::move(scored)));
  while (engine.Step().value()) {
  }
  EXPECT_EQ(most, kChunk + 8);
}

// The ends of prompts, one after the other, and a chunk of the next: a step that ranks leave room
// for has no more rows of logits than one without.
TEST_F(RuntimeOptionsTest, AStepScoresNoMoreTokensThanThereAreRowsOfLogitsFor) {
  options_.rank_tokens_max = 8 * kSlice;
  options_.max_sequences = kSlice / kChunk + 1;
  const auto runtime = Runtime::Create(options_).value();
  const auto submit = [&](int tokens, uint32_t seed) {
    Request request = Ask(tokens, 1, seed);
    request.logprobs = request.prompt_logprobs = true;
    return runtime->engine().Submit(std::move(request)).value();
  };
  std::vector<SequenceId> ids;
  for (int i = 0; i < kSlice / kChunk; ++i) ids.push_back(submit(kChunk - 1, 1 + i));
  ids.push_back(submit(kSlice, 9));
  while (runtime->engine().Step().value()) {
  }
  for (const SequenceId id : ids) {
    const size_t tokens = id == ids.back() ? kSlice : kChunk - 1;
    EXPECT_EQ(runtime->engine().Take(id)->prompt_scores.size(), tokens - 1);
  }
}

}  // namespace
}  // namespace kvcake
