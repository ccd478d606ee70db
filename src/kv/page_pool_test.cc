#include "kv/page_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <map>
#include <random>
#include <set>
#include <thread>

namespace kvcake {
namespace {

constexpr KvLayout kLayout{.layers = 3, .kv_heads = 2, .head_dim = 16, .chunk_tokens = 16};

std::unique_ptr<PagePool> MakePool(int pages) {
  return std::move(PagePool::Create(kLayout, pages * kLayout.page_bytes()).value());
}

ChunkKey Key(int i) { return ChunkKeys(KvIdentity().Root(), std::vector<int32_t>{i}, 1)[0]; }

TEST(PagePoolTest, RefusesACapacityThatHoldsNoPage) {
  auto pool = PagePool::Create(kLayout, kLayout.page_bytes() - 1);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(pool.error().message.find("--ram-capacity"), std::string::npos);
}

TEST(PagePoolTest, SaysThatThereIsNoRoomForPagesBeforeItCountsThem) {
  PageMemory none = PageMemory::Host();
  none.allocate = [](uint64_t) { return Fail(ErrorCode::kResourceExhausted, "no room"); };
  auto pool = PagePool::Create(kLayout, uint64_t{1} << 62, none);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().message, "no room");
}

TEST(PagePoolTest, MorePagesThanCanBeCountedAreRefusedWithTheFlag) {
  int taken = 0;
  PageMemory memory = PageMemory::Host();
  memory.segment_bytes_max = uint64_t{1} << 50;
  memory.allocate = [&](uint64_t) -> Result<std::byte*> {
    ++taken;
    return nullptr;
  };
  memory.free = [&](std::byte*, uint64_t) { --taken; };
  memory.populate = nullptr;
  auto pool = PagePool::Create(kLayout, uint64_t{1} << 62, memory);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(pool.error().message.find("lower --ram-capacity"), std::string::npos);
  EXPECT_EQ(taken, 0) << "all of it is given back";
}

TEST(PagePoolTest, PagesAreAlignedDisjointAndLandInThemselves) {
  auto pool = MakePool(5);
  std::vector<PageHandle> pages;
  std::map<std::byte*, PageId> seen;
  for (int i = 0; i < 5; ++i) {
    pages.push_back(std::move(pool->Draw().value()));
    const auto landing = pool->LandingFor(pages.back().id(), Codec::kRaw);
    EXPECT_EQ(landing.size(), kLayout.page_bytes());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(landing.data()) % kSlabAlign, 0u);
    EXPECT_TRUE(seen.emplace(landing.data(), pages.back().id()).second);
    EXPECT_EQ(reinterpret_cast<std::byte*>(pool->Slab(pages.back().id(), 2)) - landing.data(),
              static_cast<ptrdiff_t>(kLayout.slab_offset(2)));
  }
  for (auto it = std::next(seen.begin()); it != seen.end(); ++it) {
    EXPECT_GE(it->first - std::prev(it)->first, static_cast<ptrdiff_t>(kLayout.page_bytes()));
  }
  EXPECT_FALSE(pool->Draw());
}

// Memory of the host in segments of two pages, of which so many can be had; notes those in use.
struct SegmentedMemory {
  PageMemory Of(size_t segments_max) {
    PageMemory memory = PageMemory::Host();
    memory.segment_bytes_max = 3 * kLayout.page_bytes() - 1;
    memory.populate = nullptr;
    memory.allocate = [this, segments_max, allocate = memory.allocate](uint64_t bytes) {
      if (segments.size() == segments_max) {
        return Result<std::byte*>(Fail(ErrorCode::kResourceExhausted, "no more"));
      }
      auto segment = allocate(bytes);
      if (segment) segments.emplace(*segment, bytes);
      return segment;
    };
    memory.free = [this, free = memory.free](std::byte* segment, uint64_t bytes) {
      EXPECT_EQ(segments.at(segment), bytes);
      segments.erase(segment);
      free(segment, bytes);
    };
    return memory;
  }
  std::map<std::byte*, uint64_t> segments;
};

