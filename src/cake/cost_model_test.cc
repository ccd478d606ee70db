#include "cake/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

namespace kvcake {
namespace {

constexpr ComputeFit kTruth{.c0 = 2e-3, .g = 1e-7, .b = 80e-6, .a = 6e-9, .samples = 1};

void ExpectClose(const ComputeFit& fit, double share, const char* what) {
  for (int prefix : {0, 512, 2048, 8192, 16384}) {
    for (int tokens : {128, 256, 512}) {
      const double truth = kTruth.SecondsFor(prefix, tokens);
      EXPECT_NEAR(fit.SecondsFor(prefix, tokens) / truth, 1, share)
          << what << " at " << prefix << " for " << tokens;
    }
  }
}

TEST(ComputeCostTest, NothingIsKnownWithoutSamples) {
  ComputeCost cost;
  cost.Add(0, 0, Seconds(1));
  cost.Add(0, 128, Seconds(0));
  cost.Add(0, 128, Seconds(-1));
  EXPECT_FALSE(cost.fit().known());
  EXPECT_EQ(cost.fit().SecondsFor(0, 128), 0);
}

TEST(ComputeCostTest, OneSampleScalesWithTokensAndKnownAttention) {
  ComputeCost plain;
  plain.Add(0, 512, Seconds(0.5));
  EXPECT_NEAR(plain.fit().SecondsFor(0, 512), 0.5, 1e-3);
  EXPECT_NEAR(plain.fit().SecondsFor(0, 128), 0.125, 5e-3);

  ComputeCost attention({.attention_ratio = 1e-4});
  attention.Add(0, 512, Seconds(0.5));
  EXPECT_NEAR(attention.fit().SecondsFor(0, 512), 0.5, 1e-3);
  EXPECT_GT(attention.fit().SecondsFor(4096, 512), 0.7);
}

// What is known of slices of their own, for those that wait for whole steps.
TEST(ComputeCostTest, InStepsASliceTakesSoManyWholeOnesWhateverItsLength) {
  const ComputeFit fit = kTruth.InSteps(/*steps=*/2.5, /*step_tokens=*/512);
  for (const int prefix : {0, 1024, 8192}) {
    for (const int tokens : {1, 128}) {
      EXPECT_NEAR(fit.SecondsFor(prefix, tokens), 2.5 * kTruth.SecondsFor(prefix, 512), 1e-9);
    }
  }
}

TEST(ComputeCostTest, AMachineThatBecomesSlowerIsFollowedAfterTwoSlices) {
  ComputeCost cost;
  for (int i = 0; i < 20; ++i) cost.Add(0, 512, Seconds(0.1));
  cost.Add(0, 512, Seconds(0.2));
  EXPECT_NEAR(cost.fit().SecondsFor(0, 512), 0.1, 0.02) << "one may have been disturbed";
  cost.Add(0, 512, Seconds(0.2));
  EXPECT_NEAR(cost.fit().SecondsFor(0, 512), 0.2, 0.03);
}

TEST(ComputeCostTest, RecoversTheCurve) {
  ComputeCost cost;
  for (int prefix : {0, 512, 1024, 1536, 4096, 8192}) {
    for (int tokens : {128, 256, 512}) {
      cost.Add(prefix, tokens, Seconds(kTruth.SecondsFor(prefix, tokens)));
    }
  }
  ExpectClose(cost.fit(), 0.01, "exact");
  EXPECT_LT(cost.fit().noise, 0.01);
}

TEST(ComputeCostTest, NoiseOutliersAndAColdStartDoNotMoveItMuch) {
  for (int seed = 0; seed < 50; ++seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> noise(1, 0.05);
    ComputeCost cost;
    cost.Add(0, 512, Seconds(4 * kTruth.SecondsFor(0, 512)));
    for (int i = 0; i < 100; ++i) {
      const int prefix = static_cast<int>(rng() % 64) * 256;
      const int tokens = 128 * (1 + rng() % 4);
      const double slow = rng() % 12 == 0 ? 3 : 1;
      cost.Add(prefix, tokens, Seconds(kTruth.SecondsFor(prefix, tokens) * noise(rng) * slow));
    }
    const ComputeFit fit = cost.fit();
    ExpectClose(fit, 0.2, "noisy");
    EXPECT_GE(std::min({fit.c0, fit.g, fit.b, fit.a}), 0);
    EXPECT_GT(fit.noise, 0.01);
  }
}

// A program that stood still once, early: what it would take then is no reason never to try again.
TEST(ComputeCostTest, OneSliceThatTookFarTooLongIsNotBelievedTwoAre) {
  ComputeCost cost;
  cost.Add(0, 128, Seconds(6e-3));
  cost.Add(128, 512, Seconds(3.7));
  EXPECT_LT(cost.fit().SecondsFor(640, 512), 0.1);
  for (int i = 0; i < 5; ++i) cost.Add(0, 512, Seconds(10e-3));
  EXPECT_LT(cost.fit().SecondsFor(640, 512), 0.1);
  cost.Add(512, 512, Seconds(1));
  cost.Add(1024, 512, Seconds(1));
  EXPECT_GT(cost.fit().SecondsFor(1024, 512), 0.3);
  EXPECT_EQ(cost.fit().samples, 1 + 5 + 2) << "both count";
}

TEST(ComputeCostTest, FewSamplesAreSensible) {
  for (int n : {2, 3}) {
    ComputeCost cost;
    for (int i = 0; i < n; ++i) cost.Add(512 * i, 512, Seconds(kTruth.SecondsFor(512 * i, 512)));
    const double next = kTruth.SecondsFor(512 * n, 512);
    EXPECT_NEAR(cost.fit().SecondsFor(512 * n, 512) / next, 1, 0.2) << n;
  }
  ComputeCost cold;  // twice as slow the first time
  cold.Add(0, 512, Seconds(2 * kTruth.SecondsFor(0, 512)));
  cold.Add(512, 512, Seconds(kTruth.SecondsFor(512, 512)));
  EXPECT_NEAR(cold.fit().SecondsFor(1024, 512) / kTruth.SecondsFor(1024, 512), 1, 0.35);
}

TEST(ComputeCostTest, FollowsAMachineThatChanges) {
  ComputeCost cost({.window = 64});
  for (const double factor : {1.0, 2.0}) {
    for (int i = 0; i < 200; ++i) {
      const int prefix = (i % 16) * 512, tokens = 128 * (1 + i % 4);
      cost.Add(prefix, tokens, Seconds(factor * kTruth.SecondsFor(prefix, tokens)));
    }
    EXPECT_NEAR(cost.fit().SecondsFor(2048, 512) / kTruth.SecondsFor(2048, 512), factor, 0.05);
  }
}

TEST(ComputeCostTest, SurvivesJsonAndRefusesWhatIsNotItsOwn) {
  ComputeCost cost, copy;
  for (int i = 0; i < 9; ++i) cost.Add(512 * i, 512, Seconds(kTruth.SecondsFor(512 * i, 512)));
  copy.Add(0, 512, Seconds(1));  // is replaced
  ASSERT_TRUE(copy.FromJson(nlohmann::json::parse(cost.ToJson().dump())));
  EXPECT_NEAR(copy.fit().SecondsFor(1000, 300) / cost.fit().SecondsFor(1000, 300), 1, 0.01);
  for (const char* bad :
       {"3", "{}", R"({"version":2,"samples":[]})", R"({"version":1})",
        R"({"version":1,"samples":[[0,512]]})", R"({"version":1,"samples":[[0,512,"x"]]})",
        R"({"version":1,"samples":[[0,512,-1]]})", R"({"version":1,"samples":[[0,512,1e-300]]})",
        R"({"version":1,"samples":[[0,512,1e300]]})"}) {
    EXPECT_FALSE(copy.FromJson(nlohmann::json::parse(bad))) << bad;
  }
  EXPECT_EQ(copy.fit().samples, 9);
  ComputeCost shorter({.window = 4});
  ASSERT_TRUE(shorter.FromJson(cost.ToJson()));
  EXPECT_EQ(shorter.fit().samples, 4) << "the newest";
}

// A link that serves in order: `fixed` before the first of a burst, then `interval` each.
void Burst(TierCost& cost, TimePoint& now, int reads, double fixed, double interval, int depth) {
  int issued = 0;
  for (; issued < std::min(reads, depth); ++issued) cost.OnStart(now);
  now += Seconds(fixed);
  for (int done = 0; done < reads; ++done) {
    now += Seconds(interval);
    cost.OnDone(now, 1000);
    if (issued < reads) cost.OnStart(now), ++issued;
  }
  now += Seconds(1);
}

// What somebody else has written may be that a slice at a prompt's beginning takes nothing.
TEST(ComputeCostTest, StaysFiniteWhateverAFileSays) {
  ComputeCost cost;
  ASSERT_TRUE(cost.FromJson(nlohmann::json::parse(R"({"version": 1, "samples": [
      [1000, 128, 1e-6], [10000, 128, 1e3], [2000, 128, 10], [2500, 128, 5e4], [7000, 128, 4e-5],
      [9700, 128, 0.1]]})")));
  ASSERT_EQ(cost.fit().SecondsFor(0, 128), 0);
  for (int i = 0; i < 8; ++i) {
    cost.Add(0, 128, Seconds(1e-3));
    EXPECT_TRUE(std::isfinite(cost.fit().SecondsFor(4096, 512))) << i;
  }
}

TEST(TierCostTest, SeparatesTheRateFromTheFixedCost) {
  TierCost cost;
  EXPECT_FALSE(cost.estimate().known);
  TimePoint now{};
  for (int i = 0; i < 4; ++i) Burst(cost, now, 20, 5e-3, 10e-3, 4);
  EXPECT_NEAR(cost.estimate().IntervalFor(1000), 10e-3, 1e-4);
  EXPECT_NEAR(cost.estimate().fixed_s, 5e-3, 1e-4);
}

TEST(TierCostTest, QueuedReadsShareTheLink) {
  TierCost cost;
  TimePoint now{};
  // Four at once finish together: each took 40 ms, the link 10 ms.
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 4; ++i) cost.OnStart(now);
    now += Seconds(40e-3);
    for (int i = 0; i < 4; ++i) {
      if (i < 3 || round == 9) {
        cost.OnDone(now, 1000);
      } else {
        cost.OnStart(now);  // stays busy
        cost.OnDone(now, 1000);
        cost.OnDone(now, 0);
      }
    }
  }
  EXPECT_GT(cost.estimate().IntervalFor(1000) + cost.estimate().fixed_s, 9e-3);
  EXPECT_LT(cost.estimate().IntervalFor(1000), 15e-3);
}

