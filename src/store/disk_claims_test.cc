// Claims of chunks in one directory: what a process that is killed or hangs, a clock that is wrong,
// a file that is not one, and a device that does not answer do to them.
#include "store/disk_claims.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "io/faulty_file_system_testing.h"
#include "store/disk_testing.h"
#include "store/disk_tier.h"
#include "store/encoded_testing.h"
#include "store/store_dir.h"
#include "store/store_tools.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

class DiskClaimsTest : public testing::Test {
 protected:
  using enum ClaimState;

  DiskClaimsTest() {
    options_.dir = dir_.path();
    options_.layout = SmallLayout();
    options_.root = Root();
  }
  std::unique_ptr<DiskTier> Open(FileSystem& fs = FileSystem::Real()) {
    return DiskTier::Open(options_, fs).value();
  }
  std::string PathOf(const ChunkKey& key) const { return StoreDir(dir_.path()).ClaimPath(key); }
  size_t Files() const {
    std::error_code none;
    const stdfs::directory_iterator files(StoreDir(dir_.path()).ClaimsDir(), none);
    return none ? 0 : static_cast<size_t>(std::distance(begin(files), end(files)));
  }
  // A process that has claimed chain_[0], and does nothing any more. Before any tier is open here:
  // a fork takes no threads along.
  pid_t Claimer() {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      const auto tier = Open();
      const bool mine = ClaimKey(*tier, chain_[0]) == kMine;
      if (mine) std::ofstream(signals_.path() + "/claimed");
      while (mine) pause();
      _exit(1);
    }
    CHECK(Eventually([&] { return stdfs::exists(signals_.path() + "/claimed"); }));
    return child;
  }

  // Has chain_[0] for long, which another has and this one has seen before.
  void TakeExpired(Tier& tier) {
    EXPECT_EQ(ClaimKey(tier, chain_[0], Seconds(0)), kMine);
    EXPECT_EQ(ClaimKey(tier, chain_[0]), kMine);
  }

  TempDir dir_, signals_;
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(12);
};

TEST_F(DiskClaimsTest, AProcessThatIsKilledHasClaimedNothing) {
  const pid_t child = Claimer();
  const auto tier = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kTheirs);
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kMine) << "at once, by whatever clock";
}

