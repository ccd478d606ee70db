// What is encrypted, and what a stranger can make of it who may write all that is on the disk.
#include "store/chunk_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/hash.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

constexpr uint64_t kPartBytes[] = {192, 64, 192};
constexpr size_t kHeaderChecksumAt = 4088, kEncryptedPartsAt = 368, kPartEntryBytes = 28;

StoreKey KeyOf(char letter) { return StoreKey::Of(std::string(32, letter), "a test").value(); }

class ChunkSealTest : public testing::Test {
 protected:
  ChunkSealTest() { plain_ = Plain(); }

  // Three parts of letters behind the room of a header.
  static std::vector<std::byte> Plain() {
    std::vector<std::byte> file(2 * kPageHeaderBytes);
    size_t at = kPageHeaderBytes;
    for (const uint64_t bytes : kPartBytes) {
      for (uint64_t i = 0; i < bytes; ++i, ++at) file[at] = static_cast<std::byte>('a' + at % 26);
    }
    return file;
  }
  ChunkHeader Header(size_t chunk = 1) const {
    ChunkHeader header;
    header.key = chain_[chunk];
    header.parent = chain_[chunk - 1];
    header.root = Root();
    header.layout = SmallLayout();
    header.position = 16;
    for (const uint64_t bytes : kPartBytes) header.parts.push_back({.bytes = bytes});
    return header;
  }
  std::vector<std::byte> Sealed(const StoreKey& key, size_t chunk = 1) const {
    std::vector<std::byte> file = plain_;
    ChunkHeader header = Header(chunk);
    EXPECT_TRUE(SealChunk(key, header, file));
    return file;
  }
  static Result<ChunkIdentity> Open(const StoreKey& key, std::vector<std::byte>& file) {
    ASSIGN_OR_RETURN(const ChunkHeader header, DecodeChunk(file));
    return OpenChunk(key, header, file);
  }
  // Makes all checksums right again, as who has no key can.
  static void Forge(std::vector<std::byte>& file) {
    size_t at = kPageHeaderBytes;
    for (size_t layer = 0; layer < std::size(kPartBytes); ++layer) {
      const auto part = std::span(file).subspan(at, kPartBytes[layer]);
      Set(file, kEncryptedPartsAt + layer * kPartEntryBytes, Xxh3_64(part));
      at += part.size();
    }
    Set(file, kHeaderChecksumAt, Xxh3_64(std::span(file).first(kHeaderChecksumAt)));
  }
  static void Set(std::vector<std::byte>& file, size_t at, uint64_t value) {
    std::memcpy(&file[at], &value, sizeof(value));
  }

  const std::vector<ChunkKey> chain_ = Chain(3);
  const StoreKey key_ = KeyOf('k');
  std::vector<std::byte> plain_;
};

TEST_F(ChunkSealTest, WhatWasSealedIsOpened) {
  std::vector<std::byte> file = Sealed(key_);
  const auto header = DecodeChunk(file);
  ASSERT_TRUE(header) << header.error().message;
  EXPECT_EQ(header->key, NameOf(key_, chain_[1]));
  EXPECT_EQ(header->parent, NameOf(key_, chain_[0]));
  EXPECT_EQ(header->root, NameOf(key_, Root()));
  EXPECT_EQ(header->codec, Codec::kRaw);
  const auto identity = OpenChunk(key_, *header, file);
  ASSERT_TRUE(identity) << identity.error().message;
  EXPECT_EQ(*identity, (ChunkIdentity{chain_[1], chain_[0], Root()}));
  EXPECT_TRUE(
      std::equal(file.begin() + kPageHeaderBytes, file.end(), plain_.begin() + kPageHeaderBytes));
}

TEST_F(ChunkSealTest, OnePartIsOpenedWithoutTheOthers) {
  std::vector<std::byte> file = Sealed(key_);
  const ChunkHeader header = DecodeChunk(file).value();
  const PartOpener opener(key_, chain_[1], std::span(file).first<kPageHeaderBytes>(), header);
  const auto second = std::span(file).subspan(header.layer_offset(1), header.layer_bytes(1));
  ASSERT_TRUE(opener.Open(1, second));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), plain_.begin() + header.layer_offset(1)));
}

TEST_F(ChunkSealTest, NothingOfItIsSeen) {
  const std::vector<std::byte> file = Sealed(key_);
  const auto holds = [&](std::span<const std::byte> some) {
    return std::search(file.begin(), file.end(), some.begin(), some.end()) != file.end();
  };
  for (size_t at = kPageHeaderBytes; at < kPageHeaderBytes + 400; at += 8) {
    EXPECT_FALSE(holds(std::span(plain_).subspan(at, 8)));
  }
  for (const ChunkKey& key : {chain_[0], chain_[1], Root()}) {
    EXPECT_FALSE(holds(std::as_bytes(std::span(key.digest)).first(8)));
  }
}

TEST_F(ChunkSealTest, OneChunkSealedTwiceHasNothingInCommon) {
  const std::vector<std::byte> first = Sealed(key_), second = Sealed(key_);
  const auto parts = [](const std::vector<std::byte>& file, size_t at) {
    return std::vector(file.begin() + at, file.begin() + at + 64);
  };
  EXPECT_NE(parts(first, kPageHeaderBytes), parts(second, kPageHeaderBytes));
  EXPECT_NE(parts(first, 256), parts(second, 256)) << "what it is about";
}

