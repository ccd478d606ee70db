// The contract of the C API: what it restores, and what becomes of what goes wrong.
#include "lib/kvcake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <climits>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/peak_rss.h"
#include "lib/library_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

// Threads of this process, but for the caller, that may not run on all of its CPUs.
int BoundThreads(size_t cpus) {
  int bound = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t id = std::stoi(task.path().filename());
    cpu_set_t set;
    if (id == gettid() || sched_getaffinity(id, sizeof(set), &set) != 0) continue;  // it has ended
    if (CPU_COUNT(&set) != static_cast<int>(cpus)) ++bound;
  }
  return bound;
}

TEST_F(LibraryTest, WhatWasPutIsRestored) {
  Open();
  Keep(1, 12);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 12), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  const auto progress = Restore(restoration);
  EXPECT_EQ(progress.loaded, 12);
  EXPECT_EQ(progress.front, 12);
  EXPECT_EQ(progress.back, 0);
  EXPECT_EQ(ExpectBytes(restoration, 1), 12);
  EXPECT_EQ(Stats().reads, 12u);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  EXPECT_EQ(Stats().memory_referenced, 0u);
  ASSERT_EQ(Begin(Keys(1, 12), &restoration), KVCAKE_OK);
  EXPECT_EQ(Progress(restoration).reused, 12) << "they are in memory still";
  EXPECT_EQ(Progress(restoration).loaded, 0);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, BothLanesMeet) {
  Open();
  Keep(1, 40);
  auto options = Options();
  store_.load_rate_bytes_per_s = 1000.0 * kLibraryPageBytes;  // a chunk in a millisecond
  Reopen(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 40), &restoration), KVCAKE_OK);
  const auto progress = Restore(restoration);
  EXPECT_EQ(progress.computed + progress.loaded, 40);
  EXPECT_EQ(ExpectBytes(restoration, 1), progress.loaded);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, ASlowStoreIsOvertaken) {
  Open();
  Keep(1, 20);
  auto options = Options();
  store_.load_rate_bytes_per_s = kLibraryPageBytes / 100.0;  // a chunk in 100 s
  Reopen(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 20), &restoration), KVCAKE_OK);
  EXPECT_EQ(Restore(restoration).computed, 20);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, WhatNobodyStoredIsComputed) {
  Open();
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  EXPECT_EQ(Restore(restoration).computed, 9);
  EXPECT_EQ(ExpectBytes(restoration, 1), 0);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  EXPECT_EQ(Progress(restoration).reused, 0) << "what a caller computed is the caller's";
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, MessagesGoWhereTheyAreAsked) {
  struct Heard {
    std::atomic<int> warnings = 0;
    static void Listen(void* context, int level, const char* message) {
      EXPECT_NE(std::string(message), "");
      if (level == KVCAKE_LOG_WARNING) ++static_cast<Heard*>(context)->warnings;
    }
  } heard;
  Open();
  ASSERT_EQ(kvcake_set_log(&Heard::Listen, &heard), KVCAKE_OK);
  for (const bool listens : {true, false}) {
    if (!listens) {
      ASSERT_EQ(kvcake_set_log(nullptr, nullptr), KVCAKE_OK);
    }
    const int document = listens ? 1 : 2, before = heard.warnings;
    Keep(document, 1);
    std::fstream(ChunkFiles().back(), std::ios::in | std::ios::out).seekp(4096).write("bad", 3);
    kvcake_restoration restoration = 0;
    ASSERT_EQ(Begin(Keys(document, 1), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
    EXPECT_EQ(Restore(restoration).computed, 1);
    ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
    EXPECT_EQ(heard.warnings > before, listens);
  }
}

TEST_F(LibraryTest, ADamagedChunkIsNeverHandedOut) {
  Open();
  Keep(1, 8);
  const auto files = ChunkFiles();
  ASSERT_EQ(files.size(), 8u);
  for (size_t i = 0; i < 3; ++i) {
    std::fstream(files[i], std::ios::in | std::ios::out | std::ios::binary).seekp(5000).put('x');
  }
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 8), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  const auto progress = Restore(restoration);
  EXPECT_EQ(progress.computed, 3);
  EXPECT_EQ(ExpectBytes(restoration, 1), 5);
  EXPECT_EQ(Stats().reads_failed, 3u);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

// Encoded without loss: the same bytes, whatever they are, and none of the plain store's files.
TEST_F(LibraryTest, AStoreMayKeepItsChunksEncoded) {
  Open();
  Keep(1, 4);
  auto options = Options();
  const std::string where = dir_.path() + "?codec=lossless";
  store_.where = where.c_str();
  Reopen(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 4), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  EXPECT_EQ(Restore(restoration).computed, 4) << "the plain chunks are the plain store's";
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  const auto keys = Keys(1, 4);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Put(1, i, keys), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  Reopen(options);
  EXPECT_EQ(ChunkFiles().size(), 8u);
  ASSERT_EQ(Begin(Keys(1, 4), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  EXPECT_EQ(Restore(restoration).computed, 0);
  EXPECT_EQ(ExpectBytes(restoration, 1), 4);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, OneNameSpaceSeesNothingOfAnother) {
  Open();
  Keep(1, 4);
  auto options = Options();
  for (const char* name : {"test", "tess"}) {
    options.name_space = name;
    Reopen(options);
    const auto keys = Keys(1, 4);
    std::vector<uint8_t> held(4, 99);
    ASSERT_EQ(kvcake_lookup(cache_, &keys[1], 4, 30, held.data()), KVCAKE_OK);
    const bool is_own = options.name_space == std::string("test");
    const int expected = is_own ? static_cast<int>(KVCAKE_STORED) : 0;
    EXPECT_THAT(held, testing::Each(expected)) << name;
  }
}

TEST_F(LibraryTest, KeysDependOnSaltsAndExtras) {
  Open();
  kvcake_key plain, salted, extended;
  ASSERT_EQ(kvcake_root(cache_, nullptr, 0, &plain), KVCAKE_OK);
  ASSERT_EQ(kvcake_root(cache_, "a\0b", 3, &salted), KVCAKE_OK);
  ASSERT_EQ(kvcake_extend_key(&plain, "image", 5, &extended), KVCAKE_OK);
  EXPECT_NE(std::memcmp(&plain, &salted, sizeof(plain)), 0);
  EXPECT_NE(std::memcmp(&plain, &extended, sizeof(plain)), 0);
  kvcake_key cut;
  ASSERT_EQ(kvcake_root(cache_, "a\0c", 3, &cut), KVCAKE_OK);
  EXPECT_NE(std::memcmp(&cut, &salted, sizeof(cut)), 0) << "a salt is bytes";
  // Prefixes have the same keys, and a part of a chunk none.
  const auto keys = Keys(3, 6);
  const std::vector<int32_t> tokens(3 * kLibraryChunkTokens - 1, 3);
  std::vector<kvcake_key> prefix(3, kvcake_key{});
  ASSERT_EQ(kvcake_keys(cache_, &keys[0], tokens.data(), tokens.size(), prefix.data(), 3),
            KVCAKE_OK);
  EXPECT_EQ(std::memcmp(&prefix[0], &keys[1], 2 * sizeof(kvcake_key)), 0);
  const kvcake_key none = {};
  EXPECT_EQ(std::memcmp(&prefix[2], &none, sizeof(none)), 0);
}

// As the scheduler of an engine does, which has the last word.
TEST_F(LibraryTest, TheCallerMayClaimWhatItComputesAnyway) {
  Open();
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  auto turn = Sized<kvcake_turn>();
  ASSERT_EQ(kvcake_claim(restoration, 5, &turn), KVCAKE_OK);
  EXPECT_EQ(turn.kind, KVCAKE_TURN_SLICE);
  EXPECT_EQ(turn.count, 5);
  EXPECT_EQ(kvcake_claim(restoration, 1, &turn), KVCAKE_BUSY);
  EXPECT_EQ(kvcake_claim_front(restoration, 1, 1, &turn), KVCAKE_BUSY);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("[0, 5)"));
  EXPECT_EQ(kvcake_computed(restoration, 6, 0), KVCAKE_INVALID_ARGUMENT);
  EXPECT_EQ(Progress(restoration).claimed_count, 5);
  ASSERT_EQ(kvcake_computed(restoration, 3, 0), KVCAKE_OK);
  EXPECT_EQ(kvcake_computed(restoration, 1, 0), KVCAKE_INVALID_ARGUMENT) << "nothing is claimed";
  EXPECT_EQ(Progress(restoration).front, 3);
  EXPECT_EQ(Progress(restoration).computed, 3);
  ASSERT_EQ(kvcake_claim(restoration, 100, &turn), KVCAKE_OK);
  EXPECT_EQ(turn.first, 3);
  EXPECT_EQ(turn.count, 6);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK) << "with a slice that is claimed";
}

// More than memory has room for.
TEST_F(LibraryTest, WhatMemoryHasNoRoomForIsComputed) {
  Open();
  Keep(1, 30);
  Reopen(Options(/*memory_chunks=*/6));
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 30), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  const auto progress = Restore(restoration);
  EXPECT_GE(progress.computed, 24);
  EXPECT_EQ(progress.computed + progress.loaded, 30);
  EXPECT_EQ(ExpectBytes(restoration, 1), progress.loaded);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, APutThatMemoryHasNoRoomForIsRefusedAndCounted) {
  kvcake_restoration restoration = 0;
  HoldAllOfMemory(4, &restoration);
  const auto keys = Keys(1, 4), more = Keys(2, 1);
  EXPECT_EQ(Put(2, 0, more), KVCAKE_FULL);
  EXPECT_THAT(kvcake_last_error(), HasSubstr("memory_bytes"));
  EXPECT_EQ(Stats().writes_dropped, 1u);
  EXPECT_EQ(Put(1, 0, keys), KVCAKE_OK) << "it is there already";
  EXPECT_EQ(ExpectBytes(restoration, 1), 4);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  EXPECT_EQ(Put(2, 0, more), KVCAKE_OK);
}

TEST_F(LibraryTest, AnAcquiredChunkOutlivesItsRestoration) {
  Open(Options(/*memory_chunks=*/4));
  const auto keys = Keys(1, 4);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(Put(1, i, keys), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(keys, &restoration), KVCAKE_OK);
  auto slabs = Sized<kvcake_slabs>();
  ASSERT_EQ(kvcake_acquire(restoration, 2, &slabs), KVCAKE_OK);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  EXPECT_EQ(kvcake_end(restoration), KVCAKE_NOT_FOUND);
  EXPECT_EQ(kvcake_acquire(restoration, 2, &slabs), KVCAKE_NOT_FOUND);
  // What takes the memory of the others leaves this one alone.
  const auto others = Keys(2, 3);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Put(2, i, others), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  EXPECT_EQ(*static_cast<const std::byte*>(slabs.data), ByteOf(1, 2, 0, 0));
  EXPECT_EQ(kvcake_close(cache_), KVCAKE_BUSY) << "somebody may be reading there";
  ASSERT_EQ(kvcake_release(slabs.chunk), KVCAKE_OK);
  EXPECT_EQ(kvcake_release(slabs.chunk), KVCAKE_NOT_FOUND);
}

// Slices are of one chunk while nothing is known of compute.
class LibraryCostsTest : public LibraryTest {
 protected:
  void ExpectAWholeSlice(kvcake_restoration restoration) {
    auto turn = Sized<kvcake_turn>();
    do {
      ASSERT_EQ(kvcake_claim_front(restoration, 4, 1, &turn), KVCAKE_OK);
      if (turn.kind == KVCAKE_TURN_WAIT) {
        ASSERT_EQ(kvcake_wait(cache_, turn.wait_s), KVCAKE_OK);
      }
    } while (turn.kind == KVCAKE_TURN_WAIT);
    EXPECT_EQ(turn.count, 4);
  }
};

TEST_F(LibraryCostsTest, CostsAreKeptFromOneProcessToTheNext) {
  auto options = Options();
  options.device = "a test's";
  Open(options);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  Restore(restoration);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  ASSERT_EQ(Put(2, 0, Keys(2, 1)), KVCAKE_OK);
  ASSERT_EQ(kvcake_flush(cache_), KVCAKE_OK);
  Reopen(options);
  ASSERT_EQ(Begin(Keys(3, 9), &restoration), KVCAKE_OK);
  ExpectAWholeSlice(restoration);
  EXPECT_GT(Progress(restoration).predicted_s, 0);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

// Nothing was claimed for a prompt of which nothing is stored, yet the next one knows what it took.
TEST_F(LibraryCostsTest, WhatTheCallerComputedOfOtherPromptsIsLearnedFrom) {
  Open();
  ASSERT_EQ(kvcake_learn(cache_, 0, 4 * kLibraryChunkTokens, 4e-3), KVCAKE_OK);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 9), &restoration), KVCAKE_OK);
  ExpectAWholeSlice(restoration);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
}