TEST(PagePoolTest, EachPageLiesInOneSegmentAndAllSegmentsAreGivenBack) {
  SegmentedMemory memory;
  {
    auto pool =
        std::move(PagePool::Create(kLayout, 5 * kLayout.page_bytes(), memory.Of(3)).value());
    EXPECT_FALSE(pool->contiguous());
    std::multiset<uint64_t> sizes;
    for (const auto& [segment, bytes] : memory.segments) sizes.insert(bytes / kLayout.page_bytes());
    EXPECT_EQ(sizes, (std::multiset<uint64_t>{1, 2, 2}));
    std::set<std::byte*> seen;
    for (PageId page = 0; page < 5; ++page) {
      std::byte* const begin = pool->Data(page);
      const auto after = memory.segments.upper_bound(begin);
      ASSERT_NE(after, memory.segments.begin()) << page;
      const auto& [segment, bytes] = *std::prev(after);
      EXPECT_LE(begin + kLayout.page_bytes(), segment + bytes) << page;
      EXPECT_EQ((begin - segment) % kLayout.page_bytes(), 0u) << page;
      EXPECT_TRUE(seen.insert(begin).second) << page;
    }
  }
  EXPECT_TRUE(memory.segments.empty());
}

TEST(PagePoolTest, SegmentsThatCouldBeHadAreGivenBackWhereOthersCannot) {
  SegmentedMemory memory;
  const auto pool = PagePool::Create(kLayout, 5 * kLayout.page_bytes(), memory.Of(2));
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().message, "no more");
  EXPECT_TRUE(memory.segments.empty());
}

// Bytes of the pool that the kernel has given it.
uint64_t ResidentBytes(const PagePool& pool) {
  constexpr uint64_t kSystemPage = 4096;
  std::vector<unsigned char> resident(pool.pages() * kLayout.page_bytes() / kSystemPage);
  EXPECT_EQ(mincore(pool.Data(0), resident.size() * kSystemPage, resident.data()), 0);
  return kSystemPage * std::ranges::count_if(resident, [](auto is) { return (is & 1) != 0; });
}

TEST(PagePoolTest, PagesAreCommittedAheadOfTheirUse) {
  constexpr uint64_t kMiB = 1 << 20;
  auto pool = MakePool(160 * kMiB / kLayout.page_bytes());
  while (ResidentBytes(*pool) < 64 * kMiB) std::this_thread::yield();
  EXPECT_LT(ResidentBytes(*pool), 80 * kMiB) << "not all at once";
  std::vector<PageHandle> pages;
  while (pages.size() < 40 * kMiB / kLayout.page_bytes()) {
    pages.push_back(std::move(pool->Draw().value()));
    *pool->Data(pages.back().id()) = std::byte{1};
  }
  while (ResidentBytes(*pool) < 104 * kMiB) std::this_thread::yield();
  // Among them what is written while it is being committed.
  while (auto page = pool->Draw()) {
    pages.push_back(std::move(*page));
    *pool->Data(pages.back().id()) = std::byte{1};
  }
  for (const PageHandle& page : pages) EXPECT_EQ(*pool->Data(page.id()), std::byte{1});
}

TEST(PagePoolTest, UnreferencedPagesAreAdoptedWithoutACopyUntilNeeded) {
  auto pool = MakePool(2);
  PageHandle a = pool->Publish(std::move(*pool->Draw()), Key(1), NumericPath::kF32);
  const PageId id = a.id();
  a.Reset();
  EXPECT_EQ(pool->Stats().cached, 1u);
  EXPECT_EQ(pool->Lookup(Key(1))->id(), id);

  PageHandle b = std::move(*pool->Draw()), c = std::move(*pool->Draw());
  EXPECT_FALSE(pool->Lookup(Key(1))) << "its page was drawn for something else";
  EXPECT_EQ(pool->Stats().evicted, 1u);
}

TEST(PagePoolTest, PublishingAKeyTwiceKeepsTheFirstPage) {
  auto pool = MakePool(2);
  PageHandle first = pool->Publish(std::move(*pool->Draw()), Key(1), NumericPath::kF32);
  PageHandle second = pool->Publish(std::move(*pool->Draw()), Key(1), NumericPath::kBf16Dot);
  EXPECT_EQ(first.id(), second.id());
  EXPECT_EQ(pool->path(second.id()), NumericPath::kF32);
  EXPECT_EQ(pool->Stats().referenced, 1u);
  EXPECT_TRUE(pool->Draw()) << "the late page went back to the pool";
}

