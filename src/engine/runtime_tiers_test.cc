#include "engine/runtime_tiers.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/engine_testing.h"
#include "kv/page_copier_testing.h"
#include "ops/cuda_page_copier.h"
#include "ops/paths_testing.h"

namespace kvcake {
namespace {

constexpr int kPromptTokens = 580;  // the answer fills no chunk
constexpr int kPromptChunks = kPromptTokens / kChunk;
constexpr int kRamChunks = 6;

// On the CPU pages are the host's, and taken for those of a device.
class RuntimeTiersTest : public PathTest {
 protected:
  // The chunks' root is the model's.
  void SetUp() override {
    PathTest::SetUp();
    if (IsSkipped()) return;
    World world(nullptr, {.path = GetParam()});
    options_.shared.layout = world.model->layout();
    options_.shared.root = world.model->identity().Root();
    options_.stores = {{.dir = dir_.path() + "/a"}};
    options_.ram_capacity_bytes = kRamChunks * options_.shared.layout.page_bytes() + 1;
    options_.staging_capacity_bytes = 8 * options_.shared.layout.page_bytes();
    keys_ = ChunkKeys(options_.shared.root, prompt_, kChunk);
  }
  Result<std::unique_ptr<RuntimeTiers>> Open() {
    if (OnCuda(GetParam())) {
      return RuntimeTiers::Open(options_, NewCudaPageCopier(), Memory::kPinned);
    }
    return RuntimeTiers::Open(options_, std::make_unique<testing_util::FakeCopier>(),
                              Memory::kHost);
  }
  static std::unique_ptr<World> WorldOver(const RuntimeTiers& tiers) {
    Tier* const store = tiers.stores().empty() ? nullptr : tiers.stores()[0].get();
    return std::make_unique<World>(store, WorldOptions{.path = GetParam(), .ram = tiers.ram()});
  }
  // How many of the prompt's chunks are held.
  static size_t Count(const std::vector<bool>& held) {
    return std::count(held.begin(), held.end(), true);
  }
  std::string Refusal() {
    const auto tiers = Open();
    return tiers ? "" : tiers.error().message;
  }

