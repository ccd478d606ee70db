// One Restorer and tiers that do as they are told; the simulator's tests cover its decisions.
#include "cake/restorer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "cake/fake_engine_testing.h"
#include "cake/held_tier_testing.h"
#include "cake/restorer_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

TEST(RestorerTest, WakeEndsTheNextWaitAndDeadlinesEndOthers) {
  auto pool = std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {}, cost, Clock::Real());
  restorer->Wake();
  restorer->WaitForEvent(TimePoint::max());
  const TimePoint deadline = Clock::Real().Now() + Seconds(0.01);
  restorer->WaitForEvent(deadline);
  EXPECT_GE(Clock::Real().Now(), deadline);
  std::thread waker([&] { restorer->Wake(); });
  restorer->WaitForEvent(TimePoint::max());
  waker.join();
}

TEST(RestorerTest, APromptWithoutAFullChunkIsDoneAtOnce) {
  auto pool = std::move(PagePool::Create(kLayout, 4 * kLayout.page_bytes()).value());
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {}, cost, Clock::Real());
  auto restoration = restorer->Open(Request(1, 0, Policy::kCake));
  EXPECT_EQ(restoration->NextTurn({.chunks = 1}).kind, ComputeTurn::Kind::kDone);
  EXPECT_EQ(restoration->Report().tokens_computed, 5);
  EXPECT_TRUE(restoration->TakePages().empty());
}

TEST(RestorerTest, ToAskWhatIsInMemoryIsNoUseOfIt) {
  auto pool = std::move(PagePool::Create(kLayout, 2 * kLayout.page_bytes()).value());
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {}, cost, Clock::Real());
  const std::vector<ChunkKey> keys = Request(1, 2, Policy::kCake).keys;
  for (const ChunkKey& key : keys) pool->Publish(*pool->Draw(), key, NumericPath::kUnknown);
  EXPECT_EQ(restorer->Known(std::span(keys).first(1), false), std::vector{true});
  ASSERT_TRUE(pool->Draw()) << "in the place of what was used longest ago";
  EXPECT_EQ(restorer->Known(keys, false), (std::vector{false, true}));
}

TEST(RestorerTest, WhatTiersHoldIsKnownWhereItIsAskedFor) {
  auto pool = std::move(PagePool::Create(kLayout, 2 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  const std::vector<ChunkKey> keys = Request(1, 2, Policy::kCake).keys;
  EXPECT_EQ(restorer->Known(keys, /*stored=*/false), std::vector(2, false));
  EXPECT_EQ(restorer->Known(keys, /*stored=*/true), std::vector(2, true));
}

void PublishBehind(PagePool& pool, const ChunkKey& key, NumericPath path = NumericPath::kUnknown) {
  PageHandle page = std::move(*pool.Draw());
  std::memcpy(pool.Data(page.id()), &key, sizeof(ChunkKey));
  pool.Publish(std::move(page), key, path);
}

// The engine thread's calls among them: what a prompt that ends lets others load is planned in its
// last one.
TEST(RestorerTest, WhatItsMutexCostsIsCountedWhoeverWantsIt) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  MutexTimes& times = static_cast<RestorerImpl&>(*restorer).times();
  const auto counts = [&times](bool plans, const std::function<void()>& call) {
    const MutexTimes before = times;
    call();
    EXPECT_GT(times.waited, before.waited);
    EXPECT_EQ(times.held > before.held, plans);
  };
  std::shared_ptr<Restoration> one, two;
  counts(true, [&] { one = restorer->Open(Request(1, 4, Policy::kLoad)); });
  counts(true, [&] { two = restorer->Open(Request(2, 4, Policy::kLoad)); });
  counts(true, [&] { one->NextTurn({.chunks = 4}); });
  counts(true, [&] { one->Need(); });
  counts(false, [&] { restorer->Stats(); });
  counts(false, [&] { one->done(); });
  counts(false, [&] { one->Progress(); });
  counts(false, [&] { one->PageIds(0); });
  counts(false, [&] { restorer->Wake(); });
  counts(false, [&] { restorer->WaitForEvent(TimePoint::max()); });
  counts(true, [&] { tier.DeliverAll(); });
  while (!one->done()) tier.DeliverAll();
  counts(true, [&] { one->TakePages(); });
  counts(false, [&] { one->Report(); });
  counts(true, [&] { two->Abandon(); });
  tier.DeliverAll();
}

// A tier that fails four times in a row is not asked for this prompt any more.
TEST(RestorerTest, FailuresCountInARow) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  tier.reads_max = 1;
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  auto restoration = restorer->Open(Request(1, 32, Policy::kLoad));
  const auto answer = [&](bool ok) {
    ReadRequest read = std::move(tier.reads.front());
    tier.reads.pop_front();
    std::memcpy(read.landing.data(), &read.key, sizeof(ChunkKey));
    read.done({.status = ok ? Status() : Fail(ErrorCode::kCorrupt, "bad checksum"),
               .bytes = ok ? read.landing.size() : 0});
  };
  for (const bool ok :
       {false, false, false, true, false, false, false, true, false, false, false}) {
    ASSERT_EQ(tier.reads.size(), 1u) << "after " << tier.gets;
    answer(ok);
  }
  ASSERT_EQ(tier.reads.size(), 1u);
  answer(false);
  EXPECT_TRUE(tier.reads.empty());
}

