// What a Restorer tells those who wait, and what it says of itself.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "cake/held_tier_testing.h"
#include "cake/restorer.h"

namespace kvcake {
namespace {

using namespace testing_util;

class RestorerEventsTest : public testing::Test {
 protected:
  void Start(Tier& tier, int pages = 64) {
    pool_ = std::move(PagePool::Create(kLayout, pages * kLayout.page_bytes()).value());
    restorer_ = NewRestorer(*pool_, {&tier}, cost_, clock_);
  }
  // Whoever sleeps is woken by it.
  bool IsEvent(const std::function<void()>& call) {
    const uint64_t before = restorer_->EventsAfter(UINT64_MAX, TimePoint::max());
    call();
    return restorer_->EventsAfter(UINT64_MAX, TimePoint::max()) > before;
  }

  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<Restorer> restorer_;
};

TEST_F(RestorerEventsTest, WhatOthersMayWaitForWakesThem) {
  HeldTier tier;
  Start(tier);
  auto computed = restorer_->Open(Request(1, 2, Policy::kCompute));
  const ComputeTurn slice = computed->NextTurn({.chunks = 4});
  ASSERT_EQ(slice.kind, ComputeTurn::Kind::kSlice);
  EXPECT_TRUE(IsEvent([&] { computed->Computed(slice.claim); })) << "chunks are there";
  ASSERT_TRUE(computed->done());
  EXPECT_TRUE(IsEvent([&] { computed->TakePages(); })) << "its reads and slices are others' now";
  auto loaded = restorer_->Open(Request(2, 2, Policy::kLoad));
  EXPECT_TRUE(IsEvent([&] { tier.DeliverAll(); }));
  EXPECT_TRUE(IsEvent([&] { loaded->Abandon(); }));
}

TEST_F(RestorerEventsTest, WhoWaitsForATierIsWokenWhenItIsGivenUp) {
  HeldTier tier;
  Start(tier);
  auto one = restorer_->Open(Request(1, 4, Policy::kLoad));
  auto other = restorer_->Open(Request(2, 4, Policy::kLoad));
  clock_.Advance(Seconds(31));
  EXPECT_TRUE(IsEvent([&] { one->NextTurn({.chunks = 4}); }));
  EXPECT_FALSE(IsEvent([&] { other->NextTurn({.chunks = 4}); })) << "nothing is new";
  one.reset();
  other.reset();
  tier.DeliverAll();
}

TEST_F(RestorerEventsTest, WhoWaitsToHearWhatIsStoredIsWokenByATierThatSaysAllAtOnce) {
  class NothingTier : public HeldTier {
   public:
    std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
      return std::vector<bool>(keys.size());
    }
  };
  NothingTier tier;
  Start(tier);
  std::shared_ptr<Restoration> restoration;
  EXPECT_TRUE(IsEvent([&] { restoration = restorer_->Open(Request(1, 2, Policy::kCake)); }));
}

// What is stored decides what is computed of a prompt that is to be loaded; another one's lanes can
// begin without.
TEST_F(RestorerEventsTest, OnlyAPromptThatIsToBeLoadedWaitsLongToHearWhatIsStored) {
  HungTier tier;
  Start(tier);
  auto loaded = restorer_->Open(Request(1, 4, Policy::kLoad));
  auto either = restorer_->Open(Request(2, 4, Policy::kCake));
  const ComputeTurn wait = either->NextTurn({.chunks = 4});
  EXPECT_EQ(wait.kind, ComputeTurn::Kind::kWait);
  EXPECT_GT(wait.wait_until, clock_.Now());
  clock_.AdvanceTo(wait.wait_until);
  EXPECT_EQ(either->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kSlice);
  EXPECT_EQ(loaded->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kWait);
  loaded.reset();
  either.reset();
  for (; !tier.looks.empty(); tier.looks.pop_front()) EXPECT_FALSE(tier.Tell(0, 4));
}

// It would keep the questions of all prompts for ever.
TEST_F(RestorerEventsTest, ATierThatIsGivenUpIsNotAskedWhatItHolds) {
  HungTier tier;
  Start(tier);
  auto first = restorer_->Open(Request(1, 8, Policy::kCake));
  ASSERT_EQ(tier.looks.size(), 1u);
  clock_.Advance(Seconds(31));
  (void)first->NextTurn({.chunks = 4});
  auto second = restorer_->Open(Request(2, 8, Policy::kCake));
  EXPECT_EQ(tier.looks.size(), 1u);
  first.reset();
  second.reset();
  for (; !tier.looks.empty(); tier.looks.pop_front()) EXPECT_FALSE(tier.Tell(0, 8));
}

TEST_F(RestorerEventsTest, ATierThatAnswersIsNotGivenUp) {
  HungTier tier;
  Start(tier);
  auto first = restorer_->Open(Request(1, 8, Policy::kCake));
  ASSERT_EQ(tier.looks.size(), 1u);
  const auto say_nothing_of = [&](size_t look, size_t begin, size_t end) {
    return tier.looks[look].found(begin, std::vector<bool>(end - begin, false));
  };
  clock_.Advance(Seconds(20));
  EXPECT_TRUE(IsEvent([&] { EXPECT_TRUE(say_nothing_of(0, 0, 4)); })) << "who waits plans anew";
  clock_.Advance(Seconds(20));
  (void)first->NextTurn({.chunks = 4});
  auto second = restorer_->Open(Request(2, 8, Policy::kCake));
  ASSERT_EQ(tier.looks.size(), 2u) << "the first one's is under way";
  EXPECT_FALSE(say_nothing_of(0, 4, 8));
  EXPECT_FALSE(say_nothing_of(1, 0, 8));
  clock_.Advance(Seconds(31));
  (void)first->NextTurn({.chunks = 4});
  auto third = restorer_->Open(Request(3, 8, Policy::kCake));
  ASSERT_EQ(tier.looks.size(), 3u) << "it owes no answer";
  EXPECT_FALSE(say_nothing_of(2, 0, 8));
}

TEST_F(RestorerEventsTest, NoTierIsAskedForWhatWillNotBeLoaded) {
  HungTier tier;
  Start(tier);
  const RestoreRequest request = Request(1, 3, Policy::kCake);
  pool_->Publish(std::move(*pool_->Draw()), request.keys[0], {});
  auto either = restorer_->Open(request);
  ASSERT_EQ(tier.looks.size(), 1u);
  EXPECT_EQ(tier.looks[0].keys, std::vector(request.keys.begin() + 1, request.keys.end()))
      << "memory has the first";
  tier.knows = true;
  auto computed = restorer_->Open(Request(2, 3, Policy::kCompute));
  EXPECT_EQ(tier.looks.size(), 1u);
  EXPECT_EQ(tier.pinned, 0u);
  either.reset();
  EXPECT_FALSE(tier.Tell(0, 2));
}

// Else it would read what nobody wants, or keep a place for it.
TEST_F(RestorerEventsTest, AReadThatIsGivenUpIsCancelledThoughItsTierIsJustTakingIt) {
  class CancelledTier : public HeldTier {
   public:
    ReadId Get(ReadRequest request) override {
      const ReadId id = HeldTier::Get(std::move(request));
      if (on_get) std::exchange(on_get, nullptr)();
      return id;
    }
    void Cancel(ReadId id) override { cancelled.push_back(id); }

    std::function<void()> on_get;
    std::vector<ReadId> cancelled;
  };
  CancelledTier tier;
  tier.reads_max = 1;
  Start(tier);
  auto one = restorer_->Open(Request(1, 2, Policy::kLoad));
  ASSERT_EQ(tier.reads.size(), 1u);
  tier.on_get = [&] { one->Abandon(); };
  tier.DeliverAll();
  EXPECT_EQ(tier.cancelled, std::vector<ReadId>{2});
  auto other = restorer_->Open(Request(2, 2, Policy::kLoad));
  other->Abandon();
  EXPECT_EQ(tier.cancelled, (std::vector<ReadId>{2, 3}));
  tier.DeliverAll();
}

// Nobody tells when a page becomes free.
TEST_F(RestorerEventsTest, WhoLacksPagesForItsLoadsAsksAgainSoon) {
  HeldTier tier;
  Start(tier, /*pages=*/1);
  PageHandle taken = std::move(*pool_->Draw());
  auto one = restorer_->Open(Request(1, 2, Policy::kLoad));
  const ComputeTurn wait = one->NextTurn({.chunks = 4});
  ASSERT_EQ(wait.kind, ComputeTurn::Kind::kWait);
  EXPECT_TRUE(wait.lacks_pages);
  EXPECT_LT(wait.wait_until, clock_.Now() + Seconds(0.1));
}

// By the one who gives them back: the other may sleep for long.
TEST_F(RestorerEventsTest, PagesThatOnePromptGivesBackAreReadIntoForTheNext) {
  HeldTier tier;
  Start(tier, /*pages=*/2);
  auto one = restorer_->Open(Request(1, 2, Policy::kLoad));
  tier.DeliverAll();
  ASSERT_TRUE(one->done());
  auto two = restorer_->Open(Request(2, 2, Policy::kLoad));
  EXPECT_TRUE(tier.reads.empty()) << "there is no page";
  one->Abandon();
  EXPECT_EQ(tier.reads.size(), 2u);
  tier.DeliverAll();
  EXPECT_TRUE(two->done());
}

TEST_F(RestorerEventsTest, StatsSayWhichReadsAreWaitedFor) {
  HeldTier tier;
  Start(tier);
  auto one = restorer_->Open(Request(1, 3, Policy::kLoad));
  EXPECT_EQ(restorer_->Stats().reads_in_flight, 3);
  EXPECT_EQ(restorer_->Stats().late_reads, 0);
  one->Abandon();
  EXPECT_EQ(restorer_->Stats().reads_in_flight, 3) << "each has a page still";
  EXPECT_EQ(restorer_->Stats().late_reads, 3);
  tier.DeliverAll();
  EXPECT_EQ(restorer_->Stats().reads_in_flight, 0);
}

TEST_F(RestorerEventsTest, TurnsAndWhatTheyCostAreCounted) {
  HeldTier tier;
  Start(tier);
  auto one = restorer_->Open(Request(1, 8, Policy::kCompute));
  EXPECT_EQ(one->Report().turns, 0);
  const ComputeTurn slice = one->NextTurn({.chunks = 4});
  const double before = one->Report().planning_s;
  EXPECT_GT(before, 0);
  one->Computed(slice.claim);
  EXPECT_GT(one->Report().planning_s, before);
  EXPECT_EQ(one->Report().turns, 1);
}

TEST_F(RestorerEventsTest, EachTierHasCostsOfItsOwn) {
  HeldTier first, second;
  pool_ = std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  restorer_ = NewRestorer(*pool_, {&first, &second}, cost_, clock_);
  const nlohmann::json unknown = restorer_->TierCostToJson(0);
  const nlohmann::json costs = {
      {"version", 1}, {"fixed_s", 0}, {"bytes_per_s", 1e6}, {"read_bytes", 1e3}};
  ASSERT_TRUE(restorer_->TierCostFromJson(1, costs));
  EXPECT_EQ(restorer_->TierCostToJson(0), unknown);
  EXPECT_NEAR(restorer_->TierCostToJson(1).at("bytes_per_s").get<double>(), 1e6, 1);
}

TEST_F(RestorerEventsTest, APromptThatIsDoneTellsWhatTheLanesCostEachOther) {
  HeldTier tier;
  Start(tier);
  const auto beside_s = [&] { return restorer_->TierCostToJson(0).at("beside_s").get<double>(); };
  ASSERT_TRUE(restorer_->TierCostFromJson(0, {{"version", 1},
                                              {"fixed_s", 0},
                                              {"bytes_per_s", 1e6},
                                              {"beside_s", 1e-3},
                                              {"read_bytes", 1e3}}));
  auto loaded = restorer_->Open(Request(1, 2, Policy::kCake));
  tier.DeliverAll();
  ASSERT_TRUE(loaded->done());
  EXPECT_EQ(beside_s(), 1e-3);
  loaded->TakePages();
  EXPECT_LT(beside_s(), 1e-3) << "it was loaded alone";
}

// Nobody knows whether it could have delivered anything in time.
TEST_F(RestorerEventsTest, TheBoundCountsOnNoTierWhoseSpeedIsUnknown) {
  for (int i = 0; i < 8; ++i) cost_.Add(i * 128, 128, Seconds(1));
  HeldTier tier;
  Start(tier);
  auto one = restorer_->Open(Request(1, 8, Policy::kCake));
  EXPECT_NEAR(one->Report(Seconds(2)).bound_s, 8 + 2, 0.1);
  one.reset();
  tier.DeliverAll();
}

}  // namespace
}  // namespace kvcake
