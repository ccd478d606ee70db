#include "store/store_dir.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/log_testing.h"
#include "io/faulty_file_system_testing.h"
#include "store/disk_testing.h"
#include "store/disk_tier.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
namespace stdfs = std::filesystem;

std::unique_ptr<DiskTier> OpenTier(const std::string& dir, const ChunkKey& root,
                                   const std::string& description) {
  DiskTierOptions options;
  options.dir = dir;
  options.layout = SmallLayout();
  options.root = root;
  options.description = description;
  auto tier = DiskTier::Open(options);
  CHECK(tier.has_value());
  return std::move(*tier);
}

TEST(StoreDirTest, KeysAreParsedStrictly) {
  const ChunkKey key = Root();
  EXPECT_EQ(ParseKeyHex(key.Hex()), key);
  EXPECT_FALSE(ParseKeyHex(""));
  EXPECT_FALSE(ParseKeyHex(key.Hex() + "0"));
  EXPECT_FALSE(ParseKeyHex(key.Hex().substr(1)));
  std::string upper = key.Hex();
  for (char& c : upper) c = static_cast<char>(toupper(c));
  EXPECT_FALSE(ParseKeyHex(upper));
  EXPECT_FALSE(ParseKeyHex(std::string(63, '0') + "g"));
}

TEST(StoreDirTest, OneDirectoryIsRecognisedHoweverItIsSpelled) {
  TempDir dir;
  const std::string a = dir.path() + "/a", b = dir.path() + "/b";
  stdfs::create_directory(a);
  stdfs::create_symlink(a, dir.path() + "/link");
  stdfs::create_symlink(dir.path(), dir.path() + "/up");
  EXPECT_TRUE(CheckDistinct(std::vector<std::string>()));
  EXPECT_TRUE(CheckDistinct({a}));
  EXPECT_TRUE(CheckDistinct({a, b, dir.path() + "/c", dir.path()}));
  for (const std::string& same : {a, a + "/", dir.path() + "/./b/../a", dir.path() + "/link",
                                  dir.path() + "/up/a", stdfs::relative(a).string()}) {
    const auto status = CheckDistinct({b, a, same});
    ASSERT_FALSE(status) << same;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find("--store " + same + " are"), std::string::npos);
  }
  // One that is not there yet.
  for (const std::string& same : {b, b + "/", dir.path() + "//b", dir.path() + "/up/b"}) {
    EXPECT_FALSE(CheckDistinct({a, b, same})) << same;
  }
}

TEST(StoreDirTest, WhatCannotBeFollowedIsAsItIsSpelled) {
  TempDir dir;
  const std::string a = dir.path() + "/a", b = dir.path() + "/b";
  stdfs::create_symlink(a, a);
  stdfs::create_symlink(b, b);
  EXPECT_TRUE(CheckDistinct({a, b}));
  EXPECT_TRUE(CheckDistinct({a + "/x", a + "/y"}));
  EXPECT_FALSE(CheckDistinct({a, b, dir.path() + "/./a"}));
}

// Writes down which directories are made and spread, and does it.
class NotedDirs : public FaultyFileSystem {
 public:
  NotedDirs() : FaultyFileSystem(FileSystem::Real(), 1) {}
  Status MakeDirs(const std::string& path) override {
    calls.push_back("make " + path);
    return FaultyFileSystem::MakeDirs(path);
  }
  Status SpreadSubdirs(const std::string& path) override {
    calls.push_back("spread " + path);
    return spread;
  }

  std::vector<std::string> calls;
  Status spread;
};

TEST(StoreDirTest, TheShardsOfARootAreSpread) {
  for (const bool durable : {false, true}) {
    TempDir dir;
    const StoreDir store(dir.path());
    const ChunkId id{Root(), Chain(1)[0]};
    NotedDirs fs;
    ASSERT_TRUE(MakeShardDir(fs, store, id, durable));
    EXPECT_THAT(fs.calls, testing::ElementsAre("make " + store.RootDir(id.root),
                                               "spread " + store.RootDir(id.root),
                                               "make " + store.ShardDir(id)));
    EXPECT_TRUE(stdfs::is_directory(store.ShardDir(id)));
  }
}