TEST_F(DiskClaimsTest, AClaimOfAProcessThatHangsExpires) {
  const pid_t child = Claimer();
  ASSERT_EQ(kill(child, SIGSTOP), 0);
  {
    const auto tier = Open();
    EXPECT_EQ(ClaimKey(*tier, chain_[0]), kTheirs);
    EXPECT_EQ(ClaimKey(*tier, chain_[0]), kTheirs) << "it has not been seen for long";
    TakeExpired(*tier);
    const auto third = Open();
    EXPECT_EQ(ClaimKey(*third, chain_[0]), kTheirs) << "it is the second's now";
  }
  ASSERT_EQ(kill(child, SIGKILL), 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(DiskClaimsTest, WhoseClaimWasTakenLeavesTheNewOneAlone) {
  const auto slow = Open(), quick = Open(), third = Open();
  EXPECT_EQ(ClaimKey(*slow, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*quick, chain_[0], Seconds(0)), kTheirs) << "seen for the first time";
  TakeExpired(*quick);
  slow->Disclaim(std::vector{chain_[0]});
  EXPECT_EQ(ClaimKey(*slow, chain_[1]), kMine);  // so the other has ended
  EXPECT_EQ(ClaimKey(*third, chain_[0]), kTheirs);
}

// The second would remove the first one's new file.
TEST_F(DiskClaimsTest, OfTwoWhoFindAClaimExpiredAtOnceOneHasIt) {
  for (const bool late : {false, true}) {
    const ChunkKey key = chain_[late];
    const auto hung = Open(), first = Open();
    HookedFileSystem fs;
    std::atomic<bool> armed = false;  // claims of no time at all end on a thread of their own
    ClaimState firsts = kNone;
    const auto overtake = [&](const std::string& path, const std::string& at) {
      if (path != at || !armed.exchange(false)) return;
      (void)ClaimKey(*first, key, Seconds(0));
      firsts = ClaimKey(*first, key);
    };
    if (late) {
      fs.before_remove = [&](const std::string& path) { overtake(path, PathOf(key)); };
    } else {
      fs.before_lock = [&](const std::string& path) {
        overtake(path, StoreDir(dir_.path()).LockPath());
      };
    }
    const auto second = Open(fs), third = Open();
    EXPECT_EQ(ClaimKey(*hung, key), kMine);
    for (const auto* tier : {&first, &second}) {
      EXPECT_EQ(ClaimKey(**tier, key, Seconds(0)), kTheirs) << "seen for the first time";
    }
    armed = true;
    (void)ClaimKey(*second, key, Seconds(0));
    EXPECT_FALSE(armed);
    const ClaimState seconds = ClaimKey(*second, key);
    EXPECT_EQ(firsts, late ? kTheirs : kMine);
    EXPECT_EQ(seconds, late ? kMine : kTheirs);
    EXPECT_EQ(ClaimKey(*third, key), kTheirs);
  }
}

TEST_F(DiskClaimsTest, AClaimThatItsOwnerEndsAsItIsTakenForExpiredIsTheNext) {
  auto slow = Open();
  HookedFileSystem fs;
  std::atomic<bool> ended = false;  // claims of no time at all end on a thread of their own
  fs.before_remove = [&](const std::string& path) {
    if (path == PathOf(chain_[0]) && !ended.exchange(true)) slow.reset();
  };
  const auto quick = Open(fs);
  EXPECT_EQ(ClaimKey(*slow, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*quick, chain_[0], Seconds(0)), kTheirs) << "seen for the first time";
  EXPECT_EQ(ClaimKey(*quick, chain_[0], Seconds(0)), kMine);
  EXPECT_TRUE(ended);
  EXPECT_EQ(ClaimKey(*quick, chain_[1]), kMine) << "nothing has failed";
}

TEST_F(DiskClaimsTest, AClaimThatHasExpiredIsTakenWhenNobodyElseIsAtIt) {
  const auto hung = Open(), tier = Open();
  EXPECT_EQ(ClaimKey(*hung, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(0)), kTheirs) << "seen for the first time";
  auto lock = FileSystem::Real().TryLock(StoreDir(dir_.path()).LockPath()).value();
  ASSERT_TRUE(lock);
  EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(0)), kTheirs);
  lock.reset();
  TakeExpired(*tier);
}

// A claim that is made again looks new to those who have seen it, and the times of files are
// compared for being the same, never with a clock.
TEST_F(DiskClaimsTest, ClocksThatAreWrongChangeNothing) {
  const auto tier = Open(), other = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  for (const int64_t skewed_s : {int64_t{1}, UnixSeconds() + 1000000, UnixSeconds() - 1000000}) {
    ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[0]), skewed_s));
    EXPECT_EQ(ClaimKey(*other, chain_[0]), kTheirs);
    EXPECT_EQ(ClaimKey(*other, chain_[0]), kTheirs);
  }
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[0]), 2));
  EXPECT_EQ(ClaimKey(*other, chain_[0], Seconds(0)), kTheirs) << "another than the last one seen";
  EXPECT_EQ(ClaimKey(*other, chain_[0], Seconds(0)), kMine);
}

TEST_F(DiskClaimsTest, AClaimEndsByItselfAndLeavesNothing) {
  const auto tier = Open(), other = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(0.02)), kMine);
  EXPECT_TRUE(Eventually([&] { return Files() == 0; }));
  EXPECT_EQ(ClaimKey(*other, chain_[0]), kMine);
}

TEST_F(DiskClaimsTest, AClaimEndsWithItsTierAndLeavesNothing) {
  ASSERT_EQ(ClaimKey(*Open(), chain_[0]), kMine);
  EXPECT_EQ(Files(), 0u);
}

