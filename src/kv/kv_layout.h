// How the bytes of a chunk lie, in memory and in a chunk file alike:
//   4 KiB header, then one slab per layer: [K or V][kv_head][token][head_dim] of bf16,
// each slab rounded up to 4 KiB so that it can be read, sent or checked alone by direct I/O.
#pragma once

#include <cstdint>

namespace kvcake {

// How a stored chunk's bytes are encoded. On-disk numbers: they never change meaning.
enum class Codec : uint16_t { kRaw = 0, kLossless = 1, kInt8 = 2, kCacheGen = 3, kKvQuant3 = 4 };

// Which arithmetic made the numbers. On-disk numbers: they never change meaning. Chunks of
// different paths agree up to rounding only.
enum class NumericPath : uint16_t {
  kUnknown = 0,
  kBf16Dot = 1,     // bf16 x bf16 dot-product instructions, f32 accumulation (AVX512-BF16)
  kF32Fma = 2,      // f32 with fused multiply-add (AVX2, NEON)
  kF32 = 3,         // f32 without (portable)
  kBf16Tensor = 4,  // bf16 products by tensor cores, f32 accumulation (CUDA)
  kBf16Amx = 5,     // bf16 products of tiles, f32 accumulation (AMX)
};
const char* NumericPathName(NumericPath path);

constexpr uint64_t kSlabAlign = 4096;
constexpr uint64_t kPageHeaderBytes = 4096;

struct KvLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int chunk_tokens = 128;

  // Slabs of bytes that mean something to their owner only, rounded up to what a slab can be.
  static KvLayout OfBytes(int layers, uint64_t slab_bytes, int chunk_tokens) {
    const uint64_t unit = 2 * 2 * static_cast<uint64_t>(chunk_tokens);
    return {.layers = layers,
            .kv_heads = 1,
            .head_dim = static_cast<int>((slab_bytes + unit - 1) / unit),
            .chunk_tokens = chunk_tokens};
  }

  bool operator==(const KvLayout&) const = default;

  // bf16 elements of K (or V) of one layer.
  uint64_t plane_elements() const {
    return static_cast<uint64_t>(kv_heads) * chunk_tokens * head_dim;
  }
  uint64_t slab_payload_bytes() const { return 2 * 2 * plane_elements(); }
  uint64_t slab_bytes() const {
    return (slab_payload_bytes() + kSlabAlign - 1) / kSlabAlign * kSlabAlign;
  }
  uint64_t slab_offset(int layer) const { return kPageHeaderBytes + layer * slab_bytes(); }
  // A page slot and a raw chunk file: the same size.
  uint64_t page_bytes() const { return kPageHeaderBytes + layers * slab_bytes(); }
  // What one token's KV cache holds, padding apart.
  uint64_t bytes_per_token() const {
    return 2ull * 2 * layers * kv_heads * static_cast<uint64_t>(head_dim);
  }
};

}  // namespace kvcake
