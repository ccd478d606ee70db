#include "engine/runtime.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/available_memory.h"
#include "base/cpu.h"
#include "base/dump_json.h"
#include "codec/codec_tables.h"
#include "model/safetensors.h"
#include "model/weights.h"
#include "ops/cuda_device.h"
#include "ops/cuda_page_copier.h"
#include "ops/visible_devices.h"
#include "store/encoded_tier.h"
#include "store/named_tier.h"
#include "store/staged_tier.h"
#include "store/store_dir.h"

namespace kvcake {

namespace {

constexpr int kSliceTokensMax = 1 << 16;  // scratch is sized by it

// The arithmetic of attention for one (query, key) pair over twice that of everything else for one
// token: what the cost model assumes until it has measured both.
double AttentionRatio(const ModelConfig& config) {
  const double pair = 4.0 * config.layers * config.heads * config.head_dim;
  const double embeddings =
      static_cast<double>(config.vocab_size) * config.hidden_size * (config.tie_embeddings ? 1 : 2);
  return pair / (4 * (static_cast<double>(config.active_parameters()) - embeddings));
}

}  // namespace

int DefaultSliceTokens(NumericPath path) { return OnCuda(path) ? 2048 : 512; }

Result<std::unique_ptr<ThreadPool>> MakeThreadPool(const RuntimeOptions& options) {
  const int cpus = static_cast<int>(options.cpus.size());
  if (cpus == 0) {
    return std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : UsableCores());
  }
  if (options.threads > cpus) {
    return Fail(ErrorCode::kInvalidArgument, "--threads {} are more than the {} CPUs of --cpu-list",
                options.threads, cpus);
  }
  RETURN_IF_ERROR(RestrictToCpus(options.cpus));
  return std::make_unique<ThreadPool>(options.threads > 0 ? options.threads : cpus, options.cpus);
}

Result<std::unique_ptr<Runtime>> Runtime::Create(const RuntimeOptions& given) {
  RuntimeOptions options = given;
  if (options.slice_tokens == 0) options.slice_tokens = DefaultSliceTokens(options.path);
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
  if (options.stores.size() > kStoresMax) {
    return Fail(ErrorCode::kInvalidArgument, "--store may be given {} times, not {}", kStoresMax,
                options.stores.size());
  }
  for (StoreOptions& store : options.stores) LoadStoreCodec(store);
  RETURN_IF_ERROR(CheckDistinct(options.stores));
  if (!options.cuda_device.empty()) ChooseCudaDevice(options.cuda_device);
  auto runtime = std::unique_ptr<Runtime>(new Runtime(options));
  RETURN_IF_ERROR(options.emulate.empty() ? runtime->OpenModel() : runtime->OpenEmulated());
  RETURN_IF_ERROR(runtime->OpenTiers());
  RETURN_IF_ERROR(runtime->OpenRankStaging());
  runtime->Wire();
  if (runtime->engine_->tokens_max() == 0) {
    const PagePool& pool = *runtime->pool_;
    const uint64_t reserve = runtime->ReadReservePages();
    return Fail(
        ErrorCode::kResourceExhausted,
        "{} leaves {} pages of {} bytes{}: there is none for a request; raise it",
        PagesFlag(runtime->model_->numeric_path()), pool.pages(), pool.layout().page_bytes(),
        reserve == 0 ? "" : fmt::format(", and reads from stores have {} for themselves", reserve));
  }
  // Only now: the threads that do I/O may go where there is room.
  if (!options.cpus.empty()) {
    RETURN_IF_ERROR(RestrictToCpus(std::span(options.cpus).first(1)));
  }
  runtime->first_forward_at_ = Clock::Real().Now();
  RETURN_IF_ERROR(runtime->engine_->WarmUp());
  return runtime;
}

// Nothing is read where there is no tier, and no rank that sends chunks.
uint64_t Runtime::ReadReservePages() const {
  const bool reads = !tiers_->all().empty() || options_.rank_tokens_max > 0;
  return reads ? EngineOptions{}.read_reserve_pages : 0;
}

