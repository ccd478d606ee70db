// Whether what the options of a store say comes to the tier that is opened.
#include "store/open_store.h"

#include <gmock/gmock.h>

#include <fstream>

#include "io/syncs_testing.h"
#include "store/disk_tier.h"
#include "store/late_tier.h"
#include "store/redis_server_testing.h"
#include "store/s3_server_testing.h"
#include "store/store_dir.h"
#include "store/throttled_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class OpenStoreTest : public testing::Test {
 protected:
  OpenStoreTest() {
    options_.dir = dir_.path();
    options_.open_wait = kPatience;
    shared_.layout = SmallLayout();
    shared_.root = Root();
  }
  void Open() {
    tier_.reset();
    tier_ = OpenStore(0, options_, shared_).value();
  }
  // Why it cannot be opened.
  std::string WhyNot() {
    const auto tier = OpenStore(0, options_, shared_);
    EXPECT_FALSE(tier);
    return tier ? "" : tier.error().message;
  }
  Status Put(size_t i, OwnerId owner = kNobody) {
    return PutChunk(*tier_, shared_.layout, chain_[i], ParentOf(chain_, i), owner);
  }
  std::string PathOf(size_t i) const {
    return StoreDir(dir_.path()).ChunkPath({Root(), chain_[i]});
  }
  // The rate of its link.
  double Rate() const { return dynamic_cast<ThrottledTier&>(*tier_).rate(); }

  TempDir dir_;
  StoreOptions options_;
  SharedStoreOptions shared_;
  const std::vector<ChunkKey> chain_ = Chain(3);
  std::unique_ptr<Tier> tier_;
};

TEST_F(OpenStoreTest, ADirectoryLeavesToOthersTheShareThatItIsTold) {
  options_.free_share_min = 1;
  Open();
  const Status put = Put(0);
  ASSERT_FALSE(put);
  EXPECT_THAT(put.error().message, HasSubstr("--disk-free-min"));
}

TEST_F(OpenStoreTest, ADirectoryHasTheCapacityAndTheThreadsThatItIsTold) {
  options_.capacity_bytes = 2 * shared_.layout.page_bytes();
  Open();
  for (size_t i = 0; i < 3; ++i) ASSERT_TRUE(Put(i));
  EXPECT_EQ(tier_->Stats().evicted, 1u);
  options_.call_threads = 0;
  EXPECT_THAT(WhyNot(), HasSubstr("call_threads is 0"));
}

TEST_F(OpenStoreTest, ADirectoryForgetsWhatNobodyHasUsedForAsLongAsItIsTold) {
  Open();
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(Put(i));
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(0), UnixSeconds() - 2000));
  Open();
  EXPECT_EQ(tier_->Residency(chain_), (std::vector<bool>{true, true, false}));
  shared_.time_to_live = Seconds(1000);
  Open();
  EXPECT_EQ(tier_->Residency(chain_), (std::vector<bool>{false, true, false}));
}

TEST_F(OpenStoreTest, ADirectoryIsSyncedOnlyIfItIsTold) {
  for (const bool durable : {false, true}) {
    shared_.durable = durable;
    Open();
    const int before = SyncsSoFar();
    ASSERT_TRUE(Put(durable ? 1 : 0));
    EXPECT_EQ(SyncsSoFar() > before, durable);
  }
}

TEST_F(OpenStoreTest, ADirectoryKeepsTheQuotasThatItIsTold) {
  shared_.owner_quota_bytes = shared_.layout.page_bytes();
  Open();
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(Put(i, kAnn));
  EXPECT_EQ(tier_->Owners(), (std::vector<OwnedBytes>{{kAnn, shared_.layout.page_bytes()}}));
  EXPECT_EQ(tier_->Stats().evicted, 1u);
}

TEST_F(OpenStoreTest, NothingElsewhereTakesQuotas) {
  shared_.owner_quota_bytes = 1 << 20;
  options_.dir = "";
  options_.redis = RedisPlace{.seeds = {{"127.0.0.1", 1}}};
  EXPECT_THAT(WhyNot(), HasSubstr("--tenant-store-bytes: redis://127.0.0.1:1 keeps no quotas"));
  options_.redis.reset();
  options_.s3.emplace().bucket = "bucket";
  EXPECT_THAT(WhyNot(), HasSubstr("--tenant-store-bytes: s3://bucket keeps no quotas"));
}

