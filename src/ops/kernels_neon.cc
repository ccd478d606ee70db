// f32-fma with NEON, which every arm64 CPU has: a vector of eight is two registers.
#include "ops/kernels.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <array>
#include <type_traits>
#include <utility>

#include "ops/attention.h"
#include "base/bf16.h"

#define KVCAKE_ISA
#define KVCAKE_INLINE __attribute__((always_inline)) inline

namespace kvcake {
namespace {

// A vector_size(32) would do, but lives in memory.
struct V {
  float32x4_t low, high;
  KVCAKE_INLINE float operator[](int lane) const { return lane < 4 ? low[lane] : high[lane - 4]; }
};
struct Mask {
  uint32x4_t low, high;
};
struct Ints {
  int32x4_t low, high;
};
struct Pairs {
  uint32x4_t low, high;
};
constexpr int kInt8Unit = 1;

KVCAKE_INLINE V operator+(V a, V b) { return {a.low + b.low, a.high + b.high}; }
KVCAKE_INLINE V operator-(V a, V b) { return {a.low - b.low, a.high - b.high}; }
KVCAKE_INLINE V operator*(V a, V b) { return {a.low * b.low, a.high * b.high}; }
KVCAKE_INLINE V operator/(V a, V b) { return {a.low / b.low, a.high / b.high}; }
KVCAKE_INLINE V operator-(V a) { return {-a.low, -a.high}; }
KVCAKE_INLINE Mask operator>(V a, V b) {
  return {vcgtq_f32(a.low, b.low), vcgtq_f32(a.high, b.high)};
}
KVCAKE_INLINE Mask operator<(V a, V b) { return b > a; }
KVCAKE_INLINE V Select(Mask mask, V a, V b) {
  return {vbslq_f32(mask.low, a.low, b.low), vbslq_f32(mask.high, a.high, b.high)};
}

KVCAKE_INLINE V Load(const float* x) { return {vld1q_f32(x), vld1q_f32(x + 4)}; }
KVCAKE_INLINE void Store(float* to, V x) {
  vst1q_f32(to, x.low);
  vst1q_f32(to + 4, x.high);
}
KVCAKE_INLINE V Splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
KVCAKE_INLINE V MulAdd(V a, V b, V c) {
  return {vfmaq_f32(c.low, a.low, b.low), vfmaq_f32(c.high, a.high, b.high)};
}
// As AVX2 has it: b where either is a NaN, which vmaxq_f32 would return.
KVCAKE_INLINE V Max(V a, V b) { return Select(a > b, a, b); }
KVCAKE_INLINE V Abs(V x) { return {vabsq_f32(x.low), vabsq_f32(x.high)}; }
KVCAKE_INLINE float ReduceMax(V x) {
  const float32x4_t m = vbslq_f32(vcgtq_f32(x.low, x.high), x.low, x.high);
  const float a = m[0] > m[2] ? m[0] : m[2], b = m[1] > m[3] ? m[1] : m[3];
  return a > b ? a : b;
}
KVCAKE_INLINE float ReduceAdd(V x) {
  const float32x4_t s = x.low + x.high;
  return (s[0] + s[2]) + (s[1] + s[3]);
}
// Rounds to nearest, ties to even; a NaN stays one.
KVCAKE_INLINE uint16x4_t ToBf16(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x), high = bits >> 16;
  const uint32x4_t rounded = (bits + (high & 1) + 0x7fff) >> 16;
  return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, high | 0x40));
}
KVCAKE_INLINE void StoreBf16(uint16_t* to, V x) {
  vst1q_u16(to, vcombine_u16(ToBf16(x.low), ToBf16(x.high)));
}
// The low halves of `shifted` hold the values.
KVCAKE_INLINE void StoreQuantized(int16_t* to, V shifted) {
  vst1q_s16(to, vcombine_s16(vmovn_s32(vreinterpretq_s32_f32(shifted.low)),
                             vmovn_s32(vreinterpretq_s32_f32(shifted.high))));
}
KVCAKE_INLINE Ints LoadInts(const int32_t* x) { return {vld1q_s32(x), vld1q_s32(x + 4)}; }
KVCAKE_INLINE void StoreInts(int32_t* to, Ints x) {
  vst1q_s32(to, x.low);
  vst1q_s32(to + 4, x.high);
}
KVCAKE_INLINE V LoadInt32(const int32_t* x, int32_t minus) {
  const Ints ints = LoadInts(x);
  return {vcvtq_f32_s32(ints.low - minus), vcvtq_f32_s32(ints.high - minus)};
}
// p * 2^n, where the low bits of `shifted` hold n.
KVCAKE_INLINE float32x4_t ShiftExponent(float32x4_t p, float32x4_t shifted) {
  const uint32x4_t n = vreinterpretq_u32_f32(shifted) << 23;
  return vreinterpretq_f32_u32(vreinterpretq_u32_f32(p) + n);
}
KVCAKE_INLINE V ShiftExponent(V p, V shifted) {
  return {ShiftExponent(p.low, shifted.low), ShiftExponent(p.high, shifted.high)};
}
KVCAKE_INLINE V LoadBf16(const uint16_t* x) {
  const uint16x8_t halves = vld1q_u16(x), zero = vdupq_n_u16(0);
  return {vreinterpretq_f32_u16(vzip1q_u16(zero, halves)),
          vreinterpretq_f32_u16(vzip2q_u16(zero, halves))};
}
KVCAKE_INLINE Pairs LoadPairs(const uint16_t* x) {
  return {vreinterpretq_u32_u16(vld1q_u16(x)), vreinterpretq_u32_u16(vld1q_u16(x + 8))};
}
KVCAKE_INLINE V First(Pairs pairs) {
  return {vreinterpretq_f32_u32(pairs.low << 16), vreinterpretq_f32_u32(pairs.high << 16)};
}
KVCAKE_INLINE V Second(Pairs pairs) {
  return {vreinterpretq_f32_u32(pairs.low & 0xffff0000u),
          vreinterpretq_f32_u32(pairs.high & 0xffff0000u)};
}

