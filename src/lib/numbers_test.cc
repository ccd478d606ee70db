// What a cache tells of itself and of restorations, and what it expects of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "lib/library_testing.h"
#include "lib/registry.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

class NumbersTest : public LibraryTest {
 protected:
  kvcake_options WithoutStores() {
    auto options = Options();
    options.stores = nullptr;
    options.store_count = 0;
    return options;
  }
  kvcake_turn Turn(kvcake_restoration restoration, int chunks_max = 4, double share = 1) const {
    auto turn = Sized<kvcake_turn>();
    EXPECT_EQ(kvcake_claim_front(restoration, chunks_max, share, &turn), KVCAKE_OK);
    return turn;
  }
  // How long nine new chunks are expected to take.
  double Predicted(int document, double share = 1) const {
    kvcake_restoration restoration = 0;
    EXPECT_EQ(Begin(Keys(document, 9), &restoration), KVCAKE_OK);
    Turn(restoration, 4, share);
    const double predicted = Progress(restoration).predicted_s;
    EXPECT_EQ(kvcake_end(restoration), KVCAKE_OK);
    return predicted;
  }
};

TEST_F(NumbersTest, ComputingIsPredictedByWhatWasLearned) {
  Open(WithoutStores());
  EXPECT_EQ(Predicted(1), 0) << "unknown";
  // A thousand seconds a chunk: what the test itself takes is nothing to them.
  ASSERT_EQ(kvcake_learn(cache_, 0, 4 * kLibraryChunkTokens, 4000), KVCAKE_OK);
  EXPECT_NEAR(Predicted(1), 9000, 900);
  EXPECT_NEAR(Predicted(1, /*share=*/0.25), 36000, 3600);
}

TEST_F(NumbersTest, WhatWasComputedOfARestorationIsLearnedInTokens) {
  Open(WithoutStores());
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  auto turn = Sized<kvcake_turn>();
  ASSERT_EQ(kvcake_claim(restoration, 4, &turn), KVCAKE_OK);
  ASSERT_EQ(kvcake_computed(restoration, 4, 4000), KVCAKE_OK);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  EXPECT_NEAR(Predicted(2), 9000, 900);
}

