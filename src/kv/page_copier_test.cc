#include "kv/page_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "kv/page_copier_testing.h"

namespace kvcake {
namespace {

TEST(PageCopierTest, WhoAwaitsCopiesHasThemAllInWhateverOrderTheyAreDone) {
  constexpr size_t kCopies = 16, kBytes = 64;
  testing_util::FakeCopier copier;
  copier.Set({.delay_max = Seconds(1e-3)});
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::byte> page(kCopies * kBytes, static_cast<std::byte>(round + 1));
    std::vector<std::byte> staging(page.size());
    AwaitCopies(kCopies, [&](int64_t copy, std::function<void()> done) {
      copier.FromPage(std::span(staging).subspan(copy * kBytes, kBytes),
                      std::span(page).subspan(copy * kBytes, kBytes), std::move(done));
    });
    ASSERT_EQ(staging, page) << round;
    std::ranges::fill(staging, std::byte{0});
    CopyFromPage(copier, staging, page);
    ASSERT_EQ(staging, page) << round;
  }
}

TEST(PageCopierTest, NoCopyIsNotWaitedFor) {
  AwaitCopies(0, [](int64_t, const std::function<void()>&) { FAIL(); });
}

}  // namespace
}  // namespace kvcake
