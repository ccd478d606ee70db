#include "server/engine_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "engine/engine_chain_testing.h"
#include "server/engine_loop_testing.h"

namespace kvcake {
namespace {

using testing_util::FirstTokenRecord;
using testing_util::HeldRecord;
using testing_util::Record;

// A model that fails when it is told to.
class FailingModel : public PacedModel {
 public:
  explicit FailingModel(Model& inner) : PacedModel(inner, Seconds(0)) {}
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
    if (fail.exchange(false)) return Fail(ErrorCode::kIo, "told to fail");
    return PacedModel::Forward(batch);
  }
  std::atomic<bool> fail{false};
};

class EngineLoopTest : public testing::Test {
 protected:
  explicit EngineLoopTest(int pages = 64) : world_(nullptr, {.pages = pages}) {}
  ~EngineLoopTest() override { StopAndJoin(); }

  // Anew, with a model of its own.
  void UseModel(Model& model, int waiting_max = 64) {
    world_.MakeEngine(model,
                      {.slice_tokens = kSlice, .max_sequences = 4, .waiting_max = waiting_max});
  }
  EngineLoop& Loop(size_t jobs_max = 64, size_t tenant_jobs_max = 64) {
    loop_ = std::make_unique<EngineLoop>(
        *world_.engine, *world_.restorer,
        JobLimits{.jobs_max = jobs_max, .tenant_jobs_max = tenant_jobs_max});
    return *loop_;
  }
  void Run() {
    thread_ = std::thread([this] { loop_->Run(); });
  }
  void StopAndJoin() {
    if (loop_) loop_->Stop();
    if (thread_.joinable()) thread_.join();
  }
  static void Await(const std::atomic<bool>& what) {
    while (!what) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  World world_;
  std::unique_ptr<EngineLoop> loop_;
  std::thread thread_;
};

TEST_F(EngineLoopTest, TellsWhatTheEngineAnswers) {
  const Completion expected = world_.Answer(Ask(Prompt(50, 1)));
  Loop();
  Run();
  const auto record = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(50, 1)), record));
  Await(record->done);
  EXPECT_TRUE(record->accepted);
  EXPECT_EQ(record->tokens, expected.tokens);
  EXPECT_EQ(record->result->tokens, expected.tokens);
  EXPECT_GT(loop_->Stats().steps, 0u);
}

