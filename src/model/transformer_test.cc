#include "model/transformer.h"

#include <cmath>
#include <cstring>

#include "model/identity.h"
#include "model/transformer_testing.h"
#include "ops/cuda_kernels.h"

namespace kvcake {
namespace {

using TransformerTest = PathTest;

// Runs random slices of `tokens` in batches with slices of another sequence, and compares their
// logits with those of the whole.
void CheckSlicings(Rig& rig, const std::vector<int32_t>& tokens, const std::vector<float>& want,
                   const std::vector<PageId>& ids, std::mt19937& rng) {
  const int vocab = rig.model->vocab_size();
  const int64_t n = static_cast<int64_t>(tokens.size());
  const PageTable other_table = rig.Draw(512);
  const auto other_ids = IdsOf(other_table);
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
}

// The design's "same answer", for every family: logits and KV of every slicing, thread count and
// batch.
TEST_P(TransformerTest, EverySlicingGivesTheSameLogitsAndPages) {
  const int64_t n = 300;
  const auto tokens = Prompt(2, n);
  std::mt19937 rng(3);
  std::vector<std::tuple<std::string, ModelConfig, WeightFormat>> models;
  for (const auto& [name, config] : TinyZooOn(GetParam())) {
    models.emplace_back(name, config, WeightFormat::kBf16);
    models.emplace_back(name + ", int8", config, WeightFormat::kInt8);
  }
  for (const auto& [name, config, format] : models) {
    Rig whole(config, GetParam(), 1, 32, format);
    const PageTable whole_table = whole.Draw(n);
    const auto want = RunAll(whole, tokens, IdsOf(whole_table));
    const auto want_kv = KvOf(whole, IdsOf(whole_table), n);
    for (int threads : {1, 2, 3}) {
      for (int chunk_tokens : {16, 32, 64}) {
        SCOPED_TRACE(fmt::format("{}, {} threads, chunks of {}", name, threads, chunk_tokens));
        Rig rig(config, GetParam(), threads, chunk_tokens, format);
        const PageTable table = rig.Draw(n);
        ASSERT_NO_FATAL_FAILURE(CheckSlicings(rig, tokens, want, IdsOf(table), rng));
        ASSERT_EQ(KvOf(rig, IdsOf(table), n), want_kv);
      }
    }
  }
}

TEST_P(TransformerTest, ALastTokenWhoseKvIsThereNeedNotWriteIt) {
  const int64_t n = 64;
  Rig rig(TinyConfig(), GetParam(), 2);
  const auto tokens = Prompt(5, n);
  const PageTable table = rig.Draw(n);
  const auto want = RunAll(rig, tokens, IdsOf(table));
  const auto kv = KvOf(rig, IdsOf(table), n);
  const auto ids = IdsOf(table);
  const Slice last{.tokens = std::span(tokens).last(1),
                   .start = n - 1,
                   .pages = ids,
                   .write_kv = false,
                   .logits = Slice::Logits::kLast};
  const auto got = rig.model->Forward(std::span(&last, 1)).value();
  EXPECT_TRUE(SameBits(got, &want[(n - 1) * 101]));
  EXPECT_EQ(KvOf(rig, ids, n), kv);
}

KVCAKE_EVERY_PATH(TransformerTest);

using TransformerDecodeTest = PathTest;

// The logits of 60 steps in which up to four sequences decode, two of them past the end of a
// partial; every seventh step prefills beside.
std::vector<float> Decode(Rig& rig) {
  const std::vector<int64_t> contexts = {1014, 3, 2040, 250};
  std::vector<std::vector<int32_t>> tokens;
  std::vector<PageTable> tables;
  std::vector<std::vector<PageId>> pages;
  const auto slice = [&](int sequence, int64_t start, int64_t n) {
    return Slice{.tokens = std::span(tokens[sequence]).subspan(start, n),
                 .start = static_cast<int>(start),
                 .pages = pages[sequence],
                 .logits = start % 9 == 4 ? Slice::Logits::kNone : Slice::Logits::kLast};
  };
  for (int i = 0; i < 4; ++i) {
    tokens.push_back(Prompt(i, contexts[i] + 128));
    tables.push_back(rig.Draw(contexts[i] + 128));
    pages.push_back(IdsOf(tables[i]));
    for (int64_t start = 0; start < contexts[i]; start += 512) {
      const Slice prompt = slice(i, start, std::min<int64_t>(512, contexts[i] - start));
      EXPECT_TRUE(rig.model->Forward(std::span(&prompt, 1)));
    }
  }
  std::vector<float> all;
  std::vector<int64_t> decoded(4);
  for (int step = 0; step < 60; ++step) {
    std::vector<Slice> batch;
    for (int i = 0; i < 4 - step / 3 % 3; ++i) {
      const int64_t n = i == 0 && step % 7 == 6 ? 5 : 1;
      batch.push_back(slice(i, contexts[i] + decoded[i], n));
      decoded[i] += n;
    }
    const auto logits = rig.model->Forward(batch).value();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

TEST_P(TransformerDecodeTest, ReplayedStepsGiveTheLogitsOfEnqueuedOnes) {
  for (const ModelConfig& config :
       {TinyConfig(), TinyFalcon(BlockKind::kParallelTwoNorms, 3, true, true)}) {
    Rig replayed(config, GetParam(), 2), eager(config, GetParam(), 2, 32, WeightFormat::kBf16,
                                               /*enforce_eager=*/true);
    EXPECT_EQ(Decode(replayed), Decode(eager));
    EXPECT_EQ(eager.model->graph_launches(), 0u);
    if (OnCuda(GetParam())) {
      EXPECT_GT(replayed.model->graph_launches(), 20u) << "of 60 steps";
    }
  }
}

void ExpectNear(std::span<const float> got, std::span<const float> want) {
  float largest = 0;
  for (const float logit : want) largest = std::max(largest, std::abs(logit));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 0.02f * largest) << i;
}

// The logits of all tokens, one a step.
std::vector<float> StepByStep(Rig& rig, std::span<const int32_t> tokens) {
  const PageTable table = rig.Draw(std::ssize(tokens));
  const auto ids = IdsOf(table);
  std::vector<float> all;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Slice step{.tokens = tokens.subspan(i, 1),
                     .start = static_cast<int>(i),
                     .pages = ids,
                     .logits = Slice::Logits::kLast};
    const auto logits = rig.model->Forward(std::span(&step, 1)).value();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// With matrices of which CUDA multiplies single rows by a kernel of its own: norms, heads and all,
// each product by itself and joined.
TEST_P(TransformerDecodeTest, StepsOfOneTokenGiveTheLogitsOfAllAtOnce) {
  ModelConfig config = TinyConfig();
  config.hidden_size = 2112;
  config.heads = 32;
  config.head_dim = 64;
  config.layers = 2;
  config.vocab_size = 2120;
  config.intermediate_size = 1056;
  Rig rig(config, GetParam(), 2);
  const auto tokens = Prompt(5, 5);
  const PageTable table = rig.Draw(std::ssize(tokens));
  const auto want = RunAll(rig, tokens, IdsOf(table));
  const auto got = StepByStep(rig, tokens);
  ExpectNear(got, want);
  if (!OnCuda(GetParam())) return;
  Rig joined(config, GetParam(), 2);
  CudaDevice& device = *CudaDevice::Get().value();
  cuda::JoinProducts(device, cuda::Join::kEarly);
  EXPECT_TRUE(SameBits(StepByStep(joined, tokens), got.data()));
  cuda::JoinProducts(device, cuda::Join::kNo);
  EXPECT_GT(joined.model->graph_launches(), 0u);
}

class IdleGate : public LayerGate {
 public:
  Status AfterKv(int layer) override { return {}; }
  Status BeforeAttention(int layer) override { return {}; }
};

// As a rank has them that computes the first part of a prompt and the last. On CUDA attention of a
// single row reads early what no operation of the step writes.
TEST_P(TransformerDecodeTest, SlicesOfOneGateSeeEachOthersKeys) {
  const int64_t n = 200;
  Rig rig(TinyConfig(), GetParam(), 2);
  const auto tokens = Prompt(2, n);
  const PageTable whole_table = rig.Draw(n), table = rig.Draw(n);
  const auto want = RunAll(rig, tokens, IdsOf(whole_table));
  const auto ids = IdsOf(table);
  IdleGate gate;
  const Slice first{.tokens = std::span(tokens).first(100), .pages = ids, .gate = &gate};
  Slice last = first;
  last.tokens = std::span(tokens).subspan(100);
  last.start = 100;
  last.logits = Slice::Logits::kLast;
  const auto got = rig.model->Forward(std::vector{first, last}).value();
  ExpectNear(got, std::span(want).last(got.size()));
}

KVCAKE_EVERY_PATH_AND_CUDA(TransformerDecodeTest);

using TransformerSamplingTest = PathTest;

// Slices that are sampled lie among others, each beside one of the same tokens whose logits come
// back.
TEST_P(TransformerSamplingTest, TokensAreThoseThatTheLogitsGive) {
  const int vocab = 101;
  Rig rig(TinyConfig(), GetParam(), 2);
  EXPECT_TRUE(rig.model->samples());
  const auto tokens = Prompt(8, 40);
  const RowSampling how[] = {{},
                             {.temperature = 1, .uniform = 0.3},
                             {.temperature = 2, .top_p = 0.9, .uniform = 0.999},
                             {.temperature = 3, .min_p = 0.1, .uniform = 0.5, .top_k = 20}};
  std::vector<PageTable> tables;
  std::vector<std::vector<PageId>> ids;
  for (int i = 0; i < 4; ++i) {
    tables.push_back(rig.Draw(40));
    ids.push_back(IdsOf(tables.back()));
  }
  std::vector<Slice> batch;
  for (int i = 0; i < 4; ++i) {
    const Slice slice{
        .tokens = std::span(tokens).subspan(i), .pages = ids[i], .logits = Slice::Logits::kLast};
    Slice sampled = slice;
    sampled.sampling = how[i];
    Slice all = slice;
    all.logits = i == 2 ? Slice::Logits::kAll : Slice::Logits::kLast;
    // The first of the two writes.
    (i % 2 ? all : sampled).write_kv = false;
    batch.push_back(i % 2 ? sampled : all);
    batch.push_back(i % 2 ? all : sampled);
  }
  batch.push_back({.tokens = tokens, .pages = ids[0], .write_kv = false});
  const auto logits = rig.model->Forward(batch).value();
  const std::vector<int32_t> got(rig.model->sampled().begin(), rig.model->sampled().end());
  ASSERT_EQ(logits.size(), (3 + 38) * vocab);
  std::vector<int32_t> want;
  const int last_rows[] = {0, 1, 39, 40};
  for (int i = 0; i < 4; ++i) {
    want.push_back(SampleToken(logits.subspan(last_rows[i] * vocab, vocab), how[i]));
  }
  EXPECT_EQ(got, want);
  batch[0].logits = Slice::Logits::kNone;
  EXPECT_EQ(rig.model->Forward(std::span(batch).first(1)).value().size(), 0u);
  EXPECT_TRUE(rig.model->sampled().empty());
}

KVCAKE_EVERY_PATH_AND_CUDA(TransformerSamplingTest);

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

TEST(TransformerGateTest, CalledOncePerLayerInOrderAndItsErrorEndsThePass) {
  Rig rig(TinyConfig(), NumericPath::kF32, 1);
  const auto tokens = Prompt(6, 20);
  const PageTable table = rig.Draw(20);
  const auto ids = IdsOf(table);
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

TEST(TransformerGateTest, ThePrefixMayArriveLayerByLayer) {
  Rig rig(TinyConfig(), NumericPath::kF32, 2);
  const auto tokens = Prompt(7, 60);
  const PageTable table = rig.Draw(60), late = rig.Draw(60);
  const auto want = RunAll(rig, tokens, IdsOf(table));
  const auto ids = IdsOf(late);
  CopyingGate gate(*rig.pages, table[0].id(), ids[0]);
  const Slice slice{.tokens = std::span(tokens).subspan(32),
                    .start = 32,
                    .pages = ids,
                    .logits = Slice::Logits::kAll,
                    .gate = &gate};
  EXPECT_TRUE(SameBits(rig.model->Forward(std::span(&slice, 1)).value(), &want[32 * 101]));
}

TEST(TransformerCreateTest, RefusesByName) {
  ThreadPool workers(1);
  for (auto& [change, name] : std::vector<std::pair<void (*)(ModelConfig&), const char*>>{
           {[](ModelConfig& c) { c.hidden_size = 72; }, "hidden_size"},
           {[](ModelConfig& c) { c.intermediate_size = 100; }, "intermediate_size"},
           {[](ModelConfig& c) { c.head_dim = 272; }, "head_dim"},
           {[](ModelConfig& c) { c.heads = 7; }, "num_attention_heads"}}) {
    ModelConfig config = TinyConfig();
    change(config);
    auto pages = PagePool::Create(TransformerModel::LayoutFor(config, 32), 4 << 20).value();
    RandomWeights weights(TinyConfig());
    const auto model = TransformerModel::Create(config, weights.Source(), *pages, workers);
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(model.error().message.find(name), std::string::npos) << model.error().message;
  }
}

// Sums of more products than that are beyond 32 bits.
TEST(TransformerCreateTest, RefusesInt8WhereSumsWouldOverflow) {
  ThreadPool workers(1);
  for (auto& [change, name] : std::vector<std::pair<void (*)(ModelConfig&), const char*>>{
           {[](ModelConfig& c) { c.hidden_size = 65552; }, "hidden_size is 65552"},
           {[](ModelConfig& c) { c.intermediate_size = 65552; }, "intermediate_size is 65552"},
           {[](ModelConfig& c) { c.kv_heads = (c.heads = 4097); },
            "num_attention_heads x head_dim"}}) {
    ModelConfig config = TinyConfig();
    change(config);
    auto pages = PagePool::Create(TransformerModel::LayoutFor(config, 32), 64 << 20).value();
    RandomWeights weights(TinyConfig());
    const auto model = TransformerModel::Create(config, weights.Source(), *pages, workers,
                                                {.weights = WeightFormat::kInt8});
    ASSERT_FALSE(model) << name;
    EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(model.error().message.find(name), std::string::npos) << model.error().message;
  }
}

// On an H100 its heads are too large, elsewhere there is no wgmma.
TEST(TransformerCreateTest, RefusesWgmmaWhereItCannotBe) {
  constexpr NumericPath kCuda = NumericPath::kBf16Tensor;
  if (!PathAvailable(kCuda)) GTEST_SKIP() << "there is no CUDA device";
  ThreadPool workers(1);
  ModelConfig config = TinyConfig();
  config.head_dim = 256;
  auto pages = PagePool::Create(TransformerModel::LayoutFor(config, 32), 4 << 20,
                                PageMemoryOf(kCuda).value())
                   .value();
  RandomWeights weights(config);
  const auto model =
      TransformerModel::Create(config, weights.Source(), *pages, workers,
                               {.path = kCuda, .attention_backend = AttentionBackend::kWgmma});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(model.error().message.find("--attention-backend wgmma"), std::string::npos);
}

TEST(TransformerCreateTest, AMissingTensorIsTheSourcesError) {
  ThreadPool workers(1);
  auto pages = PagePool::Create(TransformerModel::LayoutFor(TinyConfig(), 32), 4 << 20).value();
  RandomWeights weights(TinyConfig());
  WeightSource source = weights.Source();
  const auto get = source.get;
  source.get = [&](const std::string& name, std::span<const int64_t> shape) -> Result<TensorView> {
    if (name.find("layers.2.mlp.up") == std::string::npos) return get(name, shape);
    return Fail(ErrorCode::kNotFound, "no {}", name);
  };
  const auto model = TransformerModel::Create(TinyConfig(), source, *pages, workers);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().message, "no model.layers.2.mlp.up_proj.weight");
}

TEST(TransformerIdentityTest, ChangesWithWhatDeterminesTheNumbers) {
  const ChunkKey root = Rig(TinyConfig(), NumericPath::kF32, 1).model->identity().Root();
  EXPECT_EQ(Rig(TinyConfig(), BestPath(), 2).model->identity().Root(), root)
      << "not with the machine";
  std::vector<ChunkKey> roots = {root};
  roots.push_back(Rig(TinyConfig(), NumericPath::kF32, 1, 16).model->identity().Root());
  const Rig int8(TinyConfig(), NumericPath::kF32, 1, 32, WeightFormat::kInt8);
  roots.push_back(int8.model->identity().Root());
  for (void (*change)(ModelConfig&) : std::vector<void (*)(ModelConfig&)>{
           [](ModelConfig& c) { c.norm_eps = 1e-6; }, [](ModelConfig& c) { c.rope.theta = 10001; },
           [](ModelConfig& c) { c.rope.kind = RopeConfig::Kind::kLinear; },
           [](ModelConfig& c) { c.rope.kind = RopeConfig::Kind::kLlama3; },
           [](ModelConfig& c) { c.layers = 2; }, [](ModelConfig& c) { c.family = "mistral"; },
           [](ModelConfig& c) { c.norm = NormKind::kLayer; },
           [](ModelConfig& c) { c.position = PositionKind::kAlibi; },
           [](ModelConfig& c) { c.block = BlockKind::kParallel; },
           [](ModelConfig& c) { c.block = BlockKind::kParallelTwoNorms; },
           [](ModelConfig& c) { c.mlp = MlpKind::kGelu; },
           [](ModelConfig& c) { c.qkv_bias = true; }, [](ModelConfig& c) { c.o_bias = true; },
           [](ModelConfig& c) { c.mlp_bias = true; }, [](ModelConfig& c) { c.qk_norm = true; }}) {
    ModelConfig config = TinyConfig();
    change(config);
    roots.push_back(Rig(config, NumericPath::kF32, 1).model->identity().Root());
  }
  std::sort(roots.begin(), roots.end());
  EXPECT_EQ(std::unique(roots.begin(), roots.end()), roots.end());
}

// Stores that were written before there were other families stay readable.
TEST(TransformerIdentityTest, OfAPlainLlamaIsWhatItWas) {
  std::string text;
  const auto rig = Rig(TinyConfig(), NumericPath::kF32, 1);
  for (const auto& [name, value] : rig.model->identity().fields()) text += name + "=" + value + " ";
  EXPECT_EQ(text,
            "arch=llama layers=3 hidden=64 heads=6 kv_heads=2 head_dim=16 intermediate=96 "
            "vocab=101 rms_norm_eps=0x1.4f8b588e368f1p-17 rope=plain rope_theta=0x1.388p+13 "
            "weights_digest=0100000000000000000000000000000000000000000000000000000000000000 "
            "weights=bf16 kv=bf16 chunk_tokens=32 layout=v1 shard=all ");
}

// A mended kernel must not go on with the chunks of the one before it.
TEST(TransformerIdentityTest, TheRevisionOfTheArithmeticCountsFromOneOn) {
  const KvLayout layout = TransformerModel::LayoutFor(TinyConfig(), 32);
  const auto identity = [&](int arithmetic) {
    return MakeIdentity(TinyConfig(), layout, Digest{1}, WeightFormat::kBf16, arithmetic);
  };
  EXPECT_EQ(identity(0).fields().back().first, "shard") << "stores of revision 0 stay readable";
  EXPECT_EQ(identity(1).fields().back(), std::pair(std::string("arithmetic"), std::string("1")));
  EXPECT_NE(identity(1).Root(), identity(0).Root());
  EXPECT_NE(identity(2).Root(), identity(1).Root());
}

// Whether the head is the embedding is believed of the files, as Hugging Face does.
TEST(TransformerTiedTest, AHeadInTheFilesIsUsedWhereItDiffers) {
  ModelConfig untied = TinyConfig();
  untied.tie_embeddings = false;
  ThreadPool workers(1);
  const auto tokens = Prompt(8, 5);
  const auto logits = [&](const ModelConfig& config, WeightSource source) {
    const auto pages = PagePool::Create(TransformerModel::LayoutFor(config, 32), 4 << 20).value();
    const auto model = TransformerModel::Create(config, source, *pages, workers).value();
    const PageHandle page = *pages->Draw();
    const std::vector<PageId> ids = {page.id()};
    const Slice slice{.tokens = tokens, .pages = ids, .logits = Slice::Logits::kAll};
    const auto out = model->Forward(std::span(&slice, 1)).value();
    return std::vector<float>(out.begin(), out.end());
  };
  RandomWeights weights(untied);
  const auto own_head = logits(untied, weights.Source());
  EXPECT_EQ(logits(TinyConfig(), weights.Source()), own_head);
  auto& tensors = weights.tensors();
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  const auto tied = logits(TinyConfig(), weights.Source());
  EXPECT_NE(tied, own_head);
  auto head = tensors.extract("lm_head.weight");
  EXPECT_EQ(logits(TinyConfig(), weights.Source()), tied);
  tensors.insert(std::move(head));
  tensors.erase("model.embed_tokens.weight");
  EXPECT_EQ(logits(TinyConfig(), weights.Source()), tied);
}

}  // namespace
}  // namespace kvcake
