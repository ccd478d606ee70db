// One benchmark for every operation: on the fastest path of this CPU, or --numeric-path, in shapes
// of Llama 3.2 1B, or on CUDA in those of Llama 3.1 8B, e.g. ops_bench --backend=cuda
// --benchmark_filter=MatMul. Rates are counted in operations or in bytes a second; those of
// SumWords and of the largest MatMul are what the others may come to. --join: products of few rows
// are one kernel (cuda::Join).
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/bf16.h"
#include "base/cpu.h"
#include "ops/attention.h"
#include "ops/cuda_kernels.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"
#include "ops/sample.h"
#include "ops/sum_words.h"

namespace kvcake {
namespace {

struct Shapes {
  int64_t hidden, inner, vocab;
  QkvShape qkv;

  int64_t qkv_size() const { return int64_t{qkv.heads + 2 * qkv.kv_heads} * qkv.head_dim; }
};
constexpr Shapes kLlama1B{2048, 8192, 128256, {.heads = 32, .kv_heads = 8, .head_dim = 64}};
constexpr Shapes kLlama8B{4096, 14336, 128256, {.heads = 32, .kv_heads = 8, .head_dim = 128}};

// What is measured, and the memory that its operations take.
class Bench {
 public:
  explicit Bench(NumericPath path)
      : shapes_(OnCuda(path) ? kLlama8B : kLlama1B), compute_(pool_, path) {}

  const Compute& compute() const { return compute_; }
  const Shapes& shapes() const { return shapes_; }
  NumericPath path() const { return compute_.path(); }
  bool cuda() const { return OnCuda(path()); }

  // How many copies of so many bytes are used in turn, so that none is still in a cache, as none
  // would be in a model.
  static int64_t Copies(int64_t bytes) {
    constexpr int64_t kBeyondCaches = 256 << 20;
    return (kBeyondCaches + bytes - 1) / bytes;
  }

  template <typename T>
  Buffer Put(const std::vector<T>& values) const {
    return CopyOf(MemoryOf(path()), std::as_bytes(std::span(values)));
  }
  Buffer Room(int64_t bytes) const { return Buffer(bytes, MemoryOf(path())); }

  // Repeats op(). On CUDA it is enqueued, so often that waiting for the last is little of it all;
  // its first call, in which kernels are loaded, is not measured.
  template <typename Op>
  void Repeat(benchmark::State& state, const Op& op) const {
    const int batch = cuda() ? 64 : 1;
    if (cuda()) {
      op();
      compute_.Wait();
    }
    while (state.KeepRunningBatch(batch)) {
      for (int i = 0; i < batch; ++i) op();
      compute_.Wait();
    }
  }

 private:
  const Shapes shapes_;
  ThreadPool pool_{UsableCores()};
  const Compute compute_;
};

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

// ---- products ----

struct Product {
  Product(const Bench& bench, int64_t rows, int64_t n, int64_t k, WeightFormat format,
          bool gate_up = false)
      : a(bench.path(), rows, k), out(bench.Room(rows * n * sizeof(float))) {
    std::vector<uint16_t> weights;
    for (const float weight : Values(n * k)) weights.push_back(F32ToBf16(weight));
    const WeightRows all{weights.data(), WeightType::kBf16, n};
    const WeightRows half{weights.data(), WeightType::kBf16, n / 2};
    const Compute& compute = bench.compute();
    for (int64_t copy = bench.Copies(2 * n * k); copy > 0; --copy) {
      w.push_back(gate_up ? PackedMatrix::GateUp(compute, half, half, k, format)
                          : PackedMatrix(compute, std::span(&all, 1), k, format));
    }
    const Buffer x = bench.Put(Values(rows * k));
    const Buffer ones = bench.Put(std::vector<float>(k, 1.0f));
    RmsNorm(compute, x.as<float>(), {.weight = ones.as<float>()}, a.Rows(rows));
    compute.Wait();
  }
  const PackedMatrix& Next() { return w[next++ % w.size()]; }
  // Decoding reads the weights once a step; prefill multiplies.
  void Count(benchmark::State& state) const {
    const auto size = static_cast<double>(w[0].n() * w[0].k());
    CountOperations(state, 2.0 * state.range(0) * size);
    CountBytes(state, w[0].format() == WeightFormat::kInt8 ? size : 2 * size);
  }