TEST_F(DiskClaimsTest, AClaimEndsWhenItsChunkIsFoundKept) {
  const auto tier = Open(), other = Open();
  ASSERT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  ASSERT_TRUE(PutChunk(*other, options_.layout, chain_[0], Root()));
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kStored);
  EXPECT_EQ(Files(), 0u);
}

TEST_F(DiskClaimsTest, WhatIsKeptAfterItWasLookedForIsNotClaimed) {
  HookedFileSystem fs;
  const auto tier = Open(fs), other = Open();
  fs.before_lock = [&](const std::string& path) {
    if (path != PathOf(chain_[0])) return;
    EXPECT_TRUE(PutChunk(*other, options_.layout, chain_[0], Root()));
  };
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kStored);
  EXPECT_EQ(Files(), 0u);
}

// With the old time it would be the dead process's still, to who has seen that for long.
TEST_F(DiskClaimsTest, AClaimInAFileThatWasLeftIsAnother) {
  const auto tier = Open();
  stdfs::create_directories(StoreDir(dir_.path()).ClaimsDir());
  std::ofstream(PathOf(chain_[0])) << "";
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[0]), 1000000));
  ASSERT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  EXPECT_GT(FileSystem::Real().Stat(PathOf(chain_[0]))->mtime_s, 1000000);
}

TEST_F(DiskClaimsTest, AClaimEndsWithItsPutEvenIfThatFails) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  const auto tier = Open(fs), other = Open();
  EXPECT_EQ(*ClaimKeys(*tier, {chain_[0], chain_[1]}), (std::vector{kMine, kMine}));
  ASSERT_TRUE(PutChunk(*tier, options_.layout, chain_[0], Root()));
  EXPECT_TRUE(Eventually([&] { return Files() == 1; }));
  fs.Set({.change_error = 1});
  EXPECT_FALSE(PutChunk(*tier, options_.layout, chain_[1], chain_[0]));
  EXPECT_TRUE(Eventually([&] { return ClaimKey(*other, chain_[1]) == kMine; }));
}

TEST_F(DiskClaimsTest, AClaimThatWasMadeAgainEndsByItself) {
  const auto tier = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(0.02)), kMine);
  EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(0.2)), kMine);
  EXPECT_TRUE(Eventually([&] { return Files() == 0; })) << "though nothing is claimed any more";
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*tier, chain_[0], Seconds(0.02)), kMine);
  EXPECT_TRUE(Eventually([&] { return Files() == 0; })) << "earlier than it was to";
}

TEST_F(DiskClaimsTest, ClaimsAreBounded) {
  options_.claims_max = 3;
  const auto tier = Open();
  EXPECT_EQ(*ClaimKeys(*tier, {chain_[0], chain_[1], chain_[2], chain_[3]}),
            (std::vector{kMine, kMine, kMine, kNone}));
  EXPECT_EQ(Files(), 3u);
  tier->Disclaim(std::vector{chain_[1]});
  EXPECT_EQ(ClaimKey(*tier, chain_[3]), kMine);
  EXPECT_EQ(ClaimKey(*tier, chain_[2]), kMine) << "one that is held already";
}

TEST_F(DiskClaimsTest, WhatDeadProcessesLeftIsRemovedAndForeignFilesAreNot) {
  const StoreDir store(dir_.path());
  ASSERT_TRUE(FileSystem::Real().MakeDirs(store.ClaimsDir()));
  std::ofstream(PathOf(chain_[5])) << "not what anybody writes here";
  std::ofstream(PathOf(chain_[6]));
  std::ofstream(store.ClaimsDir() + "/notes.txt");
  const auto other = Open();
  EXPECT_EQ(ClaimKey(*other, chain_[7]), kMine);
  EXPECT_TRUE(Eventually([&] { return Files() == 2; })) << "the claim and the notes";
  EXPECT_TRUE(stdfs::exists(store.ClaimsDir() + "/notes.txt"));
}

