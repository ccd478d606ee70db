// What a call gives when memory runs out in the midst of it: every allocation of every call fails
// once, alone and with all that come after it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <new>

#include "lib/kvcake.h"
#include "lib/library_testing.h"

namespace {

// Counts this thread's allocations. Threads of the library go on as they are.
thread_local int64_t allocations_left = -1;  // until one fails; negative: none does
thread_local bool all_after = false;         // those that come after it fail, too
thread_local bool failed = false;            // one has

bool Fails() {
  if (allocations_left < 0) return false;
  if (allocations_left > 0) {
    --allocations_left;
    return false;
  }
  if (!all_after) allocations_left = -1;
  failed = true;
  return true;
}

}  // namespace

// The whole test program's. Those for arrays are as they were.
[[gnu::noinline]] void* operator new(size_t bytes) {
  void* const memory = Fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return Fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace kvcake {
namespace {

using namespace testing_util;

using testing::HasSubstr;

constexpr int kDocument = 1, kChunks = 4;

// Whether all allocations after the one that fails do, too.
class OutOfMemoryTest : public LibraryTest, public testing::WithParamInterface<bool> {
 protected:
  // Makes the call with its first allocation failing, its second, and so on, until none fails that
  // it makes. `prepare` comes before each, `look` after each that returned an error.
  void FailEach(const std::function<void()>& prepare, const std::function<int()>& call,
                const std::function<void()>& look) {
    for (int n = 0;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n));
      prepare();
      if (HasFatalFailure()) return;
      failed = false;
      all_after = GetParam();
      allocations_left = n;
      const int status = call();
      allocations_left = -1;
      if (!failed) {
        EXPECT_EQ(status, KVCAKE_OK) << kvcake_last_error();
        return;
      }
      if (status == KVCAKE_OK) continue;  // it could do without
      ASSERT_EQ(status, KVCAKE_FULL) << kvcake_last_error();
      ASSERT_STREQ(kvcake_last_error(), "out of memory");
      look();
      if (HasFatalFailure()) return;
    }
  }
  void FailEach(const std::function<int()>& call) {
    FailEach([] {}, call, [] {});
  }

  // A restoration of the document, of a cache that is opened anew where its restorations are lost.
  void BeginAnew(int policy = KVCAKE_POLICY_CAKE) {
    if (restoration_ != 0) kvcake_end(std::exchange(restoration_, 0));
    int status = Begin(keys_, &restoration_, policy);
    if (status == KVCAKE_CANCELLED) {
      EXPECT_THAT(kvcake_last_error(), HasSubstr("open another"));
      Reopen();
      status = Begin(keys_, &restoration_, policy);
    }
    ASSERT_EQ(status, KVCAKE_OK) << kvcake_last_error();
  }
  // A cache whose store has the document, and what restores of it.
  void OpenWithDocument() {
    Open();
    Keep(kDocument, kChunks);
    keys_ = Keys(kDocument, kChunks);
  }
  void ExpectRestored() {
    BeginAnew();
    const auto progress = Restore(restoration_);
    EXPECT_EQ(progress.front, kChunks);
    ExpectBytes(restoration_, kDocument);
  }

  std::vector<kvcake_key> keys_;
  kvcake_restoration restoration_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Ways, OutOfMemoryTest, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "AllThatFollowFail" : "OneFails");
});

TEST_P(OutOfMemoryTest, Open) {
  const auto options = Options();
  const auto close = [&] {
    if (cache_ == 0) return;
    ASSERT_EQ(kvcake_close(std::exchange(cache_, 0)), KVCAKE_OK);
  };
  const auto open = [&] { return kvcake_open(&options, &cache_); };
  FailEach(close, open, [&] { EXPECT_EQ(cache_, 0u); });
  EXPECT_EQ(Put(kDocument, 0, Keys(kDocument, 1)), KVCAKE_OK);
}

// Whether or not the cache is in a state to be destroyed.
TEST_P(OutOfMemoryTest, CloseWritesWhatWasPut) {
  Open();
  keys_ = Keys(kDocument, kChunks);
  int closed = 0;
  for (int n = 0;; ++n) {
    if (cache_ == 0) Open();
    ++closed;
    ASSERT_EQ(Put(kDocument + closed, 0, Keys(kDocument + closed, 1)), KVCAKE_OK);
    ASSERT_EQ(Begin(keys_, &restoration_), KVCAKE_OK) << kvcake_last_error();
    failed = false;
    all_after = GetParam();
    allocations_left = n;
    const int status = kvcake_close(cache_);
    allocations_left = -1;
    cache_ = 0;
    ASSERT_EQ(status, KVCAKE_OK) << kvcake_last_error();
    ASSERT_EQ(ChunkFiles().size(), static_cast<size_t>(closed));
    if (!failed) break;
  }
}

