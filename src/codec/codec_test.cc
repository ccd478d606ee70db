// What holds for every row of the table, whatever the codec.
#include "codec/codec.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "codec/codec_testing.h"

namespace kvcake {
namespace {

using ::testing::HasSubstr;

constexpr KvLayout kLayouts[] = {
    {.layers = 1, .kv_heads = 2, .head_dim = 64, .chunk_tokens = 128},
    {.layers = 1, .kv_heads = 1, .head_dim = 128, .chunk_tokens = 16},
    {.layers = 1, .kv_heads = 3, .head_dim = 20, .chunk_tokens = 7},  // nothing is a multiple
    {.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 1},
    {.layers = 1, .kv_heads = 2, .head_dim = 24, .chunk_tokens = 300},  // blocks of two lengths
};

constexpr SlabPlace kPlace = {.layer = 0, .position = 600};

// A part in memory of exactly its size, so that the sanitizer sees what is read beyond it.
std::vector<std::byte> EncodedOf(const LayerCodec& codec, std::span<const uint16_t> slab) {
  std::vector<std::byte> part(codec.part_bytes_max());
  const auto bytes = codec.Encode(kPlace, slab, part);
  EXPECT_TRUE(bytes) << bytes.error().message;
  EXPECT_LE(bytes.value_or(0), part.size());
  EXPECT_EQ(bytes.value_or(1) % kPartAlign, 0u);
  return {part.begin(), part.begin() + static_cast<int64_t>(bytes.value_or(0))};
}

struct Made {
  const CodecRow* row;
  KvLayout layout;
};

// The codecs of each row, or of those with tables only.
std::vector<Made> AllMade(bool with_tables = false) {
  std::vector<Made> made;
  for (const CodecRow& row : CodecRows()) {
    if (with_tables && row.fit == nullptr) continue;
    for (const KvLayout& layout : kLayouts) made.push_back({&row, layout});
  }
  return made;
}

class CodecTest : public testing::TestWithParam<Made> {
 protected:
  CodecTest() {
    const auto tables = NaturalTables(row(), layout());
    const CodecSpec spec{.layout = layout(), .tables = tables ? &*tables : nullptr};
    for (const CodecIsa isa : CodecIsas()) codecs_[isa] = row().make(spec, isa).value();
  }

  const LayerCodec* Of(CodecIsa isa) const { return codecs_.at(isa).get(); }
  const LayerCodec* Fastest() const { return Of(CodecIsas().back()); }
  bool DecodesTheSame(const std::vector<std::byte>& part) const;
  const CodecRow& row() const { return *GetParam().row; }
  const KvLayout& layout() const { return GetParam().layout; }

 private:
  std::map<CodecIsa, std::unique_ptr<LayerCodec>> codecs_;
};

std::string NameOf(const testing::TestParamInfo<Made>& info) {
  return fmt::format("{}_{}", info.param.row->name, info.index % std::size(kLayouts));
}
INSTANTIATE_TEST_SUITE_P(Rows, CodecTest, testing::ValuesIn(AllMade()), NameOf);

class TabledCodecTest : public CodecTest {};
INSTANTIATE_TEST_SUITE_P(Rows, TabledCodecTest, testing::ValuesIn(AllMade(true)), NameOf);

TEST_P(CodecTest, EveryInstructionSetGivesTheSame) {
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto slab = NaturalSlab(layout(), seed);
    const auto part = EncodedOf(*Of(CodecIsa::kPortable), slab);
    std::vector<uint16_t> expected(slab.size());
    ASSERT_TRUE(Of(CodecIsa::kPortable)->Decode(kPlace, part, expected));
    if (!row().lossy) {
      EXPECT_EQ(expected, slab);
    } else if (slab.size() > 100) {
      EXPECT_NE(expected, slab) << "nothing is lost";
    }
    for (const CodecIsa isa : CodecIsas()) {
      const LayerCodec* const codec = Of(isa);
      EXPECT_EQ(EncodedOf(*codec, slab), part);
      std::vector<uint16_t> decoded(slab.size(), 0x1234);
      ASSERT_TRUE(codec->Decode(kPlace, part, decoded)) << CodecIsaName(isa);
      EXPECT_EQ(decoded, expected) << CodecIsaName(isa);
    }
  }
}

TEST_P(CodecTest, WhatIsWrittenDoesNotDependOnWhatLayThere) {
  const LayerCodec* const codec = Fastest();
  const auto slab = NaturalSlab(layout(), 1);
  std::vector<std::byte> part(codec->part_bytes_max(), std::byte{0xa5});
  const auto bytes = codec->Encode(kPlace, slab, part);
  ASSERT_TRUE(bytes);
  part.resize(*bytes);
  EXPECT_EQ(part, EncodedOf(*codec, slab));
}

TEST_P(CodecTest, AnyBitsAreKeptOrRefused) {
  const LayerCodec* const codec = Fastest();
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto slab = AnySlab(layout(), seed);
    std::vector<std::byte> part(codec->part_bytes_max());
    const auto bytes = codec->Encode(kPlace, slab, part);
    if (!bytes) {
      EXPECT_TRUE(row().lossy);
      EXPECT_EQ(bytes.error().code, ErrorCode::kUnsupported);
      continue;
    }
    std::vector<uint16_t> decoded(slab.size());
    ASSERT_TRUE(codec->Decode(kPlace, std::span(part).first(*bytes), decoded));
    if (!row().lossy) {
      EXPECT_EQ(decoded, slab);
    }
  }
}