// Its name would be made again if another process had ended it meanwhile.
TEST_F(DiskClaimsTest, WhatAProcessHasClaimedItselfIsNotSwept) {
  ASSERT_TRUE(FileSystem::Real().MakeDirs(StoreDir(dir_.path()).ClaimsDir()));
  HookedFileSystem fs;
  std::atomic<int> locks = 0;
  fs.before_lock = [&](const std::string& path) { locks += path == PathOf(chain_[0]); };
  const auto tier = Open(fs);
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*tier, chain_[1]), kMine);  // so what was there has been swept
  EXPECT_EQ(locks, 1);
}

TEST_F(DiskClaimsTest, AFileThatIsDamagedIsAClaimAllTheSame) {
  ASSERT_TRUE(FileSystem::Real().MakeDirs(StoreDir(dir_.path()).ClaimsDir()));
  std::ofstream(PathOf(chain_[0])) << std::string(100000, 'x');
  const auto tier = Open(), other = Open();
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  std::ofstream(PathOf(chain_[0])) << "again, while it is held";
  EXPECT_EQ(ClaimKey(*other, chain_[0]), kTheirs);
  ASSERT_TRUE(stdfs::remove(PathOf(chain_[0])));
  EXPECT_EQ(ClaimKey(*other, chain_[0]), kMine) << "who removes a claim ends it";
}

TEST_F(DiskClaimsTest, SomethingElseOfAClaimsNameCostsTheClaimAlone) {
  for (const bool link : {false, true}) {
    ASSERT_TRUE(FileSystem::Real().MakeDirs(StoreDir(dir_.path()).ClaimsDir()));
    if (link) {
      stdfs::create_symlink("/dev/null", PathOf(chain_[1]));
    } else {
      stdfs::create_directory(PathOf(chain_[1]));
    }
    options_.claims_pause = Seconds(0);
    const auto tier = Open();
    EXPECT_EQ(*ClaimKeys(*tier, {chain_[0], chain_[1], chain_[2]}),
              (std::vector{kMine, kNone, kNone}));
    EXPECT_EQ(ClaimKey(*tier, chain_[2]), kMine);
    EXPECT_TRUE(PutChunk(*tier, options_.layout, chain_[1], chain_[0]));
    stdfs::remove(PathOf(chain_[1]));
    ASSERT_TRUE(tier->Evict(chain_[1]));
  }
}

TEST_F(DiskClaimsTest, ADirectoryThatIsReadOnlyMakesNoClaimsAndServesWhatItHas) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  {
    const auto writer = Open();
    ASSERT_TRUE(PutChunk(*writer, options_.layout, chain_[0], Root()));
  }
  fs.Set({.change_error = 1});
  options_.claims_pause = kPatience;
  const auto tier = Open(fs);
  EXPECT_EQ(*ClaimKeys(*tier, {chain_[0], chain_[1], chain_[2]}),
            (std::vector{kStored, kNone, kNone}));
  EXPECT_EQ(ClaimKeys(*tier, {chain_[1]}), std::nullopt) << "it is not tried again and again";
  EXPECT_EQ(ReadBack(*tier, options_.layout, chain_[0], Root()), std::nullopt);
}

TEST_F(DiskClaimsTest, ADeviceThatHangsKeepsNobodyWhoAsks) {
  FaultyFileSystem fs(FileSystem::Real(), 1);
  options_.overdue_after = Seconds(0.01);
  std::atomic<int> answers = 0;  // outlives the tier, which answers each that was asked
  const auto tier = Open(fs);
  fs.Set({.change_stall = 1});
  const auto ask = [&] {
    return tier->Claim(
        {.keys = {chain_[0]}, .lasts = kPatience, .done = [&](const auto&) { ++answers; }});
  };
  ASSERT_TRUE(ask());
  EXPECT_TRUE(Eventually([&] { return !ask(); })) << "once it is known to hang nothing is asked";
  EXPECT_EQ(answers, 0);
  fs.Set({});
  fs.ReleaseStalled();
  EXPECT_TRUE(Eventually([&] { return answers > 0; }));
}

