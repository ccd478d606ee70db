// Plans of steps, without a model: sequences made by hand over a small pool.
#include "engine/step_planner.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <string>

namespace kvcake {
namespace {

constexpr int kPlanChunk = 16;
constexpr int kPlanSlice = 8 * kPlanChunk;
constexpr KvLayout kPlanLayout{
    .layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = kPlanChunk};

// Leaves restorations as much as it is told to.
class FixedBudget : public StepBudget {
 public:
  explicit FixedBudget(ComputeBudget budget) : budget_(budget) {}
  ComputeBudget ForRestorations(TimePoint) override { return budget_; }
  std::optional<Slice> Fill(int, int) override { return std::nullopt; }
  void Ran(TimePoint, int) override {}
  uint64_t pages() const override { return 0; }

 private:
  const ComputeBudget budget_;
};

class StepPlannerTest : public testing::Test {
 protected:
  StepPlannerTest() {
    for (const int tokens : {16, 32, 64, 128}) cost_.Add(0, tokens, Seconds(1e-3 * tokens));
  }

  StepPlanner Planner() { return StepPlanner(*pool_, admission_, cost_, clock_, options_); }

  // Admitted, with a prompt of these tokens; of prompts the later is the younger.
  Sequence& Admit(int prompt_tokens, int max_tokens = 100) {
    clock_.Advance(Seconds(1e-6));
    auto added = std::make_unique<Sequence>();
    Sequence& sequence = *added;
    sequence.id = ++last_id_;
    sequence.submitted = sequence.opened = clock_.Now();
    sequence.request.prompt.assign(prompt_tokens, static_cast<int32_t>(last_id_));
    sequence.request.max_tokens = max_tokens;
    sequence.tokens = sequence.request.prompt;
    sequence.prefill_tokens = prompt_tokens;
    admission_.Add(std::move(added));
    EXPECT_EQ(admission_.Admit(clock_.Now()).size(), 1u);
    return sequence;
  }
  Sequence& Restoring(int prompt_tokens, bool scores = false) {
    Sequence& sequence = Admit(prompt_tokens);
    sequence.state = Sequence::State::kRestoring;
    sequence.request.prompt_logprobs = scores;
    if (!scores) sequence.keys = ChunkKeys(sequence.root, sequence.tokens, kPlanChunk);
    sequence.restoration = Open(sequence);
    return sequence;
  }
  // Three ranks prefill it, and nothing of it is kept.
  Sequence& Divided(int prompt_tokens) {
    Sequence& sequence = Admit(prompt_tokens);
    sequence.state = Sequence::State::kRestoring;
    sequence.restoration = Open(sequence);
    sequence.chain =
        RankJob{.tokens = sequence.tokens, .partition = EvenPartition(prompt_tokens, 3)};
    return sequence;
  }
  std::shared_ptr<Restoration> Open(const Sequence& sequence) {
    return restorer_->Open({.keys = sequence.keys,
                            .root = sequence.root,
                            .chunk_tokens = kPlanChunk,
                            .prompt_tokens = sequence.prefill_tokens,
                            .slice_chunks_max = kPlanSlice / kPlanChunk,
                            .forced_split = {}});
  }
  // The prompt is in its pages, and one token is generated.
  Sequence& Decoding(int prompt_tokens, int max_tokens = 100) {
    Sequence& sequence = Admit(prompt_tokens, max_tokens);
    sequence.state = Sequence::State::kDecoding;
    while (sequence.table.size() * kPlanChunk < static_cast<size_t>(prompt_tokens)) {
      sequence.table.push_back(*pool_->Draw());
    }
    sequence.kv_tokens = prompt_tokens;
    sequence.tokens.push_back(1);
    return sequence;
  }
  // As the engine does, but for what needs a model.
  void Run(const StepPlan& plan) {
    for (const StepPart& part : plan.parts) {
      Sequence& sequence = *part.sequence;
      if (part.claim.count > 0) {
        sequence.restoration->Computed(part.claim);
        if (part.samples) {
          sequence.EndRestoration(kPlanChunk, NumericPath::kUnknown, clock_.Now());
        } else {
          continue;
        }
      }
      if (part.chained) sequence.chain.reset();
      sequence.kv_tokens = std::max(sequence.kv_tokens, part.start + part.count);
      if (!part.samples) continue;
      sequence.tokens.push_back(1);
      sequence.state = Sequence::State::kDecoding;
    }
  }
  // "1: 0+83s 2: 0+32": whose parts, from where, how many, and whether a token follows.
  static std::string Parts(const StepPlan& plan) {
    std::string text;
    for (const StepPart& part : plan.parts) {
      const size_t pages = (part.start + part.count + kPlanChunk - 1) / kPlanChunk;
      EXPECT_EQ(part.pages.size(), pages) << "of sequence " << part.sequence->id;
      text += fmt::format("{}{}: {}+{}{}", text.empty() ? "" : " ", part.sequence->id, part.start,
                          part.count, part.samples ? "s" : "");
    }
    return text;
  }
  // What nobody holds.
  std::vector<PageHandle> DrawAll() {
    std::vector<PageHandle> pages;
    while (auto page = pool_->Draw()) pages.push_back(std::move(*page));
    return pages;
  }