TEST_P(OutOfMemoryTest, KeysAndLooks) {
  OpenWithDocument();
  const std::string salt(100, 's');
  const std::vector<int32_t> tokens(kChunks * kLibraryChunkTokens, 1);
  std::vector<kvcake_key> made(kChunks);
  std::vector<uint8_t> held(kChunks);
  auto stats = Sized<kvcake_stats_info>();
  FailEach([&] { return kvcake_root(cache_, salt.data(), salt.size(), &made[0]); });
  FailEach([&] {
    return kvcake_keys(cache_, &keys_[0], tokens.data(), tokens.size(), made.data(), kChunks);
  });
  FailEach([&] { return kvcake_extend_key(&keys_[0], salt.data(), salt.size(), &made[0]); });
  for (const double patience : {0, 100}) {
    FailEach([&] { return kvcake_lookup(cache_, &keys_[1], kChunks, patience, held.data()); });
    EXPECT_THAT(held, testing::Each(KVCAKE_STORED));
  }
  FailEach([&] { return kvcake_stats(cache_, &stats); });
  FailEach([&] { return kvcake_wait(cache_, 0); });
  ExpectRestored();
}

TEST_P(OutOfMemoryTest, Put) {
  Open();
  std::vector<std::byte> data(kLibraryLayers * kLibrarySlabBytes);
  auto write = Sized<kvcake_write>();
  write.data = data.data();
  int document = 0;
  const auto prepare = [&] {
    keys_ = Keys(++document, 1);
    write.parent = keys_[0];
    write.key = keys_[1];
  };
  const auto put = [&] { return kvcake_put(cache_, &write); };
  FailEach(prepare, put, [&] { EXPECT_EQ(put(), KVCAKE_OK) << kvcake_last_error(); });
  FailEach([&] { return kvcake_flush(cache_); });
  EXPECT_EQ(Stats().writes_written, static_cast<uint64_t>(document));
  EXPECT_EQ(Stats().memory_referenced, 0u);
}

TEST_P(OutOfMemoryTest, Begin) {
  OpenWithDocument();
  const auto begin = [&] { return Begin(keys_, &restoration_); };
  FailEach([&] { BeginAnew(), kvcake_end(std::exchange(restoration_, 0)); }, begin, [] {});
  EXPECT_EQ(Restore(restoration_).front, kChunks);
  ExpectBytes(restoration_, kDocument);
}

TEST_P(OutOfMemoryTest, End) {
  OpenWithDocument();
  FailEach([&] { BeginAnew(); }, [&] { return kvcake_end(restoration_); }, [] {});
  ExpectRestored();
}

TEST_P(OutOfMemoryTest, Claim) {
  OpenWithDocument();
  auto turn = Sized<kvcake_turn>();
  const auto begin = [&] { BeginAnew(); };
  FailEach(
      begin, [&] { return kvcake_claim(restoration_, 2, &turn); }, [] {});
  FailEach(
      begin, [&] { return kvcake_claim_front(restoration_, 2, 1, &turn); }, [] {});
  ExpectRestored();
}

TEST_P(OutOfMemoryTest, Computed) {
  OpenWithDocument();
  auto turn = Sized<kvcake_turn>();
  const auto claim = [&] {
    BeginAnew(KVCAKE_POLICY_COMPUTE);  // nothing is loaded before it is claimed
    ASSERT_EQ(kvcake_claim(restoration_, 2, &turn), KVCAKE_OK) << kvcake_last_error();
    ASSERT_EQ(turn.kind, KVCAKE_TURN_SLICE);
  };
  FailEach(
      claim, [&] { return kvcake_computed(restoration_, 1, 0.5); }, [] {});
  auto progress = Sized<kvcake_progress_info>();
  FailEach([&] { return kvcake_progress(restoration_, &progress); });
  EXPECT_EQ(progress.computed, 1);
  ExpectRestored();
}

// It is asked for several times a step of each prompt: it plans nothing, and copies no report.
TEST_P(OutOfMemoryTest, ProgressWantsNone) {
  OpenWithDocument();
  ASSERT_EQ(kvcake_learn(cache_, 0, kLibraryChunkTokens, 1e-3), KVCAKE_OK);
  BeginAnew();
  auto progress = Sized<kvcake_progress_info>();
  failed = false;
  allocations_left = 0;
  const int status = kvcake_progress(restoration_, &progress);
  allocations_left = -1;
  EXPECT_FALSE(failed);
  EXPECT_EQ(status, KVCAKE_OK) << kvcake_last_error();
  EXPECT_EQ(progress.chunks, kChunks);
}

TEST_P(OutOfMemoryTest, Acquire) {
  OpenWithDocument();
  ASSERT_EQ(Begin(keys_, &restoration_, KVCAKE_POLICY_LOAD), KVCAKE_OK);
  Restore(restoration_);
  auto slabs = Sized<kvcake_slabs>();
  FailEach([&] { return kvcake_acquire(restoration_, 1, &slabs); });
  EXPECT_EQ(Stats().acquired, 1u);
  ASSERT_EQ(kvcake_end(restoration_), KVCAKE_OK);
  FailEach([&] { return kvcake_release(slabs.chunk); });
  EXPECT_EQ(Stats().acquired, 0u);
}

}  // namespace
}  // namespace kvcake