TEST_F(DiskClaimsTest, AClaimThatIsMadeAgainIsAnotherToWhoHasSeenIt) {
  const auto tier = Open(), other = Open();
  ASSERT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  ASSERT_TRUE(FileSystem::Real().Touch(PathOf(chain_[0]), 1000));  // made long ago
  EXPECT_EQ(ClaimKey(*other, chain_[0], Seconds(0)), kTheirs) << "seen for the first time";
  ASSERT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*other, chain_[0], Seconds(0)), kTheirs);
  EXPECT_EQ(ClaimKey(*other, chain_[0], Seconds(0)), kMine) << "it was not made again";
}

TEST_F(DiskClaimsTest, AChunkThatAnotherHasWrittenMeanwhileCountsAsMadeTwice) {
  const auto tier = Open(), other = Open();
  ASSERT_TRUE(PutChunk(*tier, options_.layout, chain_[0], Root()));
  EXPECT_EQ(tier->Stats().writes_found, 0u);
  ASSERT_TRUE(PutChunk(*other, options_.layout, chain_[0], Root()));
  EXPECT_EQ(other->Stats().writes_found, 1u);
  EXPECT_EQ(other->Stats().writes, 0u);
}

TEST_F(DiskClaimsTest, NobodyWaitsForAChunkInAnotherForm) {
  const auto raw = Open();
  const StoreCodec codec = NaturalCodec(Codec::kLossless, options_.layout);
  const auto encoded = OpenEncodedDisk(options_, codec), same = OpenEncodedDisk(options_, codec);
  EXPECT_EQ(ClaimKey(*raw, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*encoded, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*same, chain_[0]), kTheirs);
  EXPECT_EQ(Files(), 2u);
}

// What the codec cannot keep will not come.
TEST_F(DiskClaimsTest, AChunkThatCannotBeEncodedIsNoLongerClaimed) {
  const StoreCodec codec = NaturalCodec(Codec::kInt8, options_.layout);
  const auto tier = OpenEncodedDisk(options_, codec), other = OpenEncodedDisk(options_, codec);
  ASSERT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  PageBuffer page(options_.layout);
  std::memset(page.span().data(), 0x7f, page.span().size());  // NaNs
  EXPECT_FALSE(tier->Put({chain_[0], Root(), NumericPath::kF32, page.span()}));
  EXPECT_TRUE(Eventually([&] { return ClaimKey(*other, chain_[0]) == kMine; }));
}

TEST_F(DiskClaimsTest, NothingBehindALinkIsLockedOrRemoved) {
  const TempDir elsewhere;
  const std::string file = elsewhere.path() + "/" + chain_[0].Hex();
  std::ofstream(file) << "";
  std::ofstream(elsewhere.path() + "/" + chain_[1].Hex()) << "a chunk";
  stdfs::create_directories(StoreDir(dir_.path()).Base());
  stdfs::create_directory_symlink(elsewhere.path(), StoreDir(dir_.path()).ClaimsDir());
  {
    const auto tier = Open();
    EXPECT_EQ(ClaimKey(*tier, chain_[0]), kNone);
    EXPECT_EQ(ClaimKeys(*tier, {chain_[2]}), std::nullopt) << "they are given up for a while";
  }
  ASSERT_TRUE(ClearStore(dir_.path()));
  EXPECT_TRUE(stdfs::exists(file));
  EXPECT_TRUE(stdfs::exists(elsewhere.path() + "/" + chain_[1].Hex()));
  EXPECT_FALSE(stdfs::exists(elsewhere.path() + "/" + chain_[2].Hex()));
}

TEST_F(DiskClaimsTest, AClaimThatAnotherHasTakenIsNotRenewed) {
  const auto tier = Open();
  ASSERT_EQ(ClaimKey(*tier, chain_[0]), kMine);
  stdfs::remove(PathOf(chain_[0]));  // as who takes it for expired does
  const auto other = Open();
  ASSERT_EQ(ClaimKey(*other, chain_[0]), kMine);
  EXPECT_EQ(ClaimKey(*tier, chain_[0]), kTheirs);
  EXPECT_TRUE(stdfs::exists(PathOf(chain_[0]))) << "it is the other's";
}

}  // namespace
}  // namespace kvcake
