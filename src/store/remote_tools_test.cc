// What people do to a store elsewhere, without one: figures, order, and what is removed.
#include "store/remote_tools.h"

#include <gmock/gmock.h>

#include <map>

#include "store/chunk_bytes.h"
#include "store/chunk_kind.h"
#include "store/chunk_seal.h"
#include "store/encoded_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::ElementsAre;
using testing::HasSubstr;

// Lists what it is given, two values a page, and removes as many at a time.
class FakeListing : public RemoteListing {
 public:
  Status ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) override {
    for (size_t at = 0; at < values.size(); at += 2) {
      RETURN_IF_ERROR(
          visit(std::span(values).subspan(at, std::min<size_t>(2, values.size() - at))));
    }
    return {};
  }
  Result<std::vector<std::byte>> Read(const FoundValue& value) override {
    return reads.at(value.name);
  }
  size_t remove_max() const override { return 2; }
  Result<RemovedValues> Remove(std::span<const std::string> names) override {
    RemovedValues of;
    for (const std::string& name : names) {
      of.removed.push_back(!name.starts_with("kept") && !name.starts_with("gone"));
      if (name.starts_with("kept")) of.refused.push_back({name, "not yours"});
      if (of.removed.back()) removed.push_back(name);
    }
    return of;
  }
  std::string why_no_times() const override { return "it keeps none"; }

  std::vector<FoundValue> values;
  std::map<std::string, Result<std::vector<std::byte>>> reads;
  std::vector<std::string> removed;
};

class RemoteToolsTest : public testing::Test {
 protected:
  void Add(const std::string& name, uint64_t bytes, std::optional<int64_t> used_s,
           const ChunkKey& root = Root()) {
    listing_.values.push_back({{root, chain_.at(listing_.values.size())}, name, bytes, used_s});
  }
  void AddUnread(const std::string& name, ErrorCode code) {
    Add(name, 1, 1);
    listing_.reads.emplace(name, Fail(code, "it is {}", name));
  }
  // A chunk that is as it should be, encrypted where there is a key.
  void AddChunk(const std::string& name, const StoreKey* key = nullptr) {
    const ChunkKey& chunk = chain_.at(listing_.values.size());
    std::vector<std::byte> page(layout_.page_bytes());
    FillPage(chunk, page);
    std::vector<std::byte> file;
    ChunkId id{Root(), chunk};
    if (key == nullptr) {
      const ChunkWrite write{.key = chunk, .parent = Root(), .page = page};
      const ChunkBytes bytes(write, ChunkKind{.root = Root(), .layout = layout_});
      for (const auto piece : bytes.pieces()) file.insert(file.end(), piece.begin(), piece.end());
    } else {
      ChunkHeader header;
      header.root = header.parent = Root();
      header.key = chunk;
      header.layout = layout_;
      header.encryption.emplace();
      header.parts.assign(layout_.layers, {.bytes = kPartAlign});
      file.resize(header.file_bytes());
      ASSERT_TRUE(SealChunk(*key, header, file));
      id = {header.root, header.key};
    }
    listing_.values.push_back({id, name, file.size(), 1});
    listing_.reads.emplace(name, std::move(file));
  }

  const KvLayout layout_ = SmallLayout();
  const ChunkKey other_ = KvIdentity().Add("model", "other").Root();
  const std::vector<ChunkKey> chain_ = Chain(20);
  FakeListing listing_;
};

TEST_F(RemoteToolsTest, RootsAreListedByTheirNewestUse) {
  for (const bool swapped : {false, true}) {
    listing_.values.clear();
    Add("a", 10, swapped ? 300 : 100);
    Add("b", 20, 200, other_);
    Add("c", 30, swapped ? 250 : 50);
    const auto roots = ListRemote(listing_).value();
    ASSERT_EQ(roots.size(), 2u);
    const StoreRoot& ours = roots[swapped ? 0 : 1];
    EXPECT_EQ(ours.root, Root());
    EXPECT_EQ(ours.chunks, 2u);
    EXPECT_EQ(ours.bytes, 40u);
    EXPECT_EQ(ours.newest_use_s, swapped ? 300 : 100);
    EXPECT_EQ(ours.oldest_use_s, swapped ? 250 : 50);
  }
}