TEST_F(EngineLoopTest, SeveralAreTakenTogetherOrNotAtAll) {
  Loop(/*jobs_max=*/3, /*tenant_jobs_max=*/3);
  const auto entries = [](int count) {
    std::vector<EngineLoop::Entry> made;
    for (int i = 0; i < count; ++i) {
      made.push_back({.request = Ask(Prompt(50, 1)), .sink = std::make_shared<Record>()});
    }
    return made;
  };
  std::vector<EngineLoop::Entry> two = entries(2);
  const auto first = std::static_pointer_cast<Record>(two[0].sink);
  const auto second = std::static_pointer_cast<Record>(two[1].sink);
  EXPECT_EQ(loop_->Submit(entries(4)).error().code, ErrorCode::kResourceExhausted);
  const auto ids = loop_->Submit(std::move(two));
  ASSERT_EQ(ids.value().size(), 2u);
  EXPECT_NE(ids->at(0), ids->at(1));
  EXPECT_EQ(loop_->Submit(entries(2)).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(loop_->Stats().waiting, 2u);  // nothing of what was refused
  Run();
  Await(first->done);
  Await(second->done);
  EXPECT_EQ(first->tokens, second->tokens);
}

TEST_F(EngineLoopTest, SeveralCountAsManyAgainstEachLimit) {
  for (const auto& [jobs_max, tenant_jobs_max] : {std::pair(3, 64), std::pair(64, 3)}) {
    Loop(jobs_max, tenant_jobs_max);
    std::vector<std::shared_ptr<Record>> records;
    const auto submit = [&](int count) {
      std::vector<EngineLoop::Entry> made;
      for (int i = 0; i < count; ++i) {
        records.push_back(std::make_shared<Record>());
        made.push_back({.request = Ask(Prompt(50, 1)), .sink = records.back()});
      }
      return loop_->Submit(std::move(made)).has_value();
    };
    EXPECT_TRUE(submit(2));
    EXPECT_EQ(loop_->Stats().open, (std::map<std::string, size_t>{{"", 2}}));
    EXPECT_TRUE(submit(1));
    Run();
    for (const auto& record : records) Await(record->done);
    StopAndJoin();
    EXPECT_TRUE(loop_->Stats().open.empty());
    records.clear();
    Loop(jobs_max, tenant_jobs_max);
    EXPECT_TRUE(submit(2));
    EXPECT_FALSE(submit(2));
  }
}

TEST_F(EngineLoopTest, WhatIsPostedIsDoneOnItsThread) {
  Loop();
  Run();
  std::promise<std::thread::id> done;  // while there is nothing else to do
  loop_->Post([&] { done.set_value(std::this_thread::get_id()); });
  EXPECT_EQ(done.get_future().get(), thread_.get_id());
}

// It would hear of them when the next chunk has come, or a second later.
TEST_F(EngineLoopTest, AnEngineThatWaitsForAStoreIsWokenByWhatIsAskedOfIt) {
  Loop();
  const auto wait = [&] { world_.restorer->WaitForEvent(Clock::Real().Now() + Seconds(3600)); };
  const JobId job = loop_->Submit(Ask({1}), std::make_shared<Record>()).value();
  wait();
  loop_->Cancel(job);
  wait();
  loop_->CancelAll();
  wait();
  loop_->Post([] {});
  wait();
}

TEST_F(EngineLoopTest, WhatTheEngineRefusesIsDoneAndNeverAccepted) {
  Loop();
  Run();
  const auto record = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask({kVocab}), record));
  Await(record->done);
  EXPECT_FALSE(record->accepted);
  ASSERT_FALSE(record->result);
  EXPECT_EQ(record->result.error().code, ErrorCode::kInvalidArgument);
}

// Takes its time over each token.
class SlowRecord : public Record {
 public:
  bool OnToken(const TokenEvent& event) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return Record::OnToken(event);
  }
};

TEST_F(EngineLoopTest, StepsCountWhatTheirSinksTake) {
  PacedModel model(*world_.model, Seconds(2e-3));
  UseModel(model);
  Loop();
  const auto one = std::make_shared<Record>();
  const auto slow = std::make_shared<SlowRecord>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 1)), one));
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 2)), slow));
  const TimePoint began = Clock::Real().Now();
  loop_->Stop();
  loop_->Run();
  const double wall_s = (Clock::Real().Now() - began).count();
  const double all_s = loop_->Stats().step_s, delivery_s = loop_->Stats().delivery_s;
  for (const auto& record : {one, std::shared_ptr<Record>(slow)}) {
    EXPECT_GT(record->result->steps_s, 0);
    EXPECT_LE(record->result->steps_s, all_s);
  }
  EXPECT_GE(delivery_s, 12 * 5e-3);
  EXPECT_LE(delivery_s, all_s);
  EXPECT_LE(all_s, wall_s);
  world_.engine.reset();  // before its model
}

TEST_F(EngineLoopTest, WhatARequestWaitedForBeforeItWasSubmittedCountsOnlyWithinAStep) {
  PacedModel model(*world_.model, Seconds(2e-3));
  UseModel(model);
  Loop();
  const StepMark start = loop_->Now();
  EXPECT_EQ(start.step_s, 0);
  const auto first = std::make_shared<Record>();
  const auto late = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 1)), first, start));
  Run();
  Await(first->done);
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 2)), late, start));  // it missed all of these steps
  Await(late->done);
  StopAndJoin();
  const StepMark end = loop_->Now();
  EXPECT_EQ(end.steps, loop_->Stats().steps);
  EXPECT_DOUBLE_EQ(end.step_s, loop_->Stats().step_s);
  EXPECT_GT(first->result->steps_s, 12 * 2e-3);
  EXPECT_GT(late->result->steps_s, 12 * 2e-3);
  EXPECT_LE(first->result->steps_s + late->result->steps_s, end.step_s);
  world_.engine.reset();  // before its model
}

