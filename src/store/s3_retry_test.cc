// Which requests to S3 are made again, what they find then, and how long they may take.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>

#include "base/log_testing.h"
#include "store/encoded_testing.h"
#include "store/s3_server_testing.h"
#include "store/s3_store.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class S3RetryTest : public testing::Test {
 protected:
  S3RetryTest() {
    options_.client.place = server_.Place();
    options_.client.credentials = S3Server::Credentials();
    options_.client.retry_min = options_.client.retry_max = Seconds(1e-3);
    options_.layout = layout_;
    options_.root = Root();
  }
  std::unique_ptr<RemoteTier> Open() { return OpenS3Tier(options_).value(); }
  std::string NameOf(const ChunkKey& key) {
    return fmt::format("v1/{}/{}", Root().Hex(), key.Hex());
  }
  // The first request of the method is answered by the status, and does nothing.
  void FailFirst(const std::string& method, int status) {
    server_.SetFault([=, failed = std::make_shared<std::atomic<bool>>()](const S3Seen& seen) {
      const bool fails = seen.method == method && !failed->exchange(true);
      return fails ? S3Fault{.status = status, .code = "Later"} : S3Fault{};
    });
  }

  S3Server server_;
  S3TierOptions options_;
  const KvLayout layout_ = SmallLayout();
  const std::vector<ChunkKey> chain_ = Chain(2);
};

TEST_F(S3RetryTest, WhateverMayPassIsTriedAgain) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  for (const int status : {408, 409, 429, 500, 502, 503, 504}) {
    FailFirst("GET", status);
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt) << status;
  }
  for (const int status : {400, 501}) {
    FailFirst("GET", status);
    EXPECT_NE(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt) << status;
  }
}

// A server that is too busy has done nothing: what is there then another has put.
TEST_F(S3RetryTest, WhatIsThereAfterAPutThatABusyServerRefusedIsAnothers) {
  ASSERT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
  const auto busy = Open();
  FailFirst("PUT", 503);
  ASSERT_TRUE(PutChunk(*busy, layout_, chain_[0], Root()));
  EXPECT_EQ(busy->Stats().writes, 0u);
  EXPECT_EQ(busy->Stats().write_bytes, 0u);
  EXPECT_EQ(busy->Stats().writes_found, 1u);
  const auto broken = Open();
  FailFirst("PUT", 500);
  ASSERT_TRUE(PutChunk(*broken, layout_, chain_[0], Root()));
  EXPECT_EQ(broken->Stats().writes, 1u) << "it may have been done";
}

