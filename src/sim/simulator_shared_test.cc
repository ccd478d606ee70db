// Several restorations at once, in simulated time.
#include <gtest/gtest.h>

#include <algorithm>

#include "sim/simulator_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

struct Crowd {
  SimOptions options = Checked();
  std::vector<int> prompts;  // their chunks
  std::vector<double> arrivals = {};

  std::vector<SimOutcome> Run(LoadOrder order) const {
    SimOptions with = options;
    with.pages = 4096;
    with.restorer.load_order = order;
    Simulator sim(with);
    sim.Train();
    std::vector<SimRequest> requests;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const int document = static_cast<int>(i) + 1;
      for (const ChunkKey& key : sim.Keys(document, prompts[i])) sim.tier(0).Hold(key);
      requests.push_back({.restore = sim.Request(document, prompts[i], Policy::kCake),
                          .at_s = arrivals.empty() ? 0 : arrivals[i],
                          .cancel_s = {}});
    }
    return sim.Run(requests);
  }
};

double Mean(const std::vector<SimOutcome>& outcomes) {
  double sum = 0;
  for (const SimOutcome& o : outcomes) sum += o.seconds;
  return sum / static_cast<double>(outcomes.size());
}

TEST(SimulatorSharedTest, TimeCountsFromTheArrivalInTheMiddleOfAStep) {
  SimOptions options = Checked();
  options.compute = {.b = 0.1 / 512, .samples = 1};
  Simulator sim(options);
  SimRequest first{.restore = sim.Request(1, 4, Policy::kCompute), .cancel_s = {}};
  SimRequest second{.restore = sim.Request(2, 4, Policy::kCompute), .at_s = 0.04, .cancel_s = {}};
  const auto outcomes = sim.Run({first, second});
  EXPECT_NEAR(outcomes[0].seconds, 0.1, 1e-9);
  EXPECT_NEAR(outcomes[1].seconds, 0.2 - 0.04, 1e-9) << "a step of each, one after the other";
}

TEST(SimulatorSharedTest, ALongOneDoesNotHoldUpTenShortOnes) {
  Crowd crowd;
  crowd.options.compute = {.c0 = 1e-3, .b = 1e-4, .a = 1e-9, .samples = 1};
  crowd.options.tiers = {{.chunk_s = 5e-3}};
  crowd.prompts = {128};
  crowd.arrivals = {0};
  for (int i = 0; i < 10; ++i) {
    crowd.prompts.push_back(4);
    crowd.arrivals.push_back(0.05 + 0.01 * i);
  }
  const auto shorts = [](std::vector<SimOutcome> outcomes) {
    outcomes.erase(outcomes.begin());
    return Mean(outcomes);
  };
  const auto srpt = crowd.Run(LoadOrder::kSrpt);
  const auto fair = crowd.Run(LoadOrder::kFair);
  const auto fifo = crowd.Run(LoadOrder::kFifo);
  EXPECT_LT(shorts(srpt), shorts(fair));
  EXPECT_LT(shorts(srpt), shorts(fifo));
  EXPECT_LT(srpt[0].seconds, 1.1 * fifo[0].seconds + 10 * 4 * 5e-3) << "what it has given up";
}

// Tests have it look at the Restorer (Checked); the product does without.
TEST(SimulatorSharedTest, TheCheckIsCalledAtEveryEvent) {
  for (const bool checked : {true, false}) {
    int calls = 0;
    SimOptions options{.compute = {.b = 1e-4, .samples = 1}, .tiers = {{.chunk_s = 10e-3}}};
    Simulator* looked_at = nullptr;
    if (checked) {
      options.check = [&](const Restorer& restorer) {
        calls += &restorer == &looked_at->restorer();
      };
    }
    Simulator sim(options);
    looked_at = &sim;
    for (const ChunkKey& key : sim.Keys(1, 40)) sim.tier(0).Hold(key);
    ASSERT_TRUE(sim.Run({{.restore = sim.Request(1, 40, Policy::kLoad), .cancel_s = {}}})[0].done);
    EXPECT_GE(calls, checked ? 80 : 0) << "the end of each read is one, and the turn after it";
    EXPECT_EQ(calls > 0, checked);
  }
}

// Conversations that begin alike are not one document: they wait for each other's loads, and the
// planner of each must know.
TEST(SimulatorSharedTest, ACommonBeginningChangesLittle) {
  const auto run = [](bool common) {
    SimOptions options = Checked();
    options.compute = {.c0 = 1e-3, .b = 8e-5, .a = 1e-9, .samples = 1};
    options.tiers = {{.chunk_s = 10e-3}};
    options.pages = 1024;
    Simulator sim(options);
    sim.Train();
    std::vector<SimRequest> requests;
    for (int d = 1; d <= 6; ++d) {
      RestoreRequest restore = sim.Request(d, 40, Policy::kCake);
      std::vector<int32_t> tokens(40, d);
      if (common) tokens[0] = 1000;
      restore.keys = ChunkKeys(ChunkKey{}, tokens, 1);
      for (const ChunkKey& key : restore.keys) sim.tier(0).Hold(key);
      requests.push_back({.restore = std::move(restore), .at_s = 0, .cancel_s = {}});
    }
    double last = 0;
    for (const SimOutcome& o : sim.Run(requests)) last = std::max(last, o.seconds);
    return last;
  };
  EXPECT_LE(run(/*common=*/true), 1.01 * run(/*common=*/false));
}

// A link that newcomers alone would keep busy for ever.
TEST(SimulatorSharedTest, NobodyStarves) {
  Crowd crowd;
  crowd.options.compute = {.c0 = 1, .b = 1e-1, .samples = 1};  // of no help
  crowd.options.tiers = {{.chunk_s = 10e-3}};
  const int chunks = 50;
  crowd.prompts = {chunks};
  crowd.arrivals = {0};
  for (int i = 0; i < 400; ++i) {
    crowd.prompts.push_back(2);
    crowd.arrivals.push_back(i * 0.02);
  }
  const auto outcomes = crowd.Run(LoadOrder::kSrpt);
  const double alone_s = chunks * 10e-3;
  const double aging = crowd.options.restorer.load_aging;
  EXPECT_GT(outcomes[0].seconds, 2 * alone_s) << "the link is wanted by others";
  EXPECT_LE(outcomes[0].seconds, alone_s / aging + alone_s + 4 * 10e-3);
}

}  // namespace
}  // namespace kvcake
