// What the tests of tiers share: pages of known bytes, a directory that goes away, and reads that
// can be waited for.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/temp_dir_testing.h"
#include "store/tier.h"

namespace kvcake::testing_util {

// Two heads, three layers; a slab has padding: 2*2*2*16*9 bytes = 1152 of 4096.
inline KvLayout SmallLayout() {
  return {.layers = 3, .kv_heads = 2, .head_dim = 9, .chunk_tokens = 16};
}

constexpr Seconds kPatience{120};  // for an answer that has to come

// Whose chunks are, where owners have quotas.
inline constexpr OwnerId kAnn = 11, kBob = 22;

// 4 KiB-aligned memory of one page.
class PageBuffer {
 public:
  explicit PageBuffer(const KvLayout& layout)
      : layout_(layout),
        bytes_(layout.page_bytes()),
        data_(static_cast<std::byte*>(aligned_alloc(4096, bytes_))) {
    CHECK(data_ != nullptr);
    std::memset(data_, 0xee, bytes_);
  }
  ~PageBuffer() { free(data_); }
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  std::span<std::byte> span() { return {data_, bytes_}; }
  std::span<const std::byte> span() const { return {data_, bytes_}; }
  std::span<const std::byte> payload(int layer) const {
    return {data_ + layout_.slab_offset(layer), layout_.slab_payload_bytes()};
  }
  const KvLayout& layout() const { return layout_; }

 private:
  const KvLayout layout_;
  const size_t bytes_;
  std::byte* const data_;
};

// False when a minute was not enough.
template <typename Condition>
bool Eventually(Condition condition) {
  const TimePoint until = Clock::Real().Now() + Seconds(60);
  while (!condition()) {
    if (Clock::Real().Now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

inline ChunkKey Root() { return KvIdentity().Add("model", "test").Root(); }

// The keys of `n` chunks in a chain; different seeds share none.
inline std::vector<ChunkKey> Chain(int n, int seed = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n) * 16);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i) + 100000 * seed;
  return ChunkKeys(Root(), tokens, 16);
}

inline ChunkKey ParentOf(const std::vector<ChunkKey>& chain, size_t i) {
  return i == 0 ? Root() : chain[i - 1];
}

// A page whose bytes follow from the key alone, so that any process can check what it read.
inline void FillPage(const ChunkKey& key, std::span<std::byte> page) {
  uint64_t seed;
  std::memcpy(&seed, key.digest.data(), sizeof(seed));
  std::mt19937_64 random(seed);
  for (size_t at = 0; at + 8 <= page.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(&page[at], &word, 8);
  }
}

inline bool HoldsLayer(const ChunkKey& key, const PageBuffer& landing, int layer) {
  const KvLayout& layout = landing.layout();
  std::vector<std::byte> expected(layout.page_bytes());
  FillPage(key, expected);
  const auto payload = landing.payload(layer);
  return std::memcmp(&expected[layout.slab_offset(layer)], payload.data(), payload.size()) == 0;
}

inline bool HoldsChunk(const ChunkKey& key, const PageBuffer& landing) {
  for (int layer = 0; layer < landing.layout().layers; ++layer) {
    if (!HoldsLayer(key, landing, layer)) return false;
  }
  return true;
}

inline Status PutChunk(Tier& tier, const KvLayout& layout, const ChunkKey& key,
                       const ChunkKey& parent, OwnerId owner = kNobody) {
  PageBuffer page(layout);
  FillPage(key, page.span());
  return tier.Put({key, parent, NumericPath::kF32Fma, page.span(), owner});
}

// Reads started through it can be waited for; counts how often each `done` was called.
class Reads {
 public:
  ~Reads() {
    MutexLock lock(mutex_);
    const TimePoint deadline = Clock::Real().Now() + kPatience;
    while (!Settled() && changed_.WaitUntil(mutex_, deadline)) continue;
    EXPECT_TRUE(Settled()) << "a read was never answered";
  }