  const TempDir dir_;
  const std::vector<int32_t> prompt_ = Prompt(kPromptTokens, 1);
  RuntimeTiersOptions options_;
  std::vector<ChunkKey> keys_;
};
KVCAKE_BOTH_DEVICES(RuntimeTiersTest);

// The back of the prompt is in memory and no more on disk, the rest on disk alone: each comes from
// where it is, and is then where it is not yet.
TEST_P(RuntimeTiersTest, APromptIsRestoredFromMemoryAndFromDisk) {
  for (const bool pinned : {true, false}) {
    SCOPED_TRACE(pinned);
    options_.ram_pinned = pinned;
    options_.stores = {{.dir = dir_.path() + (pinned ? "/pinned" : "/not")}};
    const auto tiers = Open().value();
    const auto world = WorldOver(*tiers);
    Tier& ram = *tiers->ram();
    Tier& disk = *tiers->stores()[0];
    const Completion first = world->Answer(Ask(prompt_, Policy::kCompute));
    for (const Policy policy : {Policy::kLoad, Policy::kCake}) {
      const std::vector<bool> in_ram = ram.Residency(keys_);
      EXPECT_EQ(Count(in_ram), size_t{kRamChunks});
      EXPECT_EQ(Count(disk.Residency(keys_)), size_t{kPromptChunks});
      for (int i = 0; i < kPromptChunks; ++i) {
        if (in_ram[i]) {
          ASSERT_TRUE(disk.Evict(keys_[i]));
        }
      }
      world->pool->DropCached();
      const uint64_t written = ram.Stats().writes;
      const Completion again = world->Answer(Ask(prompt_, policy));
      ExpectSame(first, again, GetParam());
      if (policy == Policy::kLoad) {
        EXPECT_EQ(again.report.tokens_loaded.at("ram"), kRamChunks * kChunk);
        EXPECT_EQ(again.report.tokens_loaded.at("disk"), (kPromptChunks - kRamChunks) * kChunk);
      }
      EXPECT_GT(ram.Stats().writes, written) << "what came from the disk";
    }
    EXPECT_EQ(Count(disk.Residency(keys_)), size_t{kPromptChunks}) << "what came from memory";
    EXPECT_EQ(ram.Stats().reads_failed + ram.Stats().writes_failed, 0u);
  }
}

TEST_P(RuntimeTiersTest, MemoryAloneKeepsPrompts) {
  options_.stores = {};
  options_.ram_capacity_bytes = 64 * options_.shared.layout.page_bytes();
  const auto tiers = Open().value();
  ASSERT_EQ(tiers->all().size(), 1u);
  const auto world = WorldOver(*tiers);
  const Completion first = world->Answer(Ask(prompt_));
  world->pool->DropCached();
  const Completion again = world->Answer(Ask(prompt_, Policy::kLoad));
  ExpectSame(first, again, GetParam());
  EXPECT_EQ(again.report.tokens_loaded.at("ram"), kPromptChunks * kChunk);
  Request unkept = Ask(Prompt(kPromptTokens, 2));
  unkept.store = false;
  const uint64_t kept = tiers->ram()->Stats().chunks;
  world->Answer(unkept);
  EXPECT_EQ(tiers->ram()->Stats().chunks, kept);
}

TEST_P(RuntimeTiersTest, MemoryComesFirstAndStoresKeepTheirNumbers) {
  options_.stores.push_back({.dir = dir_.path() + "/b"});
  for (const bool with_ram : {true, false}) {
    if (!with_ram) options_.ram_capacity_bytes = 0;
    const auto tiers = Open().value();
    ASSERT_EQ(tiers->all().size(), with_ram ? 3u : 2u);
    EXPECT_EQ(tiers->ram() != nullptr, with_ram);
    EXPECT_EQ(tiers->all()[0]->name(), with_ram ? "ram" : "disk");
    ASSERT_EQ(tiers->stores().size(), 2u);
    EXPECT_EQ(tiers->stores()[1]->name(), "disk2");
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(tiers->all()[tiers->NumberOf(i)], tiers->stores()[i].get());
    }
  }
}

// Whatever stands in front of it.
TEST_P(RuntimeTiersTest, AStagedStoreTakesAsManyWritesAsItHasSlots) {
  options_.stores[0].load_latency = Seconds(1e-3);
  options_.stores[0].load_stall_share = 0.1;
  const auto tiers = Open().value();
  EXPECT_EQ(tiers->stores()[0]->max_writes_in_flight(), 2);
}

TEST_P(RuntimeTiersTest, WherePagesAreTheHostsThereIsNoRamTier) {
  const auto tiers = RuntimeTiers::Open(options_).value();
  EXPECT_EQ(tiers->ram(), nullptr);
  EXPECT_EQ(tiers->NumberOf(0), 0);
}

TEST_P(RuntimeTiersTest, ATenantsQuotaIsThatOfEachTier) {
  const uint64_t page = options_.shared.layout.page_bytes();
  options_.shared.owner_quota_bytes = 2 * page;
  const auto tiers = Open().value();
  Request request = Ask(prompt_, Policy::kCompute);
  request.tenant = "ann";
  WorldOver(*tiers)->Answer(std::move(request));
  for (const Tier* tier : tiers->all()) {
    EXPECT_EQ(tier->Owners(), (std::vector<OwnedBytes>{{OwnerOf("ann"), 2 * page}}))
        << tier->name();
  }
}

TEST_P(RuntimeTiersTest, RefusesWhatDoesNotFit) {
  const RuntimeTiersOptions good = options_;
  options_.shared.owner_quota_bytes = 5;
  EXPECT_NE(Refusal().find("--tenant-store-bytes of 5 bytes"), std::string::npos);
  options_ = good;
  options_.ram_capacity_bytes = 5;
  EXPECT_NE(Refusal().find("--ram-capacity of 5 bytes"), std::string::npos);
  options_.ram_capacity_bytes = 1ull << 50;
  EXPECT_NE(Refusal().find("--ram-capacity of 1125899906842624 bytes"), std::string::npos);
  options_ = good;
  options_.ram_pinned = false;
  options_.staging_capacity_bytes = options_.shared.layout.page_bytes();
  EXPECT_NE(Refusal().find("--staging-capacity"), std::string::npos);
  options_.staging_capacity_bytes = 3 * options_.shared.layout.page_bytes() - 1;
  EXPECT_NE(Refusal().find("holds 2 chunks"), std::string::npos);
  options_.staging_capacity_bytes += 1;  // two for writes, and one
  EXPECT_EQ(Refusal(), "");
}

#ifdef KVCAKE_CUDA_EMULATED
TEST(RuntimeTiersCudaTest, MemoryThatTheHostDoesNotLockIsRefusedByName) {
  const TempDir dir;
  const ModelConfig config = LoadModelConfig(ModelDir()).value();
  RuntimeTiersOptions options;
  options.shared.layout = TransformerModel::LayoutFor(config, kChunk);
  options.staging_capacity_bytes = 8 * PageBytes();
  const auto refusal = [&] {
    setenv("CUDA_EMULATOR_FAULT", "cudaHostRegister", 1);
    const auto tiers = RuntimeTiers::Open(options, NewCudaPageCopier(), Memory::kPinned);
    unsetenv("CUDA_EMULATOR_FAULT");
    EXPECT_TRUE(!tiers && tiers.error().code == ErrorCode::kResourceExhausted);
    return tiers ? "" : tiers.error().message;
  };
  const std::string why = " bytes to page-lock: unavailable";
  options.stores = {{.dir = dir.path() + "/a"}};
  options.ram_capacity_bytes = 0;
  EXPECT_EQ(refusal(), fmt::format("the host has no {}{}", 8 * PageBytes(), why));
  options.ram_capacity_bytes = 6 * PageBytes();
  EXPECT_EQ(refusal(), fmt::format("the host has no {}{}: lower --ram-capacity, or try "
                                   "--no-ram-pinned",
                                   6 * PageBytes(), why));
}
#endif

}  // namespace
}  // namespace kvcake