TEST_F(ChunkSealTest, AnotherKeyOpensNothing) {
  std::vector<std::byte> file = Sealed(key_);
  const StoreKey other = KeyOf('o');
  const ChunkHeader header = DecodeChunk(file).value();
  const auto bytes = std::span(file).first<kPageHeaderBytes>();
  EXPECT_EQ(OpenIdentity(other, bytes, header).error().code, ErrorCode::kCorrupt);
  const auto part = std::span(file).subspan(header.layer_offset(0), header.layer_bytes(0));
  EXPECT_FALSE(PartOpener(other, chain_[1], bytes, header).Open(0, part));
  EXPECT_NE(NameOf(other, chain_[1]), NameOf(key_, chain_[1]));
}

TEST_F(ChunkSealTest, AnotherCipherIsRefusedByName) {
  std::vector<std::byte> file = Sealed(key_);
  file[80] = std::byte{2};
  Forge(file);
  const auto header = DecodeChunk(file);
  ASSERT_FALSE(header);
  EXPECT_EQ(header.error().message, "encryption is 2, must be 1");
}

// Every byte of the file is a checksum's, or authenticated, or must be what it is.
TEST_F(ChunkSealTest, NoByteCanBeChanged) {
  const std::vector<std::byte> file = Sealed(key_);
  for (size_t at = 0; at < file.size(); ++at) {
    for (const bool forged : {false, true}) {
      std::vector<std::byte> changed = file;
      changed[at] ^= std::byte{0x10};
      if (forged) Forge(changed);
      if (changed == file) continue;  // a checksum, made right again
      const auto opened = Open(key_, changed);
      ASSERT_FALSE(opened) << "byte " << at << (forged ? ", forged" : "");
      ASSERT_EQ(opened.error().code, ErrorCode::kCorrupt);
    }
  }
}

TEST_F(ChunkSealTest, PartsCannotChangePlaces) {
  std::vector<std::byte> file = Sealed(key_);
  const ChunkHeader header = DecodeChunk(file).value();
  const size_t first = header.layer_offset(0), third = header.layer_offset(2);
  std::swap_ranges(file.begin() + first, file.begin() + first + kPartBytes[0],
                   file.begin() + third);
  const auto entry = file.begin() + kEncryptedPartsAt;
  std::swap_ranges(entry, entry + kPartEntryBytes, entry + 2 * kPartEntryBytes);
  Forge(file);
  ASSERT_TRUE(DecodeChunk(file)) << "the checksums say that all is well";
  EXPECT_FALSE(Open(key_, file));
}

TEST_F(ChunkSealTest, PartsCannotBeAnotherChunks) {
  std::vector<std::byte> file = Sealed(key_, 1);
  const std::vector<std::byte> other = Sealed(key_, 2);
  std::copy(other.begin() + kPageHeaderBytes, other.end(), file.begin() + kPageHeaderBytes);
  std::copy(other.begin() + kEncryptedPartsAt, other.begin() + kHeaderChecksumAt,
            file.begin() + kEncryptedPartsAt);
  Forge(file);
  ASSERT_TRUE(DecodeChunk(file));
  EXPECT_FALSE(Open(key_, file));
}

// Two salts of one store's tenants are two chunk keys: the one's cipher is of no use to the other.
TEST_F(ChunkSealTest, EachChunkHasACipherOfItsOwn) {
  std::vector<std::byte> file = Sealed(key_);
  const ChunkHeader header = DecodeChunk(file).value();
  const PartOpener other(key_, chain_[2], std::span(file).first<kPageHeaderBytes>(), header);
  EXPECT_FALSE(
      other.Open(0, std::span(file).subspan(header.layer_offset(0), header.layer_bytes(0))));
}

TEST_F(ChunkSealTest, AsManyLayersFitAsTheHeaderSays) {
  KvLayout layout = SmallLayout();
  layout.layers = kEncryptedLayersMax;
  EXPECT_TRUE(CheckStorable(layout, Codec::kRaw, /*encrypted=*/true));
  ChunkHeader header = Header();
  header.layout = layout;
  header.parts.assign(layout.layers, {.bytes = 64});
  header.encryption.emplace();
  std::vector<std::byte> file(header.file_bytes());
  ASSERT_TRUE(SealChunk(key_, header, file));
  EXPECT_EQ(DecodeChunk(file).value(), header);
  EXPECT_TRUE(Open(key_, file));
  const uint32_t one_more = kEncryptedLayersMax + 1;
  std::memcpy(&file[24], &one_more, sizeof(one_more));
  Set(file, kHeaderChecksumAt, Xxh3_64(std::span(file).first(kHeaderChecksumAt)));
  const auto refused = DecodeHeader(std::span(file).first<kPageHeaderBytes>());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("at most 132"), std::string::npos);
  ++layout.layers;
  EXPECT_EQ(CheckStorable(layout, Codec::kRaw, true).error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(CheckStorable(layout, Codec::kInt8));
}

}  // namespace
}  // namespace kvcake
