#include "base/peak_rss.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace kvcake {
namespace {

TEST(PeakRssTest, RemembersWhatIsGoneUntilItIsReset) {
  constexpr uint64_t kBytes = 64 << 20;
  const uint64_t before = PeakRssBytes();
  ASSERT_GT(before, 0u);
  if (!ResetPeakRss()) GTEST_SKIP() << "the kernel does not let us";
  // Mapped by hand: an allocator, a sanitizer's above all, may keep what is freed.
  void* bytes = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(bytes, MAP_FAILED);
  std::memset(bytes, 1, kBytes);
  EXPECT_GE(RssBytes(), kBytes);
  ASSERT_EQ(munmap(bytes, kBytes), 0);
  const uint64_t with = PeakRssBytes();
  EXPECT_GE(with, kBytes);
  ResetPeakRss();
  EXPECT_LT(PeakRssBytes(), with - kBytes / 2);
}

}  // namespace
}  // namespace kvcake
