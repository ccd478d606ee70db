#include "cake/load_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cake/fake_engine_testing.h"
#include "cake/held_tier_testing.h"
#include "store/memory_tier.h"

namespace kvcake {
namespace {

using testing::ElementsAre;
using testing_util::kLayout;

// A scheduler and what it works on, without tiers and prompts; the test answers the reads.
class SchedulerTest : public testing::Test {
 protected:
  explicit SchedulerTest(const Restorer::Options& options = {})
      : context_{*pool_, cost_, clock_, options} {}

  static constexpr int kChunks = 40;
  FakeClock clock_;
  ComputeCost cost_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kLayout, 128 * kLayout.page_bytes()).value());
  const RestoreContext context_;
  std::vector<LoadLane> lanes_;
  InFlightTable table_;
  TierCalls calls_;
  RestorePlanner planner_{context_, lanes_, table_};
  LoadScheduler loads_{context_, {lanes_, table_, planner_, calls_}};
};

// Two prompts that may only load.
class LoadSchedulerTest : public SchedulerTest {
 protected:
  explicit LoadSchedulerTest(const Restorer::Options& options = {}) : SchedulerTest(options) {
    lanes_.emplace_back(context_, tier_);
    for (int document = 1; document <= 2; ++document) {
      boards_.push_back(std::make_unique<Board>(
          context_, testing_util::Request(document, kChunks, Policy::kLoad), document, 1));
      boards_.back()->SetLoadable(0, std::vector<bool>(kChunks, true));
      table_.Add(*boards_.back());
    }
  }
  // Has the oldest read in flight come, or fail.
  void Answer(bool ok) {
    loads_.Pump();
    ReadResult result{.status = {}, .bytes = kLayout.page_bytes()};
    if (!ok) result.status = Fail(ErrorCode::kCorrupt, "damaged");
    loads_.EndRead(0, lanes_[0].reads().begin()->first, std::move(result));
  }

  MemoryTier tier_{{.layout = kLayout}};
  std::vector<std::unique_ptr<Board>> boards_;
};

TEST_F(LoadSchedulerTest, ReadsForTheLowestRankFirst) {
  boards_[1]->claims().Publish(boards_[1]->claims().ClaimLoad(1));  // it has less left
  loads_.Pump();
  ASSERT_FALSE(lanes_[0].reads().empty());
  for (const auto& [number, read] : lanes_[0].reads()) EXPECT_EQ(read.owner, boards_[1].get());
}

class FairLoadSchedulerTest : public LoadSchedulerTest {
 protected:
  FairLoadSchedulerTest() : LoadSchedulerTest({.load_order = LoadOrder::kFair}) {}
};

TEST_F(FairLoadSchedulerTest, ReadsForOneAfterTheOther) {
  loads_.Pump();
  std::vector<const Board*> owners;
  for (const auto& [number, read] : lanes_[0].reads()) owners.push_back(read.owner);
  const Board *a = boards_[0].get(), *b = boards_[1].get();
  EXPECT_THAT(owners, ElementsAre(a, b, a, b));
}

TEST_F(LoadSchedulerTest, AReadNamesTheChunkBefore) {
  table_.Remove(*boards_[1]);
  for (int i = 0; i < kChunks; ++i) Answer(/*ok=*/true);
  ASSERT_EQ(calls_.gets.size(), size_t{kChunks});
  std::map<ChunkKey, ChunkKey> parents;
  for (const TierCalls::Get& get : calls_.gets) parents[get.key] = get.parent;
  EXPECT_EQ(parents.at(boards_[0]->key(0)), boards_[0]->request().root);
  for (int i = 1; i < kChunks; ++i) {
    EXPECT_EQ(parents.at(boards_[0]->key(i)), boards_[0]->key(i - 1));
  }
}

TEST_F(LoadSchedulerTest, TheTimelineSaysWhatBecameOfReads) {
  Answer(/*ok=*/false);
  Answer(/*ok=*/true);
  std::vector<Outcome> outcomes;
  for (const auto& board : boards_) {
    for (const TimelineEntry& entry : board->Report().timeline) outcomes.push_back(entry.outcome);
  }
  EXPECT_EQ(outcomes, (std::vector{Outcome::kFailed, Outcome::kPublished}));
  EXPECT_EQ(boards_[0]->Report().reasons.at(0), "load of chunk 39 from memory failed: damaged");
}

