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
  // A step later, `after` the one before, in which the oldest goes without a page or does not.
  void Step(Seconds after, bool lacks_pages, uint64_t held = 0) {
    clock_.Advance(after);
    shortage_.Look(held);
    if (running() == 0) return;
    auto& since = admission_.running().front()->short_since;
    if (!lacks_pages) {
      since.reset();
    } else if (!since) {
      since = clock_.Now();
    }
  }
  size_t running() const { return admission_.running().size(); }

  FakeClock clock_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kShortLayout, 20 * kShortLayout.page_bytes()).value());
  ChunkKeeper keeper_{*pool_, nullptr};
  Admission admission_{*pool_, keeper_, {.read_reserve_pages = 4}};
  TenantPages owned_{*pool_};
  Completions completions_{admission_, owned_, clock_};
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

// Each page that somebody gives ends it for a step.
TEST_F(PageShortageTest, AShortageGoesOnAfterAShortPause) {
  for (int i = 0; i < 16; ++i) Run(1);
  for (int i = 0; i < 151; ++i) Step(Seconds(0.1), i % 2 == 0);
  EXPECT_GT(running(), 1u);
  EXPECT_LT(running(), 10u) << "one by one";
  for (int i = 0; i < 3; ++i) Step(Seconds(0.1), i % 2 == 0);
  EXPECT_EQ(running(), 1u) << "half of the stall time-out has passed";
}

TEST_F(PageShortageTest, AllGiveTheirsUntilNobodyGoesWithout) {
  for (int i = 0; i < 10; ++i) Run(1);
  admission_.running()[2]->short_since = clock_.Now();
  clock_.Advance(Seconds(15.1));
  shortage_.Look(0);
  EXPECT_EQ(running(), 2u) << "those who are older than the one without are left alone";
  EXPECT_TRUE(admission_.Admit(clock_.Now()).empty()) << "nobody has given a page back since";
  EXPECT_FALSE(completions_.TakeAny());
}

TEST_F(PageShortageTest, WhatCannotBeServedEndsWithinTwiceTheStallTimeoutHoweverManyRun) {
  for (int i = 0; i < 16; ++i) Run(1);
  ASSERT_EQ(running(), 16u);
  PageShortage quick(admission_, completions_, clock_,
                     {.patience = Seconds(1), .stall_timeout = Seconds(2)});
  admission_.running().front()->short_since = clock_.Now();
  for (int i = 0; i < 20 && running() > 0; ++i) {
    clock_.Advance(Seconds(0.2));
    quick.Look(0);
  }
  EXPECT_EQ(running(), 0u);
  EXPECT_EQ(admission_.waiting(), 15u);
  EXPECT_EQ(completions_.TakeAny()->second.finish_reason, FinishReason::kError);
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
