#include "model/llama.h"

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "ops/bf16.h"
#include "ops/test_paths.h"

namespace kvcake {
namespace {

ModelConfig TinyConfig() {
  ModelConfig c;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.layers = 3;
  c.heads = 6;
  c.kv_heads = 2;
  c.head_dim = 16;
  c.vocab_size = 101;
  c.max_positions = 4096;
  c.tie_embeddings = true;
  return c;
}

// Random weights by name, made when asked for.
class RandomWeights {
 public:
  WeightSource Source() {
    return {.get = [this](const std::string& name,
                          std::span<const int64_t> shape) -> Result<TensorView> {
              const std::vector<uint16_t>& values = Values(name, shape);
              return TensorView{
                  DType::kBf16, {shape.begin(), shape.end()}, std::as_bytes(std::span(values))};
            },
            .digest = Digest{1}};
  }
  // In f32, for the reference.
  std::vector<float> Get(const std::string& name) const {
    std::vector<float> out;
    for (uint16_t bits : tensors_.at(name)) out.push_back(Bf16ToF32(bits));
    return out;
  }

 private:
  const std::vector<uint16_t>& Values(const std::string& name, std::span<const int64_t> shape) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    const float scale = shape.size() == 1 || name.starts_with("model.embed")
                            ? 1.0f
                            : 1.0f / std::sqrt(static_cast<float>(shape[1]));
    return tensors_.try_emplace(name, RandomBf16(rng_, n, scale)).first->second;
  }

  std::mt19937 rng_{7};
  std::map<std::string, std::vector<uint16_t>> tensors_;
};

// A model with its pages and threads.
struct Rig {
  Rig(const ModelConfig& config, NumericPath path, int threads, int chunk_tokens = 32)
      : workers(threads),
        pages(std::move(
            PagePool::Create(LlamaModel::LayoutFor(config, chunk_tokens), 4 << 20).value())),
        model(std::move(LlamaModel::Create(config, weights.Source(), *pages, workers,
                                           {.max_batch_tokens = 512, .path = path})
                            .value())) {}

  // Pages for `tokens` tokens, full of NaN.
  PageTable Draw(int64_t tokens) {
    PageTable table;
    const KvLayout& layout = pages->layout();
    for (int64_t t = 0; t < tokens; t += layout.chunk_tokens) {
      table.push_back(*pages->Draw());
      std::memset(pages->Data(table.back().id()), 0xff, layout.page_bytes());
    }
    return table;
  }