TEST_F(NumbersTest, WhatWasComputedIsLearnedWithWhatIsBeforeIt) {
  const auto options = WithoutStores();
  constexpr int kTokens = 4 * kLibraryChunkTokens;
  Open(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  auto turn = Sized<kvcake_turn>();
  for (const double seconds : {4000, 12000}) {
    ASSERT_EQ(kvcake_claim(restoration, 4, &turn), KVCAKE_OK);
    ASSERT_EQ(kvcake_computed(restoration, 4, seconds), KVCAKE_OK);
  }
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  const double predicted = Predicted(2);
  Reopen(options);
  ASSERT_EQ(kvcake_learn(cache_, 0, kTokens, 4000), KVCAKE_OK);
  ASSERT_EQ(kvcake_learn(cache_, kTokens, kTokens, 12000), KVCAKE_OK);
  EXPECT_NEAR(Predicted(2), predicted, 1);
}

TEST_F(NumbersTest, NothingIsLearnedOfASliceThatTookNoTime) {
  Open(WithoutStores());
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(Turn(restoration).count, 1) << "nothing is known";
    ASSERT_EQ(kvcake_computed(restoration, 1, 0), KVCAKE_OK);
  }
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(NumbersTest, ASliceIsNoLongerThanTheRequestOrTheCallSays) {
  Open(WithoutStores());
  ASSERT_EQ(kvcake_learn(cache_, 0, 4 * kLibraryChunkTokens, 4e-3), KVCAKE_OK);
  const auto keys = Keys(1, 20);
  auto request = Sized<kvcake_request>();
  request.parent = &keys[0];
  request.keys = &keys[1];
  request.key_count = 20;
  request.slice_chunks_max = 7;
  kvcake_restoration restoration = 0;
  ASSERT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_OK);
  EXPECT_EQ(Turn(restoration, 20).count, 7);
  ASSERT_EQ(kvcake_computed(restoration, 7, 7e-3), KVCAKE_OK);
  EXPECT_EQ(Turn(restoration, 2).count, 2);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(NumbersTest, WhatThereIsNoMemoryToLoadIntoIsComputedInSlicesOfTheCallers) {
  Open();
  Keep(2, 6);
  ASSERT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
  kvcake_restoration holds = 0, restoration = 0;
  HoldAllOfMemory(4, &holds);
  ASSERT_EQ(Begin(Keys(2, 6), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  const kvcake_turn turn = Turn(restoration, /*chunks_max=*/1);
  EXPECT_EQ(turn.kind, KVCAKE_TURN_SLICE);
  EXPECT_EQ(turn.count, 1);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  const auto keys = Keys(2, 6);
  auto request = Sized<kvcake_request>();
  request.parent = &keys[0];
  request.keys = &keys[1];
  request.key_count = 6;
  request.policy = KVCAKE_POLICY_LOAD;
  request.slice_chunks_max = 2;
  ASSERT_EQ(kvcake_begin(cache_, &request, &restoration), KVCAKE_OK);
  EXPECT_EQ(Turn(restoration, /*chunks_max=*/4).count, 2);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  ASSERT_EQ(kvcake_end(holds), KVCAKE_OK);
}

TEST_F(NumbersTest, NothingIsComputedForWantOfMemoryWhileSomethingLoadsIntoIt) {
  Open();
  Keep(1, 6);
  const auto options = Options(/*memory_chunks=*/2);
  store_.load_latency_s = 1e9;
  Reopen(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 6), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  ASSERT_GT(Stats().reads_in_flight, 0u);
  EXPECT_EQ(Turn(restoration).kind, KVCAKE_TURN_WAIT);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(NumbersTest, EachPutIsWaitingOrWrittenOrDropped) {
  auto options = Options();
  options.write_queue_share = 0.1;
  Open(options);
  const auto keys = Keys(1, 60);
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(Put(1, i, keys), KVCAKE_OK);
    const auto stats = Stats();
    EXPECT_EQ(stats.writes_queued + stats.writes_written + stats.writes_dropped, i + 1u);
  }
}

TEST_F(NumbersTest, WhatAStoreDoesNotTakeIsCounted) {
  auto options = Options();
  store_.where = "redis://127.0.0.1:1";
  Open(options);
  ASSERT_EQ(Put(1, 0, Keys(1, 1)), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  EXPECT_EQ(Stats().writes_failed, 1u);
}

TEST_F(NumbersTest, MemoryIsCountedByWhatHoldsIt) {
  Open(Options(/*memory_chunks=*/8));
  const auto keys = Keys(1, 5);
  for (int i = 0; i < 5; ++i) ASSERT_EQ(Put(1, i, keys), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  EXPECT_EQ(Stats().memory_chunks, 8u);
  EXPECT_EQ(Stats().memory_cached, 5u);
  std::vector<uint8_t> held(5, 99);
  ASSERT_EQ(kvcake_lookup(cache_, &keys[1], 5, 0, held.data()), KVCAKE_OK);
  EXPECT_THAT(held, testing::Each(KVCAKE_IN_MEMORY | KVCAKE_STORED));
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 3), &restoration), KVCAKE_OK);
  EXPECT_EQ(Stats().restorations, 1u);
  EXPECT_EQ(Stats().memory_referenced, 3u);
  EXPECT_EQ(Stats().memory_cached, 2u);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

// A caller that was compiled with a later header gets what the library knows.
TEST_F(NumbersTest, AStructureMayBeLargerThanTheLibraryHasIt) {
  Open();
  struct Later {
    kvcake_stats_info stats = {};
    uint64_t more = 99;
  } later;
  later.stats.struct_size = sizeof(later);
  ASSERT_EQ(kvcake_stats(cache_, &later.stats), KVCAKE_OK) << kvcake_last_error();
  EXPECT_EQ(later.stats.memory_chunks, 64u);
  EXPECT_EQ(later.stats.struct_size, sizeof(later));
  EXPECT_EQ(later.more, 99u);
}

TEST_F(NumbersTest, NoMoreKeysAreMadeThanThereIsRoomFor) {
  Open();
  const auto keys = Keys(1, 3);
  const std::vector<int32_t> tokens(3 * kLibraryChunkTokens, 1);
  std::vector<kvcake_key> made(3, kvcake_key{});
  ASSERT_EQ(kvcake_keys(cache_, &keys[0], tokens.data(), tokens.size(), made.data(), 2), KVCAKE_OK);
  EXPECT_EQ(std::memcmp(made.data(), &keys[1], 2 * sizeof(kvcake_key)), 0);
  const kvcake_key none = {};
  EXPECT_EQ(std::memcmp(&made[2], &none, sizeof(none)), 0);
}

TEST_F(NumbersTest, SlabsMayLieApart) {
  Open();
  constexpr size_t kStride = kLibrarySlabBytes + 24;
  const auto keys = Keys(1, 1);
  std::vector<std::byte> data(kLibraryLayers * kStride, std::byte{0xee});
  for (int layer = 0; layer < kLibraryLayers; ++layer) {
    for (size_t i = 0; i < kLibrarySlabBytes; ++i) {
      data[layer * kStride + i] = ByteOf(1, 0, layer, i);
    }
  }
  auto write = Sized<kvcake_write>();
  write.parent = keys[0];
  write.key = keys[1];
  write.data = data.data();
  write.stride = kStride;
  ASSERT_EQ(kvcake_put(cache_, &write), KVCAKE_OK);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(keys, &restoration), KVCAKE_OK);
  EXPECT_EQ(ExpectBytes(restoration, 1), 1);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  write.stride = kLibrarySlabBytes - 1;
  EXPECT_EQ(kvcake_put(cache_, &write), KVCAKE_INVALID_ARGUMENT);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("stride"));
}

TEST_F(NumbersTest, EventsOfOneCacheAreNotAnothers) {
  Open();
  Keep(1, 4);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 4), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  Restore(restoration);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  kvcake_cache quiet = 0;
  const auto options = WithoutStores();
  ASSERT_EQ(kvcake_open(&options, &quiet), KVCAKE_OK);
  ASSERT_EQ(kvcake_wait(cache_, 0), KVCAKE_OK);  // for what has come before
  ASSERT_EQ(kvcake_wait(quiet, 0), KVCAKE_OK);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(kvcake_wait(cache_, 0.02), KVCAKE_OK);
  EXPECT_EQ(kvcake_wait(quiet, 0.02), KVCAKE_OK);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(40));
  EXPECT_EQ(kvcake_close(quiet), KVCAKE_OK);
}

