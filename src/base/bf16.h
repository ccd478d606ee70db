// bf16 as bits: the upper half of an f32.
#pragma once

#include <bit>
#include <cstdint>

namespace kvcake {

inline float Bf16ToF32(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Rounds what is no NaN to nearest, ties to even.
inline uint16_t NumberToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The same; a NaN stays one.
inline uint16_t F32ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return NumberToBf16(x);
}

inline float F16ToF32(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000) << 16;
  const uint32_t exponent = x >> 10 & 0x1f, mantissa = x & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -subnormal : subnormal;
}

}  // namespace kvcake
