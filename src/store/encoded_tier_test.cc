// What is the codec's part in a tier: damage of every kind, slots, and what cannot be kept.
#include "store/encoded_tier.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "store/chunk_file.h"
#include "store/chunk_format.h"
#include "store/disk_testing.h"
#include "store/encoded_testing.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

using namespace testing_util;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

class EncodedTierTest : public testing::TestWithParam<Codec> {
 protected:
  // Reads find what is damaged, no scan before them.
  EncodedTierTest() { options_.upkeep_interval = Seconds(3600); }
  std::unique_ptr<EncodedTier> Open() { return OpenEncodedDisk(options_, codec_, fs_); }
  Status PutNatural(Tier& tier, const ChunkKey& key, const ChunkKey& parent) {
    const auto page = NaturalPage(key, layout_);
    return tier.Put({.key = key, .parent = parent, .page = page});
  }
  std::string PathOf(const ChunkKey& key) const {
    return StoreDir(options_.dir).ChunkPath({EncodedOptions(options_, codec_).root, key});
  }
  // Puts chain_[0], and changes what its header says, which is then right about itself. The file.
  std::string PutForged(
      const std::function<void(ChunkHeader&, std::span<const std::byte>)>& change) {
    options_.missing_ttl = Seconds(0);
    EXPECT_TRUE(PutNatural(*Open(), chain_[0], Root()));
    std::string file = ReadAll(PathOf(chain_[0]));
    const auto bytes = std::as_writable_bytes(std::span(file));
    ChunkHeader header = DecodeChunk(bytes).value();
    change(header, bytes);
    EncodeHeader(HeaderBytes(bytes.first<kPageHeaderBytes>()), header);
    WriteAll(PathOf(chain_[0]), file);
    return file;
  }
  // The layers that were read right; what fails leaves the landing as it was or is not served.
  std::optional<ErrorCode> Read(Tier& tier, std::optional<LayerRange> layers = {}) {
    Reads reads;
    const ReadResult result = reads.Wait(reads.Start(tier, layout_, chain_[0], Root(), layers));
    if (!result.status) return result.status.error().code;
    const auto expected = DecodedPage(chain_[0], layout_, *codec_.Make(layout_).value());
    const LayerRange range = layers.value_or(LayerRange{0, layout_.layers});
    for (int i = range.first; i < range.first + range.count; ++i) {
      // With what fills it up: what memory held before is nobody's to keep.
      const uint64_t at = layout_.slab_offset(i);
      const std::byte* const slab = reads.landing(0).span().data() + at;
      EXPECT_EQ(std::memcmp(slab, &expected[at], layout_.slab_bytes()), 0)
          << "a wrong chunk was called right";
    }
    return std::nullopt;
  }

  const TempDir dir_;
  FaultyFileSystem fs_{FileSystem::Real(), 1};
  const KvLayout layout_ = SmallLayout();
  const StoreCodec codec_ = NaturalCodec(GetParam(), layout_);
  DiskTierOptions options_ = SmallOptions(dir_.path());
  const std::vector<ChunkKey> chain_ = Chain(3);
};

INSTANTIATE_TEST_SUITE_P(Codecs, EncodedTierTest,
                         testing::Values(Codec::kLossless, Codec::kInt8, Codec::kCacheGen,
                                         Codec::kKvQuant3),
                         [](const auto& info) { return std::string(FindCodec(info.param)->name); });

TEST_P(EncodedTierTest, WhatItsCodecDidIsToldAndWhatIsThereIsNotEncodedAgain) {
  const auto tier = Open();
  EXPECT_EQ(tier->max_writes_in_flight(), EncodedTierOptions().write_slots);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(PutNatural(*tier, chain_[0], Root()));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Read(*tier), std::nullopt);
  EXPECT_EQ(tier->Stats().encodes.calls, 1u);
  EXPECT_EQ(tier->Stats().decodes.calls, 3u);
}

// Whatever byte is damaged, whole reads and those of each layer are refused or right: never wrong.
TEST_P(EncodedTierTest, NoDamagedByteIsServed) {
  options_.missing_ttl = Seconds(0);
  options_.quarantine_files_max = 4;
  { ASSERT_TRUE(PutNatural(*Open(), chain_[0], Root())); }
  const std::string path = PathOf(chain_[0]);
  const std::string good = ReadAll(path);
  ASSERT_TRUE(DecodeChunk(std::as_bytes(std::span(good))));
  const auto tier = Open();
  std::mt19937 random(1);
  for (size_t at = 0; at < good.size(); at += 1 + random() % 23) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    WriteAll(path, bad);
    ASSERT_EQ(Read(*tier), ErrorCode::kCorrupt) << "byte " << at;
    ASSERT_FALSE(std::filesystem::exists(path)) << "it was not put aside";
    if (at % 5 != 0) continue;
    WriteAll(path, bad);
    const int layer = static_cast<int>(random() % layout_.layers);
    const auto some = Read(*tier, LayerRange{layer, 1});
    ASSERT_TRUE(!some || some == ErrorCode::kCorrupt) << "byte " << at;
  }
  WriteAll(path, good);
  EXPECT_EQ(Read(*tier), std::nullopt);
}

