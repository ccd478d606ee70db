#include "bench/matmul_peak.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "base/clock.h"
#include "bench/harness.h"
#include "bench/openblas.h"
#include "ops/compute.h"
#include "ops/cuda_device.h"
#include "ops/matmul.h"

// libgomp's, which oneDNN computes with: its header comes with g++ alone.
extern "C" void omp_set_num_threads(int threads);

namespace kvcake::bench {
namespace {

constexpr int kM = 512, kK = 2048, kN = 8192;
constexpr int kPeakRepeats = 6;

template <typename Body>
double BestFlopsPerSecond(const Body& body) {
  const Clock& clock = Clock::Real();
  double best = 0;
  for (int i = 0; i < kPeakRepeats; ++i) {
    const TimePoint start = clock.Now();
    body();
    best = std::max(best, 2.0 * kM * kK * kN / (clock.Now() - start).count());
  }
  return best;
}

// Multiplies [kM][kK] by [kK][columns] on the calling thread.
using Product = std::function<void()>;

// One worker's columns as a single-threaded oneDNN product.
struct OneDnnPanel {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  dnnl::memory a, b, c;

  OneDnnPanel(MatmulType type, int columns) {
    using dnnl::memory;
    using DataType = memory::data_type;
    struct Types {
      DataType a, b, c;
    };
    const Types types =
        type == MatmulType::kBf16   ? Types{DataType::bf16, DataType::bf16, DataType::f32}
        : type == MatmulType::kInt8 ? Types{DataType::u8, DataType::s8, DataType::s32}
                                    : Types{DataType::f32, DataType::f32, DataType::f32};
    const memory::desc ad({kM, kK}, types.a, memory::format_tag::ab);
    const memory::desc bd({kK, columns}, types.b, memory::format_tag::any);
    const memory::desc cd({kM, columns}, types.c, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc pd({ad, bd, cd}, engine);
    matmul = dnnl::matmul(pd);
    a = memory(ad, engine);
    b = memory(pd.weights_desc(), engine);
    c = memory(cd, engine);
    for (memory* m : {&a, &b}) {
      auto* bytes = static_cast<unsigned char*>(m->get_data_handle());
      std::fill(bytes, bytes + m->get_desc().get_size(), 0x3c);  // small positive numbers
    }
  }
  void Run() {
    matmul.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
  }
};

// Empty where the library refuses, e.g. bf16 where the CPU has no AVX-512.
Product OneDnnProduct(MatmulType type, int columns) {
  omp_set_num_threads(1);  // for this thread: the library's own pool stays asleep
  try {
    return [panel = std::make_shared<OneDnnPanel>(type, columns)] { panel->Run(); };
  } catch (const dnnl::error&) {
    return {};
  }
}

Product OpenBlasProduct(const OpenBlas& blas, int columns) {
  struct Panel {
    std::vector<float> a, b, c;
  };
  const auto panel = std::make_shared<Panel>(Panel{std::vector<float>(int64_t{kM} * kK, 0.01f),
                                                   std::vector<float>(int64_t{kK} * columns, 0.01f),
                                                   std::vector<float>(int64_t{kM} * columns)});
  return [panel, &blas, columns] {
    blas.Multiply(kM, columns, kK, panel->a.data(), panel->b.data(), panel->c.data());
  };
}

// The rate of single-threaded products side by side, each made by the worker that will run it.
std::optional<double> RateSideBySide(ThreadPool& pool,
                                     const std::function<Product(int columns)>& make) {
  const int threads = pool.size();
  std::vector<Product> products(threads);
  std::atomic<int> taken{0};
  pool.ParallelFor(threads, [&](int64_t i, int) {
    // As many indices as workers: each takes one, for each waits until all have one.
    ++taken;
    while (taken < threads) std::this_thread::yield();
    products[i] = make(static_cast<int>(kN * (i + 1) / threads - kN * i / threads));
  });
  for (const Product& product : products) {
    if (!product) return std::nullopt;
  }
  return BestFlopsPerSecond(
      [&] { pool.ParallelFor(threads, [&](int64_t index, int) { products[index](); }); });
}

double OwnRate(ThreadPool& pool, NumericPath path, WeightFormat format) {
  const Compute compute(pool, path);
  const std::vector<uint16_t> weights(static_cast<size_t>(kN) * kK, 0x3c3c);
  const WeightRows rows{.data = weights.data(), .type = WeightType::kBf16, .rows = kN};
  const PackedMatrix packed(compute, std::span(&rows, 1), kK, format);
  const ActivationBuffer buffer(path, kM, kK);
  const Activations a = buffer.Rows(kM);
  std::fill(a.data, a.data + kM * a.stride * ActivationBytes(path), std::byte{0x3c});
  std::vector<float> out(static_cast<size_t>(kM) * kN);
  return BestFlopsPerSecond([&] { MatMul(compute, a, packed, out.data(), kN); });
}

// On random values: a card is faster on zeros.
double CudaRate(ThreadPool& pool) {
  constexpr int64_t kSize = 8192, kWarmUps = 3, kProducts = 20;
  const Compute compute(pool, NumericPath::kBf16Tensor);
  std::vector<uint16_t> values(kSize * kSize);
  uint64_t seed = 1;
  for (uint16_t& value : values) value = NextSmallBf16(&seed);
  const WeightRows rows{.data = values.data(), .type = WeightType::kBf16, .rows = kSize};
  const PackedMatrix packed(compute, std::span(&rows, 1), kSize);
  const ActivationBuffer buffer(compute.path(), kSize, kSize);
  const Activations a = buffer.Rows(kSize);
  for (int64_t row = 0; row < kSize; ++row) {
    compute.cuda()->Upload(a.data + row * a.stride * 2, &values[row * kSize], kSize * 2);
  }
  const Buffer out(kSize * kSize * sizeof(float), Memory::kDevice);
  const auto multiply = [&](int64_t times) {
    const TimePoint start = Clock::Real().Now();
    for (int64_t i = 0; i < times; ++i) MatMul(compute, a, packed, out.as<float>(), kSize);
    compute.Wait();
    return (Clock::Real().Now() - start).count();
  };
  multiply(kWarmUps);
  return 2.0 * kSize * kSize * kSize * kProducts / multiply(kProducts);
}

}  // namespace

const char* MatmulTypeName(MatmulType type) {
  switch (type) {
    case MatmulType::kBf16:
      return "bf16";
    case MatmulType::kF32:
      return "f32";
    case MatmulType::kInt8:
      return "int8";
  }
  return "";
}

MatmulType MatmulTypeOf(NumericPath path, WeightFormat weights) {
  if (weights == WeightFormat::kInt8) return MatmulType::kInt8;
  return ActivationBytes(path) == 2 ? MatmulType::kBf16 : MatmulType::kF32;
}

void MatmulPeak::Measure(ThreadPool& pool, NumericPath path) {
  if (OnCuda(path)) return Add({"cuBLASLt", MatmulType::kBf16, CudaRate(pool)});
  for (MatmulType type : {MatmulType::kBf16, MatmulType::kF32, MatmulType::kInt8}) {
    const auto rate =
        RateSideBySide(pool, [type](int columns) { return OneDnnProduct(type, columns); });
    if (rate) Add({"oneDNN", type, *rate});
  }
  if (const OpenBlas* blas = OpenBlas::Load()) {
    const auto rate =
        RateSideBySide(pool, [blas](int columns) { return OpenBlasProduct(*blas, columns); });
    if (rate) Add({"OpenBLAS", MatmulType::kF32, *rate});
  }
  for (NumericPath path : kCpuPaths) {
    // The portable path is slow enough to be a nuisance where it is not needed.
    if (!PathAvailable(path) || (path == NumericPath::kF32 && path != BestPath())) continue;
    for (WeightFormat weights : {WeightFormat::kBf16, WeightFormat::kInt8}) {
      Add({fmt::format("kvcake {}", NumericPathName(path)), MatmulTypeOf(path, weights),
           OwnRate(pool, path, weights)});
    }
  }
}

void MatmulPeak::Add(MatmulRate rate) {
  for (MatmulRate& known : rates_) {
    if (known.what != rate.what || known.type != rate.type) continue;
    known.flops_per_s = std::max(known.flops_per_s, rate.flops_per_s);
    return;
  }
  rates_.push_back(std::move(rate));
}

double MatmulPeak::Best(MatmulType type) const {
  double best = 0;
  for (const MatmulRate& rate : rates_) {
    if (rate.type == type) best = std::max(best, rate.flops_per_s);
  }
  return best;
}

void MatmulPeak::Print() const {
  for (const MatmulRate& rate : rates_) {
    fmt::print("  matmul {:<5} {:<18} {:7.1f} GFLOP/s\n", MatmulTypeName(rate.type), rate.what,
               rate.flops_per_s / 1e9);
  }
}

}  // namespace kvcake::bench