// Another sequence generates and publishes what is being read: it is resident for whoever comes
// then, while the read goes on for whoever came before.
TEST(RestorerTest, AChunkPublishedWhileItIsReadIsResidentForTheNext) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10e-3));
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  const RestoreRequest loads = Request(1, 8, Policy::kLoad);
  const RestoreRequest computes = Request(1, 8, Policy::kCompute);
  auto first = restorer->Open(loads);
  EXPECT_EQ(tier.reads.size(), 4u);
  for (int chunk : {0, 1, 4, 5}) PublishBehind(*pool, loads.keys[chunk]);  // 4 and 5 are being read
  auto second = restorer->Open(computes);
  CheckInvariants(*restorer);
  FakeEngine engine{*pool, cost};
  for (int turns = 0; turns < 100; ++turns) {
    if (!engine.Step(computes, *second)) break;
    CheckInvariants(*restorer);
  }
  EXPECT_TRUE(second->done());
  for (int turns = 0; turns < 100 && !first->done(); ++turns) {
    tier.DeliverAll();
    CheckInvariants(*restorer);
  }
  EXPECT_TRUE(first->done());
  tier.DeliverAll();
  first.reset();
  second.reset();
  tier.DeliverAll();
}

TEST(RestorerTest, ATierThatHangsWhenAskedDelaysNoRestoration) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HungTier tier;
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  const RestoreRequest request = Request(1, 8, Policy::kCake);
  FakeEngine engine{*pool, cost};
  {
    auto restoration = restorer->Open(request);
    while (!restoration->done()) {
      engine.wake = TimePoint::max();
      engine.Step(request, *restoration);
      if (!restoration->done()) restorer->WaitForEvent(engine.wake);
    }
    EXPECT_EQ(restoration->Report().tokens_computed, 8 * 128 + 5);
  }
  ASSERT_EQ(tier.looks.size(), 1u);
  EXPECT_FALSE(tier.Tell(0, 3)) << "nobody wants to know any more";
  EXPECT_EQ(tier.pinned, 0u);
}

TEST(RestorerTest, ALookThatNeverReturnsKeepsNothingElseFromBeingLoaded) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HungTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10));  // loading is worth it
  FakeClock clock;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, clock);
  auto first = restorer->Open(Request(1, 8, Policy::kLoad));
  ASSERT_EQ(tier.looks.size(), 1u);
  clock.Advance(Seconds(31));
  (void)first->NextTurn({.chunks = 4});
  tier.knows = true;  // as all is well but for that look
  auto second = restorer->Open(Request(2, 8, Policy::kCake));
  EXPECT_EQ(tier.gets, 0u) << "given up";
  clock.Advance(Seconds(2));
  (void)second->NextTurn({.chunks = 4});
  EXPECT_GT(tier.gets, 0u) << "asked again";
  while (!tier.reads.empty()) tier.DeliverAll();
  second.reset();
  clock.Advance(Seconds(1000));  // nobody reads for long
  auto third = restorer->Open(Request(3, 8, Policy::kCake));
  (void)third->NextTurn({.chunks = 4});
  EXPECT_FALSE(tier.reads.empty()) << "and for good";
  while (!tier.reads.empty()) tier.DeliverAll();
  EXPECT_EQ(third->Report().loaded(), 8 * 128);
  CheckInvariants(*restorer);
  first.reset();
  third.reset();
  EXPECT_FALSE(tier.Tell(0, 8));
}