TEST_F(LoadSchedulerTest, AReadThatComesRestoresTrust) {
  const int most = context_.options.failures_max - 1;
  for (int i = 0; i < most; ++i) Answer(/*ok=*/false);
  Answer(/*ok=*/true);
  for (int i = 0; i < most; ++i) Answer(/*ok=*/false);
  EXPECT_TRUE(boards_[0]->Trusts(0)) << "so many in a row were not enough before, either";
  Answer(/*ok=*/true);
  for (int i = 0; i < most; ++i) Answer(/*ok=*/false);
  EXPECT_TRUE(boards_[0]->Trusts(0));
  Answer(/*ok=*/false);
  EXPECT_FALSE(boards_[0]->Trusts(0) && boards_[1]->Trusts(0));
}

TEST_F(LoadSchedulerTest, WhatComesForAPromptThatHasEndedIsKeptInMemory) {
  loads_.Pump();
  const auto& [number, read] = *lanes_[0].reads().begin();
  ASSERT_EQ(read.owner, boards_[0].get());
  const uint64_t first = number;
  const ChunkKey key = read.key;
  table_.Remove(*boards_[0]);
  loads_.GiveAway(*boards_[0]);
  EXPECT_FALSE(pool_->Contains(key));
  loads_.EndRead(0, first, {.status = {}, .bytes = kLayout.page_bytes()});
  EXPECT_TRUE(pool_->Contains(key));
}

TEST_F(LoadSchedulerTest, ALoadThatOneGivesUpGoesOnForAnother) {
  // Another prompt on the first one's document.
  Board other(context_, testing_util::Request(1, kChunks, Policy::kLoad), 3, 1);
  loads_.Pump();
  const int chunk = lanes_[0].reads().begin()->second.claim.first;
  other.SetLoadable(0, std::vector<bool>(kChunks, true));
  table_.Add(other);
  table_.FindMade(other, 0, kChunks, *pool_);
  boards_[0]->claims().ClaimFront(kChunks, /*take_over=*/true);  // compute's, for the first alone
  loads_.Yield(*boards_[0], chunk);
  EXPECT_EQ(lanes_[0].reads().begin()->second.owner, &other);
  ASSERT_EQ(boards_[0]->Report().timeline.size(), 1u);
  EXPECT_EQ(boards_[0]->Report().timeline[0].outcome, Outcome::kLate);
  EXPECT_EQ(boards_[0]->Report().timeline[0].first_token, chunk * 128);
  EXPECT_TRUE(calls_.cancels.empty());
  table_.Remove(other);
}

TEST_F(LoadSchedulerTest, NothingIsReadForAPromptThatIsOnlyComputed) {
  Board computed(context_, testing_util::Request(3, kChunks, Policy::kCompute), 3, 1);
  computed.SetLoadable(0, std::vector<bool>(kChunks, true));
  for (const auto& board : boards_) table_.Remove(*board);
  table_.Add(computed);
  loads_.Pump();
  EXPECT_TRUE(lanes_[0].reads().empty());
  table_.Remove(computed);
}

// A prompt of which a fast tier holds all but the front, and a slow one all.
class TwoTiersTest : public SchedulerTest {
 protected:
  TwoTiersTest() {
    lanes_.emplace_back(context_, fast_);
    lanes_.emplace_back(context_, slow_);
    Learn(kFast, 1e-3);
    Learn(kSlow, 2e-3);
    std::vector<bool> held(kChunks, true);
    board_.SetLoadable(kSlow, held);
    std::fill_n(held.begin(), kAlone, false);
    board_.SetLoadable(kFast, held);
    table_.Add(board_);
  }
  // Begins now.
  LaneRead NobodysRead() const {
    LaneRead read;
    read.start = clock_.Now();
    return read;
  }
  // Reads of no prompt that came one after the other, so that the rate is known.
  void Learn(int tier, double interval_s) {
    for (uint64_t number = 1000; number < 1040; ++number) {
      lanes_[tier].Start(number, NobodysRead());
      clock_.Advance(Seconds(interval_s));
      lanes_[tier].End(number, {.status = {}, .bytes = kLayout.page_bytes()});
    }
  }
  // Has all reads of the tier come, or those alone that were cancelled.
  void Answer(int tier, bool cancelled_only) {
    std::vector<std::pair<uint64_t, bool>> reads;
    for (const auto& [number, read] : lanes_[tier].reads()) {
      if (read.cancelled || !cancelled_only) reads.emplace_back(number, read.cancelled);
    }
    for (const auto& [number, cancelled] : reads) {
      ReadResult result{.status = {}, .bytes = kLayout.page_bytes()};
      if (cancelled) result = {.status = Fail(ErrorCode::kCancelled, "cancelled"), .bytes = 0};
      if (!cancelled) clock_.Advance(Seconds(1e-3));
      loads_.EndRead(tier, number, std::move(result));
    }
  }