  FakeClock clock_;
  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kPlanLayout, 64 * kPlanLayout.page_bytes()).value());
  ComputeCost cost_;
  std::unique_ptr<Restorer> restorer_ = NewRestorer(*pool_, {}, cost_, clock_);
  ChunkKeeper keeper_{*pool_, nullptr};
  Admission admission_{*pool_, keeper_, {.read_reserve_pages = 4}};
  StepPlannerOptions options_{
      .slice_tokens = kPlanSlice, .max_batch_tokens = kPlanSlice + 64, .schedule = Schedule::kFcfs};
  SequenceId last_id_ = 0;
};

TEST_F(StepPlannerTest, PromptsShareTheBudgetInTheirOrder) {
  Restoring(5 * kPlanChunk + 3);
  Restoring(3 * kPlanChunk);
  Restoring(2 * kPlanChunk);
  StepPlanner planner = Planner();
  // What the first leaves is two chunks and 13 tokens.
  EXPECT_EQ(Parts(planner.Plan()), "1: 0+83s 2: 0+32");
}

TEST_F(StepPlannerTest, TheShortestNewPromptIsFirstWhenTheScheduleSaysSo) {
  options_.schedule = Schedule::kAdaptive;
  Restoring(7 * kPlanChunk);
  Restoring(2 * kPlanChunk + 1);
  StepPlanner planner = Planner();
  EXPECT_EQ(Parts(planner.Plan()), "2: 0+33s 1: 0+80");
}

// A scored prompt is restored as soon as that begins.
TEST_F(StepPlannerTest, NobodyHasWaitedSinceBeforeItWasRestored) {
  options_.schedule = Schedule::kAdaptive;
  clock_.Advance(Seconds(100));
  Restoring(6 * kPlanChunk, /*scores=*/true);
  Restoring(2 * kPlanChunk, /*scores=*/true);
  EXPECT_EQ(Parts(Planner().Plan()), "2: 0+32s 1: 0+96s");
}

TEST_F(StepPlannerTest, NothingToDoIsAnEmptyPlan) {
  StepPlanner planner = Planner();
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "");
  EXPECT_EQ(plan.wake_at, TimePoint::max());
  EXPECT_FALSE(plan.shared_at || plan.chained());
}

TEST_F(StepPlannerTest, DecodesComeFirst) {
  Restoring(20 * kPlanChunk);
  Decoding(30);
  Decoding(kPlanChunk);  // whose next token needs a page
  StepPlanner planner = Planner();
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "2: 30+1s 3: 16+1s 1: 0+112");
  EXPECT_TRUE(plan.parts[0].decodes() && plan.parts[1].decodes());
  EXPECT_FALSE(plan.parts[2].decodes());
}

TEST_F(StepPlannerTest, WhileAnythingDecodesStepsAreShort) {
  Restoring(20 * kPlanChunk);
  options_.step_max = Seconds(0.05);
  StepPlanner planner = Planner();
  Decoding(30);
  EXPECT_EQ(Parts(planner.Plan()), "2: 30+1s 1: 0+48") << "1 ms a token";
}

TEST_F(StepPlannerTest, HoweverManyDecodeAChunkOfPrefillFits) {
  options_.slice_tokens = kPlanChunk;
  Restoring(20 * kPlanChunk);
  for (int i = 0; i < 6; ++i) Decoding(20);
  StepPlanner planner = Planner();
  EXPECT_EQ(planner.Plan().parts.back().count, kPlanChunk);
}