TEST(PagePoolTest, ReferencedPagesSurviveDropCached) {
  auto pool = MakePool(2);
  PageHandle held = pool->Publish(std::move(*pool->Draw()), Key(1), NumericPath::kF32);
  pool->Publish(std::move(*pool->Draw()), Key(2), NumericPath::kF32).Reset();
  pool->DropCached();
  EXPECT_TRUE(pool->Lookup(Key(1)));
  EXPECT_FALSE(pool->Lookup(Key(2)));
}

TEST(PagePoolTest, ReferencedPagesSurviveThatTheirKeysAreDropped) {
  auto pool = MakePool(2);
  const PageHandle held = pool->Publish(std::move(*pool->Draw()), Key(1), NumericPath::kF32);
  pool->Publish(std::move(*pool->Draw()), Key(2), NumericPath::kF32).Reset();
  pool->DropCached(std::vector{Key(1), Key(2), Key(3)});
  EXPECT_TRUE(pool->Contains(Key(1)));
  EXPECT_FALSE(pool->Contains(Key(2)));
  auto other = pool->Draw();
  ASSERT_TRUE(other);
  EXPECT_NE(other->id(), held.id());
  EXPECT_FALSE(pool->Draw()) << "the other is in use";
  EXPECT_EQ(pool->Stats().evicted, 0u);
  pool->Publish(*std::move(other), Key(4), NumericPath::kF32);
  EXPECT_TRUE(pool->Contains(Key(4))) << "its page has forgotten the key before";
}

TEST(PagePoolTest, PagesThatAreDroppedAreUsedAgain) {
  auto pool = MakePool(2);
  for (int i = 1; i <= 2; ++i) {
    pool->Publish(std::move(*pool->Draw()), Key(i), NumericPath::kF32).Reset();
  }
  pool->DropCached();
  EXPECT_EQ(pool->Stats().cached, 0u);
  const auto first = pool->Draw(), second = pool->Draw();
  EXPECT_TRUE(first && second);
  EXPECT_FALSE(pool->Draw()) << "each of them once";
  EXPECT_EQ(pool->Stats().evicted, 0u);
}

// What the reclaimer gives may be another thread's before the one that asked has it.
TEST(PagePoolTest, DrawGoesOnWhileTheReclaimerGives) {
  auto pool = MakePool(3);
  std::vector<PageHandle> given, taken;
  while (auto page = pool->Draw()) given.push_back(std::move(*page));
  int asked = 0;
  pool->SetReclaimer([&] {
    ++asked;
    if (given.empty()) return false;
    given.pop_back();
    if (asked == 1) taken.push_back(std::move(*pool->Draw()));
    return true;
  });
  taken.push_back(std::move(*pool->Draw()));
  EXPECT_EQ(asked, 2);
  taken.push_back(std::move(*pool->Draw()));
  EXPECT_EQ(asked, 3) << "no more than needed";
  EXPECT_FALSE(pool->Draw());
  pool->SetReclaimer(nullptr);
}

TEST(PagePoolTest, WhoTakesTheReclaimerAwayWaitsForItsCall) {
  auto pool = MakePool(1);
  const auto held = pool->Draw();
  std::latch begun(1);
  std::atomic<bool> ended = false;
  pool->SetReclaimer([&] {
    begun.count_down();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    ended = true;
    return false;
  });
  std::thread other([&] { EXPECT_FALSE(pool->Draw()); });
  begun.wait();
  pool->SetReclaimer(nullptr);
  EXPECT_TRUE(ended);
  other.join();
}