  static bool IsTakeOver(const std::string& reason) {
    return reason.find("instead of memory: it will be sooner") != std::string::npos;
  }

  static constexpr int kAlone = 4, kFast = 0, kSlow = 1;
  testing_util::HeldTier fast_;
  MemoryTier slow_{{.layout = kLayout}};
  Board board_{context_, testing_util::Request(1, kChunks, Policy::kLoad), 1, 2};
};

TEST_F(TwoTiersTest, WhatOnlyTheSlowerOneHasIsReadThoughTheOtherTookTheRestFromIt) {
  for (int rounds = 0; !board_.claims().done(); ++rounds) {
    ASSERT_LT(rounds, 4 * kChunks) << "nothing is read any more";
    loads_.Pump();
    const bool both = !lanes_[kFast].reads().empty();
    if (both) clock_.Advance(Seconds(0.1));  // far more than the slow one is expected to take
    Answer(kFast, /*cancelled_only=*/false);
    Answer(kSlow, /*cancelled_only=*/both);
  }
  const RestoreReport report = board_.Report();
  EXPECT_GE(std::ranges::count_if(report.reasons, IsTakeOver), context_.options.failures_max);
  EXPECT_EQ(report.tokens_loaded.at("held"), (kChunks - kAlone) * 128);
  EXPECT_EQ(report.tokens_loaded.at("memory"), kAlone * 128);
  EXPECT_TRUE(board_.Trusts(kSlow)) << "to be slower is no failure";
}

// Its reads are numbered by the lane, in order of issue.
class TakeOverTest : public TwoTiersTest {
 protected:
  // Both tiers hold all, all but `left` chunks from the front are there, and the slow tier reads
  // these.
  void LeaveToSlow(int left) {
    board_.SetLoadable(kFast, std::vector<bool>(kChunks, true));
    Claims& claims = board_.claims();
    for (int i = left; i < kChunks; ++i) claims.Publish(claims.ClaimLoad(i));
    for (int i = left - 1; i >= 0; --i) StartOnSlow(i);
  }
  void StartOnSlow(int chunk) {
    const Claim claim = board_.claims().ClaimLoad(chunk);
    LaneRead read = NobodysRead();
    read.owner = &board_;
    read.claim = claim;
    read.key = board_.key(chunk);
    read.page = *pool_->Draw();
    read.id = 1;
    lanes_[kSlow].Start(100 - chunk, std::move(read));
    table_.Claimed(board_, claim);
  }
  // Chunks that the tier reads for the prompt.
  std::vector<int> ReadBy(int tier) const {
    std::vector<int> chunks;
    for (const auto& [number, read] : lanes_[tier].reads()) {
      if (read.owner != nullptr) chunks.push_back(read.claim.first);
    }
    return chunks;
  }
};

TEST_F(TakeOverTest, AReadPassesToATierThatIsAFourthSooner) {
  LeaveToSlow(1);
  lanes_[kFast].UpdateEtas();
  const double fast_s = lanes_[kFast].View().drain_s + lanes_[kFast].interval_s();
  lanes_[kSlow].UpdateEtas();
  const double slow_s = lanes_[kSlow].reads().begin()->second.eta_s;
  ASSERT_GT(slow_s, 1.25 * fast_s) << "it is twice as slow";
  clock_.Advance(Seconds(slow_s - 1.2 * fast_s));
  loads_.Pump();
  EXPECT_TRUE(ReadBy(kFast).empty()) << "it will be there soon";
  clock_.Advance(Seconds(2.8 * fast_s));  // overdue by so much that it may take as long again
  loads_.Pump();
  EXPECT_THAT(ReadBy(kFast), ElementsAre(0));
  EXPECT_TRUE(ReadBy(kSlow).empty());
  ASSERT_EQ(calls_.cancels.size(), 1u);
  EXPECT_EQ(calls_.cancels[0].tier, kSlow);
  EXPECT_EQ(board_.claims().tiers(0), 1u << kFast) << "nor is it read there again";
}

