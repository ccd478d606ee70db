// What ops/cuda_instructions.cuh promises, on the CPU. Fragments lie in lanes, and matrices in
// shared memory, as NVIDIA's PTX manual says of mma.m16n8k16, ldmatrix and wgmma.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "base/bf16.h"
#include "ops/cuda_tensor_map.h"

namespace kvcake::cuda {

template <typename T>
T* DynamicShared() {
  return static_cast<T*>(cuda_emulator::DynamicShared());
}

inline float Exp2(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;  // flushed to zero
}

inline uint32_t PackBf16(float low, float high) {
  const auto bits = [](float x) -> uint32_t { return std::isnan(x) ? 0x7fff : F32ToBf16(x); };
  return bits(low) | bits(high) << 16;
}

inline uint32_t SharedAddress(const void* shared) { return cuda_emulator::SharedAddress(shared); }
inline void CopyAsync(void* shared, const void* global, bool read) {
  cuda_emulator::CopyAsync(shared, global, read);
}
inline void CommitCopies() { cuda_emulator::CommitCopies(); }
template <int kGroups>
void WaitForCopies() {
  cuda_emulator::WaitForCopies(kGroups);
}

inline void WaitForEarlierKernels() { cuda_emulator::WaitForEarlierKernels(); }
inline void LetNextKernelStart() {}

inline void BeginEarly() {
  LetNextKernelStart();
  WaitForEarlierKernels();
}

inline unsigned CountOne(unsigned* number) { return cuda_emulator::CountOne(number); }
inline void AwaitCount(const unsigned* number, unsigned count) {
  cuda_emulator::AwaitCount(number, count);
}
inline void BeginCount(unsigned* number) { *number = 0; }
inline void OrderCopies() {}

template <bool kTransposed>
void LoadFragments(const uint16_t* row, uint32_t (&to)[4]) {
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) cuda_emulator::Die("a row is not aligned");
  const auto load = [](const cuda_emulator::Lanes& values, cuda_emulator::Lanes* results) {
    const auto element = [&values](int matrix, int i, int j) -> uint32_t {
      const uint16_t* row;
      std::memcpy(&row, values.bytes[matrix * 8 + i], sizeof(row));
      return row[j];
    };
    for (int lane = 0; lane < 32; ++lane) {
      const int i = lane / 4, j = lane % 4 * 2;
      uint32_t fragment[4];
      for (int matrix = 0; matrix < 4; ++matrix) {
        const uint32_t low = kTransposed ? element(matrix, j, i) : element(matrix, i, j);
        const uint32_t high = kTransposed ? element(matrix, j + 1, i) : element(matrix, i, j + 1);
        fragment[matrix] = low | high << 16;
      }
      std::memcpy(results->bytes[lane], fragment, sizeof(fragment));
    }
  };
  cuda_emulator::MeetWarp(load, &row, sizeof(row), to, sizeof(to));
}
inline void LoadMatrices(const uint16_t* row, uint32_t (&to)[4]) { LoadFragments<false>(row, to); }
inline void LoadTransposed(const uint16_t* row, uint32_t (&to)[4]) { LoadFragments<true>(row, to); }

inline void MultiplyAdd(const uint4& a, uint32_t b0, uint32_t b1, float (&c)[4]) {
  struct Fragments {
    uint32_t a[4], b[2];
    float c[4];
  };
  const auto multiply = [](const cuda_emulator::Lanes& values, cuda_emulator::Lanes* results) {
    const auto half = [](uint32_t pair, int i) {
      return __uint_as_float(i == 0 ? pair << 16 : pair & 0xffff0000);
    };
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      Fragments of;
      std::memcpy(&of, values.bytes[lane], sizeof(of));
      const int group = lane / 4, at = lane % 4 * 2;
      for (int i = 0; i < 2; ++i) {
        for (int quarter = 0; quarter < 4; ++quarter) {
          left[group + quarter % 2 * 8][at + quarter / 2 * 8 + i] = half(of.a[quarter], i);
        }
        right[at + i][group] = half(of.b[0], i);
        right[at + 8 + i][group] = half(of.b[1], i);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      Fragments of;
      std::memcpy(&of, values.bytes[lane], sizeof(of));
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < 16; ++k) of.c[i] += left[row][k] * right[k][column];
      }
      std::memcpy(results->bytes[lane], of.c, sizeof(of.c));
    }
  };
  const Fragments mine = {{a.x, a.y, a.z, a.w}, {b0, b1}, {c[0], c[1], c[2], c[3]}};
  cuda_emulator::MeetWarp(multiply, &mine, sizeof(mine), c, sizeof(c));
}