  std::vector<PackedMatrix> w;
  size_t next = 0;
  const ActivationBuffer a;
  const Buffer out;
};

template <WeightFormat kFormat>
void BenchMatMul(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), n = state.range(1), k = state.range(2);
  Product product(bench, rows, n, k, kFormat);
  bench.Repeat(state, [&] {
    MatMul(bench.compute(), product.a.Rows(rows), product.Next(), product.out.as<float>(), n);
  });
  product.Count(state);
}

template <WeightFormat kFormat>
void BenchMatMulAdd(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), n = bench.shapes().hidden;
  Product product(bench, rows, n, state.range(1), kFormat);
  bench.Repeat(state, [&] {
    MatMulAdd(bench.compute(), product.a.Rows(rows), product.Next(), product.out.as<float>(), n);
  });
  product.Count(state);
}

template <WeightFormat kFormat>
void BenchMatMulSwiGlu(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), inner = bench.shapes().inner;
  Product product(bench, rows, 2 * inner, bench.shapes().hidden, kFormat, /*gate_up=*/true);
  const ActivationBuffer out(bench.path(), rows, inner);
  bench.Repeat(state, [&] {
    MatMulSwiGlu(bench.compute(), product.a.Rows(rows), product.Next(), out.Rows(rows));
  });
  product.Count(state);
}

template <WeightFormat kFormat>
void BenchMatMulGelu(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), inner = bench.shapes().inner;
  Product product(bench, rows, inner, bench.shapes().hidden, kFormat);
  const ActivationBuffer out(bench.path(), rows, inner);
  bench.Repeat(state, [&] {
    MatMulGelu(bench.compute(), product.a.Rows(rows), product.Next(), out.Rows(rows));
  });
  product.Count(state);
}

// Where rows of the fused projection go, in one layer's pages.
struct KvRows {
  KvRows(const Bench& bench, int64_t rows)
      : head_stride(rows * bench.shapes().qkv.head_dim),
        table(bench.Put(std::vector<float>(head_stride, 0.7f))),
        kv(bench.Room(2 * bench.shapes().qkv.kv_heads * head_stride * sizeof(uint16_t))) {
    std::vector<KvSlot> all;
    for (int64_t row = 0; row < rows; ++row) {
      uint16_t* const k = kv.as<uint16_t>() + row * bench.shapes().qkv.head_dim;
      all.push_back({.k = k, .v = k + bench.shapes().qkv.kv_heads * head_stride});
    }
    slots = bench.Put(all);
  }
  std::span<const KvSlot> Slots(int64_t rows) const {
    return std::span<const KvSlot>(slots.as<KvSlot>(), rows);
  }

  const int64_t head_stride;
  const Buffer table, kv;
  Buffer slots;
};

// What a layer of a model does beside attention: its products, the norms before them, and what is
// done to queries, keys and values.
template <WeightFormat kFormat>
void BenchLayer(const Bench& bench, benchmark::State& state) {
  const Shapes& shapes = bench.shapes();
  const int64_t rows = state.range(0), hidden = shapes.hidden, inner = shapes.inner;
  Product qkv(bench, rows, shapes.qkv_size(), hidden, kFormat),
      o(bench, rows, hidden, hidden, kFormat),
      up(bench, rows, 2 * inner, hidden, kFormat, /*gate_up=*/true),
      down(bench, rows, hidden, inner, kFormat);
  const Compute& compute = bench.compute();
  const Buffer x = bench.Put(Values(rows * hidden));
  const Buffer ones = bench.Put(std::vector<float>(hidden, 1.0f));
  const NormWeights norm{.weight = ones.as<float>(), .eps = 1e-5f};
  const Activations normed = up.a.Rows(rows), gated = down.a.Rows(rows);
  const KvRows kv(bench, rows);
  bench.Repeat(state, [&] {
    MatMulQkv(compute, LazyRmsNorm(compute, x.as<float>(), norm, normed), qkv.Next(), shapes.qkv,
              qkv.out.as<float>(), kv.table.as<float>(), kv.Slots(rows), {.head = kv.head_stride});
    MatMulAdd(compute, o.a.Rows(rows), o.Next(), x.as<float>(), hidden);
    MatMulSwiGlu(compute, LazyRmsNorm(compute, x.as<float>(), norm, normed), up.Next(), gated);
    MatMulAdd(compute, gated, down.Next(), x.as<float>(), hidden);
  });
  double weights = 0;
  for (const Product* product : {&qkv, &o, &up, &down}) {
    weights += static_cast<double>(product->w[0].n() * product->w[0].k());
  }
  CountBytes(state, kFormat == WeightFormat::kInt8 ? weights : 2 * weights);
}

