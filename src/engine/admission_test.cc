#include "engine/admission.h"

#include <gtest/gtest.h>

#include <utility>

#include "engine/sequence_testing.h"

namespace kvcake {
namespace {

constexpr int kPoolChunk = 16;
constexpr KvLayout kPoolLayout{
    .layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = kPoolChunk};

class AdmissionTest : public testing::Test {
 protected:
  // Shares its document with those that name the same, else with nobody.
  Sequence& Add(int prompt_tokens, int max_tokens, int document = 0) {
    const SequenceId id = ++last_id_;
    if (document == 0) document = static_cast<int>(100 + id);
    auto sequence = WaitingSequence(id, prompt_tokens, max_tokens, document, kPoolChunk);
    Sequence& added = *sequence;
    admission_.Add(std::move(sequence));
    return added;
  }
  size_t Admit() {
    const auto admitted = admission_.Admit(now_);
    for (Sequence* sequence : admitted) sequence->state = Sequence::State::kDecoding;
    return admitted.size();
  }
  void Finish(Sequence& sequence) {
    admission_.Release(sequence);
    sequence.state = Sequence::State::kFinished;
    admission_.EraseFinished();
  }

  std::unique_ptr<PagePool> pool_ =
      std::move(PagePool::Create(kPoolLayout, 20 * kPoolLayout.page_bytes()).value());
  ChunkKeeper keeper_{*pool_, nullptr};
  Admission admission_{
      *pool_, keeper_, {.max_sequences = 3, .waiting_max = 2, .read_reserve_pages = 4}};
  SequenceId last_id_ = 0;
  TimePoint now_{};
};

TEST_F(AdmissionTest, PromisesAllButTheReserveAndWhatIsSetAside) {
  EXPECT_EQ(admission_.pages_max(), 16u);
  admission_.SetAside(6);
  EXPECT_EQ(admission_.pages_max(), 10u);
  admission_.SetAside(100);
  EXPECT_EQ(admission_.pages_max(), 0u);
  EXPECT_EQ(admission_.PagesFor(0), 0u);
  EXPECT_EQ(admission_.PagesFor(1), 1u);
  EXPECT_EQ(admission_.PagesFor(kPoolChunk), 1u);
  EXPECT_EQ(admission_.PagesFor(kPoolChunk + 1), 2u);
}

TEST_F(AdmissionTest, AdmitsWhileThereArePagesAndOneForEveryoneWhoMayGrow) {
  Sequence& first = Add(6 * kPoolChunk, 2 * kPoolChunk);  // 7 of 16 pages, and may grow
  Add(6 * kPoolChunk, 1);                                 // 7, and may not
  Add(1, 1);                                              // 1: 15, and one to spare
  EXPECT_EQ(Admit(), 3u);
  EXPECT_EQ(admission_.waiting(), 0u);
  Add(1, 1);
  EXPECT_EQ(Admit(), 0u) << "three run already";
  Finish(first);
  EXPECT_EQ(Admit(), 1u);
}

TEST_F(AdmissionTest, NobodyIsAdmittedAtTheCostOfWhoMayGrow) {
  Add(6 * kPoolChunk, 2 * kPoolChunk);
  Add(7 * kPoolChunk + 1, 1);  // 8: the spare page is left
  EXPECT_EQ(Admit(), 2u);
  Add(1, 1);
  EXPECT_EQ(Admit(), 0u) << "would take the first one's";
  EXPECT_EQ(admission_.running().size(), 2u);
}

TEST_F(AdmissionTest, NorOfWhoIsAdmittedJustBeforeIt) {
  Add(6 * kPoolChunk, 2 * kPoolChunk);
  Add(8 * kPoolChunk + 1, 1);  // 9: all that is left
  EXPECT_EQ(Admit(), 1u);
}

// Those who wait would wait for nothing.
TEST_F(AdmissionTest, NoPageIsKeptForAnAnswerThatHasAllOfIts) {
  Sequence& first = Add(6 * kPoolChunk, 2 * kPoolChunk);
  ASSERT_EQ(Admit(), 1u);
  first.tokens.resize(8 * kPoolChunk);
  ASSERT_TRUE(admission_.Grow(first));
  Add(7 * kPoolChunk + 1, 1);  // 8 of the 8 that are left
  EXPECT_EQ(Admit(), 1u);
}

// It would be restored only to give its pages back again.
TEST_F(AdmissionTest, OneAloneGrowsIntoWhatOthersHold) {
  Sequence& alone = Add(7 * kPoolChunk, 4 * kPoolChunk);
  ASSERT_EQ(Admit(), 1u);
  admission_.SetHeld(12);  // leaves the 8 that it has
  alone.tokens.resize(9 * kPoolChunk);
  EXPECT_TRUE(admission_.Grow(alone));
  EXPECT_EQ(admission_.preemptions(), 0u);
}

TEST_F(AdmissionTest, NoTenantRunsMoreThanItMayAndTheyTakeTurns) {
  Admission admission{*pool_, keeper_, {.max_sequences = 3, .tenant_running_max = 2}};
  const auto add = [&](SequenceId id, const char* tenant) {
    auto sequence = WaitingSequence(id, 1, 1, static_cast<int>(id), kPoolChunk);
    sequence->request.tenant = tenant;
    admission.Add(std::move(sequence));
  };
  for (SequenceId id = 1; id <= 4; ++id) add(id, "ann");
  const auto ids = [](const std::vector<Sequence*>& sequences) {
    std::vector<SequenceId> ids;
    for (const Sequence* sequence : sequences) ids.push_back(sequence->id);
    return ids;
  };
  EXPECT_EQ(ids(admission.Admit(now_)), (std::vector<SequenceId>{1, 2}));
  add(5, "bob");
  add(6, "bob");
  EXPECT_EQ(ids(admission.Admit(now_)), (std::vector<SequenceId>{5}));
  EXPECT_EQ(admission.waiting(), 3u);
  EXPECT_EQ(admission.Remove(3)->id, 3u);  // what waits has kept its order
  for (const SequenceId id : {1, 5}) {
    const auto gone = admission.Remove(id);
    admission.Release(*gone);
  }
  EXPECT_EQ(ids(admission.Admit(now_)), (std::vector<SequenceId>{6, 4}));
}

TEST_F(AdmissionTest, OneAloneIsAlwaysAdmitted) {
  admission_.SetAside(16);
  Add(kPoolChunk, 1);
  EXPECT_EQ(Admit(), 1u);
}

TEST_F(AdmissionTest, WhoGrowsTakesPagesFromTheYoungestWhichIsAdmittedFirst) {
  Sequence& oldest = Add(7 * kPoolChunk, 4 * kPoolChunk);  // 8
  Sequence& youngest = Add(6 * kPoolChunk, 1);             // 7: all but the spare page
  ASSERT_EQ(Admit(), 2u);
  Add(1, 1);
  youngest.table.push_back(*pool_->Draw());
  youngest.tail_page = *pool_->Draw();
  youngest.kv_tokens = kPoolChunk;
  oldest.tokens.resize(9 * kPoolChunk);
  EXPECT_TRUE(admission_.Grow(oldest));
  EXPECT_EQ(oldest.promised(), 9u);
  EXPECT_EQ(admission_.preemptions(), 0u);
  oldest.tokens.resize(10 * kPoolChunk);
  EXPECT_TRUE(admission_.Grow(oldest));
  EXPECT_EQ(admission_.preemptions(), 1u);
  EXPECT_EQ(youngest.state, Sequence::State::kWaiting);
  EXPECT_EQ(youngest.completion.preemptions, 1);
  EXPECT_EQ(youngest.pages_promised, 0u);
  EXPECT_EQ(youngest.kv_tokens, 0);
  EXPECT_EQ(pool_->Stats().referenced, 0u);
  EXPECT_EQ(Admit(), 0u) << "nobody overtakes it";
  Finish(oldest);
  ASSERT_EQ(Admit(), 2u);
  EXPECT_EQ(admission_.running()[0].get(), &youngest);
}

TEST_F(AdmissionTest, TheYoungestThatGrowsPreemptsItself) {
  Add(7 * kPoolChunk, 4 * kPoolChunk);
  Sequence& youngest = Add(6 * kPoolChunk, kPoolChunk);
  ASSERT_EQ(Admit(), 2u);
  youngest.tokens.resize(9 * kPoolChunk);
  EXPECT_FALSE(admission_.Grow(youngest));
  EXPECT_EQ(admission_.running().size(), 1u);
  EXPECT_EQ(youngest.state, Sequence::State::kWaiting);
}

TEST_F(AdmissionTest, WhoComesBackIsPromisedPagesForWhatItHasSaid) {
  Sequence& first = Add(kPoolChunk, 1);
  Sequence& second = Add(2 * kPoolChunk, 9 * kPoolChunk);
  ASSERT_EQ(Admit(), 2u);
  second.tokens.resize(5 * kPoolChunk, 1);
  admission_.PreemptYoungest();
  EXPECT_EQ(admission_.PagesToRun(second), 6u);
  Finish(first);
  ASSERT_EQ(Admit(), 1u);
  EXPECT_EQ(second.promised(), 6u);
}

TEST_F(AdmissionTest, ChunksInCommonArePromisedOnce) {
  Sequence& first = Add(12 * kPoolChunk + 1, 1, /*document=*/1);  // 13 of 16 pages
  Sequence& second = Add(12 * kPoolChunk + 1, 1, 1);              // one more
  Sequence& third = Add(2 * kPoolChunk, 1, 2);                    // three
  EXPECT_EQ(Admit(), 2u);
  EXPECT_EQ(second.keys_promised, 12u);
  EXPECT_EQ(second.pages_promised, 1u);
  Finish(first);
  EXPECT_EQ(Admit(), 1u) << "the one that is left keeps the document's";
  Finish(second);
  Finish(third);
  for (int i = 0; i < 2; ++i) Add(7 * kPoolChunk + 1, 1, 1);
  EXPECT_EQ(Admit(), 2u);
}

TEST_F(AdmissionTest, WhatOneWritesIntoPagesOfItsOwnIsPromisedAgain) {
  Sequence& first = Add(6 * kPoolChunk + 1, 1, 1);   // 7 of 16 pages
  Sequence& second = Add(6 * kPoolChunk + 1, 1, 1);  // one more
  ASSERT_EQ(Admit(), 2u);
  ASSERT_TRUE(admission_.OwnPagesFrom(second, 2));  // four more
  EXPECT_EQ(second.keys.size(), 2u);
  EXPECT_EQ(second.keys_promised, 2u);
  EXPECT_EQ(second.pages_promised, 5u);
  Add(4 * kPoolChunk, 1);
  EXPECT_EQ(Admit(), 0u);
  Add(3 * kPoolChunk, 1);
  EXPECT_EQ(Admit(), 1u) << "four are left";
  Finish(first);
  EXPECT_EQ(Admit(), 1u);
  Finish(second);
  EXPECT_EQ(admission_.running().size(), 2u);
  Add(6 * kPoolChunk, 1);
  EXPECT_EQ(Admit(), 1u) << "seven are, which is all that the others leave";
}

TEST_F(AdmissionTest, PagesOfItsOwnAreRefusedWhereOthersNeedThem) {
  Sequence& first = Add(7 * kPoolChunk, kPoolChunk + 1, 1);  // 8 of 16 pages, and may grow
  Sequence& second = Add(7 * kPoolChunk, 1, 1);              // one more
  ASSERT_EQ(Admit(), 2u);
  EXPECT_FALSE(admission_.OwnPagesFrom(second, 0)) << "seven more would leave none to grow";
  EXPECT_EQ(second.keys.size(), 7u);
  EXPECT_EQ(second.keys_promised, 7u);
  EXPECT_EQ(second.pages_promised, 1u);
  EXPECT_TRUE(admission_.OwnPagesFrom(second, 1));
  first.tokens.resize(8 * kPoolChunk + 1);
  EXPECT_TRUE(admission_.Grow(first));
  EXPECT_EQ(admission_.running().size(), 2u) << "that page was there for it";
}

TEST_F(AdmissionTest, WhoSharesNothingAlwaysHasPagesOfItsOwn) {
  Sequence& only = Add(15 * kPoolChunk, 1, 1);
  ASSERT_EQ(Admit(), 1u);
  admission_.SetHeld(10);
  EXPECT_TRUE(admission_.OwnPagesFrom(only, 3));
  EXPECT_EQ(only.promised(), 16u);
}

TEST_F(AdmissionTest, WhoDoesNotFitIsPassedOverForAWhile) {
  Sequence& running = Add(7 * kPoolChunk, 1);  // 8 of 16 pages
  Sequence& large = Add(9 * kPoolChunk, 1);    // 10
  Sequence& small = Add(1, 1);
  EXPECT_EQ(Admit(), 2u);
  EXPECT_EQ(admission_.running()[1].get(), &small);
  Finish(small);
  now_ += Seconds(1.9);
  Sequence& next = Add(1, 1);
  EXPECT_EQ(Admit(), 1u);
  Finish(next);
  now_ += Seconds(0.2);
  Add(1, 1);
  EXPECT_EQ(Admit(), 0u) << "not for ever";
  Finish(running);
  EXPECT_EQ(Admit(), 2u);
  EXPECT_EQ(admission_.running()[0].get(), &large);
}

// Whoever is older gives its pages later, however late it was admitted.
TEST_F(AdmissionTest, ThoseWhoRunAreInTheOrderOfSubmission) {
  Sequence& first = Add(7 * kPoolChunk, 1);         // 8
  Sequence& old = Add(9 * kPoolChunk, kPoolChunk);  // 10
  Sequence& young = Add(1, 1);                      // 1
  ASSERT_EQ(Admit(), 2u);
  Finish(first);
  ASSERT_EQ(Admit(), 1u);
  EXPECT_EQ(admission_.running()[0].get(), &old);
  admission_.PreemptYoungest();
  EXPECT_EQ(young.state, Sequence::State::kWaiting);
}

TEST_F(AdmissionTest, WhatOthersHoldBeyondTheReserveIsNotPromised) {
  admission_.SetHeld(4);
  EXPECT_EQ(admission_.available(), 16u) << "it is what the reserve is for";
  admission_.SetHeld(10);
  EXPECT_EQ(admission_.available(), 10u);
  EXPECT_EQ(admission_.pages_max(), 16u);
  Add(11 * kPoolChunk, 1);
  Sequence& small = Add(1, 1);
  EXPECT_EQ(Admit(), 1u);
  EXPECT_EQ(admission_.running()[0].get(), &small);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)), nullptr);
  now_ += Seconds(29);
  admission_.SetHeld(0);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)), nullptr);
  admission_.SetHeld(10);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)), nullptr);
  now_ += Seconds(30);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)), nullptr) << "not longer yet";
  Add(1, 1);
  EXPECT_EQ(Admit(), 1u) << "nobody waits for what nobody can have";
  now_ += Seconds(1);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)).get()->id, 1u);
  EXPECT_EQ(admission_.waiting(), 0u);
}