void Runtime::Wire() {
  const std::vector<Tier*> tiers = tiers_->all();
  Restorer::Options restore_options;
  restore_options.numeric_path = model_->numeric_path();
  restore_options.load_order = options_.load_order;
  restore_options.lossy = lossy_lineage();
  restore_options.cores = std::max(1, threads_->size());
  restore_options.stall_timeout = options_.stall_timeout;
  // Others would wait in vain for what is not kept.
  const auto claims = ClaimsStore(options_.stores, options_.store_writes);
  if (claims && options_.single_flight) restore_options.claims.tier = tiers_->NumberOf(*claims);
  restore_options.claims.prompt_min = options_.single_flight_min;
  restorer_ = NewRestorer(*pool_, tiers, *compute_cost_, Clock::Real(), restore_options);
  if (!tiers.empty()) {
    write_behind_ = std::make_unique<WriteBehind>(
        WrittenStores(options_.stores, stores(), options_.store_writes), *pool_,
        WriteBehindOptions{.queue_share = options_.write_queue_share,
                           .promote = options_.promote,
                           .claims = claims.value_or(0)},
        tiers_->ram());
  }
  engine_ =
      std::make_unique<Engine>(EngineParts{.model = *model_,
                                           .pool = *pool_,
                                           .restorer = *restorer_,
                                           .cost = *compute_cost_,
                                           .writes = write_behind_.get()},
                               EngineOptions{.slice_tokens = options_.slice_tokens,
                                             .scored_tokens_max = ScoredTokensMax(),
                                             .max_sequences = options_.max_sequences,
                                             .waiting_max = options_.waiting_max,
                                             .tenant_running_max = options_.tenant_running_max,
                                             .read_reserve_pages = ReadReservePages(),
                                             .step_max = options_.step_max,
                                             .schedule = options_.schedule,
                                             .restore_wait_max = options_.restore_wait_max,
                                             .pass_over_max = options_.pass_over_max,
                                             .stall_timeout = options_.stall_timeout});
  std::vector<KeptCosts> kept;
  for (size_t i = 0; i < stores().size(); ++i) {
    if (options_.stores[i].keeps_files()) kept.push_back({CostPath(i), LearnersOf(i)});
  }
  LoadCosts(kept);
  if (options_.keep_costs && !kept.empty()) {
    cost_keeper_ = std::make_unique<CostKeeper>(std::move(kept));
  }
}

// Saves what was learnt before anything else ends.
Runtime::~Runtime() { cost_keeper_.reset(); }

// Nothing is kept of the RAM tier: it is empty at the start, and one read tells.
Learners Runtime::LearnersOf(size_t store) {
  const bool keeps_seen = SeenStore(options_.stores, options_.store_writes) == store;
  return {.compute = *compute_cost_,
          .restorer = *restorer_,
          .tier = tiers_->NumberOf(store),
          .writes = keeps_seen ? write_behind_.get() : nullptr};
}

// Beside the model's chunks: one file for each way in which this machine runs it.
std::string Runtime::CostPath(size_t store) const {
  const StoreOptions& options = options_.stores[store];
  std::string device = fmt::format(
      "{}|{} threads|{}|{} B/s|{} s|{}", DeviceName(model_->numeric_path()), threads_->size(),
      NumericPathName(model_->numeric_path()), options.load_rate_bytes_per_s.value_or(0),
      options.load_latency.count(), options.load_trace);
  if (options_.attention_backend != AttentionBackend::kAuto) {
    device += fmt::format("|attention {}", static_cast<int>(options_.attention_backend));
  }
  if (options.codec && *options.codec != Codec::kRaw) {
    device += fmt::format("|codec {}", options.loaded->row->name);
  }
  return kvcake::CostPath(options.dir, FilesRoot(options, model_->identity().Root()), device);
}

ThrottledTier* Runtime::link(size_t store) {
  Tier* tier = stores().at(store).get();
  if (auto* const staged = dynamic_cast<StagedTier*>(tier)) tier = &staged->inner();
  if (auto* const encoded = dynamic_cast<EncodedTier*>(tier)) tier = &encoded->inner();
  if (auto* const named = dynamic_cast<NamedTier*>(tier)) tier = &named->inner();
  return dynamic_cast<ThrottledTier*>(tier);
}

// A slice, and a row for each sequence that decodes beside it.
int Runtime::MaxStepTokens() const { return options_.slice_tokens + options_.max_sequences; }

int Runtime::MaxBatchTokens() const { return std::max(MaxStepTokens(), options_.rank_tokens_max); }