TEST(StoreDirTest, AHintThatIsRefusedIsNoError) {
  TempDir dir;
  const StoreDir store(dir.path());
  NotedDirs fs;
  fs.spread = Fail(ErrorCode::kUnsupported, "no such control");
  EXPECT_TRUE(MakeShardDir(fs, store, {Root(), Chain(1)[0]}, /*durable=*/false));
  EXPECT_TRUE(stdfs::is_directory(store.ShardDir({Root(), Chain(1)[0]})));
}

TEST(StoreDirTest, TotalsThatCannotBeReadAreNotOverwritten) {
  TempDir dir;
  FaultyFileSystem fs(FileSystem::Real(), 1);
  const StoreDir store(dir.path());
  ASSERT_TRUE(fs.MakeDirs(store.RootDir(Root())));
  const StoreUsage one = {.reads = 1, .read_bytes = 10, .writes = 2};
  ASSERT_TRUE(AddUsage(fs, store, Root(), one));
  ASSERT_TRUE(AddUsage(fs, store, Root(), one));
  EXPECT_EQ(ReadUsage(fs, store, Root())->reads, 2u);
  EXPECT_EQ(ReadUsage(fs, store, Root())->writes, 4u);
  fs.Set({.open_error = 1});
  EXPECT_EQ(ReadUsage(fs, store, Root()).error().code, ErrorCode::kIo);
  EXPECT_FALSE(AddUsage(fs, store, Root(), one));
  fs.Set({});
  EXPECT_EQ(ReadUsage(fs, store, Root())->reads, 2u) << "as it was";

  // What a power cut tore has nothing to lose.
  for (const char* garbage : {"", "reads 12\nread_by", "reads many\n", "\xff\xfe"}) {
    std::ofstream(store.UsagePath(Root())) << garbage;
    EXPECT_EQ(ReadUsage(fs, store, Root()).error().code, ErrorCode::kCorrupt) << garbage;
    CapturedLog log;
    ASSERT_EQ(ListStore(dir.path())->size(), 1u) << "the rest is known";
    EXPECT_EQ(log.Count("hits and writes are not known"), 1);
    ASSERT_TRUE(AddUsage(fs, store, Root(), one)) << garbage;
    EXPECT_EQ(ReadUsage(fs, store, Root())->reads, 1u);
  }
}

TEST(StoreDirTest, ListingTellsWhatEveryRootHolds) {
  TempDir dir;
  EXPECT_EQ(ListStore(dir.path()).error().code, ErrorCode::kNotFound);
  const ChunkKey other = KvIdentity().Add("model", "another").Root();
  auto tier = OpenTier(dir.path(), Root(), "{\"model\":\"one\"}");
  OpenTier(dir.path(), other, "{\"model\":\"two\"}");
  const auto chain = Chain(3);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[i], ParentOf(chain, i)));
    const std::string path = StoreDir(dir.path()).ChunkPath({Root(), chain[i]});
    ASSERT_TRUE(FileSystem::Real().Touch(path, 1000000 + static_cast<int64_t>(i)));
  }
  const auto roots = ListStore(dir.path());
  ASSERT_TRUE(roots);
  ASSERT_EQ(roots->size(), 2u);
  EXPECT_EQ((*roots)[0].root, Root());
  EXPECT_EQ((*roots)[0].description, "{\"model\":\"one\"}");
  EXPECT_EQ((*roots)[0].chunks, 3u);
  EXPECT_EQ((*roots)[0].bytes, 3 * SmallLayout().page_bytes());
  EXPECT_EQ((*roots)[0].oldest_use_s, 1000000);
  EXPECT_EQ((*roots)[0].newest_use_s, 1000002);
  EXPECT_EQ((*roots)[1].root, other);
  EXPECT_EQ((*roots)[1].chunks, 0u);
  for (size_t i = 0; i < 3; ++i) {  // whichever is found last
    const std::string path = StoreDir(dir.path()).ChunkPath({Root(), chain[i]});
    ASSERT_TRUE(FileSystem::Real().Touch(path, 2000002 - static_cast<int64_t>(i)));
  }
  EXPECT_EQ(ListStore(dir.path())->at(0).oldest_use_s, 2000000);
  EXPECT_EQ(ListStore(dir.path())->at(0).newest_use_s, 2000002);
}

