// The objects that answer prompts for one model directory, wired together.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "model/tokenizer.h"
#include "model/transformer.h"
#include "store/throttled_tier.h"

namespace kvcake {

struct RuntimeOptions {
  std::string model_dir;
  std::string store_dir = {};                        // empty: chunks are neither loaded nor kept
  uint64_t disk_capacity_bytes = 20ull << 30;        // of store_dir
  bool durable = false;                              // kept chunks survive a power cut
  uint64_t ram_capacity_bytes = 4ull << 30;          // of KV pages
  std::optional<double> load_rate_bytes_per_s = {};  // a link slower than the disk
  Seconds load_latency{0};                           // of each read on that link
  int chunk_tokens = 128;
  int slice_tokens = 512;
  int threads = 0;                           // 0: every core the process may use
  NumericPath path = NumericPath::kUnknown;  // kUnknown: the fastest of this machine
};

// Everything below is used from one thread, the engine thread.
class Runtime {
 public:
  // Loads the model, opens the store and warms up.
  static Result<std::unique_ptr<Runtime>> Create(const RuntimeOptions& options);
  ~Runtime();

  const RuntimeOptions& options() const { return options_; }
  const ModelConfig& config() const { return model_->config(); }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  Model& model() { return *model_; }
  PagePool& pool() { return *pool_; }
  ThreadPool& threads() { return *threads_; }
  Engine& engine() { return *engine_; }
  ComputeCost& compute_cost() { return *compute_cost_; }
  Restorer& restorer() { return *restorer_; }
  Tier* store() { return store_.get(); }
  // The throttle in front of the store, when load_rate_bytes_per_s was given.
  ThrottledTier* link() { return link_; }

 private:
  explicit Runtime(const RuntimeOptions& options) : options_(options) {}
  Status OpenModel();
  Status OpenStore();
  std::string CostPath() const;

  const RuntimeOptions options_;
  std::unique_ptr<ThreadPool> threads_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<TransformerModel> model_;
  std::unique_ptr<Tier> store_;
  ThrottledTier* link_ = nullptr;  // store_, when it is one
  std::unique_ptr<ComputeCost> compute_cost_;
  std::unique_ptr<Restorer> restorer_;
  std::unique_ptr<Engine> engine_;
};

// What a root stands for, as JSON for people.
std::string DescribeIdentity(const KvIdentity& identity, const std::string& model_dir);

}  // namespace kvcake
