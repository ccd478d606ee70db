// Stores with codecs, end to end: the same answers without loss, and with loss a lineage of their
// own.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/temp_dir_testing.h"
#include "codec/codec_testing.h"
#include "engine/runtime.h"
#include "model/synth.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

constexpr int kTokens = 600, kChunkTokens = 32, kFullChunks = kTokens / kChunkTokens;

class RuntimeCodecTest : public testing::Test {
 protected:
  RuntimeCodecTest() {
    options_.model_dir = dir_.path() + "/model";
    options_.ram_capacity_bytes = 64 << 20;
    options_.chunk_tokens = kChunkTokens;
    options_.slice_tokens = 128;
    options_.threads = 2;
    options_.keep_costs = false;
    EXPECT_TRUE(WriteSynthModel("tiny", options_.model_dir));
  }
  StoreOptions Store(std::optional<Codec> codec, const char* name = "/store") const {
    return {.dir = dir_.path() + name, .codec = codec};
  }
  Request Ask(Policy policy, int tokens = kTokens) const {
    std::mt19937 rng(1);
    Request request;
    for (int i = 0; i < tokens; ++i) request.prompt.push_back(static_cast<int32_t>(rng() % 512));
    request.max_tokens = 4;
    request.logprobs = true;
    request.policy = policy;
    return request;
  }
  struct Answered {
    Completion completion;
    ChunkKey root;
    std::string lossy;
    uint64_t written = 0;
  };
  // A process that answers one prompt.
  Answered Answer(std::vector<StoreOptions> stores, Policy policy, int tokens = kTokens) {
    options_.stores = std::move(stores);
    const auto runtime = Runtime::Create(options_).value();
    Answered answered{.completion = runtime->engine().Answer(Ask(policy, tokens)).value(),
                      .root = runtime->model().identity().Root(),
                      .lossy = runtime->lossy_lineage()};
    runtime->engine().FlushStore();
    answered.written = runtime->engine().write_stats().written;
    EXPECT_EQ(answered.completion.report.lossy, answered.lossy);
    return answered;
  }
  static int Loaded(const Answered& answered) {
    return answered.completion.report.loaded() / kChunkTokens;
  }
  // Chunks under each root of the directory.
  std::map<ChunkKey, uint64_t> Kept(const char* name = "/store") const {
    std::map<ChunkKey, uint64_t> kept;
    const auto roots = ListStore(dir_.path() + name).value();
    for (const StoreRoot& root : roots) kept[root.root] = root.chunks;
    return kept;
  }

  const TempDir dir_;
  RuntimeOptions options_;
};

TEST_F(RuntimeCodecTest, WithoutLossEverySplitGivesTheSameBits) {
  const Answered plain = Answer({}, Policy::kCompute);
  const Answered raw = Answer({Store({})}, Policy::kCompute);
  Answer({Store(Codec::kLossless)}, Policy::kCompute);
  const Answered loaded = Answer({Store(Codec::kLossless)}, Policy::kLoad);
  EXPECT_EQ(Loaded(loaded), kFullChunks);
  EXPECT_EQ(loaded.root, plain.root) << "the exact run's keys";
  EXPECT_EQ(loaded.lossy, "");
  options_.stores = {Store(Codec::kLossless)};
  for (const auto& other : {raw.completion, loaded.completion,
                            Answer({Store(Codec::kLossless)}, Policy::kCake).completion}) {
    EXPECT_EQ(other.tokens, plain.completion.tokens);
    EXPECT_EQ(other.logprobs, plain.completion.logprobs);
  }
}

TEST_F(RuntimeCodecTest, AnExactRunNeverMeetsALossyOne) {
  const Answered exact = Answer({Store({})}, Policy::kCompute);
  const Answered first = Answer({Store(Codec::kInt8)}, Policy::kLoad);
  EXPECT_EQ(Loaded(first), 0) << "what an exact run kept";
  EXPECT_EQ(first.written, static_cast<uint64_t>(kFullChunks));
  EXPECT_EQ(first.lossy, "int8");
  EXPECT_NE(first.root, exact.root);
  // What goes on from loaded chunks is kept, for the like.
  const Answered longer = Answer({Store(Codec::kInt8)}, Policy::kLoad, kTokens + 200);
  EXPECT_EQ(Loaded(longer), kFullChunks);
  EXPECT_GT(longer.written, 0u);
  const Answered again = Answer({Store(Codec::kInt8)}, Policy::kLoad, kTokens + 200);
  EXPECT_EQ(Loaded(again), (kTokens + 200) / kChunkTokens);
  const Answered after = Answer({Store({})}, Policy::kLoad, kTokens + 200);
  EXPECT_EQ(Loaded(after), kFullChunks) << "its own, and none of the lossy run's suffix";
  const Answered lossless = Answer({Store(Codec::kLossless)}, Policy::kLoad, kTokens + 200);
  EXPECT_EQ(Loaded(lossless), 0);
  const auto kept = Kept();
  EXPECT_EQ(kept.at(exact.root), static_cast<uint64_t>((kTokens + 200) / kChunkTokens));
  EXPECT_EQ(kept.count(first.root), 0u) << "encoded chunks lie under the root of their form";
}