TEST(StoreDirTest, AKeyInAnotherKeysShardIsNoChunk) {
  TempDir dir;
  auto tier = OpenTier(dir.path(), Root(), "");
  const auto chain = Chain(8);
  ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[0], Root()));
  size_t other = 1;
  while (chain[other].digest[0] == chain[0].digest[0]) ++other;
  const StoreDir store(dir.path());
  const std::string shard = store.ShardDir({Root(), chain[0]});
  stdfs::copy_file(store.ChunkPath({Root(), chain[0]}), shard + "/" + chain[other].Hex());
  tier.reset();
  tier = OpenTier(dir.path(), Root(), "");
  EXPECT_EQ(tier->Stats().chunks, 1u);
  EXPECT_FALSE(tier->Residency(chain)[other]);
  EXPECT_EQ(ListStore(dir.path())->front().chunks, 1u);
}

TEST(StoreDirTest, WhatIsNoFileIsNoChunk) {
  TempDir dir;
  const auto chain = Chain(3);
  const StoreDir store(dir.path());
  ASSERT_TRUE(PutChunk(*OpenTier(dir.path(), Root(), ""), SmallLayout(), chain[0], Root()));
  const std::string link = store.ChunkPath({Root(), chain[1]}),
                    folder = store.ChunkPath({Root(), chain[2]});
  stdfs::create_directories(folder);
  stdfs::create_directories(store.ShardDir({Root(), chain[1]}));
  stdfs::create_symlink(store.ChunkPath({Root(), chain[0]}), link);
  EXPECT_EQ(ListStore(dir.path())->front().chunks, 1u);
  const auto tier = OpenTier(dir.path(), Root(), "");
  EXPECT_EQ(tier->Residency(chain), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(ClearStore(dir.path())->files, 1u);
  EXPECT_TRUE(stdfs::is_symlink(link) && stdfs::is_directory(folder));
}

TEST(StoreDirTest, ClearingGoesOnAfterAFileThatCannotBeRemovedAndSaysSo) {
  TempDir dir;
  const auto chain = Chain(3);
  const StoreDir store(dir.path());
  const auto path = [&](size_t i) { return store.ChunkPath({Root(), chain[i]}); };
  const auto tier = OpenTier(dir.path(), Root(), "");
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[i], ParentOf(chain, i)));
  }
  const std::string bad = store.QuarantineDir() + "/bad";
  HookedFileSystem fs;
  for (const std::string& stays : {path(0), bad}) {
    stdfs::create_directories(store.QuarantineDir());
    std::ofstream(bad) << "bytes";
    fs.before_remove = [&](const std::string& removed) {
      fs.Set({.change_error = removed == stays ? 1.0 : 0.0});
    };
    const auto cleared = ClearStore(dir.path(), std::nullopt, fs);
    ASSERT_FALSE(cleared) << stays;
    EXPECT_NE(cleared.error().message.find(stays), std::string::npos) << cleared.error().message;
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(stdfs::exists(path(i)), path(i) == stays);
    EXPECT_EQ(stdfs::exists(bad), bad == stays);
  }
}

