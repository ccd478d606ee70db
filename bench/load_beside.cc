#include "bench/load_beside.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/chunk_loader.h"
#include "bench/harness.h"
#include "ops/cuda_page_copier.h"

namespace kvcake::bench {
namespace {

constexpr int kChunksMax = 32;          // of a pass of loading
constexpr double kSampleSeconds = 0.5;  // of slices, about

// One pass of loading.
using Pass = std::function<Status()>;

// Passes on a thread of its own, from its making to Stop.
class Passes {
 public:
  explicit Passes(const Pass& pass)
      : thread_([this, pass] {
          do {
            status_ = pass();
            ++passes_;
          } while (status_ && !stop_);
        }) {}
  ~Passes() {
    if (thread_.joinable()) (void)Stop();
  }

  // Passes a second; ends with the one that runs.
  Result<double> Stop() {
    stop_ = true;
    thread_.join();
    if (!status_) return tl::unexpected(status_.error());
    return passes_ / (Clock::Real().Now() - start_).count();
  }

 private:
  const TimePoint start_ = Clock::Real().Now();
  std::atomic<bool> stop_{false};
  Status status_;  // and passes_: the thread's until it has been joined
  int passes_ = 0;
  std::thread thread_;
};

// A prompt whose chunks are in a store, and pages for slices of another.
class BesideRun {
 public:
  static Result<std::unique_ptr<BesideRun>> Create(const LoadOptions& options,
                                                   const std::string& dir) {
    ASSIGN_OR_RETURN(const std::string model_dir, ModelDirNamed(options.beside));
    ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(model_dir));
    RuntimeOptions runtime_options{.model_dir = model_dir,
                                   .stores = {{.dir = dir + "/beside"}},
                                   .slice_tokens = DefaultSliceTokens(options.path),
                                   .path = options.path,
                                   .keep_costs = false};
    const int chunk_tokens = runtime_options.chunk_tokens;
    const int chunks = std::min(kChunksMax, (config.max_positions - 1) / chunk_tokens);
    const int slice_pages = runtime_options.slice_tokens / chunk_tokens;
    if (chunks <= slice_pages) {
      return Fail(ErrorCode::kInvalidArgument, "--beside {}: its context of {} is too short",
                  options.beside, config.max_positions);
    }
    SetPageBytes((2 * chunks + slice_pages + kSparePages) *
                     TransformerModel::LayoutFor(config, chunk_tokens).page_bytes(),
                 &runtime_options);
    ASSIGN_OR_RETURN(auto runtime, Runtime::Create(runtime_options));
    auto run = std::unique_ptr<BesideRun>(new BesideRun(std::move(runtime), chunks));
    RETURN_IF_ERROR(RunCold(*run->runtime_, run->prompt_, Policy::kCompute, 1, /*store=*/true)
                        .map([](const auto&) {}));
    ASSIGN_OR_RETURN(run->slice_, DrawPages(*run->runtime_, slice_pages));
    ASSIGN_OR_RETURN(const double slice_s, run->SliceSeconds(1));
    run->slices_ = std::clamp(static_cast<int>(kSampleSeconds / slice_s), 1, 256);
    return run;
  }

  uint64_t pass_bytes() const { return keys_.size() * runtime_->pool().layout().page_bytes(); }
  int slice_tokens() const { return runtime_->options().slice_tokens; }

  // Seconds of a slice from the start of a prompt, the mean of a sample.
  Result<double> SliceSeconds() { return SliceSeconds(slices_); }

  Pass FromStore() {
    return [this] {
      runtime_->pool().DropCached();
      return LoadChunks(*runtime_->stores()[0], runtime_->pool(),
                        runtime_->model().identity().Root(), keys_);
    };
  }

  // Copies to the device as a tier in page-locked memory would, all chunks at once.
  Result<Pass> FromMemory() {
    ASSIGN_OR_RETURN(copied_, DrawPages(*runtime_, static_cast<int>(keys_.size())));
    pinned_ = Buffer(pass_bytes(), Memory::kPinned);
    copier_ = NewCudaPageCopier();
    return [this] { return CopyAll(); };
  }

