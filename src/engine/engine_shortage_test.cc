// Pages that a device which hangs keeps, on a clock that a test moves.
#include <gtest/gtest.h>

#include <map>
#include <utility>
#include <vector>

#include "engine/engine_testing.h"
#include "store/slow_tiers_testing.h"

namespace kvcake {
namespace {

constexpr int kDocumentChunks = 16;  // of the long prompt, whose reads hang

struct Shortage {
  int decoders;  // beside the long prompt: a page in common, and one each
  bool decoders_are_older;
  int spare_pages;  // beside those that are promised
};

class EngineShortageTest : public testing::Test {
 protected:
  // Two tiers of which each takes four reads, that never come back: eight pages are lost.
  static constexpr int kHungReads = 8;
  static constexpr Seconds kStall{1}, kStep{0.1};

  void Run(const Shortage& shortage) {
    const auto fast = MakeTier<HungTier>(), slow = MakeTier<HungTier>();
    const auto document = Prompt(kDocumentChunks * kChunk + 5, 1);
    for (HungTier* tier : {fast.get(), slow.get()}) {
      World before(tier);
      before.Answer(Ask(document, Policy::kCompute));
    }
    const int promised = kDocumentChunks + 1 + 1 + shortage.decoders;
    World world(slow.get(), {.pages = promised + shortage.spare_pages,
                             .ram = fast.get(),
                             .stall_timeout = kStall,
                             .clock = &clock_});
    world.MakeEngine({.slice_tokens = kSlice,
                      .read_reserve_pages = static_cast<uint64_t>(shortage.spare_pages),
                      .stall_timeout = kStall});
    const auto submit = [&](Request request) {
      request.store = false;
      request.logprobs = true;
      request.on_token = [this, which = asked_.size()](const TokenEvent&) {
        if (which + 1 == long_) ++progress_;
        return true;
      };
      const SequenceId id = world.engine->Submit(request).value();
      asked_[id] = std::move(request);
      return id;
    };
    for (int tokens : {kChunk, kSlice}) world.cost.Add(0, tokens, kStep * tokens / kSlice);
    if (!shortage.decoders_are_older) long_ = submit(Ask(document));
    for (int i = 0; i < shortage.decoders; ++i) {
      Request decoder = Ask(Prompt(kChunk, 2), Policy::kCompute);
      decoder.prompt.push_back(i);
      decoder.max_tokens = kChunk - 1;  // in the page that it has: a step each
      decoders_.push_back(submit(std::move(decoder)));
    }
    if (shortage.decoders_are_older) long_ = submit(Ask(document));

    bool goes_on = true;
    while (goes_on) {
      clock_.Advance(kStep);
      world.restorer->Wake();  // nothing is waited for but this clock
      goes_on = world.engine->Step().value();
      NoteProgress(*world.engine);
      while (auto taken = world.engine->TakeAny()) {
        taken_.insert(std::move(*taken));
        ended_[taken->first] = clock_.Now() - TimePoint();
      }
      ASSERT_LT(clock_.Now(), TimePoint(Seconds(60))) << "a request waits for ever";
    }
    EXPECT_EQ(world.restorer->Stats().reads_in_flight, kHungReads) << "all that were begun hang";
    World alone(nullptr);
    for (auto& [id, request] : asked_) {
      if (taken_[id].error.empty()) ExpectSame(taken_[id], alone.Answer(request));
    }
    fast->Answer();
    slow->Answer();
  }
  void NoteProgress(const Engine& engine) {
    const auto restored = engine.Progress(long_);
    const int tokens = restored ? restored->computed + restored->loaded + restored->reused : 0;
    if (ended_.contains(long_) ||
        std::exchange(seen_, {progress_, tokens}) != std::pair(progress_, tokens))
      return;
    idle_ += kStep;
  }

  FakeClock clock_;
  SequenceId long_ = 0;
  std::vector<SequenceId> decoders_;
  std::map<SequenceId, Request> asked_;
  std::map<SequenceId, Completion> taken_;
  std::map<SequenceId, Seconds> ended_;
  int progress_ = 0;            // tokens of the long prompt's answer
  std::pair<int, int> seen_{};  // these, and what was restored of it
  Seconds idle_{0};             // steps in which neither grew
};

// The hung reads' pages are enough once the decoders have given theirs.
TEST_F(EngineShortageTest, WhatOthersCanGiveIsGivenWithinTwiceTheStallTimeout) {
  Run({.decoders = 7, .decoders_are_older = false, .spare_pages = 1});
  EXPECT_TRUE(taken_[long_].error.empty()) << taken_[long_].error;
  EXPECT_LE(idle_, 2 * kStall);
  for (const SequenceId id : decoders_) {
    EXPECT_TRUE(taken_[id].error.empty()) << taken_[id].error;
    EXPECT_LE(taken_[id].preemptions, 1) << "and does not come back before there is room";
  }
}

TEST_F(EngineShortageTest, WhatCannotBeServedEndsWithinTwiceTheStallTimeoutWhoeverRunsBesideIt) {
  Run({.decoders = 6, .decoders_are_older = false, .spare_pages = 0});
  EXPECT_NE(taken_[long_].error.find("are held by reads and writes"), std::string::npos)
      << taken_[long_].error;
  EXPECT_LE(idle_, 2 * kStall);
  for (const SequenceId id : decoders_) {
    EXPECT_TRUE(taken_[id].error.empty()) << taken_[id].error;
    EXPECT_LE(taken_[id].preemptions, 1);
  }
}

TEST_F(EngineShortageTest, WhoIsOlderAndHasItsPagesIsNotDisturbed) {
  Run({.decoders = 3, .decoders_are_older = true, .spare_pages = 1});
  EXPECT_NE(taken_[long_].error.find("are held by reads and writes"), std::string::npos)
      << taken_[long_].error;
  EXPECT_LE(idle_, 2 * kStall);
  EXPECT_EQ(taken_[long_].preemptions, 1);
  for (const SequenceId id : decoders_) {
    EXPECT_EQ(taken_[id].preemptions, 0);
    EXPECT_LE(ended_[id], (kChunk + 2) * kStep) << "a token in each step";
  }
}

}  // namespace
}  // namespace kvcake