TEST(PagePoolTest, TheLeastSparePageIsOneThatNobodyElseHolds) {
  auto pool = MakePool(4);
  std::vector<PageHandle> pages;
  for (uint64_t i = 0; i < 4; ++i) {
    pages.push_back(pool->Publish(std::move(*pool->Draw()), Key(i), NumericPath::kF32));
    pool->SetSpare(pages[i].id(),
                   PageWorth{.kind = 1, .position = static_cast<int>(i / 2), .number = i});
  }
  const auto least = [&] { return pool->LeastSpare().value().number; };
  EXPECT_EQ(least(), 0u);
  auto found = pool->Lookup(Key(0));
  auto shared = pages[1].Share();
  EXPECT_EQ(least(), 2u);
  shared.Reset();
  EXPECT_EQ(least(), 1u);
  found->Reset();
  EXPECT_EQ(least(), 0u);
  shared = pages[0].Share();
  auto again = pages[0].Share();
  pool->SetSpare(pages[0].id(), PageWorth{.kind = 1, .position = 0, .number = 0});
  EXPECT_EQ(least(), 1u) << "said of a page that others hold";
  again.Reset();
  EXPECT_EQ(least(), 1u) << "one other holds it still";
  shared.Reset();
  EXPECT_EQ(least(), 0u);
  pool->SetSpare(pages[3].id(), PageWorth{.kind = 0, .position = 9, .number = 3});
  EXPECT_EQ(least(), 3u);
  for (const PageHandle& page : pages) pool->SetSpare(page.id(), std::nullopt);
  EXPECT_FALSE(pool->LeastSpare());
}

// Against a model: keys present, coldest evicted first, every page accounted for.
TEST(PagePoolTest, RandomOperationsAgreeWithAModel) {
  constexpr int kPages = 6, kKeys = 10;
  for (int seed = 0; seed < 50; ++seed) {
    auto pool = MakePool(kPages);
    std::mt19937 rng(seed);
    std::vector<std::pair<int, PageHandle>> held;  // key, or -1 while private
    std::vector<int> lru;                          // unreferenced keys, coldest first
    auto references = [&](int key) {
      return std::count_if(held.begin(), held.end(), [&](auto& h) { return h.first == key; });
    };
    for (int step = 0; step < 400; ++step) {
      const int key = rng() % kKeys;
      const auto cached = std::find(lru.begin(), lru.end(), key);
      const bool present = cached != lru.end() || references(key) > 0;
      switch (rng() % 4) {
        case 0: {
          std::set<PageId> used;
          for (auto& h : held) used.insert(h.second.id());
          const bool has_free = used.size() + lru.size() < kPages;
          auto page = pool->Draw();
          ASSERT_EQ(page.has_value(), used.size() < kPages);
          if (page) {
            if (!has_free) lru.erase(lru.begin());
            held.emplace_back(-1, std::move(*page));
          }
          break;
        }
        case 1: {
          auto page = pool->Lookup(Key(key));
          ASSERT_EQ(page.has_value(), present);
          if (page) {
            if (cached != lru.end()) lru.erase(cached);
            held.emplace_back(key, std::move(*page));
          }
          break;
        }
        case 2: {
          auto it = std::find_if(held.begin(), held.end(), [](auto& h) { return h.first == -1; });
          if (it == held.end()) break;
          const PageId id = it->second.id();
          it->second = pool->Publish(std::move(it->second), Key(key), NumericPath::kF32);
          ASSERT_EQ(it->second.id() == id, !present);
          if (cached != lru.end()) lru.erase(cached);
          it->first = key;
          break;
        }
        case 3: {
          if (held.empty()) break;
          auto it = held.begin() + rng() % held.size();
          const int dropped = it->first;
          held.erase(it);
          if (dropped != -1 && references(dropped) == 0) lru.push_back(dropped);
          break;
        }
      }
      const auto stats = pool->Stats();
      ASSERT_EQ(stats.cached, lru.size());
      std::set<PageId> ids;
      for (auto& h : held) ids.insert(h.second.id());
      ASSERT_EQ(stats.referenced, ids.size());
    }
  }
}

TEST(PagePoolTest, HandlesAreSafeAcrossThreads) {
  auto pool = MakePool(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int i = 0; i < 2000; ++i) {
        auto page = pool->Lookup(Key(rng() % 12));
        if (!page) page = pool->Draw();
        if (!page) continue;
        PageHandle shared = page->Share();
        if (rng() % 2) page->Reset();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pool->Stats().referenced, 0u);
}

}  // namespace
}  // namespace kvcake