TEST_F(RemoteToolsTest, WhatIsInOrderIsCountedAndWhatTheKeyOpensOfIt) {
  const auto key = ATestsKey();
  AddChunk("a");
  AddChunk("b", key.get());
  AddChunk("c");
  AddUnread("gone", ErrorCode::kNotFound);
  const uint64_t bytes =
      listing_.values[0].bytes + listing_.values[1].bytes + listing_.values[2].bytes;
  for (const StoreKey* by : {key.get(), static_cast<const StoreKey*>(nullptr)}) {
    const VerifiedStore verified = VerifyRemote(listing_, by).value();
    EXPECT_EQ(verified.chunks, 3u);
    EXPECT_EQ(verified.decrypted, by == nullptr ? 0u : 1u);
    EXPECT_EQ(verified.bytes, bytes);
    EXPECT_TRUE(verified.bad.empty());
  }
}

// A server that refuses eight values one after another gives none.
TEST_F(RemoteToolsTest, ValuesThatAreRefusedAreBadUnlessAllAre) {
  for (int i = 0; i < 7; ++i) AddUnread(fmt::format("a{}", i), ErrorCode::kInvalidArgument);
  AddChunk("good");
  for (int i = 0; i < 7; ++i) AddUnread(fmt::format("b{}", i), ErrorCode::kInvalidArgument);
  const VerifiedStore verified = VerifyRemote(listing_).value();
  EXPECT_EQ(verified.chunks, 1u);
  ASSERT_EQ(verified.bad.size(), 14u);
  EXPECT_EQ(verified.bad[0].path, "a0");
  EXPECT_EQ(verified.bad[0].reason, "it is a0");
  AddUnread("c", ErrorCode::kInvalidArgument);
  EXPECT_EQ(VerifyRemote(listing_).error().message, "it is c");
}

TEST_F(RemoteToolsTest, AServerThatDoesNotAnswerSaysNothingOfAChunk) {
  AddChunk("good");
  AddUnread("lost", ErrorCode::kIo);
  EXPECT_EQ(VerifyRemote(listing_).error().code, ErrorCode::kIo);
}

TEST_F(RemoteToolsTest, WhatWasUsedLongestAgoIsEvictedFirst) {
  Add("a", 10, 500);
  Add("b", 20, 300, other_);
  Add("c", 30, 100);
  Add("d", 40, 400);
  Add("e", 50, 200, other_);
  const auto evict = [&](const EvictRule& rule) {
    listing_.removed.clear();
    return EvictRemote(listing_, rule).value();
  };
  const ClearedStore before = evict({.used_before_s = 300});
  EXPECT_THAT(listing_.removed, ElementsAre("c", "e")) << "what was used then stays";
  EXPECT_EQ(before.files, 2u);
  EXPECT_EQ(before.bytes, 80u);
  EXPECT_EQ(evict({.to_bytes = 70}).bytes, 80u);
  EXPECT_EQ(evict({.to_bytes = 69}).files, 3u);
  EXPECT_THAT(listing_.removed, ElementsAre("c", "e", "b"));
  EXPECT_EQ(evict({.roots = std::vector{Root()}, .used_before_s = 450}).bytes, 70u);
  EXPECT_THAT(listing_.removed, ElementsAre("c", "d"));
}

TEST_F(RemoteToolsTest, WithoutATimeOfEachNoneIsEvictedByIt) {
  Add("a", 10, 500);
  Add("b", 20, std::nullopt);
  Add("c", 30, 100);
  for (const EvictRule& rule : {EvictRule{.used_before_s = 300}, EvictRule{.to_bytes = 10}}) {
    const auto refused = EvictRemote(listing_, rule);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(refused.error().message, HasSubstr("it keeps none"));
  }
  EXPECT_TRUE(listing_.removed.empty());
  EXPECT_EQ(EvictRemote(listing_, {.roots = std::vector{Root()}})->files, 3u);
}

TEST_F(RemoteToolsTest, WhatOthersRemovedBeforeIsNotCounted) {
  Add("a", 10, 1);
  Add("gone", 20, 2);
  Add("b", 40, 3);
  for (const auto& cleared : {EvictRemote(listing_, {.to_bytes = 0}), ClearRemote(listing_)}) {
    ASSERT_TRUE(cleared);
    EXPECT_EQ(cleared->files, 2u);
    EXPECT_EQ(cleared->bytes, 50u);
  }
}

TEST_F(RemoteToolsTest, WhatIsClearedIsCountedAndWhatStaysIsToldByTheFirst) {
  Add("a", 10, 1);
  Add("b", 20, 2);
  Add("c", 30, 3);
  const ClearedStore cleared = ClearRemote(listing_).value();
  EXPECT_EQ(cleared.files, 3u);
  EXPECT_EQ(cleared.bytes, 60u);
  Add("kept1", 40, 4);
  Add("d", 50, 5);
  Add("kept2", 60, 6);
  const auto refused = ClearRemote(listing_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "4 chunks are removed, and 2 are not; kept1: not yours");
}

}  // namespace
}  // namespace kvcake