TEST_F(OpenStoreTest, RedisKeepsChunksWhereAndForAsLongAsItIsTold) {
  RedisServer server;
  options_.dir = "";
  options_.redis = RedisPlace{.seeds = {{"127.0.0.1", server.port()}}};
  options_.redis->database = 3;
  options_.redis->prefix = "ours";
  shared_.time_to_live = Seconds(3600);
  Open();
  ASSERT_TRUE(Put(0));
  const std::string name = fmt::format("ours:v1:{}:{}", Root().Hex(), chain_[0].Hex());
  EXPECT_EQ(server.Cli({"-n", "3", "KEYS", "*"}), name + "\n");
  EXPECT_GT(std::stoi(server.Cli({"-n", "3", "PTTL", name})), 0);
}

TEST_F(OpenStoreTest, S3GivesNothingThatIsOlderThanItIsTold) {
  const ScopedEnvironment environment({{"AWS_ACCESS_KEY_ID", "AKIDOFTESTS"},
                                       {"AWS_SECRET_ACCESS_KEY", "a secret/of+tests"},
                                       {"AWS_SESSION_TOKEN", nullptr}});
  S3Server server;
  options_.dir = "";
  options_.s3 = server.Place();
  shared_.time_to_live = Seconds(3600);
  Open();
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(Held(*tier_, {chain_[0]}), std::vector<bool>{true});
  server.SetClockAhead(3700);
  EXPECT_EQ(ReadBack(*tier_, shared_.layout, chain_[1], chain_[0]), ErrorCode::kNotFound)
      << "it learns of the clock";
  EXPECT_EQ(ReadBack(*tier_, shared_.layout, chain_[0], Root()), ErrorCode::kNotFound);
}

TEST_F(OpenStoreTest, ALinkIsScaledWithTheChunksByItsRateAndByItsTrace) {
  shared_.link_scale = 0.5;
  options_.load_rate_bytes_per_s = 1e9;
  Open();
  EXPECT_EQ(Rate(), 5e8);
  options_.load_trace = dir_.path() + "/trace";
  std::ofstream(options_.load_trace) << "0 4e9 0\n";
  Open();
  ASSERT_TRUE(Put(0));
  EXPECT_EQ(ReadBack(*tier_, shared_.layout, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(Rate(), 2e9);
}

TEST_F(OpenStoreTest, ALinkMayHaveALatencyAloneAndAStoreWritesThatStallAlone) {
  Open();
  EXPECT_NE(dynamic_cast<DiskTier*>(tier_.get()), nullptr);
  options_.load_latency = Seconds(1e-3);
  Open();
  EXPECT_NE(dynamic_cast<ThrottledTier*>(tier_.get()), nullptr);
  options_.write_stall_share = 1;
  options_.write_stall = Seconds(0);
  Open();
  EXPECT_NE(dynamic_cast<LateTier*>(tier_.get()), nullptr);
  EXPECT_TRUE(Put(0));
}

TEST_F(OpenStoreTest, AStoreIsWrappedOnceHoweverItKeepsItsChunks) {
  for (const Codec codec : {Codec::kRaw, Codec::kLossless}) {
    options_.codec = codec;
    int wrapped = 0;
    const auto wrap = [&](std::unique_ptr<Tier> tier) -> Result<std::unique_ptr<Tier>> {
      ++wrapped;
      return tier;
    };
    EXPECT_TRUE(OpenStore(0, options_, shared_, wrap));
    EXPECT_EQ(wrapped, 1);
  }
}

TEST_F(OpenStoreTest, StoresAreNamedByTheirKindAndFromTheSecondOnByTheirNumber) {
  EXPECT_EQ(StoreName(0, options_), "disk");
  EXPECT_EQ(StoreName(1, options_), "disk2");
  EXPECT_EQ(StoreName(0, {.redis = RedisPlace()}), "redis");
  EXPECT_EQ(StoreName(2, {.redis = RedisPlace()}), "redis3");
  EXPECT_EQ(StoreName(3, {.s3 = S3Place()}), "s3-4");
}

}  // namespace
}  // namespace kvcake
