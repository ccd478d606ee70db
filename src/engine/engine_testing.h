// For the engine's tests: a small model and everything that an engine needs.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/callback_thread.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/temp_dir_testing.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "model/model_decorator_testing.h"
#include "model/synth.h"
#include "model/transformer.h"
#include "ops/cuda_page_copier.h"
#include "store/memory_tier.h"
#include "store/tier_testing.h"

namespace kvcake {

inline constexpr int kChunk = 32;
inline constexpr int kSlice = 128;
inline constexpr int kVocab = 512;
using testing_util::kPatience;
inline constexpr int kReserved = 16;  // EngineOptions::read_reserve_pages

// A small random model of a published shape on disk, written once for all tests of the process.
inline const std::string& ModelDir(const std::string& arch = "tiny") {
  struct Dir {
    const TempDir temp;
    const std::string path = temp.path() + "/model";
    explicit Dir(const std::string& arch) {
      const SynthShape small = {.layers = 2,
                                .hidden_size = 256,
                                .intermediate_size = 256,
                                .heads = 16,
                                .head_dim = 16,
                                .vocab_size = kVocab};
      const SynthShape shape = arch == "tiny" ? SynthShape{} : small;
      CHECK(WriteSynthModel(arch, path, {.shape = shape, .seed = 5}));
    }
  };
  static Mutex mutex;
  static std::map<std::string, Dir> dirs;
  const MutexLock lock(mutex);
  return dirs.try_emplace(arch, arch).first->second.path;
}

inline std::vector<int32_t> Prompt(int tokens, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> prompt(tokens);
  for (int32_t& token : prompt) token = static_cast<int32_t>(rng() % kVocab);
  return prompt;
}

// A model whose slices take a known time: long beside what a busy machine adds.
class PacedModel : public ModelDecorator {
 public:
  PacedModel(Model& inner, Seconds per_token) : ModelDecorator(inner), per_token_(per_token) {}
  Result<std::span<const float>> Forward(std::span<const Slice> batch) override {
    for (const Slice& slice : batch) std::this_thread::sleep_for(per_token_ * slice.tokens.size());
    return inner_.Forward(batch);
  }

 private:
  const Seconds per_token_;
};

struct WorldOptions {
  int pages = 256;
  Seconds per_token{0};  // that the model takes at least
  std::string dir = ModelDir();
  WeightFormat weights = WeightFormat::kBf16;
  NumericPath path = NumericPath::kUnknown;
  Tier* ram = nullptr;  // in front of the store
  StoreWrites writes = StoreWrites::kAlways;
  Seconds stall_timeout{30};
  ClaimOptions claims = {};
  const Clock* clock = &Clock::Real();
};

// Everything an engine needs, over tiers that outlive it.
struct World {
  ThreadPool threads{2};
  ModelConfig config;
  std::unique_ptr<PagePool> pool;
  std::unique_ptr<TransformerModel> transformer;
  std::unique_ptr<PacedModel> model;
  ComputeCost cost;
  Tier* tier;  // the store, where there is one
  const Clock& clock;
  std::unique_ptr<Restorer> restorer;
  std::unique_ptr<WriteBehind> writes;
  std::unique_ptr<Engine> engine;

  explicit World(Tier* store, const WorldOptions& options = {})
      : config(LoadModelConfig(options.dir).value()), tier(store), clock(*options.clock) {
    const KvLayout layout = TransformerModel::LayoutFor(config, kChunk);
    pool = PagePool::Create(layout, options.pages * layout.page_bytes(),
                            PageMemoryOf(options.path).value())
               .value();
    const TensorFiles files = TensorFiles::Open(options.dir).value();
    transformer =
        TransformerModel::Create(
            config, WeightSource::FromFiles(files), *pool, threads,
            {.max_batch_tokens = kSlice + 64, .path = options.path, .weights = options.weights})
            .value();
    std::vector<WrittenStore> stores;
    std::vector<Tier*> tiers;
    if (options.ram != nullptr) tiers.push_back(options.ram);
    if (tier != nullptr) {
      stores.emplace_back(tier, options.writes);
      tiers.push_back(tier);
    }
    model = std::make_unique<PacedModel>(*transformer, options.per_token);
    Restorer::Options restore;
    restore.numeric_path = model->numeric_path();
    restore.stall_timeout = options.stall_timeout;
    restore.claims = options.claims;
    restorer = NewRestorer(*pool, tiers, cost, clock, restore);
    if (!tiers.empty()) {
      writes = std::make_unique<WriteBehind>(stores, *pool, WriteBehindOptions{}, options.ram);
    }
    MakeEngine({.slice_tokens = kSlice, .stall_timeout = options.stall_timeout});
  }
  ~World() {
    engine.reset();
    writes.reset();
    restorer.reset();
    EXPECT_EQ(pool->Stats().referenced, 0u) << "every page goes back";
  }

