// The objects that answer prompts for one model directory, wired together.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "cake/cost_file.h"
#include "engine/engine.h"
#include "engine/runtime_tiers.h"
#include "model/emulated.h"
#include "model/tokenizer.h"
#include "model/transformer.h"
#include "store/throttled_tier.h"

namespace kvcake {

struct RuntimeOptions {
  std::string model_dir;
  // A profile of a machine and a model that are not here (model/emulated_profile.h), waited for in
  // real time. Rates of links are scaled down with its chunks. Of model_dir, where it is given, the
  // tokenizer and the config are used then.
  std::string emulate = {};
  // The fastest first; chunks are loaded from all at once, and new ones kept in the first. None:
  // chunks are neither loaded nor kept.
  std::vector<StoreOptions> stores = {};
  StoreWrites store_writes = StoreWrites::kAlways;
  // Processes that share the first store compute a chunk once (ClaimOptions), where all chunks are
  // kept; of prompts that take at least so long to compute.
  bool single_flight = true;
  Seconds single_flight_min = ClaimOptions{}.prompt_min;
  double write_queue_share = WriteBehindOptions{}.queue_share;
  bool promote = false;  // copy hits of the other stores to the first
  Seconds store_ttl{0};  // 0: chunks do not age
  // The most bytes of one tenant in each store, and in the RAM tier on CUDA; beyond it the tenant's
  // own chunks go. 0: no quotas.
  uint64_t tenant_store_bytes = 0;
  bool durable = false;  // kept chunks survive a power cut
  // Holds KV pages, in use and cached; on CUDA, the RAM tier behind them (0: none).
  uint64_t ram_capacity_bytes = 4ull << 30;
  bool ram_pinned = true;  // the RAM tier's memory is page-locked
  // The share of the CUDA device's memory for weights, scratch and KV pages.
  double gpu_memory_utilization = 0.9;
  // Host memory that chunks pass through on CUDA; as much again for what ranks send.
  uint64_t staging_capacity_bytes = 512ull << 20;
  bool enforce_eager = false;    // on CUDA, decode without graphs
  std::string cuda_device = {};  // as CUDA_VISIBLE_DEVICES names it; empty: its first
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  int chunk_tokens = 128;
  int slice_tokens = 0;                               // of a step, at most; 0: DefaultSliceTokens
  int max_sequences = EngineOptions{}.max_sequences;  // answered at once
  int waiting_max = EngineOptions{}.waiting_max;
  int tenant_running_max = 0;  // of one tenant at once; 0: no limit of its own
  Seconds step_max{0};
  Schedule schedule = EngineOptions{}.schedule;
  Seconds restore_wait_max = EngineOptions{}.restore_wait_max;
  Seconds pass_over_max = EngineOptions{}.pass_over_max;
  Seconds stall_timeout = EngineOptions{}.stall_timeout;  // the Restorer's, too
  LoadOrder load_order = Restorer::Options{}.load_order;
  // The most tokens that one rank computes of a prompt that several prefill: all in one forward
  // pass. 0: no such prompts.
  int rank_tokens_max = 0;
  int threads = 0;             // 0: one for each of `cpus`, else every core the process may use
  std::vector<int> cpus = {};  // that the threads are pinned to; empty: wherever they are put
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
  WeightFormat weights = WeightFormat::kBf16;
  ConfigOptions config = {};  // how config.json of model_dir is read
  // What is learnt of costs stays beside the stores; false: as another process leaves it.
  bool keep_costs = true;
};

// Tokens of a step: 512, and on CUDA 2,048, which gives most of a device's multiprocessors work.
int DefaultSliceTokens(NumericPath path);

// The compute pool that the options ask for. With `cpus`, the calling thread and those that it
// starts are restricted to them.
Result<std::unique_ptr<ThreadPool>> MakeThreadPool(const RuntimeOptions& options);

// Everything below is used from one thread, the engine thread; with `cpus`, it is pinned to the
// first of them when Create returns.
class Runtime {
 public:
  // Loads the model, opens the store and warms up.
  static Result<std::unique_ptr<Runtime>> Create(const RuntimeOptions& options);
  ~Runtime();

  const RuntimeOptions& options() const { return options_; }
  bool emulated() const { return profile_.has_value(); }
  const std::optional<EmulatedProfile>& profile() const { return profile_; }
  // The model's, but that the tokenizer's end token is among eos_tokens. Empty of an emulated model
  // without a model_dir, as is the tokenizer.
  const ModelConfig& config() const { return config_; }
  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Model& model() { return *model_; }
  // When the first forward pass (of warming up) began.
  TimePoint first_forward_at() const { return first_forward_at_; }
  PagePool& pool() { return *pool_; }
  ThreadPool& threads() { return *threads_; }
  Engine& engine() { return *engine_; }
  ComputeCost& compute_cost() { return *compute_cost_; }
  Restorer& restorer() { return *restorer_; }
  // In the order of RuntimeOptions::stores.
  const std::vector<std::unique_ptr<Tier>>& stores() const { return tiers_->stores(); }
  // What ranks that prefill one prompt stage their pages with (ChainOptions::staging).
  KvStaging rank_staging() const {
    return {.copier = rank_copier_.get(), .memory = {rank_staging_.data(), rank_staging_.size()}};
  }
  // What chunks are loaded from, the fastest first: the RAM tier, where there is one, and stores.
  std::vector<Tier*> tiers() const { return tiers_->all(); }
  // The throttle in front of a store, where it has a rate, latency or trace; else null, as where
  // reads stall.
  ThrottledTier* link(size_t store = 0);
  // LossyLineage of the stores. Empty: what is answered does not depend on what was loaded.
  std::string lossy_lineage() const { return LossyLineage(options_.stores); }

 private:
  explicit Runtime(const RuntimeOptions& options) : options_(options) {}
  Status OpenModel();
  Status OpenEmulated();
  Status LoadTokenizer();
  Result<uint64_t> PagesCapacity(const TransformerOptions& model_options) const;
  int MaxStepTokens() const;
  int MaxBatchTokens() const;
  int ScoredTokensMax() const;  // of a step
  int MaxLogitRows() const;
  Status OpenTiers();
  Status OpenRankStaging();
  uint64_t ReadReservePages() const;
  void Wire();
  std::string CostPath(size_t store) const;
  Learners LearnersOf(size_t store);

  const RuntimeOptions options_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<PagePool> pool_;
  ModelConfig config_;
  std::optional<EmulatedProfile> profile_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<RuntimeTiers> tiers_;
  std::unique_ptr<ComputeCost> compute_cost_;
  std::unique_ptr<Restorer> restorer_;
  std::unique_ptr<PageCopier> rank_copier_;  // and its memory: on CUDA, where there may be ranks
  Buffer rank_staging_;
  std::unique_ptr<WriteBehind> write_behind_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<CostKeeper> cost_keeper_;
  TimePoint first_forward_at_;
};

// What a root stands for, as JSON for people.
std::string DescribeIdentity(const KvIdentity& identity, const std::string& model_dir);

}  // namespace kvcake
