// Power cuts on a file system that loses and reorders what was not synced.
#include <gtest/gtest.h>

#include <algorithm>

#include "io/faulty_file_system.h"
#include "io/power_loss_file_system.h"
#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

struct Outcome {
  int reported = 0;  // said to be kept
  int lost = 0;      // of them, afterwards
  int bad = 0;       // refused by their checksums
};

constexpr const char* kHome = "/home";
constexpr int kLives = 4;  // and as many power cuts, of one store

DiskTierOptions Options(bool durable) {
  DiskTierOptions options;
  options.dir = std::string(kHome) + "/cache/store";
  options.layout = SmallLayout();
  options.root = Root();
  options.durable = durable;
  options.missing_ttl = Seconds(0);
  options.temporary_age_min = Seconds(0);
  options.quarantine_files_max = 1000;
  return options;
}

// Writes until the power goes, between two chunks, several times over one store. Every chunk that
// is called right afterwards is: ReadBack compares the bytes.
Outcome LivesAndCuts(uint64_t seed, bool durable) {
  PowerLossFileSystem fs(seed);
  EXPECT_TRUE(fs.MakeDirs(kHome));
  fs.LosePower(/*kept=*/1);  // the user's directory is there to stay; the rest is kvcake's to make
  Outcome outcome;
  std::mt19937_64 random(seed);
  std::vector<std::pair<ChunkKey, ChunkKey>> reported;
  for (int life = 0; life < kLives; ++life) {
    {
      auto tier = DiskTier::Open(Options(durable), fs).value();
      const auto chain = Chain(10, life);
      const size_t until = random() % chain.size();
      for (size_t i = 0; i < until; ++i) {
        if (PutChunk(*tier, SmallLayout(), chain[i], ParentOf(chain, i))) {
          reported.emplace_back(chain[i], ParentOf(chain, i));
        }
      }
    }
    fs.LosePower(0.25 * static_cast<double>(random() % 5));
    auto tier = DiskTier::Open(Options(durable), fs).value();
    for (auto it = reported.begin(); it != reported.end();) {
      const auto error = ReadBack(*tier, SmallLayout(), it->first, it->second);
      EXPECT_TRUE(!error || error == ErrorCode::kNotFound || error == ErrorCode::kCorrupt);
      ++outcome.reported;
      outcome.lost += error.has_value();
      outcome.bad += error == ErrorCode::kCorrupt;
      it = error ? reported.erase(it) : std::next(it);
    }
  }
  return outcome;
}

// Of the fault table in docs/operations.md: what was served wrong has failed the test.
void PrintRow(const char* what, const Outcome& all) {
  if (testing::Test::HasFailure()) return;
  std::printf("| %s | %d | 0 | %d of %d looked for | a restart |\n", what, 40 * kLives, all.lost,
              all.reported);
}

TEST(DiskTierPowerTest, WhatIsNotSyncedMayBeLostButIsNeverServedWrong) {
  Outcome all;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = LivesAndCuts(seed, /*durable=*/false);
    all.reported += outcome.reported;
    all.lost += outcome.lost;
    all.bad += outcome.bad;
  }
  EXPECT_GT(all.lost, 0) << "the cuts did nothing";
  EXPECT_GT(all.bad, 0) << "no file was torn";
  EXPECT_LT(all.lost, all.reported);
  PrintRow("power cut, without --durable", all);
}

TEST(DiskTierPowerTest, WhatADurableStoreReportedIsThereAfterwards) {
  Outcome all;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = LivesAndCuts(seed, /*durable=*/true);
    EXPECT_EQ(outcome.lost, 0) << "seed " << seed;
    all.reported += outcome.reported;
  }
  EXPECT_GT(all.reported, 200);
  PrintRow("power cut, with --durable", all);
}

// `kvcake store clear` beside a process that goes on writing: the directories are made anew.
TEST(DiskTierPowerTest, ADurableStoreThatWasClearedIsDurableStill) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    PowerLossFileSystem fs(seed);
    const auto chain = Chain(10);
    {
      auto tier = DiskTier::Open(Options(/*durable=*/true), fs).value();
      for (const bool clear : {true, false}) {
        for (size_t i = 0; i < chain.size(); ++i) {
          ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[i], ParentOf(chain, i)));
        }
        if (!clear) continue;
        ASSERT_TRUE(ClearStore(Options(true).dir, {}, fs));
      }
    }
    fs.LosePower(0.25 * static_cast<double>(seed % 4));
    auto tier = DiskTier::Open(Options(/*durable=*/true), fs).value();
    for (size_t i = 0; i < chain.size(); ++i) {
      EXPECT_EQ(ReadBack(*tier, SmallLayout(), chain[i], ParentOf(chain, i)), std::nullopt)
          << "seed " << seed;
    }
  }
}

// A chunk whose names cannot be synced is not reported as kept.
TEST(DiskTierPowerTest, WhatCannotBeSyncedIsNotReported) {
  PowerLossFileSystem inner(1);
  FaultyFileSystem fs(inner, 1);
  auto tier = DiskTier::Open(Options(/*durable=*/true), fs).value();
  const auto chain = Chain(2);
  fs.Set({.sync_error = 1});
  EXPECT_FALSE(PutChunk(*tier, SmallLayout(), chain[0], Root()));
  fs.Set({});
  EXPECT_TRUE(PutChunk(*tier, SmallLayout(), chain[0], Root()));
  fs.Set({.sync_error = 1});
  EXPECT_FALSE(PutChunk(*tier, SmallLayout(), chain[0], Root())) << "nor what is there already";
  EXPECT_FALSE(DiskTier::Open(Options(/*durable=*/true), fs) &&
               PutChunk(*tier, SmallLayout(), chain[1], chain[0]));
}

}  // namespace
}  // namespace kvcake