TEST_F(StepPlannerTest, PromptsThatAreScoredHaveAShareOfTheStep) {
  options_.scored_tokens_max = 40;
  Restoring(50, /*scores=*/true);
  Restoring(50, /*scores=*/true);
  Restoring(10);
  StepPlanner planner = Planner();
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "1: 0+40 3: 0+10s");
  EXPECT_EQ(plan.parts[0].logit_rows(), 40);
  EXPECT_EQ(plan.parts[1].logit_rows(), 1);
  Run(plan);
  EXPECT_EQ(Parts(planner.Plan()), "3: 10+1s 1: 40+10s 2: 0+30");
}

TEST_F(StepPlannerTest, TheLastSliceTakesTheTailAlongWhereItFits) {
  Sequence& fits = Restoring(7 * kPlanChunk + 15);
  StepPlanner planner = Planner();
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "1: 0+127s");
  Run(plan);
  EXPECT_EQ(fits.state, Sequence::State::kDecoding);
  EXPECT_EQ(fits.table.size(), 8u);
  admission_.Release(fits);
  fits.state = Sequence::State::kFinished;
  admission_.EraseFinished();

  Restoring(8 * kPlanChunk + 1);
  const StepPlan first = planner.Plan();
  EXPECT_EQ(Parts(first), "2: 0+128");
  Run(first);
  const StepPlan second = planner.Plan();
  EXPECT_EQ(Parts(second), "2: 128+1s");
  EXPECT_EQ(second.parts[0].claim.count, 0);
}

TEST_F(StepPlannerTest, APromptThatIsInMemoryHasItsLastTokenComputedAgain) {
  Sequence& first = Restoring(2 * kPlanChunk);
  const std::vector<ChunkKey> keys = first.keys;
  for (const ChunkKey& key : keys) pool_->Publish(*pool_->Draw(), key, NumericPath::kUnknown);
  admission_.Release(first);
  first.state = Sequence::State::kFinished;
  admission_.EraseFinished();
  last_id_ = 0;  // the same prompt
  Restoring(2 * kPlanChunk);
  StepPlanner planner = Planner();
  EXPECT_EQ(Parts(planner.Plan()), "1: 31+1s");
}

// The tails of short prompts take the step, and leave less than a chunk of it.
TEST_F(StepPlannerTest, ARestorationThatIsLeftLessThanAChunkGetsOne) {
  options_.slice_tokens = kPlanChunk;
  options_.max_batch_tokens = 32;
  options_.schedule = Schedule::kAdaptive;
  Restoring(4 * kPlanChunk);
  Restoring(10);
  EXPECT_EQ(Parts(Planner().Plan()), "2: 0+10s 1: 0+16");
}

// Scored prompts are not restored. Short ones come for ever.
TEST_F(StepPlannerTest, SoDoesAScoredPromptAndAfterAWaitAllOfTheStep) {
  options_.slice_tokens = kPlanChunk;
  options_.max_batch_tokens = 40;
  options_.schedule = Schedule::kAdaptive;
  Restoring(8 * kPlanChunk, /*scores=*/true);
  Restoring(10);
  Restoring(10);
  StepPlanner planner = Planner();
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "2: 0+10s 3: 0+6 1: 0+16");
  clock_.Advance(1.5 * options_.restore_wait_max);
  EXPECT_EQ(Parts(planner.Plan()), "1: 0+16");
}

TEST_F(StepPlannerTest, ItGetsNoneWhereTheStepHasNoRoom) {
  options_.slice_tokens = kPlanChunk;
  options_.max_batch_tokens = 25;
  options_.schedule = Schedule::kAdaptive;
  Restoring(4 * kPlanChunk);
  Restoring(10);
  EXPECT_EQ(Parts(Planner().Plan()), "2: 0+10s");
}

TEST_F(StepPlannerTest, NorWhereAnswersHaveTakenIt) {
  options_.slice_tokens = kPlanChunk;
  options_.max_batch_tokens = 10 + kPlanChunk;
  options_.schedule = Schedule::kAdaptive;
  Restoring(4 * kPlanChunk);
  Restoring(10);
  Decoding(4);
  EXPECT_EQ(Parts(Planner().Plan()), "3: 4+1s 2: 0+10s");
}