int Runtime::ScoredTokensMax() const {
  return std::min(options_.slice_tokens, EngineOptions{}.scored_tokens_max);
}

int Runtime::MaxLogitRows() const { return ScoredTokensMax() + options_.max_sequences; }

Status Runtime::OpenEmulated() {
  ASSIGN_OR_RETURN(threads_, MakeThreadPool(options_));
  ASSIGN_OR_RETURN(profile_, LoadEmulatedProfile(options_.emulate));
  ASSIGN_OR_RETURN(pool_,
                   PagePool::Create(EmulatedModel::LayoutFor(*profile_, options_.chunk_tokens),
                                    options_.ram_capacity_bytes));
  int vocab_size = EmulatedModel::kVocab;
  if (!options_.model_dir.empty()) {
    RETURN_IF_ERROR(LoadTokenizer());
    vocab_size = config_.vocab_size;
  }
  model_ = std::make_unique<EmulatedModel>(*profile_, *pool_, MaxBatchTokens(), vocab_size,
                                           Clock::Real(), nullptr, lossy_lineage());
  const double pairs = profile_->attention == EmulatedProfile::Attention::kDense ? 0.5 : 1;
  compute_cost_ = std::make_unique<ComputeCost>(ComputeCost::Options{
      .attention_ratio = profile_->b > 0 ? pairs * profile_->a / profile_->b : 0});
  return {};
}

Status Runtime::LoadTokenizer() {
  ASSIGN_OR_RETURN(config_, LoadModelConfig(options_.model_dir, options_.config));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::Load(options_.model_dir));
  tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
  // Fine-tunes may name their end token here, and the base model's in config.json.
  const std::optional<int32_t> eos = tokenizer_->eos_token();
  std::vector<int32_t>& ends = config_.eos_tokens;
  if (eos && *eos < config_.vocab_size && std::find(ends.begin(), ends.end(), *eos) == ends.end()) {
    ends.push_back(*eos);
  }
  return {};
}

// On CUDA what the model leaves of the memory that may be used.
Result<uint64_t> Runtime::PagesCapacity(const TransformerOptions& model_options) const {
  if (!OnCuda(options_.path)) {
    if (const uint64_t available = AvailableMemoryBytes();
        options_.ram_capacity_bytes > available) {
      spdlog::warn(
          "--ram-capacity is {} MiB, and this process may take {} MiB more: it will be "
          "ended when the pages are used, unless memory is freed until then",
          options_.ram_capacity_bytes >> 20, available >> 20);
    }
    return options_.ram_capacity_bytes;
  }
  ASSIGN_OR_RETURN(const CudaDevice* const device, CudaDevice::Get());
  // For kernels, graphs of them, and what allocations are rounded up by.
  constexpr uint64_t kSpare = 512ull << 20;
  const auto share = static_cast<uint64_t>(options_.gpu_memory_utilization *
                                           static_cast<double>(device->memory_bytes()));
  const uint64_t usable = std::min(device->free_bytes(), share);
  const uint64_t model = TransformerModel::MemoryFor(config_, model_options) + kSpare;
  const uint64_t page = TransformerModel::LayoutFor(config_, options_.chunk_tokens).page_bytes();
  // Each of the two plans of attention has room for the lists of all slices.
  const uint64_t listed = 2 * sizeof(PageId) * model_options.max_slices;
  if (usable < model + page + listed) {
    return Fail(
        ErrorCode::kResourceExhausted,
        "the model needs {} bytes and a page {}, and {} may be used of the {} bytes of {}, "
        "of which {} are free: raise --gpu-memory-utilization, or lower {}",
        model, page, usable, device->memory_bytes(), device->name(), device->free_bytes(),
        options_.rank_tokens_max > MaxStepTokens() ? "--rank-tokens-max" : "--slice-tokens");
  }
  return (usable - model) / (page + listed) * page;
}

