#include "codec/store_key.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <numeric>
#include <vector>

#include "base/temp_dir_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

constexpr const char* kSecret = "0123456789abcdef0123456789abcdef";

StoreKey Key(std::string_view secret = kSecret) { return *StoreKey::Of(secret, "test"); }

Digest SomeDigest() {
  Digest digest;
  std::iota(digest.begin(), digest.end(), 0);
  return digest;
}

FileSalt SomeSalt() {
  FileSalt salt;
  std::iota(salt.begin(), salt.end(), 100);
  return salt;
}

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string SealedHex(const FileCipher& cipher, uint32_t part, std::string_view header) {
  const std::string_view plain = "a part of a chunk";
  std::vector<std::byte> sealed(plain.size());
  PartTag tag;
  EXPECT_TRUE(cipher.Seal(part, Bytes(header), Bytes(plain), sealed, &tag));
  return ToHex({reinterpret_cast<const uint8_t*>(sealed.data()), sealed.size()}) + ToHex(tag);
}

// Goldens of Python's hmac, and of HKDF and AESGCM of its package cryptography.
TEST(StoreKeyTest, NamesAndPartsAreWhatOthersMakeOfTheSecret) {
  EXPECT_EQ(ToHex(Key().NameOf(SomeDigest())),
            "cfd7c4ae08a6d9337b7b0e76949342e0b1fff41a649a978379786c012d5a6abd");
  EXPECT_EQ(SealedHex(Key().ChunkCipher(SomeSalt(), SomeDigest()), 7, "header"),
            "efdfc28f898c7a3e44ac54a6307aba527e362088f86a525d53c93c907ec470aae0");
  EXPECT_EQ(SealedHex(Key().HeaderCipher(SomeSalt()), 0, ""),
            "a59c6cc766baa818d410cb57c770fadd0211004954d6323fa8474b8de418c10b41");
}

TEST(StoreKeyTest, EverythingThatAFileDependsOnChangesItsKey) {
  const std::string sealed = SealedHex(Key().ChunkCipher(SomeSalt(), SomeDigest()), 7, "header");
  FileSalt salt = SomeSalt();
  salt[31] ^= 1;
  Digest digest = SomeDigest();
  digest[31] ^= 1;
  const StoreKey other = Key("0123456789abcdef0123456789abcdeF");
  EXPECT_NE(SealedHex(Key().ChunkCipher(salt, SomeDigest()), 7, "header"), sealed);
  EXPECT_NE(SealedHex(Key().ChunkCipher(SomeSalt(), digest), 7, "header"), sealed);
  EXPECT_NE(SealedHex(other.ChunkCipher(SomeSalt(), SomeDigest()), 7, "header"), sealed);
  EXPECT_NE(Key().NameOf(digest), Key().NameOf(SomeDigest()));
  EXPECT_NE(other.NameOf(SomeDigest()), Key().NameOf(SomeDigest()));
}

// A part of 1,000 bytes, sealed in place, and what Open says of it.
class SealedPartTest : public testing::Test {
 protected:
  SealedPartTest() {
    std::iota(reinterpret_cast<uint8_t*>(plain_.data()),
              reinterpret_cast<uint8_t*>(plain_.data()) + plain_.size(), 0);
    sealed_ = plain_;
    EXPECT_TRUE(cipher_.Seal(3, header_, sealed_, sealed_, &tag_));
    EXPECT_NE(sealed_, plain_);
  }
  Status Open(uint32_t part = 3) { return cipher_.Open(part, header_, sealed_, tag_, opened_); }
  void ExpectCorrupt() {
    const Status opened = Open();
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt);
  }

  FileCipher cipher_ = Key().ChunkCipher(SomeSalt(), SomeDigest());
  std::vector<std::byte> header_ = std::vector<std::byte>(100, std::byte{9});
  std::vector<std::byte> plain_ = std::vector<std::byte>(1000), sealed_;
  std::vector<std::byte> opened_ = std::vector<std::byte>(1000);
  PartTag tag_;
};

TEST_F(SealedPartTest, IsOpenedInPlaceOrElsewhere) {
  ASSERT_TRUE(Open());
  EXPECT_EQ(opened_, plain_);
  ASSERT_TRUE(cipher_.Open(3, header_, sealed_, tag_, sealed_));
  EXPECT_EQ(sealed_, plain_);
}

TEST_F(SealedPartTest, IsCorruptOnceAnyByteOfItIsChanged) {
  for (std::byte& byte : sealed_) {
    byte ^= std::byte{1};
    ExpectCorrupt();
    byte ^= std::byte{1};
  }
  for (std::byte& byte : header_) {
    byte ^= std::byte{0x80};
    ExpectCorrupt();
    byte ^= std::byte{0x80};
  }
  for (uint8_t& byte : tag_) {
    byte ^= 1;
    ExpectCorrupt();
    byte ^= 1;
  }
  EXPECT_FALSE(Open(2)) << "it is no other part";
  ASSERT_TRUE(Open());
  cipher_ = Key().ChunkCipher(NewFileSalt(), SomeDigest());
  ExpectCorrupt();
}

TEST(StoreKeyTest, APartMayBeEmpty) {
  const FileCipher cipher = Key().HeaderCipher(SomeSalt());
  PartTag tag;
  ASSERT_TRUE(cipher.Seal(0, Bytes("header"), {}, {}, &tag));
  EXPECT_TRUE(cipher.Open(0, Bytes("header"), {}, tag, {}));
  EXPECT_FALSE(cipher.Open(0, Bytes("Header"), {}, tag, {}));
}

TEST(StoreKeyTest, SaltsAreNew) { EXPECT_NE(NewFileSalt(), NewFileSalt()); }

TEST(StoreKeyTest, IsOfAFileThatIsItsOwnersAlone) {
  const TempDir dir;
  const std::string path = dir.path() + "/key";
  std::ofstream(path) << kSecret << "\n";
  ASSERT_EQ(chmod(path.c_str(), 0640), 0);
  const auto open = StoreKey::Load(path, "key-file");
  ASSERT_FALSE(open);
  EXPECT_THAT(open.error().message, HasSubstr("chmod 600 " + path));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  const auto key = StoreKey::Load(path, "key-file");
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_EQ(key->NameOf(SomeDigest()), Key().NameOf(SomeDigest()));
  EXPECT_EQ(StoreKey::Load(dir.path() + "/none", "key-file").error().code, ErrorCode::kIo);
}

TEST(StoreKeyTest, OneThatIsTooShortOrTooLongIsRefusedWithTheRemedy) {
  for (const size_t bytes : {size_t{0}, StoreKey::kBytesMin - 1, StoreKey::kBytesMax + 1}) {
    const auto key = StoreKey::Of(std::string(bytes, 'x'), "key-file F");
    ASSERT_FALSE(key) << bytes;
    EXPECT_THAT(key.error().message, HasSubstr("key-file F"));
    EXPECT_THAT(key.error().message, HasSubstr("openssl rand -hex 32"));
  }
  EXPECT_TRUE(StoreKey::Of(std::string(StoreKey::kBytesMin, 'x'), "test"));
  EXPECT_TRUE(StoreKey::Of(std::string(StoreKey::kBytesMax, 'x'), "test"));
}

}  // namespace
}  // namespace kvcake
