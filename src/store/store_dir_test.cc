#include "store/store_dir.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

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
  EXPECT_TRUE(CheckDistinct({}));
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
  const std::string torn = store.ModelPath(Root()) + ".tmp.1.1";
  for (const std::string& path : {cost, cost + ".tmp.1.1", torn}) std::ofstream(path) << "{}";
  const auto one = ClearStore(dir.path(), Root());
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->files, 3u);
  EXPECT_EQ(one->bytes, 3 * SmallLayout().page_bytes());
  EXPECT_TRUE(stdfs::exists(foreign));
  EXPECT_FALSE(stdfs::exists(store.ModelPath(Root())));
  EXPECT_FALSE(stdfs::exists(cost) || stdfs::exists(cost + ".tmp.1.1") || stdfs::exists(torn));
  EXPECT_EQ(ListStore(dir.path())->front().chunks, 3u) << "the other root is untouched";
  // A tier that is open takes it as misses, and goes on.
  EXPECT_EQ(ReadBack(*tier, SmallLayout(), chain[0], Root()), ErrorCode::kNotFound);
  ASSERT_TRUE(PutChunk(*tier, SmallLayout(), chain[1], chain[0]));
  const auto rest = ClearStore(dir.path());
  ASSERT_TRUE(rest);
  EXPECT_EQ(rest->files, 4u);
  EXPECT_FALSE(stdfs::exists(store.RootDir(other)));
  EXPECT_TRUE(stdfs::exists(foreign));
  EXPECT_TRUE(stdfs::exists(dir.path()));
}

}  // namespace
}  // namespace kvcake