// Before a request is submitted only a step that it came into, and that still runs, counts as the
// engine's: all other waiting was the server's own.
TEST_F(EngineLoopTest, AStepCountsFromARequestsArrivalOnlyWhereItCameInThatStep) {
  PacedModel model(*world_.model, Seconds(2e-3));
  UseModel(model);
  Loop();
  const StepMark start = loop_->Now();  // no step runs
  StepMark in_step, submitted;
  const auto same = std::make_shared<Record>();
  const auto later = std::make_shared<Record>();
  const auto first = std::make_shared<FirstTokenRecord>([&] {
    in_step = loop_->Now();
    while (loop_->Now().step_s < in_step.step_s + 100e-3) std::this_thread::yield();
    submitted = loop_->Now();
    EXPECT_GE(loop_->Stats().step_s, submitted.step_s);
    ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 2)), same, in_step));
    ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 3)), later, start));
  });
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 1)), first));
  Run();
  for (const std::shared_ptr<Record>& record : {std::shared_ptr<Record>(first), same, later}) {
    Await(record->done);
  }
  const StepMark then = loop_->Now();
  const auto last = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 4)), last, in_step));  // that step has ended
  Await(last->done);
  StopAndJoin();
  const double all_s = loop_->Stats().step_s;
  EXPECT_TRUE(in_step.running);
  EXPECT_EQ(in_step.steps, start.steps);
  EXPECT_GE(same->result->steps_s, submitted.step_s - in_step.step_s + 12 * 2e-3);
  EXPECT_LE(later->result->steps_s, then.step_s - submitted.step_s);
  EXPECT_GT(same->result->steps_s - later->result->steps_s, 50e-3) << "of that step";
  EXPECT_LE(last->result->steps_s, all_s - then.step_s);
  world_.engine.reset();  // before its model
}

TEST_F(EngineLoopTest, RefusesWhatIsTooManyAndWhatComesTooLate) {
  Loop(/*jobs_max=*/2);
  const auto one = std::make_shared<Record>();
  const auto two = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask({1}), one));
  ASSERT_TRUE(loop_->Submit(Ask({2}), two));
  EXPECT_EQ(loop_->Stats().waiting, 2u);
  const auto third = loop_->Submit(Ask({3}), std::make_shared<Record>());
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::kResourceExhausted);
  loop_->Stop();
  const auto late = loop_->Submit(Ask({3}), std::make_shared<Record>());
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::kCancelled);
  loop_->Run();  // answers what there was, and returns
  EXPECT_EQ(one->tokens.size(), 12u);
  EXPECT_EQ(two->tokens.size(), 12u);
}

TEST_F(EngineLoopTest, CancelAllEndsWhatRunsAndWhatWaits) {
  UseModel(*world_.model);
  Loop();
  std::vector<std::shared_ptr<Record>> records;
  for (int i = 0; i < 10; ++i) {  // four run, six wait
    Request request = Ask(Prompt(40, i));
    request.max_tokens = 100;
    records.push_back(std::make_shared<Record>());
    ASSERT_TRUE(loop_->Submit(std::move(request), records.back()));
  }
  loop_->CancelAll();
  loop_->Stop();
  loop_->Run();
  for (const auto& record : records) {
    ASSERT_TRUE(record->done);
    EXPECT_EQ(record->result->finish_reason, FinishReason::kCancelled);
  }
}

TEST_F(EngineLoopTest, WhoComesAfterAllWereCancelledIsAnswered) {
  Loop();
  std::promise<void> taken;
  loop_->CancelAll();
  loop_->Post([&] { taken.set_value(); });
  Run();
  taken.get_future().get();
  const auto later = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 2)), later));
  Await(later->done);
  EXPECT_EQ(later->result->finish_reason, FinishReason::kLength);
}