TEST_F(LibraryTest, CostsAreLearnedOfPromptsAsLongAsCanBeRestored) {
  Open();
  EXPECT_EQ(kvcake_learn(cache_, (1 << 30) - 1, 1 << 21, 1), KVCAKE_OK);
  EXPECT_EQ(kvcake_learn(cache_, INT_MAX, 1, 1), KVCAKE_INVALID_ARGUMENT);
}

TEST_F(LibraryTest, ThreadsThatWaitTogetherSleep) {
  Open();
  const auto wait = [&] {
    const auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(kvcake_wait(cache_, 0.02), KVCAKE_OK);
    EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(100));
  };
  std::thread other(wait);
  wait();
  other.join();
}

TEST_F(LibraryTest, EachThreadHearsOfAnEventOnce) {
  Open();
  Keep(1, 1);
  constexpr double kForEver = 1e9;
  const auto wait = [&] { EXPECT_EQ(kvcake_wait(cache_, kForEver), KVCAKE_OK); };
  std::thread one(wait), two(wait);
  kvcake_restoration restoration = 0;
  ASSERT_EQ(Begin(Keys(1, 1), &restoration, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  one.join();
  two.join();
  Restore(restoration);
  ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
  wait();  // for what has come before
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(kvcake_wait(cache_, 0.02), KVCAKE_OK);
  EXPECT_GE(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(20));
}

TEST_F(LibraryTest, MemoryIsTakenAfterOpeningAndNotWhenItIsUsed) {
  constexpr uint64_t kBytes = 200 << 20;
  const uint64_t before = RssBytes();
  Open(Options(kBytes / kLibraryPageBytes));
  while (RssBytes() < before + kBytes / 10 * 9) std::this_thread::yield();
}

// A host may bind the thread that calls to a CPU on which it computes.
TEST_F(LibraryTest, ThreadsRunWhereTheOneThatOpensMay) {
  const std::vector<int> allowed = AllowedCpus();
  if (allowed.size() < 2) GTEST_SKIP() << "one CPU";
  Open();
  std::thread bound([&] {
    ASSERT_TRUE(RestrictToCpus(std::span(allowed).first(1)));
    const auto keys = Keys(1, 12);
    std::vector<std::vector<std::byte>> pieces;
    ASSERT_EQ(PutAsync(1, 12, keys, pieces), KVCAKE_OK) << kvcake_last_error();
    uint64_t kept = 0, dropped = 0;
    ASSERT_EQ(kvcake_put_wait(cache_, &kept, &dropped), KVCAKE_OK);
    uint8_t held = 0;
    const kvcake_key unknown = Keys(2, 1)[1];
    ASSERT_EQ(kvcake_lookup(cache_, &unknown, 1, 60, &held), KVCAKE_OK);
    kvcake_restoration restoration = 0;
    ASSERT_EQ(Begin(Keys(3, 12), &restoration), KVCAKE_OK);
    Restore(restoration);
    ASSERT_EQ(kvcake_end(restoration), KVCAKE_OK);
    // One that has just been started may still be on its way.
    const TimePoint end = Clock::Real().Now() + Seconds(60);
    while (BoundThreads(allowed.size()) > 0 && Clock::Real().Now() < end) std::this_thread::yield();
    EXPECT_EQ(BoundThreads(allowed.size()), 0);
  });
  bound.join();
}

TEST_F(LibraryTest, ManyThreadsShareACache) {
  Open();
  Keep(1, 16);
  std::vector<std::thread> threads;
  std::atomic<int> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 10; ++round) {
        const int document = 1 + (t + round) % 3;
        const auto keys = Keys(document, 16);
        kvcake_restoration restoration = 0;
        if (Begin(keys, &restoration) != KVCAKE_OK) ++wrong;
        auto turn = Sized<kvcake_turn>();
        do {
          if (kvcake_claim_front(restoration, 2, 1, &turn) != KVCAKE_OK) ++wrong;
          if (turn.kind == KVCAKE_TURN_WAIT) std::this_thread::yield();
          if (turn.kind == KVCAKE_TURN_SLICE) {
            for (int i = turn.first; i < turn.first + turn.count; ++i) Put(document, i, keys);
            if (kvcake_computed(restoration, turn.count, 1e-4) != KVCAKE_OK) ++wrong;
          }
        } while (turn.kind != KVCAKE_TURN_DONE);
        ExpectBytes(restoration, document);
        Stats();
        if (kvcake_end(restoration) != KVCAKE_OK) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(Stats().restorations, 0u);
}

}  // namespace
}  // namespace kvcake