// A link that has become another: a few reads tell, however many came before. One alone does not.
TEST(TierCostTest, FollowsALinkThatChanges) {
  TierCost cost;
  TimePoint now{};
  for (int i = 0; i < 4; ++i) Burst(cost, now, 20, 5e-3, 10e-3, 4);
  for (int i = 0; i < 4; ++i) cost.OnStart(now);
  now += Seconds(85e-3);
  cost.OnDone(now, 1000);
  now += Seconds(80e-3);
  cost.OnDone(now, 1000);
  EXPECT_LT(cost.estimate().IntervalFor(1000), 25e-3);
  for (int i = 0; i < 2; ++i) {
    now += Seconds(80e-3);
    cost.OnDone(now, 1000);
  }
  EXPECT_GT(cost.estimate().IntervalFor(1000), 50e-3);
  EXPECT_LT(cost.estimate().IntervalFor(1000), 80e-3);
}

// One that has become faster shows it where a read has it for itself: what is left of an old first
// read is not taken for a fixed cost.
TEST(TierCostTest, FollowsALinkThatBecomesFaster) {
  TierCost cost;
  TimePoint now{};
  for (int i = 0; i < 4; ++i) Burst(cost, now, 20, 0, 160e-3, 4);
  Burst(cost, now, 4, 0, 10e-3, 4);
  Burst(cost, now, 4, 0, 10e-3, 4);
  EXPECT_NEAR(cost.estimate().IntervalFor(1000), 10e-3, 1e-4);
  EXPECT_NEAR(cost.estimate().fixed_s, 0, 1e-4);
}

