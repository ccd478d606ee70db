#include "kv/memory_populator.h"

#include <gtest/gtest.h>

#include <latch>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvcake {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kPiece = 2 * kMiB;

// Addresses only: nobody reads or writes there.
std::span<std::byte> Segment(uint64_t address, uint64_t bytes) {
  return {reinterpret_cast<std::byte*>(address), bytes};  // NOLINT
}

// What has been populated, in order.
class Populated {
 public:
  MemoryPopulator::Populate Function() {
    return [this](std::span<std::byte> piece) {
      MutexLock lock(mutex_);
      pieces_.push_back(piece);
      bytes_ += piece.size();
      changed_.NotifyAll();
      return bytes_ < fails_at_;
    };
  }
  void FailAt(uint64_t bytes) {
    MutexLock lock(mutex_);
    fails_at_ = bytes;
  }
  std::vector<std::span<std::byte>> WaitFor(uint64_t bytes) {
    MutexLock lock(mutex_);
    while (bytes_ < bytes) changed_.Wait(mutex_);
    return pieces_;
  }
  uint64_t bytes() {
    MutexLock lock(mutex_);
    return bytes_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::span<std::byte>> pieces_ GUARDED_BY(mutex_);
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t fails_at_ GUARDED_BY(mutex_) = UINT64_MAX;
};

TEST(MemoryPopulatorTest, CommitsWholeLargePagesOfEachSegmentInOrder) {
  Populated populated;
  const uint64_t first = 64 * kPiece + kMiB, second = 256 * kPiece;
  MemoryPopulator populator({Segment(first, 3 * kMiB), Segment(second, 5 * kMiB)}, 100 * kMiB,
                            populated.Function());
  const auto pieces = populated.WaitFor(8 * kMiB);
  ASSERT_EQ(pieces.size(), 5u);
  const std::pair<uint64_t, uint64_t> expected[] = {{first, kMiB},
                                                    {first + kMiB, kPiece},
                                                    {second, kPiece},
                                                    {second + kPiece, kPiece},
                                                    {second + 2 * kPiece, kMiB}};
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uint64_t>(pieces[i].data()), expected[i].first) << i;
    EXPECT_EQ(pieces[i].size(), expected[i].second) << i;
  }
}

TEST(MemoryPopulatorTest, StaysSoFarAheadOfUseAndNoFurther) {
  Populated populated;
  {
    MemoryPopulator populator({Segment(64 * kPiece, 100 * kPiece)}, 3 * kPiece,
                              populated.Function());
    populated.WaitFor(3 * kPiece);
    populator.Used(1);  // more than that is a large page further
    populated.WaitFor(4 * kPiece);
    populator.Used(kPiece);
  }
  EXPECT_EQ(populated.bytes(), 4 * kPiece);
}

TEST(MemoryPopulatorTest, LeavesWhatIsUsedToItsUser) {
  Populated populated;
  std::latch began(1), used(1);
  bool first = true;
  const auto populate = populated.Function();
  MemoryPopulator populator({Segment(64 * kPiece, 100 * kPiece)}, 2 * kPiece,
                            [&](std::span<std::byte> piece) {
                              if (std::exchange(first, false)) {
                                began.count_down();
                                used.wait();
                              }
                              return populate(piece);
                            });
  began.wait();
  populator.Used(10 * kPiece);
  populator.Used(kPiece);  // another's page, who was slower to say so
  used.count_down();
  const auto pieces = populated.WaitFor(3 * kPiece);
  ASSERT_EQ(pieces.size(), 3u);
  EXPECT_EQ(reinterpret_cast<uint64_t>(pieces[0].data()), 64 * kPiece);
  EXPECT_EQ(reinterpret_cast<uint64_t>(pieces[1].data()), 74 * kPiece);
  EXPECT_EQ(reinterpret_cast<uint64_t>(pieces[2].data()), 75 * kPiece);
}

TEST(MemoryPopulatorTest, EndsWhereThatCannotBeDone) {
  Populated populated;
  populated.FailAt(2 * kPiece);
  {
    MemoryPopulator populator({Segment(64 * kPiece, 100 * kPiece)}, 100 * kPiece,
                              populated.Function());
    populated.WaitFor(2 * kPiece);
    populator.Used(kPiece);
  }
  EXPECT_EQ(populated.bytes(), 2 * kPiece);
}

}  // namespace
}  // namespace kvcake