  // In the place of the one before.
  void MakeEngine(const EngineOptions& options) { MakeEngine(*model, options); }
  void MakeEngine(Model& of, const EngineOptions& options) {
    engine = std::make_unique<Engine>(EngineParts{.model = of,
                                                  .pool = *pool,
                                                  .restorer = *restorer,
                                                  .cost = cost,
                                                  .writes = writes.get(),
                                                  .clock = clock},
                                      options);
  }

  Completion Answer(Request request) {
    request.logprobs = true;
    Completion completion = engine->Answer(std::move(request)).value();
    engine->FlushStore();
    EXPECT_EQ(Restored(completion.report), completion.report.prompt_tokens);
    return completion;
  }
  static int Restored(const RestoreReport& report) {
    int tokens = report.tokens_computed + report.tokens_reused;
    for (const auto& [name, loaded] : report.tokens_loaded) tokens += loaded;
    return tokens;
  }
};

// For tiers whose landings are pages of that path; nullptr where these are the host's memory.
inline PageCopier* CopierOf(NumericPath path) {
  if (!OnCuda(path)) return nullptr;
  static const auto copier = NewCudaPageCopier();
  return copier.get();
}

template <typename T = MemoryTier>
std::unique_ptr<T> MakeTier(const std::string& dir = ModelDir(),
                            NumericPath path = NumericPath::kUnknown) {
  MemoryTierOptions options;
  options.layout = TransformerModel::LayoutFor(LoadModelConfig(dir).value(), kChunk);
  options.copier = CopierOf(path);
  return std::make_unique<T>(options);
}

// Grants every claim, and counts them.
template <typename Base>
class Granting : public Base {
 public:
  using Base::Base;
  bool Claim(ClaimRequest request) override {
    claims += static_cast<int>(request.keys.size());
    thread_.Soon([request = std::move(request)] {
      request.done(std::vector(request.keys.size(), ClaimState::kMine));
    });
    return true;
  }
  std::atomic<int> claims = 0;

 private:
  CallbackThread thread_;
};
using GrantingTier = Granting<MemoryTier>;

inline uint64_t PageBytes() {
  return TransformerModel::LayoutFor(LoadModelConfig(ModelDir()).value(), kChunk).page_bytes();
}

inline Request Ask(std::vector<int32_t> prompt, Policy policy = Policy::kCake) {
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = 12;
  request.policy = policy;
  return request;
}

// What slices and batches may change a log probability by: on CUDA rounding, since cuBLASLt's
// kernels follow the number of rows, else nothing.
inline double LogprobTolerance(NumericPath path) { return OnCuda(path) ? 0.05 : 0; }

// Bit for bit: the same tokens and exactly the same log probabilities. On CUDA to rounding: greedy
// answers may part where two tokens are as likely.
inline void ExpectSame(const Completion& a, const Completion& b,
                       NumericPath path = NumericPath::kUnknown) {
  const double tolerance = LogprobTolerance(path);
  ASSERT_EQ(a.prompt_scores.size(), b.prompt_scores.size());
  for (size_t i = 0; i < a.prompt_scores.size(); ++i) {
    EXPECT_NEAR(a.prompt_scores[i].logprob, b.prompt_scores[i].logprob, tolerance);
  }
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_NEAR(a.logprobs[i], b.logprobs[i], tolerance);
    if (OnCuda(path) && a.tokens[i] != b.tokens[i]) return;
  }
  EXPECT_EQ(a.tokens, b.tokens);
}

}  // namespace kvcake