TEST_F(TakeOverTest, TheLatestReadPassesFirst) {
  LeaveToSlow(3);
  clock_.Advance(Seconds(1));
  for (int number = 1; number < fast_.reads_max; ++number) {  // one place is left
    lanes_[kFast].Start(50 + number, NobodysRead());
  }
  loads_.Pump();
  EXPECT_THAT(ReadBy(kFast), ElementsAre(0)) << "chunk 0 was asked for last";
}

TEST_F(TakeOverTest, NothingPassesToATierThatThePromptDoesNotTrust) {
  LeaveToSlow(1);
  for (int i = 0; i < context_.options.failures_max; ++i) board_.NoteFailure(kFast);
  clock_.Advance(Seconds(0.1));
  loads_.Pump();
  EXPECT_THAT(ReadBy(kSlow), ElementsAre(0));
}

TEST_F(TakeOverTest, NothingPassesToATierThatDoesNotHoldIt) {
  LeaveToSlow(1);
  board_.claims().SetNotLoadable(0, kFast);
  clock_.Advance(Seconds(0.1));
  loads_.Pump();
  EXPECT_THAT(ReadBy(kSlow), ElementsAre(0));
}

TEST_F(TakeOverTest, WithoutAFreePageAReadStaysWhereItIs) {
  LeaveToSlow(1);
  std::vector<PageHandle> taken;
  while (auto page = pool_->Draw()) taken.push_back(std::move(*page));
  clock_.Advance(Seconds(0.1));
  loads_.Pump();
  EXPECT_THAT(ReadBy(kSlow), ElementsAre(0));
  EXPECT_TRUE(loads_.lacks_pages()) << "it is tried again when there is one";
  taken.clear();
  loads_.Pump();
  EXPECT_THAT(ReadBy(kFast), ElementsAre(0));
}

class ProbeTest : public TwoTiersTest {
 protected:
  // The slow tier is very slow, and nobody has tried for so long.
  ProbeTest() {
    Learn(kSlow, 100);
    Learn(kFast, 1e-3);
    for (int chunks = 1; chunks <= 4; ++chunks) cost_.Add(0, chunks * 128, Seconds(1e-3 * chunks));
    table_.Remove(board_);
    clock_.Advance(context_.options.probe_interval + Seconds(1));
  }
  // What the slow tier reads for a prompt of which tiers hold some chunks.
  std::vector<int> ProbeFor(RestoreRequest request, const std::vector<bool>& slow,
                            const std::vector<bool>& fast) {
    Board board(context_, std::move(request), 2, 2);
    board.SetLoadable(kSlow, slow);
    board.SetLoadable(kFast, fast);
    table_.Add(board);
    loads_.Pump();
    loads_.Pump();
    std::vector<int> chunks;
    for (const auto& [number, read] : lanes_[kSlow].reads()) chunks.push_back(read.claim.first);
    table_.Remove(board);
    loads_.GiveAway(board);
    return chunks;
  }
  RestoreRequest Request(Policy policy) const { return testing_util::Request(2, kChunks, policy); }
  const std::vector<bool> all_ = std::vector<bool>(kChunks, true);
  const std::vector<bool> none_ = std::vector<bool>(kChunks, false);
};

TEST_F(ProbeTest, ASlowTierIsTriedWithTheChunkThatOthersWouldLoadLast) {
  EXPECT_THAT(ProbeFor(Request(Policy::kLoad), all_, all_), ElementsAre(0));
}

TEST_F(ProbeTest, OneThatWasMeasuredIsNotTriedYet) {
  Learn(kSlow, 100);
  EXPECT_THAT(ProbeFor(Request(Policy::kLoad), all_, all_), ElementsAre());
}

TEST_F(ProbeTest, WhatIsComputedInAnyCaseIsNotRead) {
  RestoreRequest request = Request(Policy::kCake);
  request.forced_split = kChunks / 2;
  std::vector<bool> front = all_;
  std::fill(front.begin() + kChunks / 2, front.end(), false);
  EXPECT_THAT(ProbeFor(request, front, none_), ElementsAre());
}

TEST_F(ProbeTest, WhereAllIsComputedItIsTheLastBeforeAHole) {
  std::vector<bool> held = all_;
  held[10] = false;
  EXPECT_THAT(ProbeFor(Request(Policy::kCake), held, none_), ElementsAre(9));
}

}  // namespace
}  // namespace kvcake
