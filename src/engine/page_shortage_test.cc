#include "engine/page_shortage.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/sequence_testing.h"

namespace kvcake {
namespace {

constexpr KvLayout kShortLayout{.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 16};

class PageShortageTest : public testing::Test {
 protected:
  // Runs, with a prompt of so many pages.
  void Run(int pages) {
    const int document = static_cast<int>(++last_id_);
    admission_.Add(WaitingSequence(last_id_, pages * 16 - 1, 1, document, 16));
    for (Sequence* admitted : admission_.Admit(clock_.Now())) {
      admitted->state = Sequence::State::kDecoding;
    }
  }
  // A step later, `after` the one before.
  void Step(Seconds after, bool lacks_pages, uint64_t held = 0) {
    clock_.Advance(after);
    shortage_.Look(held);
    shortage_.Planned(lacks_pages);
  }
  size_t running() const { return admission_.running().size(); }

  FakeClock clock_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kShortLayout, 20 * kShortLayout.page_bytes()).value());
  ChunkKeeper keeper_{*pool_, nullptr};
  Admission admission_{*pool_, keeper_, {.read_reserve_pages = 4}};
  Completions completions_{admission_, clock_};
  PageShortage shortage_{admission_, completions_, clock_, {}};
  SequenceId last_id_ = 0;
};

TEST_F(PageShortageTest, TheYoungestGivesItsPagesWhenOthersGoWithout) {
  for (int i = 0; i < 3; ++i) Run(3);
  ASSERT_EQ(running(), 3u);
  Step(Seconds(0), true);
  Step(Seconds(1), true);
  EXPECT_EQ(running(), 3u) << "late reads are rarely later than that";
  Step(Seconds(0.1), true);
  EXPECT_EQ(running(), 2u);
  EXPECT_EQ(admission_.running().back()->id, 2u);
  Step(Seconds(0.1), true);
  EXPECT_EQ(running(), 2u) << "its pages are to be used first";
  Step(Seconds(0.1), false);
  Step(Seconds(5), true);
  Step(Seconds(0.9), true);
  EXPECT_EQ(running(), 2u) << "another shortage";
  Step(Seconds(0.2), true);
  EXPECT_EQ(running(), 1u);
  EXPECT_FALSE(completions_.TakeAny());
}

TEST_F(PageShortageTest, OneAloneThatGoesWithoutEndsWithAnError) {
  Run(3);
  Step(Seconds(0), true);
  Step(Seconds(30), true);
  EXPECT_EQ(running(), 1u);
  Step(Seconds(0.1), true);
  EXPECT_EQ(running(), 0u);
  const auto ended = completions_.TakeAny();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->second.finish_reason, FinishReason::kError);
  EXPECT_NE(ended->second.error.find("are held by reads and writes"), std::string::npos);
  EXPECT_TRUE(admission_.idle());
}

TEST_F(PageShortageTest, WhoCannotRunForWhatOthersHoldEndsWithAnError) {
  Step(Seconds(0), false, 12);
  Run(3);
  Run(10);  // of the 8 that are left
  EXPECT_EQ(running(), 1u);
  Step(Seconds(1), false, 12);
  Step(Seconds(30), false, 12);
  EXPECT_EQ(admission_.waiting(), 1u);
  Step(Seconds(1), false, 12);
  EXPECT_EQ(admission_.waiting(), 0u);
  const auto ended = completions_.TakeAny();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->first, 2u);
  EXPECT_NE(ended->second.error.find("12 pages of KV cache are held"), std::string::npos)
      << ended->second.error;
  EXPECT_NE(ended->second.error.find("need 10 of the 8"), std::string::npos) << ended->second.error;
  EXPECT_EQ(running(), 1u);
}

}  // namespace
}  // namespace kvcake