// A token bucket has saved up some bytes whenever nobody has loaded for a while.
TEST(TierCostTest, ALinkThatLetsABurstPassIsAsFastAsItsGaps) {
  TierCost cost;
  TimePoint now{};
  for (int i = 0; i < 4; ++i) {
    Burst(cost, now, 20, -3e-3, 10e-3, 4);
    EXPECT_NEAR(cost.estimate().IntervalFor(1000), 10e-3, 0.3e-3) << i;
  }
  Burst(cost, now, 1, -3e-3, 10e-3, 1);
  EXPECT_NEAR(cost.estimate().IntervalFor(1000), 10e-3, 0.3e-3) << "as the next prompt begins";
}

TEST(TierCostTest, TheFirstReadAloneIsNotOverestimated) {
  TierCost cost;
  TimePoint now{};
  Burst(cost, now, 1, 5e-3, 10e-3, 1);
  EXPECT_NEAR(cost.estimate().IntervalFor(1000), 15e-3, 1e-6);
  EXPECT_EQ(cost.estimate().fixed_s, 0);
}

TEST(TierCostTest, ReadsThatCompleteTogetherAreOneSample) {
  TierCost cost;
  TimePoint now{};
  for (int i = 0; i < 32; ++i) cost.OnStart(now);
  const auto complete = [&](double after_s) {
    now += Seconds(after_s);
    cost.OnStart(now);
    cost.OnDone(now, 1000);
  };
  for (int batch = 0; batch < 8; ++batch) {
    complete(15e-3);
    // Where the first of a batch has come and the others follow at once, and where they have.
    if (batch >= 4) {
      EXPECT_NEAR(cost.estimate().IntervalFor(1000), 1e-3, 0.5e-3) << batch;
    }
    for (int i = 1; i < 16; ++i) complete(0.05e-3);
    if (batch >= 4) {
      EXPECT_NEAR(cost.estimate().IntervalFor(1000), 1e-3, 0.1e-3) << batch;
    }
  }
}