// The bytes of eight columns.
KVCAKE_INLINE int16x8_t LoadColumns(const int16_t* b) { return vld1q_s16(b); }
KVCAKE_INLINE void StoreColumns(int16_t* to, int16x8_t columns) { vst1q_s16(to, columns); }
KVCAKE_INLINE int16x8_t Widen(const uint8_t* b) {
  return vreinterpretq_s16_u16(vmovl_u8(vld1_u8(b)));
}
KVCAKE_INLINE int16x4_t SplatQuantized(const int16_t* a) { return vld1_dup_s16(a); }
KVCAKE_INLINE Ints AddProducts(int16x4_t row, int16x8_t columns, Ints sum) {
  return {vmlal_lane_s16(sum.low, vget_low_s16(columns), row, 0),
          vmlal_high_lane_s16(sum.high, columns, row, 0)};
}

KVCAKE_INLINE float32x4_t FirstHalves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
KVCAKE_INLINE float32x4_t SecondHalves(float32x4_t a, float32x4_t b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
KVCAKE_INLINE void Transpose4(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d,
                              float32x4_t y[4]) {
  const float32x4_t ab0 = vtrn1q_f32(a, b), ab1 = vtrn2q_f32(a, b);
  const float32x4_t cd0 = vtrn1q_f32(c, d), cd1 = vtrn2q_f32(c, d);
  y[0] = FirstHalves(ab0, cd0);
  y[1] = FirstHalves(ab1, cd1);
  y[2] = SecondHalves(ab0, cd0);
  y[3] = SecondHalves(ab1, cd1);
}
KVCAKE_INLINE void Transpose(const V x[8], V y[8]) {
  float32x4_t low[8], high[8];  // columns of rows 0 to 3, and 4 to 7
  Transpose4(x[0].low, x[1].low, x[2].low, x[3].low, low);
  Transpose4(x[0].high, x[1].high, x[2].high, x[3].high, low + 4);
  Transpose4(x[4].low, x[5].low, x[6].low, x[7].low, high);
  Transpose4(x[4].high, x[5].high, x[6].high, x[7].high, high + 4);
  for (int i = 0; i < 8; ++i) y[i] = {low[i], high[i]};
}

#include "ops/kernels_fma_inl.h"

}  // namespace

const Kernels* NeonKernels() { return &kKernels; }

}  // namespace kvcake

#else

namespace kvcake {
const Kernels* NeonKernels() { return nullptr; }
}  // namespace kvcake

#endif
