// Power cuts on a file system that loses and reorders what was not synced.
#include <gtest/gtest.h>

#include <algorithm>

#include "io/faulty_file_system_testing.h"
#include "io/power_loss_file_system_testing.h"
#include "store/disk_tier.h"
#include "store/encoded_testing.h"
#include "store/rekey.h"
#include "store/store_dir.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

struct Outcome {
  int cuts = 0;
  int reported = 0;  // said to be kept
  int lost = 0;      // of them, afterwards
  int bad = 0;       // refused by their checksums

  Outcome& operator+=(const Outcome& more) {
    cuts += more.cuts;
    reported += more.reported;
    lost += more.lost;
    bad += more.bad;
    return *this;
  }
};

// A chunk and what it follows.
using Link = std::pair<ChunkKey, ChunkKey>;

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

// A store of raw chunks, or of encoded ones.
Result<std::unique_ptr<Tier>> OpenTier(bool durable, PowerLossFileSystem& fs, Codec codec) {
  DiskTierOptions options = Options(durable);
  if (codec == Codec::kRaw) return DiskTier::Open(std::move(options), fs);
  const StoreCodec natural = NaturalCodec(codec, options.layout);
  options = EncodedOptions(std::move(options), natural);
  ASSIGN_OR_RETURN(auto disk, DiskTier::Open(options, fs));
  return OverFiles(std::move(disk), options, natural);
}

// Starts again after a cut, and looks for what had been reported; what is lost is struck off. Every
// chunk that is called right is: ReadBack compares the bytes.
Outcome LookFor(std::vector<Link>& reported, bool durable, PowerLossFileSystem& fs,
                Codec codec = Codec::kRaw) {
  Outcome outcome;
  outcome.cuts = 1;
  auto tier = OpenTier(durable, fs, codec).value();
  for (auto it = reported.begin(); it != reported.end();) {
    const auto error = ReadBack(*tier, SmallLayout(), it->first, it->second);
    EXPECT_TRUE(!error || error == ErrorCode::kNotFound || error == ErrorCode::kCorrupt);
    ++outcome.reported;
    outcome.lost += error.has_value();
    outcome.bad += error == ErrorCode::kCorrupt;
    it = error ? reported.erase(it) : std::next(it);
  }
  return outcome;
}

void WriteChain(Tier& tier, const std::vector<ChunkKey>& chain, size_t begin, size_t end,
                std::vector<Link>& reported) {
  for (size_t i = begin; i < end; ++i) {
    const Link link{chain[i], ParentOf(chain, i)};
    if (PutChunk(tier, SmallLayout(), link.first, link.second)) reported.push_back(link);
  }
}

// The user's directory is there to stay; the rest is kvcake's to make.
void MakeHome(PowerLossFileSystem& fs) {
  ASSERT_TRUE(fs.MakeDirs(kHome));
  fs.LosePower(/*kept=*/1);
}

// Writes until the power goes, between two chunks, several times over one store.
Outcome LivesAndCuts(uint64_t seed, bool durable, Codec codec = Codec::kRaw) {
  PowerLossFileSystem fs(seed);
  MakeHome(fs);
  Outcome outcome;
  std::mt19937_64 random(seed);
  std::vector<Link> reported;
  for (int life = 0; life < kLives; ++life) {
    {
      auto tier = OpenTier(durable, fs, codec).value();
      const auto chain = Chain(10, life);
      WriteChain(*tier, chain, 0, random() % chain.size(), reported);
    }
    fs.LosePower(0.25 * static_cast<double>(random() % 5));
    outcome += LookFor(reported, durable, fs, codec);
  }
  return outcome;
}

// A life that starts, writes, evicts and writes again, cut after its call number `calls` that
// changes anything. Nothing when it ended before that.
std::optional<Outcome> CutAfter(uint64_t calls, bool durable) {
  PowerLossFileSystem fs(calls);
  MakeHome(fs);
  fs.CutAfter(calls);
  std::vector<Link> reported;
  if (auto tier = DiskTier::Open(Options(durable), fs)) {
    const auto chain = Chain(8);
    WriteChain(**tier, chain, 0, 5, reported);
    for (size_t i = 1; i < 4; i += 2) {
      std::erase_if(reported, [&](const Link& link) { return link.first == chain[i]; });
      (void)(*tier)->Evict(chain[i]);
    }
    WriteChain(**tier, chain, 1, chain.size(), reported);
  }
  if (!fs.cut()) return std::nullopt;
  fs.LosePower(0.25 * static_cast<double>(calls % 5));
  return LookFor(reported, durable, fs);
}