TEST(TierCostTest, LearnsWhatLanesCostEachOtherAndForgetsSlowly) {
  TierCost cost;
  EXPECT_EQ(cost.estimate().beside_s, 0);
  cost.AddBeside(5e-3, 0);
  EXPECT_EQ(cost.estimate().beside_s, 0) << "nothing came beside a slice";
  cost.AddBeside(5e-3, 20);
  const double once = cost.estimate().beside_s;
  EXPECT_GT(once, 0);
  EXPECT_LT(once, 5e-3 / 20);
  cost.AddBeside(5e-3, 20);
  EXPECT_GT(cost.estimate().beside_s, once) << "later than planned even so";
  cost.AddBeside(-1e-3, 20);
  EXPECT_LT(cost.estimate().beside_s, 2 * once);
  const double before = cost.estimate().beside_s;
  cost.AddBeside(100, 1);
  EXPECT_EQ(cost.estimate().beside_s, before) << "a link that stopped is not the lanes' doing";
  for (int i = 0; i < 20; ++i) cost.AddBeside(50e-3, 1);
  const double most = cost.estimate().beside_s;
  EXPECT_EQ(most, 1e-3);
  cost.ForgetBeside();
  EXPECT_LT(cost.estimate().beside_s, most);
  EXPECT_GT(cost.estimate().beside_s, most / 2);
  for (int i = 0; i < 20; ++i) cost.AddBeside(-100, 1);
  EXPECT_EQ(cost.estimate().beside_s, 0);
}

TEST(TierCostTest, MissesTeachNothing) {
  TierCost cost;
  TimePoint now{};
  cost.OnStart(now);
  cost.OnDone(now + Seconds(1), 0);
  EXPECT_FALSE(cost.estimate().known);
  EXPECT_EQ(cost.in_flight(), 0);
}