// ---- wgmma ----

constexpr bool kWgmmaCompiled = true;

inline void PublishForWgmma() {}

// What a descriptor says of a matrix [k][n] of bf16 in shared memory.
class WgmmaMatrix {
 public:
  WgmmaMatrix(uint64_t descriptor, bool n_major)
      : n_major_(n_major),
        start_((descriptor & 0x3fff) << 4),
        leading_((descriptor >> 16 & 0x3fff) << 4),
        stride_((descriptor >> 32 & 0x3fff) << 4) {
    const auto swizzle = descriptor >> 62, base = descriptor >> 49 & 7;
    if (swizzle != 1 || base != 0) cuda_emulator::Die("only the 128-byte swizzle is known here");
  }

  // The pair of elements at k and k + 1.
  uint32_t Pair(int k, int n) const { return At(k, n) | At(k + 1, n) << 16; }

 private:
  // Atoms are 8 lines of 128 bytes: of 8 n by 64 k, or of 8 k by 64 n. They are stride_ apart in
  // the lines' direction; along the lines, leading_ if MN-major (if K-major, one atom has all of
  // k).
  uint32_t At(int k, int n) const {
    const int line = n_major_ ? k : n, along = n_major_ ? n : k;
    uint32_t address = start_ + line / 8 * stride_ + line % 8 * 128 + along % 64 * 2;
    if (n_major_) address += along / 64 * leading_;
    address ^= (address >> 7 & 7) << 4;
    uint16_t value;
    std::memcpy(&value, cuda_emulator::SharedAt(address, sizeof(value)), sizeof(value));
    return value;
  }

  const bool n_major_;
  const uint32_t start_, leading_, stride_;
};

// A thread's part of wgmmas that have been enqueued. They are done when their group is waited for:
// what is changed or read too early shows.
struct Wgmmas {
  struct Product {
    const uint4* a;
    uint64_t descriptor;
    bool n_major;
    std::vector<float (*)[4]> c;  // 64 columns each
  };
  bool begun = false;
  std::vector<Product> products;  // of the next group
  std::deque<std::vector<Product>> groups;
};
inline Wgmmas& TheWgmmas() {
  static auto* const threads = new std::array<Wgmmas, 1024>();
  return (*threads)[cuda_emulator::thread_index.x];
}

template <int kColumns>
void PinSums(float (&)[kColumns][4]) {}

template <int kSteps>
void PinOperands(uint4 (&)[kSteps]) {}

template <int kSteps, int kColumns>
void BeginWgmma(uint4 (&)[kSteps], float (&)[kColumns][4]) {
  TheWgmmas().begun = true;
}

inline void Enqueue(Wgmmas::Product product) {
  if (!TheWgmmas().begun) cuda_emulator::Die("wgmma without a fence before it");
  TheWgmmas().products.push_back(std::move(product));
}
template <bool kNMajor>
void Wgmma(const uint4& a, uint64_t b, float (&c)[8][4]) {
  Enqueue({&a, b, kNMajor, {c}});
}
template <bool kNMajor>
void Wgmma(const uint4& a, uint64_t b, float (&lower)[8][4], float (&upper)[8][4]) {
  Enqueue({&a, b, kNMajor, {lower, upper}});
}
template <bool kNMajor>
void Wgmma(const uint4& a, uint64_t b, float (&c)[16][4]) {
  Enqueue({&a, b, kNMajor, {c, c + 8}});
}

inline void CommitWgmma() {
  Wgmmas& mine = TheWgmmas();
  mine.groups.push_back(std::exchange(mine.products, {}));
  mine.begun = false;
}

inline void MultiplyGroup(const std::vector<Wgmmas::Product>& group) {
  uint64_t all = 0;
  for (const Wgmmas::Product& product : group) all = all * 31 + product.descriptor;
  const int digest = static_cast<int>(all % 1'000'003);
  if (cuda_emulator::MeetWarpgroup(digest) != 128 * digest) {
    cuda_emulator::Die("threads of a warpgroup multiply by different matrices");
  }
  const int k = cuda_emulator::Lane() % 4 * 2, n = cuda_emulator::Lane() / 4;
  for (const auto& [a, descriptor, n_major, c] : group) {
    const WgmmaMatrix b(descriptor, n_major);
    for (int column = 0; column < 8 * static_cast<int>(c.size()); ++column) {
      const int at = column * 8 + n;
      MultiplyAdd(*a, b.Pair(k, at), b.Pair(k + 8, at), c[column / 8][column % 8]);
    }
  }
}

