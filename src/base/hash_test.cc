#include "base/hash.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

// Published test vectors: FIPS 180-2 and the xxHash specification.
TEST(HashTest, Sha256OfKnownMessages) {
  Sha256 sha;
  EXPECT_EQ(ToHex(sha.Finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(ToHex(sha.Update("a").Update("bc").Finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(HashTest, Xxh3OfNothing) {
  EXPECT_EQ(Xxh3_64({}), 0x2d06800538d394c2u);
  EXPECT_EQ(ToHex(Xxh3_128({})), "99aa06d3014798d86001c324468d497f");
}

}  // namespace
}  // namespace kvcake