TEST(StoreDirTest, ClearingDeletesOursAndNothingElse) {
  TempDir dir;
  const ChunkKey other = KvIdentity().Add("model", "another").Root();
  auto tier = OpenTier(dir.path(), Root(), "one");
  auto other_tier = OpenTier(dir.path(), other, "two");
  const auto chain = Chain(3);
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[i], ParentOf(chain, i)));
    ASSERT_TRUE(PutChunk(*other_tier, SmallLayout(), chain[i], ParentOf(chain, i)));
  }
  const StoreDir store(dir.path());
  const std::string foreign = store.ShardDir({Root(), chain[0]}) + "/notes.txt";
  std::ofstream(foreign) << "mine";
  const std::string cost = store.RootDir(Root()) + "/cost-0123456789abcdef.json";
  const std::string ranks = store.RootDir(Root()) + "/ranks-0123456789abcdef.json";
  const std::string torn = store.ModelPath(Root()) + ".tmp.1.1";
  const std::vector<std::string> beside = {cost, ranks, cost + ".tmp.1.1", torn};
  for (const std::string& path : beside) std::ofstream(path) << "{}";
  const auto one = ClearStore(dir.path(), Root());
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->files, 3u + 2) << "chunks and temporaries";
  EXPECT_EQ(one->bytes, 3 * SmallLayout().page_bytes() + 2 * 2);
  EXPECT_TRUE(stdfs::exists(foreign));
  EXPECT_FALSE(stdfs::exists(store.ModelPath(Root())));
  for (const std::string& path : beside) EXPECT_FALSE(stdfs::exists(path)) << path;
  EXPECT_EQ(ListStore(dir.path())->front().chunks, 3u) << "the other root is untouched";
  // A tier that is open takes it as misses, and goes on.
  EXPECT_EQ(ReadBack(*tier, SmallLayout(), chain[0], Root()), ErrorCode::kNotFound);
  ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[1], chain[0]));
  // What has been quarantined is a file and two directories that had chunks' names.
  stdfs::create_directories(store.QuarantineDir() + "/empty");
  stdfs::create_directories(store.QuarantineDir() + "/full/of");
  std::ofstream(store.QuarantineDir() + "/bad") << "bytes";
  stdfs::create_directories(store.ClaimsDir());
  std::ofstream(store.ClaimPath(chain[0]));
  const auto rest = ClearStore(dir.path());
  ASSERT_TRUE(rest);
  EXPECT_FALSE(stdfs::exists(store.ClaimsDir()));
  EXPECT_EQ(rest->files, 5u);
  EXPECT_EQ(stdfs::directory_iterator(store.QuarantineDir())->path().filename(), "full");
  stdfs::remove_all(store.QuarantineDir() + "/full");
  ASSERT_TRUE(ClearStore(dir.path()));
  EXPECT_FALSE(stdfs::exists(store.QuarantineDir()));
  EXPECT_FALSE(stdfs::exists(store.RootDir(other)));
  EXPECT_TRUE(stdfs::exists(foreign));
  EXPECT_TRUE(stdfs::exists(dir.path()));
}

// What lies behind a link is not ours, whatever its name: another directory's, another store's.
TEST(StoreDirTest, ClearingDeletesNothingBehindALink) {
  TempDir dir, elsewhere;
  const auto chain = Chain(1);
  const std::string theirs = elsewhere.path() + "/theirs.txt";
  std::ofstream(theirs) << "theirs";
  ASSERT_TRUE(
      PutChunk(*OpenTier(elsewhere.path(), Root(), "one"), SmallLayout(), chain[0], Root()));
  const StoreDir store(dir.path()), other(elsewhere.path());
  stdfs::create_directories(store.Base());
  stdfs::create_symlink(elsewhere.path(), store.QuarantineDir());
  stdfs::create_symlink(other.RootDir(Root()), store.RootDir(Root()));
  ASSERT_TRUE(ClearStore(dir.path()));
  ASSERT_TRUE(ClearStore(dir.path(), Root()));
  EXPECT_TRUE(stdfs::exists(theirs));
  EXPECT_TRUE(stdfs::exists(other.ChunkPath({Root(), chain[0]})));
}

}  // namespace
}  // namespace kvcake
