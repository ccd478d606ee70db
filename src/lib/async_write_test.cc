// kvcake_put_async: chunks in pieces that a thread of the library puts.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "lib/library_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class AsyncWriteTest : public LibraryTest {
 protected:
  // All of the document is in the store.
  void ExpectStored(const std::vector<kvcake_key>& keys, int document) {
    const int chunks = static_cast<int>(keys.size()) - 1;
    Reopen();
    kvcake_restoration restoration = 0;
    ASSERT_EQ(Begin(keys, &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
    EXPECT_EQ(Restore(restoration).loaded, chunks);
    EXPECT_EQ(ExpectBytes(restoration, document), chunks);
    ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  }
};

TEST_F(AsyncWriteTest, WhatAThreadPutsIsRestoredWhateverBecomesOfItsPieces) {
  Open();
  const auto keys = Keys(1, 12);
  std::vector<std::vector<std::byte>> pieces;
  ASSERT_EQ(Put(1, 3, keys), KVCAKE_OK);
  ASSERT_EQ(PutAsync(1, 12, keys, pieces), KVCAKE_OK) << kvcake_last_error();
  uint64_t kept = 99, dropped = 99;
  ASSERT_EQ(kvcake_put_wait(cache_, &kept, &dropped), KVCAKE_OK);
  EXPECT_EQ(kept, 11u) << "one was there";
  EXPECT_EQ(dropped, 0u);
  for (auto& piece : pieces) std::fill(piece.begin(), piece.end(), std::byte{0xee});
  ASSERT_EQ(kvcake_put_wait(cache_, &kept, nullptr), KVCAKE_OK);
  EXPECT_EQ(kept, 0u) << "they were told";
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  ExpectStored(keys, 1);
}

TEST_F(AsyncWriteTest, WhatAStoreHoldsIsNotCopied) {
  Open();
  Keep(1, 12);
  std::vector<std::vector<std::byte>> pieces;
  ASSERT_EQ(PutAsync(1, 12, Keys(1, 12), pieces), KVCAKE_OK);
  uint64_t kept = 99, dropped = 99;
  ASSERT_EQ(kvcake_put_wait(cache_, &kept, &dropped), KVCAKE_OK);
  EXPECT_EQ(kept, 0u);
  EXPECT_EQ(dropped, 0u);
  EXPECT_EQ(Stats().memory_cached, 0u);
}

TEST_F(AsyncWriteTest, FlushWritesWhatAThreadWasGiven) {
  Open();
  const auto keys = Keys(1, 60);
  std::vector<std::vector<std::byte>> pieces;
  ASSERT_EQ(PutAsync(1, 60, keys, pieces), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  EXPECT_EQ(Stats().writes_written, 60u);
  uint64_t kept = 0;
  ASSERT_EQ(kvcake_put_wait(cache_, &kept, nullptr), KVCAKE_OK);
  EXPECT_EQ(kept, 60u) << "nobody has been told";
}

TEST_F(AsyncWriteTest, WhatTheQueueHasDroppedIsQueuedAgainWhenItIsPutAgain) {
  kvcake_options options = Options();
  options.write_queue_share = 0.02;  // a chunk
  Open(options);
  const auto keys = Keys(1, 60);
  for (int round = 0; round < 60 && Stats().stored_chunks < 60; ++round) {
    std::vector<std::vector<std::byte>> pieces;
    ASSERT_EQ(PutAsync(1, 60, keys, pieces), KVCAKE_OK);
    uint64_t kept = 0;
    ASSERT_EQ(kvcake_put_wait(cache_, &kept, nullptr), KVCAKE_OK);
    EXPECT_EQ(kept, round == 0 ? 60u : 0u) << "in memory";
    ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  }
  EXPECT_EQ(Stats().stored_chunks, 60u);
}

TEST_F(AsyncWriteTest, ClosingPutsWhatAThreadWasGiven) {
  Open();
  const auto keys = Keys(1, 12);
  std::vector<std::vector<std::byte>> pieces;
  ASSERT_EQ(PutAsync(1, 12, keys, pieces), KVCAKE_OK);
  ExpectStored(keys, 1);
}

TEST_F(AsyncWriteTest, WhatAThreadFindsNoMemoryForIsCounted) {
  kvcake_restoration restoration = 0;
  HoldAllOfMemory(4, &restoration);
  const auto more = Keys(2, 3);
  std::vector<std::vector<std::byte>> pieces;
  ASSERT_EQ(PutAsync(2, 3, more, pieces), KVCAKE_OK);
  uint64_t kept = 99, dropped = 99;
  ASSERT_EQ(kvcake_put_wait(cache_, &kept, &dropped), KVCAKE_OK);
  EXPECT_EQ(kept, 0u);
  EXPECT_EQ(dropped, 3u);
  EXPECT_EQ(Stats().writes_dropped, 3u);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

}  // namespace
}  // namespace kvcake