 private:
  BesideRun(std::unique_ptr<Runtime> runtime, int chunks)
      : runtime_(std::move(runtime)),
        prompt_(RandomPrompt(chunks * runtime_->options().chunk_tokens,
                             runtime_->config().vocab_size, 1)),
        keys_(ChunkKeys(runtime_->model().identity().Root(), prompt_,
                        runtime_->options().chunk_tokens)) {}

  Result<double> SliceSeconds(int slices) {
    const std::vector<PageId> pages = IdsOf(slice_);
    const Slice slice{.tokens = std::span(prompt_).first(slice_tokens()), .pages = pages};
    const TimePoint start = Clock::Real().Now();
    for (int i = 0; i < slices; ++i) {
      RETURN_IF_ERROR(runtime_->model().Forward({&slice, 1}).map([](const auto&) {}));
    }
    return (Clock::Real().Now() - start).count() / slices;
  }

  Status CopyAll() {
    PagePool& pool = runtime_->pool();
    const uint64_t bytes = pool.layout().page_bytes();
    AwaitCopies(std::ssize(copied_), [&](int64_t i, std::function<void()> done) {
      copier_->ToPage({pool.Data(copied_[i].id()), bytes}, {pinned_.data() + i * bytes, bytes},
                      std::move(done));
    });
    return {};
  }

  const std::unique_ptr<Runtime> runtime_;
  const std::vector<int32_t> prompt_;
  const std::vector<ChunkKey> keys_;
  PageTable slice_, copied_;
  int slices_ = 1;  // of a sample
  Buffer pinned_;
  std::unique_ptr<PageCopier> copier_;
};

Status MeasureSource(const LoadOptions& options, const char* source, BesideRun& run,
                     const Pass& pass, nlohmann::ordered_json* json) {
  std::vector<double> alone_ms, beside_ms, slowdown, rate;
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    // Alone before and after, so that a drift of the machine cancels.
    ASSIGN_OR_RETURN(const double before, run.SliceSeconds());
    Passes passes(pass);
    ASSIGN_OR_RETURN(const double beside, run.SliceSeconds());
    ASSIGN_OR_RETURN(const double passes_per_s, passes.Stop());
    ASSIGN_OR_RETURN(const double after, run.SliceSeconds());
    alone_ms.push_back(1e3 * (before + after) / 2);
    beside_ms.push_back(1e3 * beside);
    slowdown.push_back(beside_ms.back() / alone_ms.back());
    rate.push_back(passes_per_s * static_cast<double>(run.pass_bytes()) / 1e6);
  }
  fmt::print(
      "a slice of {} tokens of {} takes {} ms alone and {} ms beside loads from {} at {} "
      "MB/s: {} times as long\n",
      run.slice_tokens(), options.beside, Spread(alone_ms, 2), Spread(beside_ms, 2), source,
      Spread(rate, 0), Spread(slowdown, 3));
  json->push_back({{"op", "beside"},
                   {"source", source},
                   {"model", options.beside},
                   {"slice_tokens", run.slice_tokens()},
                   {"alone_s", Median(alone_ms) / 1e3},
                   {"beside_s", Median(beside_ms) / 1e3},
                   {"slowdown", Median(slowdown)},
                   {"bytes_per_s", Median(rate) * 1e6},
                   {"device", DeviceName(options.path)},
                   {"repeats", slowdown}});
  return {};
}

}  // namespace

Status MeasureBeside(const LoadOptions& options, const std::string& dir,
                     nlohmann::ordered_json* json) {
  ASSIGN_OR_RETURN(const auto run, BesideRun::Create(options, dir));
  RETURN_IF_ERROR(MeasureSource(options, "the disk", *run, run->FromStore(), json));
  if (!OnCuda(options.path)) return {};
  ASSIGN_OR_RETURN(const Pass from_memory, run->FromMemory());
  return MeasureSource(options, "page-locked memory", *run, from_memory, json);
}

}  // namespace kvcake::bench