TEST(RestorerTest, WhatATierSaysLateIsPinnedAndLoaded) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HungTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10));  // loading is worth it
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  const RestoreRequest request = Request(1, 8, Policy::kCake);
  std::vector<ChunkKey> pinned;
  tier.on_pin = [&](auto keys) { pinned.insert(pinned.end(), keys.begin(), keys.end()); };
  auto restoration = restorer->Open(request);
  EXPECT_EQ(tier.reads.size(), 0u);
  EXPECT_TRUE(tier.Tell(0, 5));
  EXPECT_EQ(tier.pinned, 5u);
  EXPECT_EQ(tier.reads.size(), 4u) << "as many as it takes at once";
  EXPECT_FALSE(tier.Tell(5, 3)) << "that was all";
  EXPECT_EQ(tier.pinned, 8u);
  EXPECT_EQ(pinned, request.keys);
  CheckInvariants(*restorer);
  for (int turns = 0; turns < 100 && !restoration->done(); ++turns) tier.DeliverAll();
  EXPECT_EQ(restoration->Report().loaded(), 8 * 128);
  restoration.reset();
  EXPECT_EQ(tier.pinned, 0u);
}

// The tier is called without the Restorer's lock: this would wait for itself for ever.
TEST(RestorerTest, APromptThatEndsWhileItsChunksArePinnedLeavesNoPin) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HungTier tier;
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
  auto restoration = restorer->Open(Request(1, 8, Policy::kCake));
  tier.on_pin = [&](auto) { restoration->Abandon(); };
  EXPECT_FALSE(tier.Tell(0, 5)) << "nobody wants to know any more";
  EXPECT_EQ(tier.pinned, 0u);
  EXPECT_EQ(tier.reads.size(), 0u);
  CheckInvariants(*restorer);
}

TEST(RestorerTest, AnswersThatRaceWithTheEndLeaveNoPin) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  ComputeCost cost;
  for (int i = 0; i < 300; ++i) {
    HungTier tier;
    tier.reads_max = 0;  // only its answers are wanted
    const auto restorer = NewRestorer(*pool, {&tier}, cost, Clock::Real());
    auto restoration = restorer->Open(Request(1, 8, Policy::kCake));
    std::atomic<bool> begun = false;
    std::thread answers([&] {
      begun = true;
      for (int chunk = 0; chunk < 8 && tier.Tell(chunk, 1); ++chunk) {
      }
    });
    while (!begun) std::this_thread::yield();
    restoration->Abandon();
    answers.join();
    EXPECT_EQ(tier.pinned, 0u);
    CheckInvariants(*restorer);
  }
}

TEST(RestorerTest, ChunksOfAnotherPathAreCountedWhereverTheyComeFrom) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  tier.path = NumericPath::kBf16Dot;
  ComputeCost cost;
  const auto restorer =
      NewRestorer(*pool, {&tier}, cost, Clock::Real(), {.numeric_path = NumericPath::kF32});
  const RestoreRequest loads = Request(1, 6, Policy::kLoad);
  PublishBehind(*pool, loads.keys[0], NumericPath::kF32);
  PublishBehind(*pool, loads.keys[1], NumericPath::kUnknown);
  auto first = restorer->Open(loads);
  EXPECT_EQ(first->Report().chunks_mixed_path, 1);
  auto second = restorer->Open(loads);  // gets what the first one loads
  for (int turns = 0; turns < 100 && !first->done(); ++turns) tier.DeliverAll();
  EXPECT_EQ(first->Report().chunks_mixed_path, 1 + 4);
  EXPECT_EQ(second->Report().chunks_mixed_path, 1 + 4);

  // What is computed after them is ours to rounding only, and everybody learns it.
  RestoreRequest longer = Request(1, 8, Policy::kCompute);
  FakeEngine engine{*pool, cost};
  auto third = restorer->Open(longer);
  while (engine.Step(longer, *third)) {
  }
  EXPECT_EQ(third->Report().tokens_computed, 2 * 128 + 5);
  EXPECT_TRUE(third->Progress().mixed_path);
  auto fourth = restorer->Open(longer);
  EXPECT_EQ(fourth->Report().chunks_mixed_path, 1 + 4 + 2);

  // Nothing of the kind is said of a prompt that is ours.
  const RestoreRequest clean = Request(2, 4, Policy::kCompute);
  auto fifth = restorer->Open(clean);
  while (engine.Step(clean, *fifth)) {
  }
  EXPECT_EQ(restorer->Open(clean)->Report().chunks_mixed_path, 0);
  EXPECT_FALSE(fifth->Progress().mixed_path);
}