TEST_P(CodecTest, NumbersThatAreAllTheSameComeBack) {
  const LayerCodec* const codec = Fastest();
  for (const uint16_t value : {0x0000, 0x8000, 0x3f80, 0xbf80, 0x0001, 0x7e7f, 0xfe7f}) {
    const std::vector<uint16_t> slab(2 * layout().plane_elements(), value);
    std::vector<std::byte> part(codec->part_bytes_max());
    const auto bytes = codec->Encode(kPlace, slab, part);
    if (!bytes) {  // far from the model's numbers
      EXPECT_NE(row().fit, nullptr);
      EXPECT_EQ(bytes.error().code, ErrorCode::kUnsupported);
      continue;
    }
    std::vector<uint16_t> decoded(slab.size());
    ASSERT_TRUE(codec->Decode(kPlace, std::span(part).first(*bytes), decoded));
    if (row().fit != nullptr) continue;  // levels are those of the model's numbers
    for (size_t i = 0; i < slab.size(); ++i) {
      const float is = Bf16ToF32(decoded[i]), was = Bf16ToF32(value);
      ASSERT_LE(std::abs(is - was), row().lossy ? std::abs(was) / 100 : 0) << value;
    }
  }
}

TEST_P(TabledCodecTest, TablesThatAreMissingOrOfAnotherModelAreNamed) {
  const auto none = row().make({.layout = layout(), .tables = nullptr}, CodecIsa::kPortable);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(none.error().message, HasSubstr("kvcake codec fit"));
  auto tables = *NaturalTables(row(), layout());
  KvLayout other = layout();
  ++other.kv_heads;
  const auto another = row().make({.layout = other, .tables = &tables}, CodecIsa::kPortable);
  ASSERT_FALSE(another);
  EXPECT_EQ(another.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(another.error().message, HasSubstr("another model"));
}

TEST_P(TabledCodecTest, TablesWithABodyThatIsCutAreCorrupt) {
  auto tables = *NaturalTables(row(), layout());
  const auto whole = tables.body;
  for (size_t size = 0; size <= whole.size() + 1; size += std::max<size_t>(1, whole.size() / 100)) {
    if (size == whole.size()) continue;
    tables.body = whole;
    tables.body.resize(size);
    tables.body.shrink_to_fit();
    const auto made = row().make({.layout = layout(), .tables = &tables}, CodecIsa::kPortable);
    ASSERT_FALSE(made) << size;
    EXPECT_EQ(made.error().code, ErrorCode::kCorrupt);
  }
}

// A copy of a part whose end is a page's, with nothing mapped behind it: who reads on, crashes.
class GuardedPart {
 public:
  explicit GuardedPart(const std::vector<std::byte>& part)
      : bytes_((part.size() / kPageBytes + 2) * kPageBytes),
        memory_(static_cast<std::byte*>(
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::byte* const end = memory_ + bytes_ - kPageBytes;
    EXPECT_EQ(mprotect(end, kPageBytes, PROT_NONE), 0);
    span_ = {end - part.size(), part.size()};
    std::copy(part.begin(), part.end(), end - part.size());
  }
  ~GuardedPart() { munmap(memory_, bytes_); }
  GuardedPart(const GuardedPart&) = delete;
  GuardedPart& operator=(const GuardedPart&) = delete;

  std::span<const std::byte> span() const { return span_; }

 private:
  static constexpr size_t kPageBytes = 4096;
  const size_t bytes_;
  std::byte* const memory_;
  std::span<const std::byte> span_;
};

// Reads `part` by every instruction set: none may touch anything beyond it or the slab, and all
// must agree. Returns whether it is a part.
bool CodecTest::DecodesTheSame(const std::vector<std::byte>& part) const {
  const GuardedPart guarded(part);
  std::vector<bool> good;
  std::vector<std::vector<uint16_t>> slabs;
  for (const CodecIsa isa : CodecIsas()) {
    // One value more than the slab has, on each side, which must stay.
    std::vector<uint16_t> memory(2 * layout().plane_elements() + 2, 0x5aa5);
    const auto slab = std::span(memory).subspan(1, memory.size() - 2);
    const Status status = Of(isa)->Decode(kPlace, guarded.span(), slab);
    if (!status) {
      EXPECT_EQ(status.error().code, ErrorCode::kCorrupt);
    }
    EXPECT_EQ(memory.front(), 0x5aa5);
    EXPECT_EQ(memory.back(), 0x5aa5);
    good.push_back(status.has_value());
    slabs.emplace_back(slab.begin(), slab.end());
  }
  for (size_t i = 1; i < good.size(); ++i) {
    EXPECT_EQ(good[i], good[0]);
    if (good[i]) {
      EXPECT_EQ(slabs[i], slabs[0]);
    }
  }
  return good[0];
}

TEST_P(CodecTest, EachByteDamagedIsReadWithinBounds) {
  const LayerCodec* const codec = Fastest();
  const auto slab = NaturalSlab(layout(), 2);
  const auto part = EncodedOf(*codec, slab);
  // All bytes of what says how the rest lies, and of the rest some.
  const size_t step = std::max<size_t>(1, part.size() / 500);
  for (size_t at = 0; at < part.size(); at += at < 512 ? 1 : step) {
    for (const int flip : {0x01, 0x80, 0xff}) {
      auto damaged = part;
      damaged[at] ^= std::byte(flip);
      DecodesTheSame(damaged);
    }
  }
}

TEST_P(CodecTest, APartThatIsCutOrTooLongIsRefused) {
  const LayerCodec* const codec = Fastest();
  const auto part = EncodedOf(*codec, NaturalSlab(layout(), 3));
  const size_t step = std::max<size_t>(1, part.size() / 500);
  for (size_t size = 0; size < part.size(); size += size + 200 < part.size() ? step : 1) {
    auto cut = std::vector(part.begin(), part.begin() + static_cast<int64_t>(size));
    cut.shrink_to_fit();
    EXPECT_FALSE(DecodesTheSame(cut)) << size;
  }
  auto longer = part;
  longer.resize(part.size() + kPartAlign);
  EXPECT_FALSE(DecodesTheSame(longer));
  EXPECT_TRUE(DecodesTheSame(part));
}

TEST(CodecTable, RowsAreFoundByNumberAndByName) {
  for (const CodecRow& row : CodecRows()) {
    EXPECT_EQ(FindCodec(row.codec), &row);
    EXPECT_EQ(*CodecNamed(row.name), &row);
  }
  EXPECT_EQ(FindCodec(static_cast<Codec>(999)), nullptr);
  const auto none = CodecNamed("zip");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("'zip'"));
  EXPECT_THAT(none.error().message, HasSubstr("lossless"));
}

TEST(CodecTable, ARawPartIsFilledUpWithZeros) {
  const auto codec =
      MakeCodec(Codec::kRaw,
                {.layout = {.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 1}})
          .value();
  std::vector<std::byte> part(codec->part_bytes_max());
  std::vector<uint16_t> slab = {1, 2}, decoded(2);
  ASSERT_TRUE(codec->Encode({}, slab, part));
  ASSERT_TRUE(codec->Decode({}, part, decoded));
  part.back() = std::byte{1};
  EXPECT_FALSE(codec->Decode({}, part, decoded));
}

// On-disk numbers.
TEST(CodecTable, NumbersNeverChange) {
  const auto number = [](const char* name) { return static_cast<int>((*CodecNamed(name))->codec); };
  EXPECT_EQ(number("raw"), 0);
  EXPECT_EQ(number("lossless"), 1);
  EXPECT_EQ(number("int8"), 2);
  EXPECT_EQ(number("cachegen"), 3);
  EXPECT_EQ(number("kvquant3"), 4);
}

}  // namespace
}  // namespace kvcake