// A thread keeps in mind what it has heard of some.
TEST_F(NumbersTest, EventsOfManyCachesAreToldApart) {
  Open();
  ASSERT_EQ(Put(1, 0, Keys(1, 1)), KVCAKE_OK);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 1), &restoration), KVCAKE_OK);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  ASSERT_EQ(kvcake_wait(cache_, 0), KVCAKE_OK);
  auto options = WithoutStores();
  options.memory_bytes = kLibraryPageBytes;
  std::vector<kvcake_cache> quiet(16);
  for (kvcake_cache& cache : quiet) {
    ASSERT_EQ(kvcake_open(&options, &cache), KVCAKE_OK);
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(kvcake_wait(cache, 0.005), KVCAKE_OK);
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(5));
  }
  for (const kvcake_cache cache : quiet) EXPECT_EQ(kvcake_close(cache), KVCAKE_OK);
}

TEST_F(NumbersTest, EachCodeHasAName) {
  EXPECT_STREQ(kvcake_status_name(KVCAKE_OK), "ok");
  EXPECT_STREQ(kvcake_status_name(KVCAKE_BUSY), "busy");
  EXPECT_STREQ(kvcake_status_name(KVCAKE_INTERNAL), "internal error");
  EXPECT_STREQ(kvcake_status_name(KVCAKE_INTERNAL + 1), "unknown");
  EXPECT_STREQ(kvcake_status_name(-1), "unknown");
}

TEST_F(NumbersTest, AnErrorIsOfTheThreadThatMetIt) {
  Open();
  EXPECT_EQ(kvcake_wait(cache_, -1), KVCAKE_INVALID_ARGUMENT);
  std::thread other([] {
    EXPECT_STREQ(kvcake_last_error(), "");
    EXPECT_EQ(kvcake_close(0), KVCAKE_NOT_FOUND);
    EXPECT_THAT(kvcake_last_error(), HasSubstr("no such cache"));
  });
  other.join();
  EXPECT_THAT(kvcake_last_error(), HasSubstr("timeout_s is -1"));
}

TEST_F(NumbersTest, ACacheIsNotClosedUnderACall) {
  Open();
  {
    const auto call = Registry::Get().Find(LibraryId::Decode(cache_));
    ASSERT_TRUE(call);
    EXPECT_EQ(kvcake_close(cache_), KVCAKE_BUSY);
    EXPECT_THAT(kvcake_last_error(), HasSubstr("in calls"));
  }
  EXPECT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
}

}  // namespace
}  // namespace kvcake