TEST(RestorerTest, ASliceThatIsGivenUpIsTheNextOnesToCompute) {
  auto pool = std::move(PagePool::Create(kLayout, 8 * kLayout.page_bytes()).value());
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {}, cost, Clock::Real());
  const RestoreRequest request = Request(1, 2, Policy::kCompute);
  auto first = restorer->Open(request), second = restorer->Open(request);
  ASSERT_EQ(first->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kSlice);
  EXPECT_EQ(second->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kWait);
  first->Abandon();
  CheckInvariants(*restorer);
  EXPECT_EQ(second->NextTurn({.chunks = 4}).kind, ComputeTurn::Kind::kSlice);
}

// The bound is that of the work there was: not of chunks that others made meanwhile.
TEST(RestorerTest, TheBoundLeavesOutWhatOthersMade) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  ComputeCost cost;
  const auto restorer = NewRestorer(*pool, {}, cost, Clock::Real());
  const RestoreRequest request = Request(1, 8, Policy::kCompute);
  auto first = restorer->Open(request), second = restorer->Open(request);
  FakeEngine engine{*pool, cost};
  while (engine.Step(request, *first)) {
  }
  EXPECT_TRUE(second->done());
  EXPECT_GT(first->Report(Seconds(0)).bound_s, 0);
  EXPECT_EQ(second->Report(Seconds(0)).bound_s, 0);
}

TEST(RestorerTest, APromptIsRankedAsItOpensThoughNoTierHasRoom) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  FakeClock clock;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, clock);
  auto first = restorer->Open(Request(1, 8, Policy::kCake));
  ASSERT_EQ(tier.reads.size(), 4u) << "it takes no more";
  auto second = restorer->Open(Request(2, 6, Policy::kCake));
  EXPECT_GT(second->Need().rank, 0) << "else it would be before those that have less left";
  EXPECT_EQ(tier.reads.size(), 4u);
  first->Abandon();
  second->Abandon();
  tier.DeliverAll();
}

// A tier that lost a read for ever, and is well otherwise, is asked again soon.
TEST(RestorerTest, ATierThatLostAReadIsAskedAgain) {
  auto pool = std::move(PagePool::Create(kLayout, 64 * kLayout.page_bytes()).value());
  HeldTier tier;
  ComputeCost cost;
  for (int i = 0; i < 8; ++i) cost.Add(i * 128, 128, Seconds(10));  // loading is worth it
  FakeClock clock;
  const auto restorer = NewRestorer(*pool, {&tier}, cost, clock);
  auto first = restorer->Open(Request(1, 8, Policy::kCake));
  ASSERT_EQ(tier.reads.size(), 4u);
  clock.Advance(Seconds(31));
  (void)first->NextTurn({.chunks = 4});
  ReadRequest lost = std::move(tier.reads.front());
  tier.reads.pop_front();
  for (const ReadRequest& read : std::exchange(tier.reads, {})) {
    read.done({.status = Fail(ErrorCode::kCancelled, "cancelled")});
  }
  auto second = restorer->Open(Request(2, 8, Policy::kCake));
  EXPECT_EQ(tier.gets, 4u) << "given up";
  clock.Advance(Seconds(2));
  (void)second->NextTurn({.chunks = 4});
  EXPECT_EQ(tier.reads.size(), 3u) << "the lost one takes up room";
  clock.Advance(Seconds(2));
  (void)second->NextTurn({.chunks = 4});
  tier.DeliverAll();
  EXPECT_GT(second->Report().loaded(), 0);
  CheckInvariants(*restorer);
  first->Abandon();
  second->Abandon();
  lost.done({.status = Fail(ErrorCode::kCancelled, "cancelled")});
  tier.DeliverAll();
}

}  // namespace
}  // namespace kvcake