template <int kLeft>
void WaitForWgmma() {
  auto& groups = TheWgmmas().groups;
  while (static_cast<int>(groups.size()) > kLeft) {
    MultiplyGroup(groups.front());
    groups.pop_front();
  }
}

inline bool AnyOfWarpgroup(int, bool value) {
  return cuda_emulator::MeetWarpgroup(value ? 1 : 0) > 0;
}

template <int kRegisters>
void LeaveRegisters() {}
template <int kRegisters>
void TakeRegisters() {}

// ---- mbarriers and TMA ----

constexpr bool kTmaCompiled = true;

using Barrier = uint64_t;

inline void InitBarrier(Barrier* barrier, int arrivals) {
  cuda_emulator::InitBarrier(barrier, arrivals);
}
inline void PublishBarriers() {}
inline void Arrive(Barrier* barrier) { cuda_emulator::ArriveAtBarrier(barrier, 0); }
inline void ArriveAfter(float a, float b, Barrier* barrier) {
  if (a < 0 || b < 0) cuda_emulator::Die("a sum of weights is negative");
  if (threadIdx.x % 32 == 0) Arrive(barrier);
}
inline void Expect(Barrier* barrier, int bytes) { cuda_emulator::ArriveAtBarrier(barrier, bytes); }
inline void AwaitPhase(Barrier* barrier, uint32_t parity) {
  cuda_emulator::AwaitBarrier(barrier, parity);
}

inline void CopyBulk(void* shared, const void* global, int bytes, Barrier* barrier) {
  const auto from = reinterpret_cast<uintptr_t>(global), to = reinterpret_cast<uintptr_t>(shared);
  if (from % 16 != 0 || to % 16 != 0 || bytes % 16 != 0 || bytes <= 0) {
    cuda_emulator::Die("a copy in bulk is not of whole 16 bytes");
  }
  cuda_emulator::NoteRead(global, bytes);
  std::memset(shared, 0xff, bytes);  // who still reads it comes too late
  cuda_emulator::CopyAtBarrier(barrier, bytes, [=] { std::memcpy(shared, global, bytes); });
}

// The rows of a box, one after the other, are 128 bytes each, swizzled as WgmmaMatrix reads them.
inline void CopyBox(void* shared, const TensorMap& tensor, const BoxCoordinates& at,
                    Barrier* barrier) {
  const uint32_t address = SharedAddress(shared);
  if (address % 1024 != 0) cuda_emulator::Die("a swizzled box is not aligned");
  constexpr int kRowElements = 64;
  const int64_t rows = tensor.box[1];
  if (tensor.box[0] != kRowElements || tensor.box[2] * tensor.box[3] * tensor.box[4] != 1) {
    cuda_emulator::Die("only boxes of rows of 64 elements are known here");
  }
  const int64_t bytes = rows * kRowElements * static_cast<int64_t>(sizeof(uint16_t));
  std::memset(shared, 0xff, bytes);  // who still reads it comes too late
  const auto copy = [=] {
    const auto* const data = static_cast<const std::byte*>(tensor.data);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < kRowElements; ++i) {
        const int of[kTensorRank] = {at.of[0] + i, at.of[1] + row, at.of[2], at.of[3], at.of[4]};
        uint16_t value = 0;
        uint64_t offset = 0;
        bool inside = true;
        for (int d = 0; d < kTensorRank; ++d) {
          inside = inside && of[d] >= 0 && static_cast<uint64_t>(of[d]) < tensor.size[d];
          offset += of[d] * tensor.stride[d];
        }
        if (inside) std::memcpy(&value, data + offset, sizeof(value));
        const int piece = i / 8 ^ row % 8;
        static_cast<uint16_t*>(shared)[row * kRowElements + piece * 8 + i % 8] = value;
      }
    }
  };
  cuda_emulator::CopyAtBarrier(barrier, bytes, copy);
}

}  // namespace kvcake::cuda