// Prints a row of the fault table in docs/operations.md: what was served wrong has failed the test.
void PrintRow(const char* what, const Outcome& all) {
  if (testing::Test::HasFailure()) return;
  std::printf("| %s | %d | 0 | %d of %d looked for | a restart |\n", what, all.cuts, all.lost,
              all.reported);
}

TEST(DiskTierPowerTest, WhatIsNotSyncedMayBeLostButIsNeverServedWrong) {
  Outcome all;
  for (uint64_t seed = 1; seed <= 40; ++seed) all += LivesAndCuts(seed, /*durable=*/false);
  EXPECT_GT(all.lost, 0) << "the cuts did nothing";
  EXPECT_GT(all.bad, 0) << "no file was torn";
  EXPECT_LT(all.lost, all.reported);
  PrintRow("power cut between writes, without --durable", all);
}

TEST(DiskTierPowerTest, WhatADurableStoreReportedIsThereAfterwards) {
  Outcome all;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = LivesAndCuts(seed, /*durable=*/true);
    EXPECT_EQ(outcome.lost, 0) << "seed " << seed;
    all += outcome;
  }
  EXPECT_GT(all.reported, 200);
  PrintRow("power cut between writes, with --durable", all);
}

// Files of any length are torn no better.
TEST(DiskTierPowerTest, NorAreEncodedChunksLostByADurableStoreOrServedWrong) {
  Outcome all, durable;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    all += LivesAndCuts(seed, /*durable=*/false, Codec::kLossless);
    durable += LivesAndCuts(seed, /*durable=*/true, Codec::kLossless);
  }
  EXPECT_GT(all.lost, 0) << "the cuts did nothing";
  EXPECT_GT(all.bad, 0) << "no file was torn";
  EXPECT_GT(durable.reported, 100);
  EXPECT_EQ(durable.lost, 0);
}

TEST(DiskTierPowerTest, ACutAfterAnyCallLosesNothingThatADurableStoreReported) {
  for (const bool durable : {false, true}) {
    Outcome all;
    uint64_t calls = 1;
    for (; calls < 10000; ++calls) {
      const auto outcome = CutAfter(calls, durable);
      if (!outcome) break;
      EXPECT_TRUE(!durable || outcome->lost == 0) << "after call " << calls;
      all += *outcome;
    }
    EXPECT_GT(all.cuts, 30) << "a life makes more calls than that";
    EXPECT_LT(calls, 10000u) << "it never ended";
    EXPECT_GT(all.reported, all.cuts);
    EXPECT_TRUE(durable || all.bad > 0) << "no file was torn";
    PrintRow(durable ? "power cut at any call, with --durable"
                     : "power cut at any call, without --durable",
             all);
  }
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

TEST(DiskTierPowerTest, ARekeyedChunkIsOnTheDeviceBeforeTheOldOneGoes) {
  const StoreCodec codec = NaturalCodec(Codec::kLossless, SmallLayout());
  const auto from = ATestsKey();
  const auto to =
      std::make_shared<const StoreKey>(StoreKey::Of(std::string(32, 'n'), "a new one").value());
  const auto chain = Chain(6);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    PowerLossFileSystem fs(seed);
    MakeHome(fs);
    const auto open = [&](const std::shared_ptr<const StoreKey>& key) {
      const DiskTierOptions options = EncodedOptions(Options(/*durable=*/true), codec, key.get());
      return OverNames(DiskTier::Open(options, fs).value(), Root(), options, codec, key);
    };
    for (size_t i = 0; i < chain.size(); ++i) {
      ASSERT_TRUE(PutChunk(*open(from), SmallLayout(), chain[i], ParentOf(chain, i)));
    }
    const auto rekeyed = RekeyStore(Options(true).dir, *from, *to, {.threads = 1}, fs);
    ASSERT_EQ(rekeyed->chunks, chain.size());
    fs.LosePower(/*kept=*/0.5);
    const auto old = open(from), now = open(to);
    for (size_t i = 0; i < chain.size(); ++i) {
      EXPECT_TRUE(!ReadBack(*now, SmallLayout(), chain[i], ParentOf(chain, i)) ||
                  !ReadBack(*old, SmallLayout(), chain[i], ParentOf(chain, i)))
          << "chunk " << i << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace kvcake
