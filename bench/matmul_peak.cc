#include "bench/matmul_peak.h"

#include <omp.h>

#include <algorithm>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>

#include "base/clock.h"
#include "ops/compute.h"
#include "ops/matmul.h"

namespace kvcake::bench {
namespace {

constexpr int kM = 512, kK = 2048, kN = 8192;
constexpr int kRepeats = 12;

template <typename Body>
double BestFlopsPerSecond(const Body& body) {
  const Clock& clock = Clock::Real();
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const TimePoint start = clock.Now();
    body();
    best = std::max(best, 2.0 * kM * kK * kN / (clock.Now() - start).count());
  }
  return best;
}

// One worker's panel of columns, as a single-threaded oneDNN product.
struct Panel {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::matmul matmul;
  dnnl::memory a, b, c;

  Panel(dnnl::memory::data_type type, int n) {
    using dnnl::memory;
    const memory::desc ad({kM, kK}, type, memory::format_tag::ab);
    const memory::desc bd({kK, n}, type, memory::format_tag::any);
    const memory::desc cd({kM, n}, memory::data_type::f32, memory::format_tag::ab);
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

std::optional<double> OneDnnRate(ThreadPool& pool, dnnl::memory::data_type type) {
  const int threads = pool.size();
  std::vector<std::unique_ptr<Panel>> panels(threads);
  std::atomic<bool> supported{true};
  const auto on_every_worker = [&](auto&& body) {
    // As many indices as workers: each takes one, for each waits until all have one.
    std::atomic<int> taken{0};
    pool.ParallelFor(threads, [&](int64_t index, int) {
      ++taken;
      while (taken < threads) std::this_thread::yield();
      body(index);
    });
  };
  on_every_worker([&](int64_t index) {
    omp_set_num_threads(1);  // for this thread: the library's own pool stays asleep
    try {
      panels[index] = std::make_unique<Panel>(type, kN / threads);
    } catch (const dnnl::error&) {
      supported = false;  // e.g. bf16 where the CPU has no AVX-512
    }
  });
  if (!supported) return std::nullopt;
  return BestFlopsPerSecond(
      [&] { pool.ParallelFor(threads, [&](int64_t index, int) { panels[index]->Run(); }); });
}

double OwnRate(ThreadPool& pool, NumericPath path) {
  const Compute compute(pool, path);
  const std::vector<uint16_t> weights(static_cast<size_t>(kN) * kK, 0x3c3c);
  const WeightRows rows{.data = weights.data(), .type = WeightType::kBf16, .rows = kN};
  const PackedMatrix packed(compute, std::span(&rows, 1), kK);
  const ActivationBuffer buffer(path, kM, kK);
  const Activations a = buffer.Rows(kM);
  std::fill(a.data, a.data + kM * a.stride * ActivationBytes(path), std::byte{0x3c});
  std::vector<float> out(static_cast<size_t>(kM) * kN);
  return BestFlopsPerSecond([&] { MatMul(compute, a, packed, out.data(), kN); });
}

}  // namespace

std::vector<MatmulRate> MeasureMatmulRates(ThreadPool& pool) {
  std::vector<MatmulRate> rates;
  if (auto rate = OneDnnRate(pool, dnnl::memory::data_type::bf16)) {
    rates.push_back({"oneDNN bf16", true, *rate});
  }
  if (auto rate = OneDnnRate(pool, dnnl::memory::data_type::f32)) {
    rates.push_back({"oneDNN f32", false, *rate});
  }
  for (NumericPath path : {NumericPath::kBf16Dot, NumericPath::kF32Fma}) {
    if (!PathAvailable(path)) continue;
    rates.push_back({std::string("kvcake ") + NumericPathName(path), path == NumericPath::kBf16Dot,
                     OwnRate(pool, path)});
  }
  return rates;
}

double BestRate(const std::vector<MatmulRate>& rates, bool bf16) {
  double best = 0;
  for (const MatmulRate& rate : rates) {
    if (rate.bf16 == bf16) best = std::max(best, rate.flops_per_s);
  }
  return best;
}

}  // namespace kvcake::bench