TEST_P(EncodedTierTest, NoCutFileIsServed) {
  options_.missing_ttl = Seconds(0);
  { ASSERT_TRUE(PutNatural(*Open(), chain_[0], Root())); }
  const std::string path = PathOf(chain_[0]);
  const std::string good = ReadAll(path);
  const auto tier = Open();
  for (const size_t bytes : {0ul, 1ul, 4095ul, 4096ul, 4097ul, good.size() - 4096, good.size() - 1,
                             good.size() + 1, good.size() + 4096}) {
    std::string bad = good;
    bad.resize(bytes);
    WriteAll(path, bad);
    EXPECT_EQ(Read(*tier), ErrorCode::kCorrupt) << bytes;
    WriteAll(path, bad);
    EXPECT_EQ(Read(*tier, LayerRange{1, 2}), ErrorCode::kCorrupt) << bytes;
  }
  WriteAll(path, good);
  EXPECT_EQ(Read(*tier), std::nullopt);
}

TEST_P(EncodedTierTest, AChunkIsEncodedAndDecodedForItsPlaceInItsPrompt) {
  constexpr int64_t kFirstToken = 4096;
  const auto tier = Open();
  const auto page = NaturalPage(chain_[0], layout_);
  ASSERT_TRUE(
      tier->Put({.key = chain_[0], .parent = Root(), .page = page, .position = kFirstToken}));
  Reads reads;
  ASSERT_TRUE(reads.Wait(reads.Start(*tier, layout_, chain_[0], Root())).status);
  const auto expected = DecodedPage(chain_[0], layout_, *codec_.Make(layout_).value(), kFirstToken);
  for (int i = 0; i < layout_.layers; ++i) {
    const auto payload = reads.landing(0).payload(i);
    EXPECT_EQ(std::memcmp(payload.data(), &expected[layout_.slab_offset(i)], payload.size()), 0);
  }
}

// Right checksums over parts of any bytes: only the codec can tell, and what it does not know goes.
TEST_P(EncodedTierTest, WhatCannotBeDecodedIsRemovedAndAMiss) {
  PutForged([&](ChunkHeader& header, std::span<const std::byte> file) {
    // A whole unit shorter than any: the next part begins sooner.
    header.parts[0].bytes -= kPartAlign;
    header.parts[1].bytes += kPartAlign;
    for (int layer = 0; layer < layout_.layers; ++layer) {
      header.parts[layer].checksum =
          Xxh3_64(file.subspan(header.layer_offset(layer), header.layer_bytes(layer)));
    }
  });
  const auto tier = Open();
  EXPECT_EQ(Read(*tier), ErrorCode::kCorrupt);
  EXPECT_EQ(Read(*tier), ErrorCode::kNotFound);
  EXPECT_FALSE(tier->Residency(chain_)[0]);
  EXPECT_EQ(tier->Stats().reads_failed, 1u);
  EXPECT_EQ(tier->Stats().reads, 0u);
  ASSERT_TRUE(PutNatural(*tier, chain_[0], Root()));
  EXPECT_EQ(Read(*tier), std::nullopt);
}

// A header that says that its layers are larger than any slot is refused before they are read.
TEST_P(EncodedTierTest, NoHeaderMakesAReadLargerThanASlot) {
  const std::string file =
      PutForged([](ChunkHeader& header, auto) { header.parts[2].bytes = 64ull << 20; });
  const auto tier = Open();
  EXPECT_EQ(Read(*tier, LayerRange{2, 1}), ErrorCode::kCorrupt);
  WriteAll(PathOf(chain_[0]), file);
  EXPECT_EQ(Read(*tier), ErrorCode::kCorrupt);
}

// Neither raw chunks of the same root nor those of another codec or other tables are found, and a
// file that is moved to where they are looked for is refused.
TEST_P(EncodedTierTest, FormsDoNotMix) {
  {
    const auto tier = Open();
    ASSERT_TRUE(PutNatural(*tier, chain_[0], Root()));
    const auto raw = DiskTier::Open(options_).value();
    EXPECT_FALSE(raw->Residency(chain_)[0]);
    ASSERT_TRUE(PutChunk(*raw, layout_, chain_[1], chain_[0]));
    EXPECT_FALSE(Open()->Residency(chain_)[1]);
    EXPECT_TRUE(tier->Residency(chain_)[0]);
  }
  StoreCodec other =
      NaturalCodec(GetParam() == Codec::kLossless ? Codec::kInt8 : Codec::kLossless, layout_);
  if (codec_.tables) {  // the same codec
    other = codec_;
    other.tables_digest[0] ^= 1;
  }
  const DiskTierOptions elsewhere = EncodedOptions(options_, other);
  const auto tier = OpenEncodedDisk(options_, other);
  EXPECT_FALSE(tier->Residency(chain_)[0]);
  const std::string file = ReadAll(PathOf(chain_[0]));
  WriteAll(StoreDir(options_.dir).ChunkPath({elsewhere.root, chain_[0]}), file);
  EXPECT_EQ(ReadBack(*tier, layout_, chain_[0], Root()), ErrorCode::kCorrupt);
}