// Nothing is expected of a cancelled read, however long it lingers.
TEST(TierCostTest, ALingeringCancelledReadDoesNotMakeAnIdleTierBusy) {
  TierCost cost;
  TimePoint now{};
  for (int i = 0; i < 4; ++i) Burst(cost, now, 20, 5e-3, 10e-3, 4);
  const TierEstimate before = cost.estimate();
  cost.OnStart(now);
  cost.OnCancel();
  EXPECT_EQ(cost.in_flight(), 0);
  now += Seconds(60);
  Burst(cost, now, 20, 5e-3, 10e-3, 4);
  cost.OnLate(now, 0);
  cost.OnStart(now);
  cost.OnCancel();
  now += Seconds(60);
  cost.OnLate(now, 1000);
  EXPECT_NEAR(cost.estimate().IntervalFor(1000), before.IntervalFor(1000), 1e-4);
  EXPECT_NEAR(cost.estimate().fixed_s, before.fixed_s, 1e-4);
  EXPECT_EQ(cost.in_flight(), 0);
}

// A late read that delivers has had the link: the one behind it is not slower for that.
TEST(TierCostTest, ALateDeliveryIsNotTheNextReadsTime) {
  TierCost cost;
  TimePoint now{};
  for (int i = 0; i < 4; ++i) Burst(cost, now, 20, 5e-3, 10e-3, 4);
  cost.OnStart(now);
  cost.OnCancel();
  cost.OnStart(now);
  now += Seconds(1);
  cost.OnLate(now, 1000);
  now += Seconds(10e-3);
  cost.OnDone(now, 1000);
  EXPECT_NEAR(cost.estimate().IntervalFor(1000), 10e-3, 1e-4);
  EXPECT_NEAR(cost.estimate().fixed_s, 5e-3, 1e-4);
}

TEST(TierCostTest, WhatComesTogetherIsKeptAsReadsOfTheirSize) {
  TierCost cost;
  const TimePoint start{};
  for (int i = 0; i < 4; ++i) cost.OnStart(start);
  cost.OnDone(start + Seconds(1), 1000);
  for (int i = 0; i < 3; ++i) cost.OnDone(start + Seconds(2), 1000);
  EXPECT_EQ(cost.ToJson().at("read_bytes").get<double>(), 1000);
}

TEST(TierCostTest, FailuresDoNotBreakTheSilence) {
  TierCost cost;
  const TimePoint start{};
  cost.OnStart(start);
  cost.OnDone(start + Seconds(1), 0);
  cost.OnStart(start + Seconds(2));
  EXPECT_EQ(cost.silent_since(), start);
  cost.OnDone(start + Seconds(3), 1000);
  cost.OnStart(start + Seconds(9));
  EXPECT_EQ(cost.silent_since(), start + Seconds(9));
  cost.OnStart(start + Seconds(10));
  cost.OnCancel();
  cost.OnLate(start + Seconds(11), 0);
  EXPECT_EQ(cost.silent_since(), start + Seconds(9)) << "nor do ends without one";
}

TEST(TierCostTest, TheSilenceOfReadsThatAreLeftBeginsWithTheLastDelivery) {
  TierCost cost;
  const TimePoint start{};
  for (int i = 0; i < 4; ++i) cost.OnStart(start);
  cost.OnDone(start + Seconds(1), 1000);
  cost.OnDone(start + Seconds(4), 0);
  EXPECT_EQ(cost.silent_since(), start + Seconds(1));
  cost.OnCancel();
  cost.OnLate(start + Seconds(6), 1000);
  cost.OnDone(start + Seconds(9), 0);
  EXPECT_EQ(cost.silent_since(), start + Seconds(6)) << "what is late was delivered, too";
}

TEST(TierCostTest, WhateverItLearntCanBeReadAgain) {
  for (int seed = 0; seed < 500; ++seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<double> uniform(0, 1);
    TierCost cost, copy;
    TimePoint now{};
    for (int burst = 0; burst < 6; ++burst) {
      const double fixed_s = std::max(0.0, uniform(rng) - 0.5), interval_s = 0.1 * uniform(rng);
      Burst(cost, now, 1 + static_cast<int>(rng() % 4), fixed_s, interval_s, 4);
      const nlohmann::json json = nlohmann::json::parse(cost.ToJson().dump());
      EXPECT_TRUE(copy.FromJson(json)) << seed << ": " << json;
    }
  }
}