// Where looks fail nothing is read: they alone tell.
TEST_F(S3RetryTest, LooksAndReadsThatFailAreToldOf) {
  CapturedLog log;
  {
    const auto tier = Open();
    server_.SetFault([](const S3Seen&) { return S3Fault{.status = 503}; });
    EXPECT_EQ(Held(*tier, chain_), std::vector<bool>(2));
    EXPECT_EQ(server_.Requests().size(), 2u) << "computing is quicker than to look again";
    EXPECT_EQ(log.Count("reading chunks from remote fails"), 1);
  }
  server_.SetFault(nullptr);
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  FailFirst("GET", 400);
  EXPECT_NE(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
  EXPECT_EQ(log.Count("fails: chunk " + chain_[0].Hex()), 1);
}

TEST_F(S3RetryTest, ARegionIsLearntByWhicheverRefusalAndOnce) {
  ASSERT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
  for (const int status : {301, 307, 400}) {
    const size_t before = server_.Requests().size();
    server_.SetFault([=, asked = std::make_shared<std::atomic<int>>()](const S3Seen&) {
      const int number = ++*asked;
      if (number > 10) return S3Fault{.status = 400};
      return S3Fault{.status = status,
                     .headers = {{"x-amz-bucket-region", fmt::format("region-{}", number)}}};
    });
    EXPECT_NE(ReadBack(*Open(), layout_, chain_[0], Root()), std::nullopt);
    EXPECT_EQ(server_.Requests().size() - before, 2u) << status;
  }
}

TEST_F(S3RetryTest, AReplyThatDoesNotGoOnIsTriedAgain) {
  ASSERT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
  options_.client.stall_timeout = Seconds(0.05);
  options_.client.tries = 100;  // a machine that is busy may stall those that go on
  server_.SetFault([hung = std::make_shared<std::atomic<bool>>()](const S3Seen&) {
    return hung->exchange(true) ? S3Fault{} : S3Fault{.hang_after = 5000};
  });
  EXPECT_EQ(ReadBack(*Open(), layout_, chain_[0], Root()), std::nullopt);
}

// By the one connection that there is, the second is asked for once the first waits.
TEST_F(S3RetryTest, AStoreThatIsDestroyedEndsWhatWaitsToBeTriedAgain) {
  options_.client.connections = 1;
  options_.client.retry_min = options_.client.retry_max = options_.client.give_up = Seconds(3600);
  server_.SetFault([](const S3Seen&) { return S3Fault{.status = 503}; });
  auto tier = Open();
  Reads reads;
  const size_t first = reads.Start(*tier, layout_, chain_[0], Root());
  const size_t second = reads.Start(*tier, layout_, chain_[1], chain_[0]);
  ASSERT_TRUE(Eventually([&] { return server_.Requests().size() == 2; }));
  tier.reset();
  for (const size_t read : {first, second}) {
    EXPECT_EQ(reads.Wait(read).status.error().code, ErrorCode::kCancelled);
  }
}

TEST_F(S3RetryTest, APutOfWhatIsKeptFindsItThoughChunksExpire) {
  options_.time_to_live = Seconds(3600);
  ASSERT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(tier->Stats().writes, 0u);
  EXPECT_EQ(tier->Stats().writes_found, 1u);
}

TEST_F(S3RetryTest, WhatIsNotRemovedIsNotCounted) {
  const auto tier = Open();
  EXPECT_TRUE(tier->Evict(chain_[0])) << "it is not there";
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  FailFirst("DELETE", 403);
  EXPECT_FALSE(tier->Evict(chain_[0]));
  EXPECT_EQ(tier->Stats().evicted, 0u);
  EXPECT_TRUE(tier->Evict(chain_[0]));
  EXPECT_EQ(tier->Stats().evicted, 1u);
}

// Between the look for it and its removal.
TEST_F(S3RetryTest, WhatAnotherHasRemovedIsNoFailureAndNotCounted) {
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  FailFirst("DELETE", 404);
  EXPECT_TRUE(tier->Evict(chain_[0]));
  EXPECT_EQ(tier->Stats().evicted, 0u);
}

// What came instead of a header is none: the chunk is there still.
TEST_F(S3RetryTest, AHeaderThatDoesNotComeSaysNothingOfItsChunk) {
  const StoreCodec codec = NaturalCodec(Codec::kLossless, layout_);
  const S3TierOptions encoded = EncodedOptions(options_, codec);
  const auto tier = OverFiles(OpenS3Tier(encoded).value(), encoded, codec);
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  Reads reads;
  const auto read = [&] {
    const size_t some = reads.Start(*tier, layout_, chain_[0], Root(), LayerRange{1, 1});
    return reads.Wait(some).status;
  };
  FailFirst("GET", 400);
  EXPECT_EQ(read().error().code, ErrorCode::kIo);
  EXPECT_EQ(tier->Stats().quarantined, 0u);
  EXPECT_TRUE(read());
}

TEST_F(S3RetryTest, ManyBytesMayTakeLonger) {
  options_.client.give_up = Seconds(0);
  options_.client.slowest_bytes_per_s = 100;
  const auto tier = Open();
  EXPECT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
}

TEST_F(S3RetryTest, AReplyThatDoesNotGoOnIsGivenUpLongBeforeTheRequest) {
  ASSERT_TRUE(PutChunk(*Open(), layout_, chain_[0], Root()));
  options_.client.stall_timeout = Seconds(0.05);
  options_.client.tries = 1;
  const auto tier = Open();
  server_.SetFault([](const S3Seen&) { return S3Fault{.hang_after = 5000}; });
  Reads reads;
  const ReadResult result = reads.Wait(reads.Start(*tier, layout_, chain_[0], Root()));
  ASSERT_FALSE(result.status);
  EXPECT_EQ(result.status.error().code, ErrorCode::kDeadline);
  EXPECT_NE(result.status.error().message.find("not a byte came or went"), std::string::npos);
}

// Else it would find the bad one there, which goes then.
TEST_F(S3RetryTest, APutOfWhatWasBadWaitsUntilThatHasGone) {
  options_.client.retry_min = options_.client.retry_max = Seconds(0.1);
  const auto tier = Open();
  server_.SetObject(NameOf(chain_[0]), std::string(layout_.page_bytes(), 'x'));
  FailFirst("DELETE", 503);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt);
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
}

TEST_F(S3RetryTest, WhatSeveralReadsFindBadIsRemovedOnce) {
  const auto tier = Open();
  server_.SetObject(NameOf(chain_[0]), std::string(layout_.page_bytes(), 'x'));
  const auto removals = [&] {
    const auto seen = server_.Requests();
    return std::ranges::count(seen, "DELETE", &S3Seen::method);
  };
  server_.SetFault([](const S3Seen& seen) {
    return seen.method == "DELETE" ? S3Fault{.status = 503, .hangs = true} : S3Fault{};
  });
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt);
  }
  ASSERT_TRUE(Eventually([&] { return removals() > 0; }));
  EXPECT_EQ(removals(), 1);
  server_.SetFault(nullptr);
  server_.CutConnections();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root())) << "it has waited for the removal";
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), std::nullopt);
}

TEST_F(S3RetryTest, WhatAReadFindsExpiredGoes) {
  options_.time_to_live = Seconds(3600);
  const auto tier = Open();
  ASSERT_TRUE(PutChunk(*tier, layout_, chain_[0], Root()));
  server_.SetClockAhead(3700);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kNotFound);
  EXPECT_TRUE(Eventually([&] { return server_.Names().empty(); }));
}

}  // namespace
}  // namespace kvcake