TEST_P(EncodedTierTest, FilesAreSmallerAndCountedAsTheyAre) {
  const KvLayout large{.layers = 4, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 128};
  options_.layout = large;
  const StoreCodec codec = NaturalCodec(GetParam(), large);
  const auto tier = OpenEncodedDisk(options_, codec);
  const auto page = NaturalPage(chain_[0], large);
  ASSERT_TRUE(tier->Put({.key = chain_[0], .parent = Root(), .page = page}));
  Reads reads;
  const ReadResult result = reads.Wait(reads.Start(*tier, large, chain_[0], Root()));
  ASSERT_TRUE(result.status);
  EXPECT_EQ(result.bytes, large.page_bytes()) << "what a tier delivers is decoded";
  EXPECT_GT(result.core_s, 0);
  const TierStats stats = tier->Stats();
  EXPECT_LT(stats.bytes, large.page_bytes() * 3 / 4);
  EXPECT_EQ(stats.read_bytes, stats.bytes);
  EXPECT_EQ(stats.write_bytes, stats.bytes);
  EXPECT_EQ(stats.encodes.calls, 1u);
  EXPECT_EQ(stats.decodes.calls, 1u);
  EXPECT_GT(stats.decodes.seconds, 0);
  // Some layers cost their own bytes, the header and what blocks round up to.
  Reads some;
  ASSERT_TRUE(some.Wait(some.Start(*tier, large, chain_[0], Root(), LayerRange{1, 1})).status);
  EXPECT_LT(tier->Stats().read_bytes - stats.read_bytes, stats.bytes / 2 + 3 * 4096);
}

// A codec that cannot keep a number says so, and nothing is kept.
TEST_P(EncodedTierTest, NumbersThatALossyCodecCannotKeepAreNotKept) {
  auto page = NaturalPage(chain_[0], layout_);
  constexpr uint16_t kInfinity = 0x7f80;
  std::memcpy(&page[layout_.slab_offset(1)], &kInfinity, 2);
  const auto tier = Open();
  bool page_read = false;
  const Status kept = tier->Put(
      {.key = chain_[0], .parent = Root(), .page = page, .page_read = [&] { page_read = true; }});
  if (GetParam() == Codec::kLossless) {
    EXPECT_TRUE(kept);
    EXPECT_TRUE(page_read);
    return;
  }
  ASSERT_FALSE(kept);
  EXPECT_EQ(kept.error().code, ErrorCode::kUnsupported);
  EXPECT_FALSE(tier->Residency(chain_)[0]);
}

// Reads beyond the slots wait, and no more memory is taken: each has its slot until it is decoded.
TEST_P(EncodedTierTest, ReadsKeepToTheSlots) {
  options_.max_reads_in_flight = 1;
  const auto tier = Open();
  for (size_t i = 0; i < chain_.size(); ++i) {
    ASSERT_TRUE(PutNatural(*tier, chain_[i], ParentOf(chain_, i)));
  }
  const uint64_t slot = EncodedOptions(options_, codec_).form.FileBytesMax(layout_);
  EXPECT_EQ(tier->max_reads_in_flight(), 1 + 2);
  EXPECT_EQ(tier->staging_bytes(), (1 + 2 + 2) * slot);
  const auto codec = codec_.Make(layout_).value();
  Reads reads;
  for (int round = 0; round < 40; ++round) {
    const size_t i = round % chain_.size();
    reads.Start(*tier, layout_, chain_[i], ParentOf(chain_, i));
  }
  for (int round = 0; round < 40; ++round) {
    ASSERT_TRUE(reads.Wait(round).status);
    const auto expected = DecodedPage(chain_[round % chain_.size()], layout_, *codec);
    for (int layer = 0; layer < layout_.layers; ++layer) {
      const auto payload = reads.landing(round).payload(layer);
      ASSERT_EQ(std::memcmp(payload.data(), &expected[layout_.slab_offset(layer)], payload.size()),
                0);
    }
  }
}

TEST_P(EncodedTierTest, TheFileIsAsTheHeaderSays) {
  ASSERT_TRUE(PutNatural(*Open(), chain_[0], Root()));
  ChunkFileReader reader(FileSystem::Real());
  const ChunkHeader header = reader.Read(PathOf(chain_[0])).value();
  EXPECT_EQ(header.codec, GetParam());
  EXPECT_EQ(header.tables, codec_.tables_digest);
  EXPECT_EQ(header.parent, Root());
  EXPECT_EQ(header.parts.size(), static_cast<size_t>(layout_.layers));
  EXPECT_EQ(header.file_bytes(), std::filesystem::file_size(PathOf(chain_[0])));
}

}  // namespace
}  // namespace kvcake