Status Runtime::OpenModel() {
  ASSIGN_OR_RETURN(threads_, MakeThreadPool(options_));
  RETURN_IF_ERROR(LoadTokenizer());
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::Open(options_.model_dir));
  const TransformerOptions model_options{.max_batch_tokens = MaxBatchTokens(),
                                         .max_logit_rows = MaxLogitRows(),
                                         .max_slices = options_.max_sequences + 1,  // StepBudget's
                                         .path = options_.path,
                                         .weights = options_.weights,
                                         .enforce_eager = options_.enforce_eager,
                                         .attention_backend = options_.attention_backend,
                                         .lossy_lineage = lossy_lineage()};
  ASSIGN_OR_RETURN(const uint64_t capacity, PagesCapacity(model_options));
  ASSIGN_OR_RETURN(PageMemory memory, PageMemoryOf(options_.path));
  ASSIGN_OR_RETURN(
      pool_, PagePool::Create(TransformerModel::LayoutFor(config_, options_.chunk_tokens), capacity,
                              std::move(memory)));
  ASSIGN_OR_RETURN(model_, TransformerModel::Create(config_, WeightSource::FromFiles(files), *pool_,
                                                    *threads_, model_options));
  if (const auto unused = UnusedTensors(config_, files); !unused.empty()) {
    spdlog::warn(
        "{}: {} tensors are not used, as {}: by its config.json the model has no such tensor",
        files.source(), unused.size(), unused.front());
  }
  compute_cost_ = std::make_unique<ComputeCost>(
      ComputeCost::Options{.attention_ratio = AttentionRatio(config_)});
  return {};
}

Status Runtime::OpenTiers() {
  RuntimeTiersOptions tiers;
  tiers.shared.layout = pool_->layout();
  tiers.shared.root = model_->identity().Root();
  tiers.shared.tables_model = TablesModel(model_->identity());
  tiers.shared.description =
      DescribeIdentity(model_->identity(), emulated() ? options_.emulate : options_.model_dir);
  tiers.shared.time_to_live = options_.store_ttl;
  tiers.shared.owner_quota_bytes = options_.tenant_store_bytes;
  tiers.shared.durable = options_.durable;
  tiers.stores = options_.stores;
  tiers.ram_capacity_bytes = options_.ram_capacity_bytes;
  tiers.ram_pinned = options_.ram_pinned;
  tiers.staging_capacity_bytes = options_.staging_capacity_bytes;
  // As its chunks are.
  if (emulated())
    tiers.shared.link_scale = EmulatedModel::ScaleRate(*profile_, tiers.shared.layout, 1);
  std::unique_ptr<PageCopier> copier;
  if (OnCuda(model_->numeric_path())) copier = NewCudaPageCopier();
  ASSIGN_OR_RETURN(tiers_, RuntimeTiers::Open(std::move(tiers), std::move(copier)));
  return {};
}

// Not the tiers' copier: what ranks wait for does not queue behind chunks.
Status Runtime::OpenRankStaging() {
  if (!OnCuda(model_->numeric_path()) || options_.rank_tokens_max == 0) return {};
  // One to come and one to go.
  if (const uint64_t least = 2 * pool_->layout().slab_payload_bytes();
      options_.staging_capacity_bytes < least) {
    return Fail(
        ErrorCode::kInvalidArgument,
        "--staging-capacity of {} bytes: ranks send each other pieces of {} bytes, and need "
        "room for two",
        options_.staging_capacity_bytes, least / 2);
  }
  // Locking more than there is would end processes rather than fail.
  if (const uint64_t available = AvailableMemoryBytes();
      options_.staging_capacity_bytes > available) {
    return Fail(ErrorCode::kResourceExhausted,
                "--staging-capacity of {} bytes, for what ranks send each other, is more than the "
                "{} bytes of memory that this process may still take",
                options_.staging_capacity_bytes, available);
  }
  auto staging = Buffer::Create(options_.staging_capacity_bytes, Memory::kPinned);
  if (!staging) {
    return Fail(staging.error().code, "{}: lower --staging-capacity", staging.error().message);
  }
  rank_staging_ = std::move(*staging);
  rank_copier_ = NewCudaPageCopier();
  return {};
}

std::string DescribeIdentity(const KvIdentity& identity, const std::string& model_dir) {
  nlohmann::ordered_json json;
  // Without a trailing slash, which would leave the name empty.
  const auto path = std::filesystem::absolute(model_dir + "/.").lexically_normal();
  json["model"] = path.parent_path().filename().string();
  for (const auto& [name, value] : identity.fields()) json[name] = value;
  return DumpJson(json, 2);
}

}  // namespace kvcake
