// The loops of kvquant_kernels.h over vectors of some width, compiled once for each instruction set
// by the file that includes it. That file defines KVCAKE_ISA, the attribute of its functions, and
// in its anonymous namespace
//
//   constexpr uint64_t kLanes;                      // 1, or a multiple of 8
//   using V = ...;                                  // kLanes f32
//   struct Centroids { explicit Centroids(const float*); V of[...]; };
//   V Lookup(const Centroids&, const uint8_t* codes, uint64_t c);  // of channels c on
//   V Load(const float*); V Splat(float); void Store(float*, V);
//   V Mul(V, V); V Add(V, V); V Sub(V, V);
//   void StoreBf16(uint16_t*, V);                   // of no NaN
#include "base/bf16.h"
#include "codec/kvquant_kernels.h"

namespace kvcake {
namespace {

// One code, where there are not kLanes of them.
inline unsigned CodeAt(const uint8_t* codes, uint64_t c) {
  const uint64_t bit = 3 * c;
  unsigned two = codes[bit / 8];
  if (bit % 8 > 5) two |= static_cast<unsigned>(codes[bit / 8 + 1]) << 8;
  return two >> bit % 8 & 7;
}

KVCAKE_ISA void DecodeKeys(const uint8_t* codes, const float* centroids, const float* offsets,
                           const float* scales, uint64_t rows, uint64_t channels, float* numbers) {
  const Centroids lookup(centroids);
  for (uint64_t row = 0; row < rows; ++row) {
    uint64_t c = 0;
    for (; c + kLanes <= channels; c += kLanes) {
      Store(numbers + c, Add(Load(offsets + c), Mul(Load(scales + c), Lookup(lookup, codes, c))));
    }
    for (; c < channels; ++c) numbers[c] = offsets[c] + scales[c] * centroids[CodeAt(codes, c)];
    codes += KvQuantRowBytes(channels);
    numbers += channels;
  }
}

KVCAKE_ISA void DecodeValues(const uint8_t* codes, const float* centroids, const float* offsets,
                             const float* scales, uint64_t rows, uint64_t channels,
                             uint16_t* numbers) {
  const Centroids lookup(centroids);
  for (uint64_t row = 0; row < rows; ++row) {
    const V offset = Splat(offsets[row]), scale = Splat(scales[row]);
    uint64_t c = 0;
    for (; c + kLanes <= channels; c += kLanes) {
      StoreBf16(numbers + c, Add(offset, Mul(scale, Lookup(lookup, codes, c))));
    }
    for (; c < channels; ++c) {
      numbers[c] = NumberToBf16(offsets[row] + scales[row] * centroids[CodeAt(codes, c)]);
    }
    codes += KvQuantRowBytes(channels);
    numbers += channels;
  }
}

KVCAKE_ISA void Rotate(const float* numbers, const float* cosines, const float* sines,
                       uint64_t rows, uint64_t channels, uint16_t* rotated) {
  const uint64_t half = channels / 2;
  for (uint64_t row = 0; row < rows; ++row) {
    uint64_t c = 0;
    for (; c + kLanes <= half; c += kLanes) {
      const V x = Load(numbers + c), y = Load(numbers + half + c);
      const V cosine = Load(cosines + c), sine = Load(sines + c);
      StoreBf16(rotated + c, Sub(Mul(x, cosine), Mul(y, sine)));
      StoreBf16(rotated + half + c, Add(Mul(y, cosine), Mul(x, sine)));
    }
    for (; c < half; ++c) {
      const float x = numbers[c], y = numbers[half + c];
      rotated[c] = NumberToBf16(x * cosines[c] - y * sines[c]);
      rotated[half + c] = NumberToBf16(y * cosines[c] + x * sines[c]);
    }
    if (channels % 2 != 0) rotated[channels - 1] = NumberToBf16(numbers[channels - 1]);
    numbers += channels;
    rotated += channels;
    cosines += half;
    sines += half;
  }
}

}  // namespace
}  // namespace kvcake