// Also what a raw store keeps of such a run is of its lineage.
TEST_F(RuntimeCodecTest, OneLossyStoreMakesTheWholeRunLossy) {
  const std::vector<StoreOptions> both = {Store({}, "/raw"), Store(Codec::kInt8, "/int8")};
  const Answered mixed = Answer(both, Policy::kCompute);
  EXPECT_EQ(mixed.lossy, "int8");
  EXPECT_EQ(Kept("/raw").at(mixed.root), static_cast<uint64_t>(kFullChunks));
  const Answered exact = Answer({Store({}, "/raw")}, Policy::kLoad);
  EXPECT_EQ(Loaded(exact), 0);
  EXPECT_NE(exact.root, mixed.root);
  // Whatever order the stores are in.
  EXPECT_EQ(Answer({both[1], both[0]}, Policy::kLoad).root, mixed.root);
  EXPECT_EQ(Loaded(Answer(both, Policy::kLoad)), kFullChunks);
}

TEST_F(RuntimeCodecTest, MissingTablesAreAMissAndOthersAreAnotherLineage) {
  const Answered plain = Answer({}, Policy::kCompute);
  StoreOptions store = Store(Codec::kCacheGen);
  for (int i = 0; i < 2; ++i) {  // a file that is none, too
    const Answered none = Answer({store}, Policy::kLoad);
    EXPECT_EQ(none.completion.tokens, plain.completion.tokens);
    EXPECT_EQ(Loaded(none), 0);
    EXPECT_EQ(none.written, 0u);
    EXPECT_NE(none.root, plain.root);
    std::filesystem::create_directories(store.dir);
    std::ofstream(store.dir + "/cachegen-1.tables") << "no tables";
  }
  const KvLayout layout = Runtime::Create(options_).value()->pool().layout();
  CodecTables tables = *NaturalTables(*FindCodec(Codec::kCacheGen), layout);
  ASSERT_TRUE(SaveTables(tables, store.dir + "/cachegen-1.tables"));
  const Answered first = Answer({store}, Policy::kLoad);
  EXPECT_EQ(Loaded(first), 0);
  const Answered second = Answer({store}, Policy::kLoad);
  EXPECT_EQ(Loaded(second), kFullChunks);
  EXPECT_EQ(second.root, first.root);
  tables.level = 2;
  const std::string elsewhere = dir_.path() + "/others.tables";
  ASSERT_TRUE(SaveTables(tables, elsewhere));
  store.codec_tables = elsewhere;
  EXPECT_NE(Answer({store}, Policy::kLoad).root, first.root);
  // Another model's tables are as good as none, and those of one that is as large, too.
  const uint32_t ours = TablesModel(Runtime::Create(options_).value()->model().identity());
  const auto written = [&] {
    EXPECT_TRUE(SaveTables(tables, elsewhere));
    const Answered others = Answer({store}, Policy::kLoad);
    EXPECT_EQ(others.completion.tokens, plain.completion.tokens);
    return others.written;
  };
  tables.model = ours;
  EXPECT_GT(written(), 0u);
  tables.model = ours ^ 1;
  EXPECT_EQ(written(), 0u);
  tables.model = 0;
  tables.kv_heads += 1;
  EXPECT_EQ(written(), 0u);
}

TEST_F(RuntimeCodecTest, WhatWasLearntIsKeptBesideEncodedChunks) {
  options_.keep_costs = true;
  const Answered answered = Answer({Store(Codec::kLossless)}, Policy::kCompute);
  const StoreOptions store = Store(Codec::kLossless);
  const std::string dir = StoreDir(store.dir).RootDir(FilesRoot(store, answered.root));
  int costs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    costs += entry.path().filename().string().starts_with("cost-");
  }
  EXPECT_EQ(costs, 1);
}

}  // namespace
}  // namespace kvcake