// Who may run does not count as waiting, and no result is forgotten however many end at once.
TEST_F(EngineLoopTest, AShortQueueLosesNobody) {
  for (const bool cancel : {false, true}) {
    UseModel(*world_.model, /*waiting_max=*/1);
    Loop(/*jobs_max=*/4 + 1);
    std::vector<std::shared_ptr<Record>> records;
    for (int i = 0; i < 5; ++i) {
      records.push_back(std::make_shared<Record>());
      ASSERT_TRUE(loop_->Submit(Ask(Prompt(40, i)), records.back()));
    }
    if (cancel) loop_->CancelAll();
    loop_->Stop();
    loop_->Run();
    for (const auto& record : records) {
      ASSERT_TRUE(record->done);
      ASSERT_TRUE(record->result) << record->result.error().message;
      EXPECT_EQ(record->tokens.size(), cancel ? 0u : 12u);
    }
  }
}

TEST_F(EngineLoopTest, TellsForHowLongItsThreadHasNotComeAround) {
  Loop();
  EXPECT_EQ(loop_->SinceTurn(), Seconds(0));
  Run();
  const auto held = std::make_shared<HeldRecord>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, 1)), held));
  Await(held->accepted);
  const Seconds before = loop_->SinceTurn();
  EXPECT_GT(before, Seconds(0));
  while (loop_->SinceTurn() < before + Seconds(0.02)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  held->let_go.set_value();
  Await(held->done);
  while (loop_->SinceTurn() != Seconds(0)) {  // asleep, as there is nothing to do
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  StopAndJoin();
  EXPECT_EQ(loop_->SinceTurn(), Seconds(0));
}

using EngineLoopChainTest = EngineChainTest;

// One step, and as long as the prompt is.
TEST_F(EngineLoopChainTest, ItsThreadComesAroundWithEachLayerThatRanksPrefill) {
  const auto prompt = Prompt(450, 1);
  std::atomic<TimePoint> restoring;
  at_restoring_ = [&] { restoring = Clock::Real().Now(); };  // in the step, before its layers
  Start(3);
  world_->Answer(Ask({prompt.begin(), prompt.begin() + kChunk + 1}));
  EngineLoop loop(*world_->engine, *world_->restorer, {.jobs_max = 1, .tenant_jobs_max = 1});
  Seconds since_turn{0}, since_restoring{0};
  const auto record = std::make_shared<FirstTokenRecord>([&] {
    since_turn = loop.SinceTurn();
    since_restoring = Clock::Real().Now() - restoring.load();
  });
  ASSERT_TRUE(loop.Submit(Ask(prompt), record));
  loop.Stop();
  loop.Run();
  ASSERT_TRUE(record->result);
  ASSERT_TRUE(record->result->chain);
  EXPECT_NE(restoring.load(), TimePoint{});
  EXPECT_LT(since_turn, since_restoring);
}

TEST_F(EngineLoopTest, NoTenantGetsMoreThanItsShareOfTheQueue) {
  Loop(/*jobs_max=*/4, /*tenant_jobs_max=*/3);
  std::vector<std::shared_ptr<Record>> records;
  const auto submit = [&](const std::string& tenant) {
    records.push_back(std::make_shared<Record>());
    Request request = Ask(Prompt(10, static_cast<int>(records.size())));
    request.tenant = tenant;
    const auto job = loop_->Submit(std::move(request), records.back());
    if (!job) records.pop_back();
    return job ? "" : job.error().message;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(submit("ann"), "");
  EXPECT_EQ(submit("ann").find("3 requests of ann are"), 0u);
  EXPECT_EQ(submit("bob"), "");
  EXPECT_EQ(submit("").find("4 requests are"), 0u);
  EXPECT_EQ(loop_->Stats().open, (std::map<std::string, size_t>{{"ann", 3}, {"bob", 1}}));
  Run();
  for (const auto& record : records) Await(record->done);
  StopAndJoin();
  EXPECT_TRUE(loop_->Stats().open.empty());
}

TEST_F(EngineLoopTest, AStepThatFailsEndsItsRequestsAndNoOthers) {
  FailingModel model(*world_.model);
  UseModel(model);
  Loop();
  Run();
  model.fail = true;
  const auto record = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(40, 1)), record));
  Await(record->done);
  EXPECT_EQ(record->result->finish_reason, FinishReason::kError);
  const auto next = std::make_shared<Record>();
  ASSERT_TRUE(loop_->Submit(Ask(Prompt(40, 1)), next));
  Await(next->done);
  EXPECT_EQ(next->tokens.size(), 12u);
  StopAndJoin();
  world_.engine.reset();  // before its model
}