void BenchCopyRow(const Bench& bench, benchmark::State& state) {
  Product product(bench, 1, 1024, bench.shapes().hidden, static_cast<WeightFormat>(state.range(0)));
  int64_t row = 0;
  for (auto _ : state) product.Next().CopyRow(row++ % 1024, product.out.as<float>());
}

// ---- attention ----

// range(0) rows at the end of a context of range(1) tokens, of each of range(2) sequences.
void BenchAttention(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), context = state.range(1), sequences = state.range(2);
  const QkvShape& qkv = bench.shapes().qkv;
  KvLayout layout{.layers = 1, .kv_heads = qkv.kv_heads, .head_dim = qkv.head_dim};
  const int64_t pages = (context + layout.chunk_tokens - 1) / layout.chunk_tokens;
  const int64_t layers = bench.Copies(sequences * pages * layout.page_bytes());
  layout.layers = static_cast<int>(layers);
  const auto pool = PagePool::Create(layout, sequences * pages * layout.page_bytes(),
                                     PageMemoryOf(bench.path()).value())
                        .value();
  const std::vector<std::byte> page(layout.page_bytes(), std::byte{0x3c});
  PageTable table;
  std::vector<PageId> ids;
  for (int64_t i = 0; i < sequences * pages; ++i) {
    ids.push_back(table.emplace_back(*pool->Draw()).id());
    WriteTo(MemoryOf(bench.path()), pool->Data(ids.back()), page);
  }
  const int64_t width = int64_t{qkv.heads} * qkv.head_dim, all = rows * sequences;
  const Buffer q = bench.Put(Values(all * width));
  const AttentionShape shape{
      .heads = qkv.heads, .kv_heads = qkv.kv_heads, .head_dim = qkv.head_dim};
  const auto attention = Attention::Create(bench.compute(), shape, *pool, {all, sequences});
  const auto plan = attention->NewPlan();
  const ActivationBuffer out(bench.path(), all, width);
  std::vector<AttentionSlice> slices;
  for (int64_t i = 0; i < sequences; ++i) {
    slices.push_back({.q = q.as<float>() + i * rows * width,
                      .rows = rows,
                      .start = context - rows,
                      .old_keys = context - rows,
                      .pages = std::span(ids).subspan(i * pages, pages),
                      .out_row = i * rows});
  }
  plan->Set(slices);
  int64_t next = 0;
  bench.Repeat(state, [&] {
    attention->Run(*plan, static_cast<int>(next++ % layers), width, out.Rows(all));
  });
  const double pairs = static_cast<double>(all) * (context - 0.5 * (rows - 1));
  CountOperations(state, 4.0 * width * pairs);
  CountBytes(state, 4.0 * qkv.kv_heads * qkv.head_dim * context * sequences);
}

// ---- between products ----

template <auto kNorm>
void BenchNorm(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), hidden = bench.shapes().hidden;
  const Buffer x = bench.Put(Values(rows * hidden)), weight = bench.Put(Values(hidden));
  const NormWeights norm{weight.as<float>(), weight.as<float>(), 1e-5f};
  const ActivationBuffer out(bench.path(), rows, hidden);
  bench.Repeat(state, [&] { kNorm(bench.compute(), x.as<float>(), norm, out.Rows(rows)); });
  CountBytes(state, 4.0 * rows * hidden);
}

