// One benchmark for every operation, on the fastest path of this machine, in shapes of Llama 3.2
// 1B: e.g. ops_bench --benchmark_filter=MatMul. Rates are counted in operations or in bytes a
// second.
#include <benchmark/benchmark.h>

#include "base/cpu.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace kvcake {
namespace {

constexpr int64_t kHidden = 2048, kInner = 8192;
constexpr QkvShape kQkv{.heads = 32, .kv_heads = 8, .head_dim = 64};
constexpr int64_t kQkvSize = (kQkv.heads + 2 * kQkv.kv_heads) * kQkv.head_dim;

struct Machine {
  ThreadPool pool{UsableCores()};
  Compute compute{pool};
};

const Compute& OnThisMachine() {
  static Machine machine;
  return machine.compute;
}

void CountOperations(benchmark::State& state, double each) {
  state.counters["op/s"] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
}
void CountBytes(benchmark::State& state, double each) {
  state.counters["B/s"] = benchmark::Counter(each, benchmark::Counter::kIsIterationInvariantRate);
}

// Small numbers that are neither equal nor denormal.
std::vector<float> Values(int64_t n) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 251 - 125) / 64;
  return values;
}

struct Product {
  Product(int64_t rows, int64_t n, int64_t k, WeightFormat format, bool gate_up = false)
      : weights(Values(n * k)), a(OnThisMachine().path(), rows, k), out(rows * n) {
    const WeightRows all{weights.data(), WeightType::kF32, n};
    const WeightRows half{weights.data(), WeightType::kF32, n / 2};
    w = gate_up ? PackedMatrix::GateUp(OnThisMachine(), half, half, k, format)
                : PackedMatrix(OnThisMachine(), std::span(&all, 1), k, format);
    const auto x = Values(k);
    const std::vector<float> ones(k, 1.0f);
    for (int64_t row = 0; row < rows; ++row) {
      Activations one = a.Rows(1);
      one.data += row * one.stride * ActivationBytes(OnThisMachine().path());
      RmsNorm(OnThisMachine(), x.data(), {.weight = ones.data()}, one);
    }
  }
  // Decoding reads the weights once a step; prefill multiplies.
  void Count(benchmark::State& state) const {
    CountOperations(state, 2.0 * state.range(0) * w.n() * w.k());
    const double weight = w.format() == WeightFormat::kInt8 ? 1 : 2;
    CountBytes(state, weight * w.n() * w.k());
  }

  const std::vector<float> weights;
  PackedMatrix w;
  const ActivationBuffer a;
  std::vector<float> out;
};

template <WeightFormat kFormat>
void BM_MatMul(benchmark::State& state) {
  const int64_t rows = state.range(0), n = state.range(1), k = state.range(2);
  Product product(rows, n, k, kFormat);
  for (auto _ : state) {
    MatMul(OnThisMachine(), product.a.Rows(rows), product.w, product.out.data(), n);
  }
  product.Count(state);
}

template <WeightFormat kFormat>
void BM_MatMulAdd(benchmark::State& state) {
  const int64_t rows = state.range(0);
  Product product(rows, kHidden, kInner, kFormat);
  for (auto _ : state) {
    MatMulAdd(OnThisMachine(), product.a.Rows(rows), product.w, product.out.data(), kHidden);
  }
  product.Count(state);
}

template <WeightFormat kFormat>
void BM_MatMulSwiGlu(benchmark::State& state) {
  const int64_t rows = state.range(0);
  Product product(rows, 2 * kInner, kHidden, kFormat, /*gate_up=*/true);
  const ActivationBuffer out(OnThisMachine().path(), rows, kInner);
  for (auto _ : state) {
    MatMulSwiGlu(OnThisMachine(), product.a.Rows(rows), product.w, out.Rows(rows));
  }
  product.Count(state);
}

template <WeightFormat kFormat>
void BM_MatMulGelu(benchmark::State& state) {
  const int64_t rows = state.range(0);
  Product product(rows, kInner, kHidden, kFormat);
  const ActivationBuffer out(OnThisMachine().path(), rows, kInner);
  for (auto _ : state) {
    MatMulGelu(OnThisMachine(), product.a.Rows(rows), product.w, out.Rows(rows));
  }
  product.Count(state);
}

void BM_CopyRow(benchmark::State& state) {
  Product product(1, 1024, kHidden, static_cast<WeightFormat>(state.range(0)));
  int64_t row = 0;
  for (auto _ : state) product.w.CopyRow(row++ % 1024, product.out.data());
}

