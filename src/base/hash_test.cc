#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

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

// RFC 4231, test case 2.
TEST(HashTest, HmacOfAKnownMessage) {
  EXPECT_EQ(ToHex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(HashTest, Xxh3OfNothing) {
  EXPECT_EQ(Xxh3_64({}), 0x2d06800538d394c2u);
  EXPECT_EQ(ToHex(Xxh3_128Stream().Finish()), "99aa06d3014798d86001c324468d497f");
}

TEST(HashTest, AStreamIsTheSameInWhateverPiecesItComes) {
  std::mt19937 random(5);
  std::vector<std::byte> message(100'000);
  for (std::byte& b : message) b = static_cast<std::byte>(random());
  Xxh3_128Stream stream, at_once;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{240}, size_t{4'097}, message.size()}) {
    const std::span<const std::byte> whole = std::span(message).first(size);
    for (size_t at = 0, count = 0; at < size; at += count) {
      count = std::min<size_t>(1 + random() % 5'000, size - at);
      stream.Update(whole.subspan(at, count));
    }
    at_once.Update(whole);
    EXPECT_EQ(stream.Finish(), at_once.Finish()) << size;
  }
}

}  // namespace
}  // namespace kvcake
