#include "kv/chunk_key.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <vector>

namespace kvcake {
namespace {

KvIdentity Identity() {
  KvIdentity identity;
  identity.Add("arch", "llama").Add("layers", 4).Add("kv", "bf16");
  return identity;
}

TEST(KvIdentityTest, RootDependsOnEveryNameAndValueAndTheirBounds) {
  std::set<ChunkKey> roots = {Identity().Root()};
  EXPECT_EQ(Identity().Root(), Identity().Root());
  roots.insert(Identity().Add("salt", "").Root());
  roots.insert(Identity().Add("sal", "t").Root());
  roots.insert(Identity().Add("salt", "tenant").Root());
  roots.insert(KvIdentity().Root());
  EXPECT_EQ(roots.size(), 5u);
}

TEST(KvIdentityTest, ASaltIsARootOfItsOwnAndNoneIsThePlainOne) {
  EXPECT_EQ(SaltedRoot(Identity(), ""), Identity().Root());
  EXPECT_NE(SaltedRoot(Identity(), "ann"), Identity().Root());
  EXPECT_NE(SaltedRoot(Identity(), "ann"), SaltedRoot(Identity(), "bob"));
  EXPECT_EQ(SaltedRoot(Identity(), "ann"), SaltedRoot(Identity(), "ann"));
}

TEST(ExtendedKeyTest, DependsOnItsKeyAndOnAllOfWhatExtendsIt) {
  const auto extended = [](const ChunkKey& key, std::string_view extra) {
    return ExtendedKey(key, std::as_bytes(std::span(extra)));
  };
  const ChunkKey plain = Identity().Root(), salted = SaltedRoot(Identity(), "ann");
  EXPECT_EQ(extended(plain, "image"), extended(plain, "image"));
  const std::set<ChunkKey> keys = {plain,
                                   salted,
                                   extended(plain, ""),
                                   extended(plain, "image"),
                                   extended(plain, "imagf"),
                                   extended(salted, "image"),
                                   extended(extended(plain, "im"), "age")};
  EXPECT_EQ(keys.size(), 7u);
}

// Tokens that fill no chunk have no key; those that fill the last have one.
TEST(ChunkKeysTest, EachFullChunkHasAKey) {
  const std::vector<int32_t> tokens(9);
  for (const size_t count : {0, 1, 3, 4, 5, 7, 8, 9}) {
    const auto keys = ChunkKeys(Identity().Root(), std::span(tokens).first(count), 4);
    EXPECT_EQ(keys.size(), count / 4) << count;
  }
}

// The chain is an on-disk format: computed independently with Python's hashlib.
TEST(ChunkKeysTest, KnownChain) {
  EXPECT_EQ(Identity().Root().Hex(),
            "a8baae2b9460f6e56a74541676cc014fcfb97ea7f9d7846d3a4c478f3fc6ff94");
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 70000};
  const auto keys = ChunkKeys(Identity().Root(), tokens, 2);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].Hex(), "bbc5d5b8a0f56a393d792a1b3b4450c35c6ef6d13a10fce8f8afadf518ddd701");
  EXPECT_EQ(keys[1].Hex(), "d4320771b1c41d17823ec80d1b6c0a709232eaca6b65bd68fea395703facd1e1");
}

TEST(ChunkKeysTest, EqualPrefixesShareKeysAndNothingAfterADifferenceDoes) {
  std::vector<int32_t> a(64), b(64);
  for (int i = 0; i < 64; ++i) a[i] = b[i] = i * 7;
  b[20] = -1;
  const auto ka = ChunkKeys(Identity().Root(), a, 8), kb = ChunkKeys(Identity().Root(), b, 8);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(ka[i] == kb[i], i < 2) << i;
}

}  // namespace
}  // namespace kvcake