TEST_F(StepPlannerTest, WithAFullPoolNobodyGoesOnUntilPagesComeBack) {
  Sequence& decoding = Decoding(kPlanChunk);
  Sequence& restoring = Restoring(2 * kPlanChunk + 2);
  Restoring(10);  // done, and its tokens need a page
  Decoding(5);    // has room in its page
  StepPlanner planner = Planner();
  std::vector<PageHandle> held = DrawAll();
  const StepPlan full = planner.Plan();
  EXPECT_EQ(Parts(full), "4: 5+1s");
  EXPECT_LT(full.wake_at, TimePoint::max()) << "nobody says when a page comes back";
  Run(full);
  held.resize(held.size() - 3);
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "1: 16+1s 4: 6+1s 2: 0+32");
  EXPECT_EQ(plan.parts[0].sequence, &decoding);
  EXPECT_EQ(plan.parts[2].sequence, &restoring);
  EXPECT_FALSE(plan.parts[2].samples) << "no page for the tail";
  Run(plan);
  held.clear();
  EXPECT_EQ(Parts(planner.Plan()), "1: 17+1s 4: 7+1s 2: 32+2s 3: 0+10s");
}

// Its pages are promised to those who were there before it.
TEST_F(StepPlannerTest, WhoGoesWithoutAPageIsKnownUntilItHasWhatItAsksFor) {
  Sequence& decoding = Decoding(kPlanChunk);
  Sequence& restoring = Restoring(2 * kPlanChunk);
  Sequence& has_room = Decoding(5);
  FixedBudget nothing({.chunks = 0, .share = 0.5});
  StepPlanner planner = Planner();
  std::vector<PageHandle> held = DrawAll();
  const TimePoint began = clock_.Now();
  planner.Plan();
  EXPECT_EQ(decoding.short_since, began);
  EXPECT_EQ(restoring.short_since, began);
  EXPECT_FALSE(has_room.short_since);
  clock_.Advance(Seconds(1));
  planner.Plan();
  EXPECT_EQ(admission_.short_since(), began);
  held.clear();
  planner.SetBudget(&nothing);
  planner.Plan();
  EXPECT_FALSE(decoding.short_since);
  EXPECT_EQ(restoring.short_since, began) << "it was not its turn";
  planner.SetBudget(nullptr);
  planner.Plan();
  EXPECT_FALSE(admission_.short_since());
}

TEST_F(StepPlannerTest, ADecodeThatGrowsPreemptsTheYoungest) {
  Sequence& oldest = Decoding(25 * kPlanChunk, 10 * kPlanChunk);
  Sequence& youngest = Restoring(32 * kPlanChunk);
  StepPlanner planner = Planner();
  const StepPlan before = planner.Plan();
  EXPECT_EQ(Parts(before), "1: 400+1s 2: 0+112");
  Run(before);
  oldest.tokens.resize(27 * kPlanChunk + 1);  // two pages more than were promised; one is left
  oldest.kv_tokens = 27 * kPlanChunk;
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "1: 432+1s");
  EXPECT_EQ(admission_.preemptions(), 1u);
  EXPECT_EQ(admission_.waiting(), 1u);
  EXPECT_EQ(youngest.state, Sequence::State::kWaiting);
  EXPECT_EQ(youngest.restoration, nullptr);
}

TEST_F(StepPlannerTest, ABudgetBoundsWhatRestorationsGet) {
  Restoring(3 * kPlanChunk);
  Restoring(5 * kPlanChunk);
  FixedBudget budget({.chunks = 4, .share = 0.5});
  StepPlanner planner = Planner();
  planner.SetBudget(&budget);
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "1: 0+48s 2: 0+16");
  EXPECT_EQ(plan.shared_at, 0);
  Run(plan);
  const StepPlan next = planner.Plan();
  EXPECT_EQ(Parts(next), "1: 48+1s 2: 16+64s");
  EXPECT_EQ(next.shared_at, kPlanChunk);
}

// The tail is no restoration's, but would be more than its share.
TEST_F(StepPlannerTest, ABudgetBoundsTheTailToo) {
  Restoring(3 * kPlanChunk + 1);
  FixedBudget budget({.chunks = 3, .share = 0.5});
  StepPlanner planner = Planner();
  planner.SetBudget(&budget);
  EXPECT_EQ(Parts(planner.Plan()), "1: 0+48");
}