TEST_F(AdmissionTest, NobodyIsAdmittedWhileSomebodyGoesWithoutAPage) {
  Sequence& first = Add(kPoolChunk, 1);
  Sequence& second = Add(kPoolChunk, 1);
  ASSERT_EQ(Admit(), 2u);
  Add(kPoolChunk, 1);
  first.short_since = now_;
  EXPECT_EQ(Admit(), 0u);
  admission_.PreemptYoungest();
  EXPECT_EQ(Admit(), 0u);
  first.short_since.reset();
  EXPECT_EQ(Admit(), 0u) << "what the preempted one gave is for those who run";
  EXPECT_EQ(second.state, Sequence::State::kWaiting);
  Finish(first);
  EXPECT_EQ(Admit(), 2u);
}

TEST_F(AdmissionTest, TheFirstWithoutAPageSaysSinceWhenSomebodyIs) {
  for (int i = 0; i < 3; ++i) Add(1, 1);
  ASSERT_EQ(Admit(), 3u);
  EXPECT_FALSE(admission_.short_since());
  for (const int i : {1, 0, 2}) {
    admission_.running()[i]->short_since = now_;
    EXPECT_EQ(admission_.short_since(), TimePoint{});
    now_ += Seconds(1);
  }
  admission_.PreemptYoungest();
  Finish(*admission_.running()[1]);
  Finish(*admission_.running()[0]);
  ASSERT_EQ(Admit(), 1u);
  EXPECT_FALSE(admission_.short_since()) << "one that comes back is not short of a page yet";
}