  // The index of the read. With layers, they land in their place in the page.
  size_t Start(Tier& tier, const KvLayout& layout, const ChunkKey& key, const ChunkKey& parent,
               std::optional<LayerRange> layers = {}) {
    size_t index;
    PageBuffer* landing;
    {
      MutexLock lock(mutex_);
      index = reads_.size();
      reads_.push_back(std::make_unique<Entry>(layout));
      landing = &reads_[index]->landing;
    }
    std::span<std::byte> into = landing->span();
    if (layers) {
      into = into.subspan(layout.slab_offset(layers->first), layers->count * layout.slab_bytes());
    }
    const auto done = [this, index](ReadResult result) {
      MutexLock lock(mutex_);
      reads_[index]->result = std::move(result);
      ++reads_[index]->answers;
      order_.push_back(index);
      changed_.NotifyAll();
    };
    const ReadId id =
        tier.Get({.key = key, .parent = parent, .landing = into, .done = done, .layers = layers});
    MutexLock lock(mutex_);
    reads_[index]->id = id;
    return index;
  }
  ReadResult Wait(size_t index) {
    MutexLock lock(mutex_);
    const TimePoint deadline = Clock::Real().Now() + kPatience;
    while (reads_[index]->answers == 0 && changed_.WaitUntil(mutex_, deadline)) continue;
    EXPECT_GT(reads_[index]->answers, 0);
    return reads_[index]->result;
  }
  ReadId id(size_t index) const {
    MutexLock lock(mutex_);
    return reads_[index]->id;
  }
  int answers(size_t index) const {
    MutexLock lock(mutex_);
    return reads_[index]->answers;
  }
  std::vector<size_t> order() const {
    MutexLock lock(mutex_);
    return order_;
  }
  const PageBuffer& landing(size_t index) const {
    MutexLock lock(mutex_);
    return reads_[index]->landing;
  }

 private:
  struct Entry {
    explicit Entry(const KvLayout& layout) : landing(layout) {}
    PageBuffer landing;
    ReadId id = 0;
    ReadResult result;
    int answers = 0;
  };
  bool Settled() const REQUIRES(mutex_) {
    return std::all_of(reads_.begin(), reads_.end(), [](auto& r) { return r->answers > 0; });
  }

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Entry>> reads_ GUARDED_BY(mutex_);
  std::vector<size_t> order_ GUARDED_BY(mutex_);
};

// What the tier holds when it has been asked to look.
inline std::vector<bool> Held(Tier& tier, const std::vector<ChunkKey>& keys) {
  struct Answer {
    Mutex mutex;
    CondVar changed;
    std::vector<bool> held GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  std::vector<bool> known = tier.Residency(keys);
  const bool looks =
      tier.Look({.keys = keys, .found = [answer](size_t first, const std::vector<bool>& held) {
                   MutexLock lock(answer->mutex);
                   EXPECT_EQ(first, answer->held.size()) << "answers come in order";
                   answer->held.insert(answer->held.end(), held.begin(), held.end());
                   answer->changed.NotifyAll();
                   return true;
                 }});
  if (!looks) return known;
  MutexLock lock(answer->mutex);
  const TimePoint deadline = Clock::Real().Now() + kPatience;
  while (answer->held.size() < keys.size() && answer->changed.WaitUntil(answer->mutex, deadline)) {
    continue;
  }
  EXPECT_EQ(answer->held.size(), keys.size());
  return answer->held;
}

// What claiming the keys comes to; nothing where the tier makes no claims.
inline std::optional<std::vector<ClaimState>> ClaimKeys(Tier& tier, std::vector<ChunkKey> keys,
                                                        Seconds lasts = kPatience) {
  struct Answer {
    Mutex mutex;
    CondVar changed;
    int answers GUARDED_BY(mutex) = 0;
    std::vector<ClaimState> states GUARDED_BY(mutex);
  };
  const auto answer = std::make_shared<Answer>();
  const size_t n = keys.size();
  const bool claims = tier.Claim({.keys = std::move(keys),
                                  .lasts = lasts,
                                  .done = [answer](const std::vector<ClaimState>& states) {
                                    MutexLock lock(answer->mutex);
                                    answer->states = states;
                                    ++answer->answers;
                                    answer->changed.NotifyAll();
                                  }});
  if (!claims) return std::nullopt;
  MutexLock lock(answer->mutex);
  const TimePoint deadline = Clock::Real().Now() + kPatience;
  while (answer->answers == 0 && answer->changed.WaitUntil(answer->mutex, deadline)) continue;
  EXPECT_EQ(answer->answers, 1);
  EXPECT_EQ(answer->states.size(), n);
  return answer->states;
}

// What claiming one key comes to, where the tier makes claims.
inline ClaimState ClaimKey(Tier& tier, const ChunkKey& key, Seconds lasts = kPatience) {
  const auto states = ClaimKeys(tier, {key}, lasts);
  EXPECT_TRUE(states.has_value());
  return states ? (*states)[0] : ClaimState::kNone;
}

// The code of a Get that is waited for; when it is ok, the bytes must be right.
inline std::optional<ErrorCode> ReadBack(Tier& tier, const KvLayout& layout, const ChunkKey& key,
                                         const ChunkKey& parent) {
  Reads reads;
  const size_t read = reads.Start(tier, layout, key, parent);
  const ReadResult result = reads.Wait(read);
  if (!result.status) return result.status.error().code;
  EXPECT_TRUE(HoldsChunk(key, reads.landing(read))) << "a wrong chunk was called right";
  return std::nullopt;
}

}  // namespace kvcake::testing_util
