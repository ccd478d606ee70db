#include "engine/runtime.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "engine/cost_file.h"
#include "model/safetensors.h"
#include "store/disk_tier.h"

namespace kvcake {

namespace {

constexpr int kSliceTokensMax = 1 << 16;  // scratch is sized by it

// The arithmetic of attention for one (query, key) pair over twice that of everything else for one
// token: what the cost model assumes until it has measured both.
double AttentionRatio(const ModelConfig& config) {
  const double pair = 4.0 * config.layers * config.heads * config.head_dim;
  const double embeddings =
      static_cast<double>(config.vocab_size) * config.hidden_size * (config.tie_embeddings ? 1 : 2);
  return pair / (4 * (static_cast<double>(config.parameters()) - embeddings));
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::Create(const RuntimeOptions& options) {
  if (options.chunk_tokens < 16 || options.chunk_tokens % 16 != 0) {
    return Fail(ErrorCode::kInvalidArgument, "--chunk-tokens must be a multiple of 16, not {}",
                options.chunk_tokens);
  }
  if (options.slice_tokens < options.chunk_tokens) {
    return Fail(ErrorCode::kInvalidArgument,
                "--slice-tokens of {} is below --chunk-tokens of {}: a slice is whole chunks",
                options.slice_tokens, options.chunk_tokens);
  }
  if (options.slice_tokens > kSliceTokensMax) {
    return Fail(ErrorCode::kInvalidArgument, "--slice-tokens must be at most {}, not {}",
                kSliceTokensMax, options.slice_tokens);
  }
  auto runtime = std::unique_ptr<Runtime>(new Runtime(options));
  RETURN_IF_ERROR(runtime->OpenModel());
  RETURN_IF_ERROR(runtime->OpenStore());
  std::vector<Tier*> tiers;
  if (runtime->store_) tiers.push_back(runtime->store_.get());
  Restorer::Options restore_options;
  restore_options.numeric_path = runtime->model_->numeric_path();
  runtime->restorer_ = std::make_unique<Restorer>(*runtime->pool_, tiers, *runtime->compute_cost_,
                                                  Clock::Real(), restore_options);
  runtime->engine_ = std::make_unique<Engine>(
      *runtime->model_, *runtime->pool_, *runtime->restorer_, *runtime->compute_cost_,
      runtime->store_.get(), Clock::Real(), EngineOptions{.slice_tokens = options.slice_tokens});
  if (runtime->store_) LoadCosts(runtime->CostPath(), *runtime->compute_cost_, *runtime->restorer_);
  RETURN_IF_ERROR(runtime->engine_->WarmUp());
  return runtime;
}

Runtime::~Runtime() {
  if (store_ && engine_) SaveCosts(CostPath(), *compute_cost_, *restorer_);
}

// Beside the model's chunks: one file for each way in which this machine runs it.
std::string Runtime::CostPath() const {
  const std::string device =
      fmt::format("{}|{} threads|{}|{} B/s|{} s", CpuName(), threads_->size(),
                  NumericPathName(model_->numeric_path()),
                  options_.load_rate_bytes_per_s.value_or(0), options_.load_latency.count());
  return fmt::format("{}/cost-{:016x}.json",
                     StoreDir(options_.store_dir).RootDir(model_->identity().Root()),
                     Xxh3_64(std::as_bytes(std::span(device))));
}

Status Runtime::OpenModel() {
  threads_ = std::make_unique<ThreadPool>(options_.threads > 0 ? options_.threads : UsableCores());
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options_.model_dir));
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::Open(options_.model_dir));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(options_.model_dir));
  tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
  ASSIGN_OR_RETURN(pool_,
                   PagePool::Create(TransformerModel::LayoutFor(config, options_.chunk_tokens),
                                    options_.ram_capacity_bytes));
  // A slice, and a row for each sequence that decodes beside it.
  const TransformerOptions model_options{
      .max_batch_tokens = options_.slice_tokens + EngineOptions{}.max_sequences,
      .path = options_.path};
  ASSIGN_OR_RETURN(model_, TransformerModel::Create(config, WeightSource::FromFiles(files), *pool_,
                                                    *threads_, model_options));
  compute_cost_ = std::make_unique<ComputeCost>(
      ComputeCost::Options{.attention_ratio = AttentionRatio(config)});
  return {};
}

Status Runtime::OpenStore() {
  if (options_.store_dir.empty()) return {};
  DiskTierOptions disk;
  disk.dir = options_.store_dir;
  disk.layout = pool_->layout();
  disk.root = model_->identity().Root();
  disk.description = DescribeIdentity(model_->identity(), options_.model_dir);
  disk.capacity_bytes = options_.disk_capacity_bytes;
  disk.durable = options_.durable;
  ASSIGN_OR_RETURN(store_, DiskTier::Open(std::move(disk)));
  if (options_.load_rate_bytes_per_s || options_.load_latency.count() > 0) {
    auto link = std::make_unique<ThrottledTier>(
        std::move(store_),
        ThrottledTierOptions{.rate_bytes_per_s = options_.load_rate_bytes_per_s.value_or(1e12),
                             .latency = options_.load_latency,
                             .burst_bytes = pool_->layout().slab_bytes()});
    link_ = link.get();
    store_ = std::move(link);
  }
  return {};
}

std::string DescribeIdentity(const KvIdentity& identity, const std::string& model_dir) {
  nlohmann::ordered_json json;
  // Without a trailing slash, which would leave the name empty.
  const auto path = std::filesystem::absolute(model_dir + "/.").lexically_normal();
  json["model"] = path.parent_path().filename().string();
  for (const auto& [name, value] : identity.fields()) json[name] = value;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kvcake
