#include "base/peak_rss.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvcake {
namespace {

TEST(PeakRssTest, RemembersWhatIsGoneUntilItIsReset) {
  constexpr uint64_t kBytes = 64 << 20;
  const uint64_t before = PeakRssBytes();
  ASSERT_GT(before, 0u);
  if (!ResetPeakRss()) GTEST_SKIP() << "the kernel does not let us";
  { const std::vector<char> buffer(kBytes, 1); }
  const uint64_t with = PeakRssBytes();
  EXPECT_GE(with, kBytes);
  ResetPeakRss();
  EXPECT_LT(PeakRssBytes(), with - kBytes / 2);
}

}  // namespace
}  // namespace kvcake