// A model that looks around while it computes.
class WatchingModel : public PacedModel {
 public:
  WatchingModel(Model& inner, std::function<void()> watch)
      : PacedModel(inner, Seconds(0)), watch_(std::move(watch)) {}
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
    watch_();
    return PacedModel::Forward(batch);
  }

 private:
  const std::function<void()> watch_;
};

TEST_F(EngineLoopTest, RequestsAreCountedWhileAStepRuns) {
  std::vector<size_t> counted;
  WatchingModel model(*world_.model, [&] {
    const EngineLoopStats stats = loop_->Stats();
    counted.push_back(stats.running + stats.waiting);
  });
  UseModel(model);
  Loop();
  for (int i = 0; i < 6; ++i) {  // four run, two wait
    ASSERT_TRUE(loop_->Submit(Ask(Prompt(10, i)), std::make_shared<Record>()));
  }
  loop_->Stop();
  loop_->Run();
  ASSERT_FALSE(counted.empty());
  EXPECT_EQ(counted.front(), 6u);
  EXPECT_EQ(loop_->Stats().running + loop_->Stats().waiting, 0u);
  world_.engine.reset();  // before its model
}

class FewPagesLoopTest : public EngineLoopTest {
 protected:
  FewPagesLoopTest() : EngineLoopTest(/*pages=*/16 + 10) {}
};

// From several threads, with cancellations and sinks that have enough: everyone is answered, once,
// with what is the answer or its beginning.
TEST_F(FewPagesLoopTest, EveryRequestHasAnAnswerOrAnError) {
  constexpr int kThreads = 4;
  constexpr int kEach = 25;
  Loop(/*jobs_max=*/20);
  Run();
  const std::vector<int32_t> prompt = Prompt(2 * kChunk + 5, 7);
  std::atomic<int> refused{0};
  std::vector<std::shared_ptr<Record>> records[kThreads];
  std::vector<std::thread> clients;
  for (int t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      std::mt19937 rng(t);
      for (int i = 0; i < kEach; ++i) {
        Request request = Ask(prompt);
        request.max_tokens = static_cast<int>(1 + rng() % 60);
        auto record = std::make_shared<Record>(1 + rng() % 80);
        const auto job = loop_->Submit(std::move(request), record);
        if (!job) {
          EXPECT_EQ(job.error().code, ErrorCode::kResourceExhausted);
          ++refused;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
          continue;
        }
        records[t].push_back(std::move(record));
        if (rng() % 3 == 0) loop_->Cancel(*job);
        if (rng() % 8 == 0) loop_->Cancel(rng() % 200);  // somebody's, or nobody's
      }
    });
  }
  for (std::thread& client : clients) client.join();
  StopAndJoin();
  Request request = Ask(prompt);
  request.max_tokens = 60;
  const std::vector<int32_t> whole = world_.Answer(std::move(request)).tokens;
  int answered = 0;
  for (const auto& mine : records) {
    for (const auto& record : mine) {
      ASSERT_TRUE(record->done);
      ASSERT_TRUE(record->result);
      EXPECT_EQ(record->tokens, record->result->tokens);
      ASSERT_LE(record->tokens.size(), whole.size());
      EXPECT_TRUE(std::equal(record->tokens.begin(), record->tokens.end(), whole.begin()));
      ++answered;
    }
  }
  EXPECT_EQ(answered + refused, kThreads * kEach);
  EXPECT_EQ(loop_->Stats().running, 0u);
  EXPECT_EQ(loop_->Stats().waiting, 0u);
}

}  // namespace
}  // namespace kvcake