  RandomWeights weights;
  ThreadPool workers;
  std::unique_ptr<PagePool> pages;
  std::unique_ptr<LlamaModel> model;
};

std::vector<PageId> Ids(const PageTable& table) {
  std::vector<PageId> ids;
  for (const PageHandle& page : table) ids.push_back(page.id());
  return ids;
}

std::vector<int32_t> Prompt(int seed, int64_t n, int vocab = 101) {
  std::mt19937 rng(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(rng() % vocab);
  return tokens;
}

std::vector<float> RunAll(Rig& rig, const std::vector<int32_t>& tokens,
                          const std::vector<PageId>& pages) {
  const Slice slice{.tokens = tokens, .pages = pages, .logits = Slice::Logits::kAll};
  const auto logits = rig.model->Forward(std::span(&slice, 1)).value();
  return {logits.begin(), logits.end()};
}

// The bytes of the KV cache of [0, tokens).
std::vector<uint16_t> KvOf(const Rig& rig, const std::vector<PageId>& pages, int64_t tokens) {
  const KvLayout& layout = rig.pages->layout();
  std::vector<uint16_t> kv;
  for (int layer = 0; layer < layout.layers; ++layer) {
    for (int plane = 0; plane < 2 * layout.kv_heads; ++plane) {
      for (int64_t t = 0; t < tokens; ++t) {
        const uint16_t* from =
            rig.pages->Slab(pages[t / layout.chunk_tokens], layer) +
            (plane * layout.chunk_tokens + t % layout.chunk_tokens) * layout.head_dim;
        kv.insert(kv.end(), from, from + layout.head_dim);
      }
    }
  }
  return kv;
}

bool SameBits(std::span<const float> a, const float* b) {
  return std::memcmp(a.data(), b, a.size_bytes()) == 0;
}

// The forward pass as a textbook writes it, for one sequence; the logits of every token.
std::vector<double> Reference(const ModelConfig& c, const RandomWeights& weights,
                              const std::vector<int32_t>& tokens) {
  using Matrix = std::vector<std::vector<double>>;
  const int64_t n = static_cast<int64_t>(tokens.size());
  const auto multiply = [](const Matrix& x, const std::vector<float>& w, int64_t out) {
    Matrix y(x.size(), std::vector<double>(out));
    const int64_t k = static_cast<int64_t>(x[0].size());
    for (size_t r = 0; r < x.size(); ++r) {
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < k; ++i) y[r][o] += x[r][i] * w[o * k + i];
      }
    }
    return y;
  };
  const auto norm = [&](Matrix x, const std::vector<float>& w) {
    for (auto& row : x) {
      double squares = 0;
      for (double value : row) squares += value * value;
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = row[i] / std::sqrt(squares / row.size() + c.rms_norm_eps) * w[i];
      }
    }
    return x;
  };
  const auto rotate = [&](Matrix& x) {
    const int half = c.head_dim / 2;
    for (int64_t t = 0; t < n; ++t) {
      for (size_t h = 0; h < x[t].size(); h += c.head_dim) {
        for (int i = 0; i < half; ++i) {
          const double angle = t * std::pow(c.rope.theta, -2.0 * i / c.head_dim);
          const double a = x[t][h + i], b = x[t][h + half + i];
          x[t][h + i] = a * std::cos(angle) - b * std::sin(angle);
          x[t][h + half + i] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
  };
  const std::vector<float> embedding = weights.Get("model.embed_tokens.weight");
  Matrix x;
  for (int32_t token : tokens) {
    const float* row = &embedding[static_cast<int64_t>(token) * c.hidden_size];
    x.emplace_back(row, row + c.hidden_size);
  }
  for (int layer = 0; layer < c.layers; ++layer) {
    const auto get = [&](const char* name) {
      return weights.Get("model.layers." + std::to_string(layer) + "." + name + ".weight");
    };
    const Matrix h = norm(x, get("input_layernorm"));
    Matrix q = multiply(h, get("self_attn.q_proj"), c.heads * c.head_dim);
    Matrix k = multiply(h, get("self_attn.k_proj"), c.kv_heads * c.head_dim);
    const Matrix v = multiply(h, get("self_attn.v_proj"), c.kv_heads * c.head_dim);
    rotate(q);
    rotate(k);
    Matrix attended(n, std::vector<double>(c.heads * c.head_dim));
    for (int64_t t = 0; t < n; ++t) {
      for (int head = 0; head < c.heads; ++head) {
        const int qo = head * c.head_dim, ko = head / (c.heads / c.kv_heads) * c.head_dim;
        std::vector<double> p(t + 1);
        double sum = 0;
        for (int64_t s = 0; s <= t; ++s) {
          for (int i = 0; i < c.head_dim; ++i) p[s] += q[t][qo + i] * k[s][ko + i];
          sum += p[s] = std::exp(p[s] / std::sqrt(c.head_dim));
        }
        for (int64_t s = 0; s <= t; ++s) {
          for (int i = 0; i < c.head_dim; ++i) attended[t][qo + i] += p[s] / sum * v[s][ko + i];
        }
      }
    }
    const auto add = [&](const Matrix& y) {
      for (int64_t t = 0; t < n; ++t) {
        for (int i = 0; i < c.hidden_size; ++i) x[t][i] += y[t][i];
      }
    };
    add(multiply(attended, get("self_attn.o_proj"), c.hidden_size));
    const Matrix m = norm(x, get("post_attention_layernorm"));
    Matrix gate = multiply(m, get("mlp.gate_proj"), c.intermediate_size);
    const Matrix up = multiply(m, get("mlp.up_proj"), c.intermediate_size);
    for (int64_t t = 0; t < n; ++t) {
      for (int i = 0; i < c.intermediate_size; ++i) {
        gate[t][i] *= up[t][i] / (1 + std::exp(-gate[t][i]));
      }
    }
    add(multiply(gate, get("mlp.down_proj"), c.hidden_size));
  }
  const std::vector<float> head = c.tie_embeddings ? embedding : weights.Get("lm_head.weight");
  std::vector<double> logits;
  for (const auto& row : multiply(norm(x, weights.Get("model.norm.weight")), head, c.vocab_size)) {
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

// Values computed independently in Python by the published formulas, in float32 where Hugging Face
// transformers has float32.
TEST(RopeTest, FrequenciesOfEveryKind) {
  RopeConfig rope;
  rope.theta = 500000.0;
  const auto expect = [&](int i, double want) {
    EXPECT_NEAR(RopeInverseFrequencies(rope, 64)[i], want, 5e-7 * want)
        << i;  // a few f32 roundings
  };
  expect(0, 1.0);
  expect(10, 0.016560440883040428);
  expect(31, 3.01385807688348e-06);
  rope.kind = RopeConfig::Kind::kLinear;
  rope.factor = 4.0;
  expect(10, 0.016560440883040428 / 4);
  rope.kind = RopeConfig::Kind::kLlama3;
  rope.factor = 32.0;
  rope.low_freq_factor = 1.0;
  rope.high_freq_factor = 4.0;
  rope.original_max_positions = 8192;
  expect(0, 1.0);
  expect(14, 0.0032114461064338684);
  expect(15, 0.0012905480504265697);
  expect(16, 0.00042955669247651487);
  expect(17, 9.70828819426613e-05);
  expect(18, 1.9461638657958247e-05);
  expect(31, 9.418306490260875e-08);
}

using LlamaTest = PathTest;

TEST_P(LlamaTest, AgreesWithATextbookForwardPass) {
  for (bool tied : {true, false}) {
    ModelConfig config = TinyConfig();
    config.tie_embeddings = tied;
    if (!tied) {
      config.kv_heads = 6;
      config.rope.theta = 500000;
    }
    Rig rig(config, GetParam(), 2);
    const auto tokens = Prompt(1, 90);
    const PageTable table = rig.Draw(90);
    const auto got = RunAll(rig, tokens, Ids(table));
    const auto want = Reference(config, rig.weights, tokens);
    ASSERT_EQ(got.size(), want.size());
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    // KV is bf16 on every path.
    EXPECT_LT(std::sqrt(error / norm), GetParam() == NumericPath::kBf16Dot ? 0.02 : 0.006);
  }
}

// The design's "same answer": logits and KV of every slicing, thread count and batch.
TEST_P(LlamaTest, EverySlicingGivesTheSameLogitsAndPages) {
  const int64_t n = 300;
  const int vocab = TinyConfig().vocab_size;
  Rig whole(TinyConfig(), GetParam(), 1);
  const auto tokens = Prompt(2, n);
  const PageTable whole_table = whole.Draw(n);
  const auto want = RunAll(whole, tokens, Ids(whole_table));
  const auto want_kv = KvOf(whole, Ids(whole_table), n);
  std::mt19937 rng(3);
  for (int threads : {1, 2, 3}) {
    for (int chunk_tokens : {16, 32, 64}) {
      Rig rig(TinyConfig(), GetParam(), threads, chunk_tokens);
      const PageTable table = rig.Draw(n), other_table = rig.Draw(512);
      const auto ids = Ids(table), other_ids = Ids(other_table);
      const auto other = Prompt(4, 512);
      int64_t other_at = 0;
      for (int64_t begin = 0; begin < n;) {
        const int64_t end = std::min<int64_t>(n, begin + 1 + rng() % (rng() % 2 ? 3 : 120));
        std::vector<Slice> batch;
        const bool kept_all = rng() % 2;
        const int64_t other_rows = std::min<int64_t>(512 - other_at, rng() % 40);
        if (other_rows > 0) {
          batch.push_back({.tokens = std::span(other).subspan(other_at, other_rows),
                           .start = static_cast<int>(other_at),
                           .pages = other_ids,
                           .logits = rng() % 2 ? Slice::Logits::kLast : Slice::Logits::kNone});
        }
        other_at += other_rows;
        const size_t skip = !batch.empty() && batch[0].logits == Slice::Logits::kLast ? vocab : 0;
        batch.push_back({.tokens = std::span(tokens).subspan(begin, end - begin),
                         .start = static_cast<int>(begin),
                         .pages = ids,
                         .logits = kept_all ? Slice::Logits::kAll : Slice::Logits::kLast});
        const auto got = rig.model->Forward(batch).value().subspan(skip);
        const int64_t first = kept_all ? begin : end - 1;
        ASSERT_EQ(static_cast<int64_t>(got.size()), (end - first) * vocab);
        ASSERT_TRUE(SameBits(got, &want[first * vocab])) << begin << ".." << end;
        begin = end;
      }
      ASSERT_EQ(KvOf(rig, ids, n), want_kv) << threads << " threads, chunks of " << chunk_tokens;
    }
  }
}

TEST_P(LlamaTest, ALastTokenWhoseKvIsThereNeedNotWriteIt) {
  const int64_t n = 64;
  Rig rig(TinyConfig(), GetParam(), 2);
  const auto tokens = Prompt(5, n);
  const PageTable table = rig.Draw(n);
  const auto want = RunAll(rig, tokens, Ids(table));
  const auto kv = KvOf(rig, Ids(table), n);
  const auto ids = Ids(table);
  const Slice last{.tokens = std::span(tokens).last(1),
                   .start = n - 1,
                   .pages = ids,
                   .write_kv = false,
                   .logits = Slice::Logits::kLast};
  const auto got = rig.model->Forward(std::span(&last, 1)).value();
  EXPECT_TRUE(SameBits(got, &want[(n - 1) * 101]));
  EXPECT_EQ(KvOf(rig, ids, n), kv);
}

KVCAKE_EVERY_PATH(LlamaTest);

class RecordingGate : public LayerGate {
 public:
  explicit RecordingGate(int fail_at = -1) : fail_at_(fail_at) {}
  Status AfterKv(int layer) override { return Call(2 * layer); }
  Status BeforeAttention(int layer) override { return Call(2 * layer + 1); }
  const std::vector<int>& calls() const { return calls_; }

 private:
  Status Call(int call) {
    calls_.push_back(call);
    if (call == fail_at_) return Fail(ErrorCode::kDeadline, "call {}", call);
    return {};
  }

  const int fail_at_;
  std::vector<int> calls_;
};

TEST(LlamaGateTest, CalledOncePerLayerInOrderAndItsErrorEndsThePass) {
  Rig rig(TinyConfig(), NumericPath::kF32, 1);
  const auto tokens = Prompt(6, 20);
  const PageTable table = rig.Draw(20);
  const auto ids = Ids(table);
  for (int fail_at : {-1, 0, 3, 5}) {
    RecordingGate gate(fail_at);
    const Slice slice{
        .tokens = tokens, .pages = ids, .logits = Slice::Logits::kLast, .gate = &gate};
    const auto result = rig.model->Forward(std::span(&slice, 1));
    std::vector<int> want;
    for (int call = 0; call <= (fail_at < 0 ? 5 : fail_at); ++call) want.push_back(call);
    EXPECT_EQ(gate.calls(), want);
    ASSERT_EQ(result.has_value(), fail_at < 0);
    if (fail_at >= 0) {
      EXPECT_EQ(result.error().code, ErrorCode::kDeadline);
    }
  }
}

// A gate may bring the prefix while the pass runs: it is looked at only after BeforeAttention.
class CopyingGate : public LayerGate {
 public:
  CopyingGate(PagePool& pool, PageId from, PageId to) : pool_(pool), from_(from), to_(to) {}
  Status AfterKv(int layer) override { return {}; }
  Status BeforeAttention(int layer) override {
    std::memcpy(pool_.Slab(to_, layer), pool_.Slab(from_, layer), pool_.layout().slab_bytes());
    return {};
  }

 private:
  PagePool& pool_;
  const PageId from_, to_;
};

TEST(LlamaGateTest, ThePrefixMayArriveLayerByLayer) {
  Rig rig(TinyConfig(), NumericPath::kF32, 2);
  const auto tokens = Prompt(7, 60);
  const PageTable table = rig.Draw(60), late = rig.Draw(60);
  const auto want = RunAll(rig, tokens, Ids(table));
  const auto ids = Ids(late);
  CopyingGate gate(*rig.pages, table[0].id(), ids[0]);
  const Slice slice{.tokens = std::span(tokens).subspan(32),
                    .start = 32,
                    .pages = ids,
                    .logits = Slice::Logits::kAll,
                    .gate = &gate};
  EXPECT_TRUE(SameBits(rig.model->Forward(std::span(&slice, 1)).value(), &want[32 * 101]));
}

TEST(LlamaCreateTest, RefusesByName) {
  ThreadPool workers(1);
  for (auto& [change, name] : std::vector<std::pair<void (*)(ModelConfig&), const char*>>{
           {[](ModelConfig& c) { c.hidden_size = 72; }, "hidden_size"},
           {[](ModelConfig& c) { c.intermediate_size = 100; }, "intermediate_size"},
           {[](ModelConfig& c) { c.head_dim = 272; }, "head_dim"},
           {[](ModelConfig& c) { c.heads = 7; }, "num_attention_heads"}}) {
    ModelConfig config = TinyConfig();
    change(config);
    auto pages = PagePool::Create(LlamaModel::LayoutFor(config, 32), 4 << 20).value();
    RandomWeights weights;
    const auto model = LlamaModel::Create(config, weights.Source(), *pages, workers);
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(model.error().message.find(name), std::string::npos) << model.error().message;
  }
}

TEST(LlamaCreateTest, AMissingTensorIsTheSourcesError) {
  ThreadPool workers(1);
  auto pages = PagePool::Create(LlamaModel::LayoutFor(TinyConfig(), 32), 4 << 20).value();
  RandomWeights weights;
  WeightSource source = weights.Source();
  const auto get = source.get;
  source.get = [&](const std::string& name, std::span<const int64_t> shape) -> Result<TensorView> {
    if (name.find("layers.2.mlp.up") == std::string::npos) return get(name, shape);
    return Fail(ErrorCode::kNotFound, "no {}", name);
  };
  const auto model = LlamaModel::Create(TinyConfig(), source, *pages, workers);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message, "no model.layers.2.mlp.up_proj.weight");
}

TEST(LlamaIdentityTest, ChangesWithWhatDeterminesTheNumbers) {
  const ChunkKey root = Rig(TinyConfig(), NumericPath::kF32, 1).model->identity().Root();
  EXPECT_EQ(Rig(TinyConfig(), BestPath(), 2).model->identity().Root(), root)
      << "not with the machine";
  std::vector<ChunkKey> roots = {root};
  roots.push_back(Rig(TinyConfig(), NumericPath::kF32, 1, 16).model->identity().Root());
  for (void (*change)(ModelConfig&) : std::vector<void (*)(ModelConfig&)>{
           [](ModelConfig& c) { c.rms_norm_eps = 1e-6; },
           [](ModelConfig& c) { c.rope.theta = 10001; },
           [](ModelConfig& c) { c.rope.kind = RopeConfig::Kind::kLinear; },
           [](ModelConfig& c) { c.rope.kind = RopeConfig::Kind::kLlama3; },
           [](ModelConfig& c) { c.layers = 2; }}) {
    ModelConfig config = TinyConfig();
    change(config);
    roots.push_back(Rig(config, NumericPath::kF32, 1).model->identity().Root());
  }
  std::sort(roots.begin(), roots.end());
  EXPECT_EQ(std::unique(roots.begin(), roots.end()), roots.end());
}

}  // namespace
}  // namespace kvcake
