#include "ops/cuda_page_copier.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <span>
#include <utility>

#include "ops/cuda_testing.h"

namespace kvcake {
namespace {

class CudaPageCopierTest : public CudaTest {
 protected:
  static constexpr int64_t kCopies = 24, kBytes = 3 << 12;

  static std::span<std::byte> Piece(const Buffer& buffer, int64_t i) {
    return {buffer.data() + i * kBytes, kBytes};
  }
  static void Fill(std::span<std::byte> bytes, int with) {
    std::ranges::fill(bytes, static_cast<std::byte>(with));
  }
  static bool Holds(std::span<const std::byte> bytes, int what) {
    return std::ranges::all_of(bytes,
                               [what](std::byte b) { return b == static_cast<std::byte>(what); });
  }

  static Buffer Pages() { return Buffer(kCopies * kBytes, Memory::kDevice); }
  static Buffer Staging() { return Buffer(kCopies * kBytes, Memory::kPinned); }
};

// Each piece goes to its page and, once it is there, back: copies of both ways are under way.
TEST_F(CudaPageCopierTest, BytesAreThereWhenACopyIsDone) {
  const Buffer pages = Pages(), to = Staging(), from = Staging();
  const auto copier = NewCudaPageCopier();
  cuda_->Wait();  // pages have been zeroed
  for (int64_t i = 0; i < kCopies; ++i) Fill(Piece(to, i), static_cast<int>(i) + 1);
  std::atomic<int64_t> wrong{0};
  AwaitCopies(kCopies, [&](int64_t i, std::function<void()> done) {
    copier->ToPage(Piece(pages, i), Piece(to, i), [&, i, done] {
      Fill(Piece(to, i), 0xee);  // staging is free again
      copier->FromPage(Piece(from, i), Piece(pages, i), [&, i, done] {
        wrong += !Holds(Piece(from, i), static_cast<int>(i) + 1);
        done();
      });
    });
  });
  EXPECT_EQ(wrong, 0);
}

// What leaves a page is what the operations before AfterOperations have left in it, round by round.
TEST_F(CudaPageCopierTest, WhatLeavesFollowsTheOperationsBefore) {
  const Buffer page(kBytes, Memory::kDevice), from(kBytes, Memory::kPinned);
  const auto copier = NewCudaPageCopier();
  CudaDevice& device = *cuda_->cuda();
  for (int round = 1; round <= 24; ++round) {
    const Buffer values(kBytes, Memory::kPinned);
    Fill({values.data(), kBytes}, round);
    device.CopyToDevice(page.data(), values.data(), kBytes);
    AwaitCopies(2, [&](int64_t copy, std::function<void()> done) {
      if (copy == 0) {
        copier->AfterOperations(std::move(done));
      } else {
        copier->FromPage({from.data(), kBytes}, {page.data(), kBytes}, std::move(done));
      }
    });
    ASSERT_TRUE(Holds({from.data(), kBytes}, round)) << round;
  }
}

TEST_F(CudaPageCopierTest, ItsEndWaitsForWhatWasBegun) {
  const Buffer pages = Pages(), to = Staging();
  for (int round = 0; round < 8; ++round) {
    std::atomic<int64_t> done{0};
    std::promise<void> all_begun;
    auto copier = NewCudaPageCopier();
    for (int64_t i = 0; i < kCopies; ++i) {
      copier->FromPage(Piece(to, i), Piece(pages, i), [&, i] {
        if (i == 0) all_begun.get_future().wait();
        ++done;
      });
    }
    all_begun.set_value();
    copier.reset();
    ASSERT_EQ(done, kCopies);
  }
}

}  // namespace
}  // namespace kvcake
