// What tiers promise whose chunks a copier brings to pages and takes from them.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "kv/page_copier_testing.h"
#include "store/tier_testing.h"

namespace kvcake::testing_util {

// The pages are memory that this process cannot touch; the copier knows where they really are.
inline void ExpectPagesAreTouchedByTheCopierOnly(
    const KvLayout& layout, const std::function<std::unique_ptr<Tier>(PageCopier&)>& make) {
  const size_t bytes = layout.page_bytes();
  void* const mapped =
      mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  ASSERT_EQ(mprotect(mapped, bytes, PROT_NONE), 0);
  const std::span<std::byte> page(static_cast<std::byte*>(mapped), bytes);
  const std::span<std::byte> behind(page.data() + bytes, bytes);
  const ChunkKey key = Chain(1)[0];
  {
    FakeCopier copier(bytes);
    std::promise<ReadResult> result;
    const std::unique_ptr<Tier> tier = make(copier);
    FillPage(key, behind);
    ASSERT_TRUE(tier->Put({key, Root(), NumericPath::kBf16Tensor, page}));
    std::memset(behind.data(), 0, bytes);
    tier->Get({key, Root(), page, [&](ReadResult r) { result.set_value(std::move(r)); }});
    EXPECT_TRUE(result.get_future().get().status);
    PageBuffer read(layout);
    std::ranges::copy(behind, read.span().begin());
    EXPECT_TRUE(HoldsChunk(key, read));
  }
  munmap(mapped, 2 * bytes);
}

}  // namespace kvcake::testing_util
