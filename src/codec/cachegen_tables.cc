#include "codec/cachegen_tables.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "base/bf16.h"

namespace kvcake {
namespace {

// What comes before the counts of each plane.
struct PlaneHead {
  uint16_t most, first_step;
};

constexpr uint16_t kFirstStepMost = 0x7480;  // 2^106: what is decoded stays below 2^126

}  // namespace

std::array<uint16_t, kStepCodes> CacheGenSteps(uint16_t first_step) {
  const double first = Bf16ToF32(first_step);
  std::array<uint16_t, kStepCodes> steps;
  for (int code = 0; code < kStepCodes; ++code) {
    steps[code] = NumberToBf16(static_cast<float>(first * std::exp2(code / 16.0)));
  }
  return steps;
}

std::vector<std::byte> CacheGenBody(const std::vector<CacheGenPlane>& planes) {
  std::vector<std::byte> body;
  const auto append = [&](const void* from, size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(from);
    body.insert(body.end(), first, first + bytes);
  };
  for (const CacheGenPlane& plane : planes) {
    const PlaneHead head{static_cast<uint16_t>(plane.most), plane.first_step};
    append(&head, sizeof(head));
    append(plane.counts.data(), plane.counts.size() * sizeof(uint16_t));
  }
  return body;
}

Result<std::vector<CacheGenPlane>> ParseCacheGen(const CodecTables& tables) {
  const auto bad = [](const char* why) {
    return Fail(ErrorCode::kCorrupt, "tables of codec cachegen: {}", why);
  };
  const uint64_t channels = static_cast<uint64_t>(tables.kv_heads) * tables.head_dim;
  std::vector<CacheGenPlane> planes;
  size_t at = 0;
  for (int i = 0; i < 2 * tables.layers; ++i) {
    PlaneHead head;
    if (tables.body.size() - at < sizeof(head)) return bad("they are too short");
    std::memcpy(&head, tables.body.data() + at, sizeof(head));
    at += sizeof(head);
    if (head.most < 1 || head.most > kCacheGenMost) return bad("a plane has too many levels");
    if (head.first_step == 0 || head.first_step > kFirstStepMost) {
      return bad("a plane's steps are 0, or too large");
    }
    const uint64_t symbols = 2 * head.most + 1, bytes = channels * symbols * sizeof(uint16_t);
    if (tables.body.size() - at < bytes) return bad("they are too short");
    CacheGenPlane& plane = planes.emplace_back();
    plane.most = head.most;
    plane.first_step = head.first_step;
    plane.counts.resize(channels * symbols);
    std::memcpy(plane.counts.data(), tables.body.data() + at, bytes);
    at += bytes;
    for (uint64_t channel = 0; channel < channels; ++channel) {
      uint32_t sum = 0;
      for (uint64_t s = 0; s < symbols; ++s) {
        const uint16_t count = plane.counts[channel * symbols + s];
        if (count == 0) return bad("a level never occurs");
        sum += count;
      }
      if (sum != kRansTotal) return bad("the levels of a channel are not 4096 in all");
    }
  }
  if (at != tables.body.size()) return bad("they are too long");
  return planes;
}

RansTable MakeRansTable(const uint16_t* counts, int symbols) {
  RansTable table{.of = {}, .firsts = {}, .symbols = symbols};
  uint32_t first = 0;
  for (int s = 0; s < kRansSymbolsMax; ++s) {
    const uint32_t count = s < symbols ? counts[s] : 0;
    table.of[s] = first | count << 16;
    table.firsts[s] = static_cast<uint16_t>(first);
    first += count;
  }
  return table;
}

}  // namespace kvcake