void BenchNormHeads(const Bench& bench, benchmark::State& state) {
  const Shapes& shapes = bench.shapes();
  const int64_t size = state.range(0) * shapes.qkv_size();
  const Buffer qkv = bench.Put(Values(size));
  const Buffer weight = bench.Put(std::vector<float>(shapes.qkv.head_dim, 1.0f));
  const NormWeights norm{.weight = weight.as<float>(), .eps = 1e-5f};
  bench.Repeat(state, [&] {
    NormHeads(bench.compute(), shapes.qkv, norm, norm, {qkv.as<float>(), qkv.as<float>() + size});
  });
  CountBytes(state, 4.0 * size);
}

void BenchRopeTable(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), half = bench.shapes().qkv.head_dim / 2;
  std::vector<int32_t> positions(rows);
  for (int64_t i = 0; i < rows; ++i) positions[i] = static_cast<int32_t>(i);
  const Buffer at = bench.Put(positions), inv_freq = bench.Put(std::vector<float>(half, 0.1f));
  const Buffer table = bench.Room(rows * 2 * half * sizeof(float));
  bench.Repeat(state, [&] {
    RopeTable(bench.compute(), std::span(at.as<int32_t>(), rows),
              std::span(inv_freq.as<float>(), half), 1, table.as<float>());
  });
}

void BenchRopeAndStoreKv(const Bench& bench, benchmark::State& state) {
  const Shapes& shapes = bench.shapes();
  const int64_t rows = state.range(0);
  const Buffer qkv = bench.Put(Values(rows * shapes.qkv_size()));
  const KvRows kv(bench, rows);
  bench.Repeat(state, [&] {
    RopeAndStoreKv(bench.compute(), shapes.qkv, qkv.as<float>(), kv.table.as<float>(),
                   kv.Slots(rows), {.head = kv.head_stride});
  });
  CountBytes(state, 4.0 * rows * shapes.qkv_size());
}

// ---- what a step begins and ends with ----

void BenchSampleTokens(const Bench& bench, benchmark::State& state) {
  const int64_t rows = state.range(0), vocab = bench.shapes().vocab;
  const Buffer logits = bench.Put(Values(rows * vocab)), tokens = bench.Room(rows * 4);
  const RowSampling sampling{.temperature = static_cast<double>(state.range(1)), .uniform = 0.5};
  const Buffer each = bench.Put(std::vector<RowSampling>(rows, sampling));
  bench.Repeat(state, [&] {
    SampleTokens(bench.compute(), {logits.as<float>(), vocab, vocab},
                 std::span(each.as<RowSampling>(), rows), tokens.as<int32_t>());
  });
  CountBytes(state, 4.0 * rows * vocab);
}

void BenchSumWords(const Bench& bench, benchmark::State& state) {
  const int64_t words = state.range(0);
  const Buffer memory = bench.Put(std::vector<uint64_t>(words, 1)), sum = bench.Room(64);
  bench.Repeat(state, [&] {
    SumWords(bench.compute(), std::span(memory.as<uint64_t>(), words), sum.as<uint64_t>());
  });
  CountBytes(state, 8.0 * words);
}

// ---- all of them ----

class Registry {
 public:
  explicit Registry(const Bench& bench) : bench_(bench) {
    if (bench.cuda()) rows_.push_back(2048);
  }