TEST(TierCostTest, LearnsWhatDecodingTakesOfACore) {
  TierCost cost;
  cost.AddCore(0);
  EXPECT_EQ(cost.estimate().core_s, 0) << "raw chunks take none";
  cost.AddCore(10e-3);
  EXPECT_EQ(cost.estimate().core_s, 10e-3);
  for (int i = 0; i < 30; ++i) cost.AddCore(2e-3);
  EXPECT_NEAR(cost.estimate().core_s, 2e-3, 1e-4);
  cost.AddCore(-1);
  cost.AddCore(1e9);
  EXPECT_NEAR(cost.estimate().core_s, 2e-3, 1e-4) << "what cannot be";
}

// Each process measures one read, as where what was kept makes it load nothing.
TEST(TierCostTest, WhatWasKeptOfABadMomentIsOutweighedByOneRead) {
  const auto estimate_after = [](nlohmann::json kept) {
    TierCost cost;
    EXPECT_TRUE(cost.FromJson(kept));
    TimePoint now{};
    Burst(cost, now, 1, 1e-3, 0, 1);
    return cost.estimate();
  };
  const nlohmann::json good = {
      {"version", 1}, {"fixed_s", 1e-3}, {"bytes_per_s", 1e7}, {"read_bytes", 1000}};
  nlohmann::json slow = good;
  slow["fixed_s"] = 1.0;
  EXPECT_LT(estimate_after(slow).fixed_s, 2e-3);
  EXPECT_NEAR(estimate_after(slow).bytes_per_s, 1e7, 1) << "of which one read tells nothing";
  slow["bytes_per_s"] = 1e3;
  EXPECT_LT(estimate_after(slow).fixed_s, 2e-3);
  EXPECT_LT(estimate_after(slow).IntervalFor(1000), 2e-3);
  EXPECT_NEAR(estimate_after(good).fixed_s, 1e-3, 2e-4);
  EXPECT_NEAR(estimate_after(good).bytes_per_s, 1e7, 1);
  nlohmann::json fast = good;
  fast["fixed_s"] = 1e-5;
  EXPECT_GT(estimate_after(fast).fixed_s, 1e-4) << "and a slow one counts as any";
}

TEST(TierCostTest, SurvivesJson) {
  TierCost cost, copy;
  ASSERT_TRUE(copy.FromJson(cost.ToJson()));
  EXPECT_FALSE(copy.estimate().known);
  TimePoint now{};
  Burst(cost, now, 40, 5e-3, 10e-3, 4);
  cost.AddBeside(5e-3, 20);
  cost.AddCore(4e-3);
  ASSERT_TRUE(copy.FromJson(nlohmann::json::parse(cost.ToJson().dump())));
  EXPECT_NEAR(copy.estimate().beside_s / cost.estimate().beside_s, 1, 1e-6);
  EXPECT_NEAR(copy.estimate().core_s, 4e-3, 1e-9);
  EXPECT_NEAR(copy.estimate().fixed_s, cost.estimate().fixed_s, 1e-6);
  EXPECT_NEAR(copy.estimate().bytes_per_s / cost.estimate().bytes_per_s, 1, 1e-6);
  for (const char* bad : {"[]", "{}", R"({"version":1,"bytes_per_s":0})",
                          R"({"version":1,"fixed_s":-1,"bytes_per_s":1,"read_bytes":1})",
                          R"({"version":1,"fixed_s":0,"bytes_per_s":1e300,"read_bytes":1})",
                          R"({"version":1,"fixed_s":0,"bytes_per_s":1,"read_bytes":1,
                              "beside_s":1})",
                          R"({"version":1,"fixed_s":0,"bytes_per_s":1,"read_bytes":1,
                              "core_s":1e300})",
                          R"({"version":1,"fixed_s":0,"bytes_per_s":1e-300,"read_bytes":1})",
                          R"({"version":1,"fixed_s":1e300,"bytes_per_s":1,"read_bytes":1})"}) {
    EXPECT_FALSE(copy.FromJson(nlohmann::json::parse(bad))) << bad;
  }
}

}  // namespace
}  // namespace kvcake
