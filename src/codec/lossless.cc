#include "codec/lossless.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "codec/lossless_kernels.h"

namespace kvcake {
namespace {

// A part: one entry for each block (of K's heads, then of V's), then the blocks, each of its rests,
// its planes and its escapes; then kGroupValues zeros. Everything begins at a multiple of 64.
constexpr uint64_t kEntryBytes = 32;
constexpr size_t kEntryTable = 0, kEntryWidth = 15, kEntryEscapes = 16, kEntryReserved = 24;

constexpr unsigned ExponentOf(uint16_t value) { return value >> 7 & 0xff; }
constexpr uint8_t RestOf(uint16_t value) {
  return static_cast<uint8_t>((value >> 8 & 0x80) | (value & 0x7f));
}

// How a block's exponents are written.
struct Coding {
  int width = 0;
  std::array<uint8_t, 16> table = {};
  std::array<uint8_t, 256> place = {};  // of each exponent; of those not in the table the escape
};

std::array<uint64_t, 256> CountExponents(std::span<const uint16_t> values) {
  // Equal exponents that follow each other would wait for one counter.
  std::array<std::array<uint32_t, 256>, 4> counts = {};
  std::array<uint64_t, 256> sum = {};
  constexpr size_t kBetweenSums = size_t{1} << 30;
  for (size_t begin = 0; begin < values.size(); begin += kBetweenSums) {
    const auto some = values.subspan(begin, std::min(kBetweenSums, values.size() - begin));
    counts = {};
    for (size_t i = 0; i < some.size(); ++i) ++counts[i % 4][ExponentOf(some[i])];
    for (const auto& part : counts) {
      for (size_t e = 0; e < sum.size(); ++e) sum[e] += part[e];
    }
  }
  return sum;
}

uint64_t PlaneBytes(uint64_t groups, int width) { return RoundUpToPart(groups * 8 * width); }

// The commonest exponents first, of those as common the smallest, and the width that takes the
// fewest bytes, of those as good the smallest.
Coding ChooseCoding(std::span<const uint16_t> values, uint64_t groups) {
  const auto counts = CountExponents(values);
  std::array<uint8_t, 256> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint8_t a, uint8_t b) { return counts[a] > counts[b]; });
  Coding coding;
  uint64_t fewest = groups * kGroupValues;  // width 0: an escape for each, and for what fills up
  uint64_t in_table = 0;
  size_t taken = 0;
  for (int width = 1; width <= kTableWidthMax; ++width) {
    for (; taken < (size_t{1} << width) - 1; ++taken) in_table += counts[order[taken]];
    const uint64_t bytes = PlaneBytes(groups, width) + RoundUpToPart(values.size() - in_table);
    if (bytes >= fewest) continue;
    fewest = bytes;
    coding.width = width;
  }
  const size_t escape = (size_t{1} << coding.width) - 1;
  coding.place.fill(static_cast<uint8_t>(escape));
  for (size_t i = 0; i < escape; ++i) {
    coding.table[i] = order[i];
    coding.place[order[i]] = static_cast<uint8_t>(i);
  }
  return coding;
}

// Bit `bit` of eight bytes, the first one's lowest.
uint8_t PlaneOfEight(const uint8_t* places, int bit) {
  uint64_t eight;
  std::memcpy(&eight, places, 8);
  return static_cast<uint8_t>((eight >> bit & 0x0101010101010101) * 0x0102040810204080 >> 56);
}

void Put64(uint8_t* to, uint64_t value) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<uint8_t>(value >> 8 * i);
}
uint64_t Get64(const uint8_t* from) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= uint64_t{from[i]} << 8 * i;
  return value;
}

class LosslessCodec : public LayerCodec {
 public:
  LosslessCodec(const KvLayout& layout, CodecIsa isa)
      : blocks_(2 * static_cast<uint64_t>(layout.kv_heads)),
        block_values_(layout.plane_elements() / layout.kv_heads),
        groups_((block_values_ + kGroupValues - 1) / kGroupValues),
        decode_(LosslessDecoderFor(isa)) {}

  // Width 0 takes the most: any other is chosen only where it takes less.
  uint64_t part_bytes_max() const override {
    return directory_bytes() + blocks_ * 2 * rest_bytes() + kGroupValues;
  }

  Result<uint64_t> Encode(const SlabPlace&, std::span<const uint16_t> slab,
                          std::span<std::byte> part) const override {
    CHECK(slab.size() == blocks_ * block_values_ && part.size() >= part_bytes_max());
    auto* const out = reinterpret_cast<uint8_t*>(part.data());
    std::memset(out, 0, directory_bytes());
    uint64_t at = directory_bytes();
    for (uint64_t block = 0; block < blocks_; ++block) {
      at += EncodeBlock(slab.subspan(block * block_values_, block_values_),
                        out + block * kEntryBytes, out + at);
    }
    std::memset(out + at, 0, kGroupValues);
    return at + kGroupValues;
  }