  void AddAll() {
    Add("SumWords", BenchSumWords)->Arg(1 << 27);
    if (bench_.cuda()) {
      Add("MatMul/bf16", BenchMatMul<WeightFormat::kBf16>)->Args({8192, 8192, 8192});
    } else {
      AddProducts<WeightFormat::kInt8>();
      Add("CopyRow", BenchCopyRow)->Arg(0)->Arg(1);
    }
    AddProducts<WeightFormat::kBf16>();
    AddAttention();
    Add("RmsNorm", BenchNorm<RmsNorm>)->ArgsProduct({few_});
    Add("LayerNorm", BenchNorm<LayerNorm>)->ArgsProduct({few_});
    Add("NormHeads", BenchNormHeads)->ArgsProduct({few_});
    Add("RopeTable", BenchRopeTable)->ArgsProduct({few_});
    Add("RopeAndStoreKv", BenchRopeAndStoreKv)->ArgsProduct({few_});
    Add("SampleTokens", BenchSampleTokens)
        ->ArgNames({"rows", "temperature"})
        ->ArgsProduct({{1, 32}, {0, 1}});
  }

 private:
  template <typename Run>
  benchmark::internal::Benchmark* Add(const std::string& name, Run run) {
    return benchmark::RegisterBenchmark(
               name.c_str(), [&bench = bench_, run](benchmark::State& state) { run(bench, state); })
        ->UseRealTime();
  }

  template <WeightFormat kFormat>
  void AddProducts() {
    const Shapes& shapes = bench_.shapes();
    const std::string format = std::string("/") + WeightFormatName(kFormat);
    Add("MatMul" + format, BenchMatMul<kFormat>)
        ->ArgsProduct({rows_, {shapes.qkv_size()}, {shapes.hidden}})
        ->ArgsProduct({{1, 8, 32}, {shapes.vocab}, {shapes.hidden}});
    Add("MatMulAdd" + format, BenchMatMulAdd<kFormat>)
        ->ArgsProduct({rows_, {shapes.hidden, shapes.inner}});
    Add("MatMulSwiGlu" + format, BenchMatMulSwiGlu<kFormat>)->ArgsProduct({rows_});
    Add("MatMulGelu" + format, BenchMatMulGelu<kFormat>)->ArgsProduct({rows_});
    Add("Layer" + format, BenchLayer<kFormat>)->Arg(1)->Arg(8)->Arg(32);
  }

  void AddAttention() {
    auto* const all = Add("Attention", BenchAttention)->ArgNames({"rows", "context", "of"});
    all->ArgsProduct({few_, {512, 2048, 8192}, {1}})->Args({1, 1024, 1})->Args({1, 1024, 32});
    if (!bench_.cuda()) return;
    all->Args({512, 16896, 1})->Args({2048, 18432, 1})->Args({8192, 32768, 1});
  }

  const Bench& bench_;
  const std::vector<int64_t> few_ = {1, 512};
  std::vector<int64_t> rows_ = {1, 8, 32, 512};
};

}  // namespace
}  // namespace kvcake

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  using kvcake::NumericPath;
  using kvcake::cuda::Join;
  NumericPath path = kvcake::BestPath();
  Join join = Join::kNo;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    NumericPath named = NumericPath::kUnknown;
    for (NumericPath cpu : kvcake::kCpuPaths) {
      if (option == fmt::format("--numeric-path={}", NumericPathName(cpu))) named = cpu;
    }
    if (named != NumericPath::kUnknown) {
      path = named;
    } else if (option == "--backend=cuda") {
      path = NumericPath::kBf16Tensor;
    } else if (option == "--join=early") {
      join = Join::kEarly;
    } else if (option == "--join=together") {
      join = Join::kTogether;
    } else if (option != "--backend=cpu") {
      fmt::print(stderr,
                 "ops_bench [--backend=cpu|cuda] [--numeric-path=PATH] [--join=early|together] "
                 "[--benchmark_...]\n");
      return 2;
    }
  }
  if (join != Join::kNo && !kvcake::OnCuda(path)) {
    fmt::print(stderr, "--join is for --backend=cuda\n");
    return 2;
  }
  if (const kvcake::Status can = kvcake::CheckPath(path); !can) {
    fmt::print(stderr, "{}\n", can.error().message);
    return 1;
  }
  const kvcake::Bench bench(path);
  if (join != Join::kNo) kvcake::cuda::JoinProducts(*bench.compute().cuda(), join);
  benchmark::AddCustomContext("device", kvcake::DeviceName(path));
  kvcake::Registry(bench).AddAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