TEST_F(StepPlannerTest, ARestorationWithoutBudgetStarvesInOthersSteps) {
  Sequence& restoring = Restoring(3 * kPlanChunk);
  FixedBudget nothing({.chunks = 0, .share = 0.5});
  StepPlanner planner = Planner();
  planner.SetBudget(&nothing);
  const StepPlan plan = planner.Plan();
  EXPECT_EQ(Parts(plan), "");
  EXPECT_EQ(plan.shared_at, 0);
  planner.SetBudget(nullptr);
  const StepPlan whole = planner.Plan();
  EXPECT_EQ(Parts(whole), "1: 0+48s");
  EXPECT_FALSE(whole.shared_at);
  EXPECT_EQ(whole.parts[0].sequence, &restoring);
}

TEST_F(StepPlannerTest, ADividedPromptHasAStepOfItsOwn) {
  Decoding(20);
  Sequence& divided = Divided(6 * kPlanChunk);
  StepPlanner planner = Planner();
  const StepPlan plan = planner.Plan();
  EXPECT_TRUE(plan.chained());
  EXPECT_EQ(Parts(plan), "2: 64+32s");
  divided.chain.reset();
  EXPECT_EQ(Parts(planner.Plan()), "1: 20+1s 2: 0+96s") << "alone, after all";
}

TEST_F(StepPlannerTest, DividedPromptsAndAllElseTakeTurns) {
  Decoding(20);
  for (int i = 0; i < 3; ++i) Divided(6 * kPlanChunk);
  Restoring(12 * kPlanChunk);
  StepPlanner planner = Planner();
  const auto next = [&] {
    const StepPlan plan = planner.Plan();
    Run(plan);
    return Parts(plan);
  };
  EXPECT_EQ(next(), "2: 64+32s");
  EXPECT_EQ(next(), "1: 20+1s 2: 96+1s 5: 0+112") << "who decodes, and a prompt of this process";
  EXPECT_EQ(next(), "3: 64+32s");
  EXPECT_EQ(next(), "1: 21+1s 2: 97+1s 3: 96+1s 5: 112+80s");
  EXPECT_EQ(next(), "4: 64+32s");
  EXPECT_EQ(next(), "1: 22+1s 2: 98+1s 3: 97+1s 4: 96+1s 5: 192+1s");
  EXPECT_EQ(next(), "1: 23+1s 2: 99+1s 3: 98+1s 4: 97+1s 5: 193+1s") << "none is left";
}

TEST_F(StepPlannerTest, ADividedPromptThatIsPreemptedIsNotDividedAnyMore) {
  Sequence& sequence = Divided(6 * kPlanChunk);
  admission_.SetHeld(10);
  admission_.PreemptYoungest();
  admission_.SetHeld(0);
  ASSERT_EQ(admission_.Admit(clock_.Now()).size(), 1u);
  sequence.state = Sequence::State::kRestoring;
  sequence.restoration = Open(sequence);
  const StepPlan plan = Planner().Plan();
  EXPECT_FALSE(plan.chained());
  EXPECT_EQ(Parts(plan), "1: 0+96s");
}

// Its keys end where the chain was to begin.
TEST_F(StepPlannerTest, ALostChainsPromptIsComputedAfterWhatIsRestored) {
  Sequence& sequence = Divided(5 * kPlanChunk + 3);
  sequence.keys = ChunkKeys(sequence.root, std::span(sequence.tokens).first(32), kPlanChunk);
  sequence.restoration = Open(sequence);
  sequence.chain.reset();
  StepPlanner planner = Planner();
  const StepPlan restores = planner.Plan();
  EXPECT_EQ(Parts(restores), "1: 0+32");
  Run(restores);
  EXPECT_EQ(Parts(planner.Plan()), "1: 32+51s");
}

TEST_F(StepPlannerTest, DividedPromptsFollowEachOtherWhereThereIsNothingElse) {
  Divided(6 * kPlanChunk), Divided(6 * kPlanChunk);
  StepPlanner planner = Planner();
  EXPECT_EQ(Parts(planner.Plan()), "1: 64+32s");
  EXPECT_EQ(Parts(planner.Plan()), "1: 64+32s") << "nothing of it was run";
}

}  // namespace
}  // namespace kvcake