  Status Decode(const SlabPlace&, std::span<const std::byte> part,
                std::span<uint16_t> slab) const override {
    CHECK(slab.size() == blocks_ * block_values_);
    const auto* const in = reinterpret_cast<const uint8_t*>(part.data());
    if (part.size() < directory_bytes() + kGroupValues) return Corrupt("it is too short");
    const uint64_t end = part.size() - kGroupValues;
    uint64_t at = directory_bytes();
    for (uint64_t i = 0; i < blocks_; ++i) {
      const uint8_t* const entry = in + i * kEntryBytes;
      LosslessBlock block{.width = entry[kEntryWidth]};
      std::memcpy(block.table.data(), entry + kEntryTable, kEntryWidth);
      block.escape_count = Get64(entry + kEntryEscapes);
      if (Get64(entry + kEntryReserved) != 0) return Corrupt("reserved bytes are not zero");
      if (block.width > kTableWidthMax) return Corrupt("a table is wider than 4 bits");
      if (block.escape_count > rest_bytes()) return Corrupt("a block has more escapes than values");
      const uint64_t planes = rest_bytes(), escapes = planes + PlaneBytes(groups_, block.width);
      const uint64_t bytes = escapes + RoundUpToPart(block.escape_count);
      if (bytes > end - at) return Corrupt("it is too short");
      block.rest = in + at;
      block.planes = in + at + planes;
      block.escapes = in + at + escapes;
      if (!decode_(block, block_values_, slab.data() + i * block_values_)) {
        return Corrupt("the escapes of a block are not those it counts");
      }
      at += bytes;
    }
    return at == end ? Status() : Corrupt("it is too long");
  }

 private:
  static tl::unexpected<Error> Corrupt(const char* why) {
    return Fail(ErrorCode::kCorrupt, "a part of codec lossless: {}", why);
  }

  uint64_t directory_bytes() const { return RoundUpToPart(blocks_ * kEntryBytes); }
  uint64_t rest_bytes() const { return groups_ * kGroupValues; }

  // Returns the bytes of the block.
  uint64_t EncodeBlock(std::span<const uint16_t> values, uint8_t* entry, uint8_t* out) const {
    const Coding coding = ChooseCoding(values, groups_);
    const auto escape = static_cast<uint8_t>((1 << coding.width) - 1);
    uint8_t* const planes = out + rest_bytes();
    uint8_t* const escapes = planes + PlaneBytes(groups_, coding.width);
    uint64_t escape_count = 0;
    for (uint64_t group = 0; group < groups_; ++group) {
      const uint64_t at = group * kGroupValues;
      const uint64_t count = std::min<uint64_t>(kGroupValues, values.size() - at);
      uint8_t places[kGroupValues] = {};  // beyond the last value the first of the table
      for (uint64_t i = 0; i < count; ++i) {
        const unsigned exponent = ExponentOf(values[at + i]);
        out[at + i] = RestOf(values[at + i]);
        places[i] = coding.place[exponent];
        if (places[i] == escape) escapes[escape_count++] = static_cast<uint8_t>(exponent);
      }
      for (uint64_t i = count; i < kGroupValues; ++i) {
        out[at + i] = 0;
        if (coding.width == 0) escapes[escape_count++] = 0;
      }
      for (int bit = 0; bit < coding.width; ++bit) {
        for (int eight = 0; eight < 8; ++eight) {
          planes[8 * (group * coding.width + bit) + eight] = PlaneOfEight(&places[8 * eight], bit);
        }
      }
    }
    const uint64_t planes_used = groups_ * 8 * coding.width;
    std::memset(planes + planes_used, 0, PlaneBytes(groups_, coding.width) - planes_used);
    std::memset(escapes + escape_count, 0, RoundUpToPart(escape_count) - escape_count);
    std::memcpy(entry + kEntryTable, coding.table.data(), kEntryWidth);
    entry[kEntryWidth] = static_cast<uint8_t>(coding.width);
    Put64(entry + kEntryEscapes, escape_count);
    return static_cast<uint64_t>(escapes - out) + RoundUpToPart(escape_count);
  }

  const uint64_t blocks_, block_values_, groups_;
  const LosslessDecoder decode_;
};

}  // namespace

Result<std::unique_ptr<LayerCodec>> MakeLosslessCodec(const CodecSpec& spec, CodecIsa isa) {
  return std::make_unique<LosslessCodec>(spec.layout, isa);
}

}  // namespace kvcake