TEST_F(AdmissionTest, WhoHasRunSinceIsNotUnservableForAsLongAsBefore) {
  Sequence& sequence = Add(11 * kPoolChunk, 1);
  admission_.SetHeld(10);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)), nullptr);
  now_ += Seconds(20);
  admission_.SetHeld(0);
  ASSERT_EQ(Admit(), 1u);
  admission_.PreemptYoungest();
  admission_.SetHeld(10);
  now_ += Seconds(20);
  EXPECT_EQ(admission_.TakeUnservable(now_, Seconds(30)), nullptr);
  EXPECT_EQ(sequence.unservable, now_);
}

// Long prompts wait: a step costs nothing for their sake while nothing has changed for them.
TEST_F(AdmissionTest, WhoDoesNotFitIsLookedUpAgainWhenSomethingMayHaveChanged) {
  admission_.SetHeld(10);                       // of 20
  Sequence& first = Add(3 * kPoolChunk, 1, 1);  // 4 of the 10 that are left
  Sequence& second = Add(3 * kPoolChunk, 1, 2);
  ASSERT_EQ(Admit(), 2u);
  Add(8 * kPoolChunk, 1, 3);
  Add(9 * kPoolChunk, 1, 4);
  uint64_t before = admission_.lookups();
  const auto looked_up = [&] {
    return admission_.lookups() - std::exchange(before, admission_.lookups());
  };
  EXPECT_EQ(Admit(), 0u);
  EXPECT_EQ(looked_up(), 8u + 9u);
  for (int step = 0; step < 100; ++step) EXPECT_EQ(Admit(), 0u);
  EXPECT_EQ(looked_up(), 0u);
  admission_.SetHeld(11);  // is worse
  first.tokens.resize(4 * kPoolChunk);
  EXPECT_TRUE(admission_.Grow(first));
  Add(5 * kPoolChunk, 1, 5);
  EXPECT_EQ(Admit(), 0u);
  EXPECT_EQ(looked_up(), 5u) << "of the new one";
  admission_.SetHeld(9);
  EXPECT_EQ(Admit(), 0u);
  EXPECT_EQ(looked_up(), 8u + 9u + 5u) << "others have given pages back";
  Finish(second);
  EXPECT_EQ(Admit(), 1u) << "the last";
  EXPECT_EQ(looked_up(), 8u + 9u + 5u);
  admission_.SetAside(2);
  EXPECT_EQ(Admit(), 0u);
  EXPECT_EQ(looked_up(), 0u);
  admission_.SetAside(1);
  EXPECT_EQ(Admit(), 0u);
  EXPECT_EQ(looked_up(), 8u + 9u);
}

TEST_F(AdmissionTest, IsFullOfThoseWhoRunAndWait) {
  EXPECT_TRUE(admission_.idle());
  for (int i = 0; i < 3; ++i) Add(1, 1);
  Admit();
  Add(1, 1);
  EXPECT_FALSE(admission_.full());
  Add(1, 1);
  EXPECT_TRUE(admission_.full());
  EXPECT_EQ(admission_.Remove(99), nullptr);
  EXPECT_EQ(admission_.Remove(5)->id, 5u) << "waits";
  EXPECT_EQ(admission_.Remove(2)->id, 2u) << "runs";
  EXPECT_EQ(admission_.running().size(), 2u);
  EXPECT_EQ(admission_.waiting(), 1u);
  EXPECT_FALSE(admission_.idle());
}

}  // namespace
}  // namespace kvcake