// Rows at the end of a context of range(1) tokens.
void BM_Attention(benchmark::State& state) {
  const int64_t rows = state.range(0), context = state.range(1);
  const KvLayout layout{.layers = 1, .kv_heads = kQkv.kv_heads, .head_dim = kQkv.head_dim};
  const int64_t pages = (context + layout.chunk_tokens - 1) / layout.chunk_tokens;
  const auto pool = PagePool::Create(layout, pages * layout.page_bytes()).value();
  PageTable table;
  std::vector<PageId> ids;
  for (int64_t i = 0; i < pages; ++i) {
    ids.push_back(table.emplace_back(*pool->Draw()).id());
    std::fill_n(pool->Slab(ids.back(), 0), layout.slab_bytes() / 2, 0x3c3c);
  }
  const int64_t width = int64_t{kQkv.heads} * kQkv.head_dim;
  const auto q = Values(rows * width);
  const AttentionShape shape{
      .heads = kQkv.heads, .kv_heads = kQkv.kv_heads, .head_dim = kQkv.head_dim};
  const auto attention = Attention::Create(OnThisMachine(), shape, *pool, {rows, rows});
  const auto plan = attention->NewPlan();
  const ActivationBuffer out(OnThisMachine().path(), rows, width);
  const AttentionSlice slice{.q = q.data(), .rows = rows, .start = context - rows, .pages = ids};
  for (auto _ : state) {
    plan->Set(std::span(&slice, 1));
    attention->Run(*plan, 0, width, out.Rows(rows));
  }
  const double pairs = static_cast<double>(rows) * (context - 0.5 * (rows - 1));
  CountOperations(state, 4.0 * width * pairs);
  CountBytes(state, 4.0 * kQkv.kv_heads * kQkv.head_dim * context);
}

void BM_Norm(benchmark::State& state) {
  const int64_t rows = state.range(0);
  const auto norm = state.range(1) == 0 ? RmsNorm : LayerNorm;
  const auto x = Values(rows * kHidden), weight = Values(kHidden);
  const ActivationBuffer out(OnThisMachine().path(), rows, kHidden);
  for (auto _ : state) {
    norm(OnThisMachine(), x.data(), {weight.data(), weight.data(), 1e-5f}, out.Rows(rows));
  }
  CountBytes(state, 4.0 * rows * kHidden);
}

void BM_NormHeads(benchmark::State& state) {
  auto qkv = Values(state.range(0) * kQkvSize);
  const std::vector<float> weight(kQkv.head_dim, 1.0f);
  const NormWeights norm{.weight = weight.data(), .eps = 1e-5f};
  for (auto _ : state) NormHeads(OnThisMachine(), kQkv, norm, norm, qkv);
  CountBytes(state, 4.0 * qkv.size());
}

void BM_RopeTable(benchmark::State& state) {
  const int64_t rows = state.range(0);
  std::vector<int32_t> positions(rows);
  for (int64_t i = 0; i < rows; ++i) positions[i] = static_cast<int32_t>(i);
  const std::vector<float> inv_freq(kQkv.head_dim / 2, 0.1f);
  std::vector<float> table(rows * kQkv.head_dim);
  for (auto _ : state) RopeTable(OnThisMachine(), positions, inv_freq, table.data());
}

void BM_RopeAndStoreKv(benchmark::State& state) {
  const int64_t rows = state.range(0), head_stride = rows * kQkv.head_dim;
  auto qkv = Values(rows * kQkvSize);
  const std::vector<float> table(rows * kQkv.head_dim, 0.7f);
  std::vector<uint16_t> kv(2 * kQkv.kv_heads * head_stride);
  std::vector<KvSlot> slots;
  for (int64_t row = 0; row < rows; ++row) {
    uint16_t* k = &kv[row * kQkv.head_dim];
    slots.push_back({.k = k, .v = k + kQkv.kv_heads * head_stride});
  }
  for (auto _ : state) {
    RopeAndStoreKv(OnThisMachine(), kQkv, qkv.data(), table.data(), slots, {.head = head_stride});
  }
  CountBytes(state, 4.0 * qkv.size());
}

void Rows(benchmark::internal::Benchmark* b) {
  b->Arg(1)->Arg(8)->Arg(32)->Arg(512)->UseRealTime();
}

BENCHMARK(BM_MatMul<WeightFormat::kBf16>)
    ->ArgsProduct({{1, 8, 32, 512}, {3072, 128256}, {kHidden}})
    ->UseRealTime();
BENCHMARK(BM_MatMul<WeightFormat::kInt8>)
    ->ArgsProduct({{1, 8, 32, 512}, {3072, 128256}, {kHidden}})
    ->UseRealTime();
BENCHMARK(BM_MatMulAdd<WeightFormat::kBf16>)->Apply(Rows);
BENCHMARK(BM_MatMulAdd<WeightFormat::kInt8>)->Apply(Rows);
BENCHMARK(BM_MatMulSwiGlu<WeightFormat::kBf16>)->Apply(Rows);
BENCHMARK(BM_MatMulSwiGlu<WeightFormat::kInt8>)->Apply(Rows);
BENCHMARK(BM_MatMulGelu<WeightFormat::kBf16>)->Apply(Rows);
BENCHMARK(BM_MatMulGelu<WeightFormat::kInt8>)->Apply(Rows);
BENCHMARK(BM_CopyRow)->Arg(0)->Arg(1);
BENCHMARK(BM_Attention)->ArgsProduct({{1, 512}, {512, 2048, 8192}})->UseRealTime();
BENCHMARK(BM_Norm)->ArgsProduct({{1, 512}, {0, 1}})->UseRealTime();
BENCHMARK(BM_NormHeads)->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK(BM_RopeTable)->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK(BM_RopeAndStoreKv)->Arg(1)->Arg(512)->UseRealTime();

}  // namespace
}  // namespace kvcake

BENCHMARK_MAIN();
