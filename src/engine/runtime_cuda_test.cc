// A Runtime whose model and pages are a CUDA device's. Skipped where there is no device.
#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "engine/engine_testing.h"
#include "engine/runtime.h"
#include "engine/step_budget.h"
#include "ops/cuda_device.h"

namespace kvcake {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSpare = 512 << 20;  // left for kernels and graphs

class RuntimeCudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = CudaDevice::Get();
    if (!device) GTEST_SKIP() << device.error().message;
    device_ = *device;
    options_.model_dir = ModelDir();
    options_.stores = {{.dir = dir_.path() + "/store"}};
    options_.ram_capacity_bytes = 0;
    options_.staging_capacity_bytes = 16 * PageBytes();
    options_.chunk_tokens = kChunk;
    options_.slice_tokens = kSlice;
    options_.max_sequences = 4;
    options_.threads = 2;
    options_.path = NumericPath::kBf16Tensor;
    options_.keep_costs = false;
    Leave(64 * PageBytes());
  }
  uint64_t ModelBytes() const {
    return TransformerModel::MemoryFor(
        LoadModelConfig(options_.model_dir).value(),
        {.max_batch_tokens = options_.slice_tokens + options_.max_sequences,
         .max_logit_rows = options_.slice_tokens + options_.max_sequences,
         .path = options_.path});
  }
  // About so much of the device's memory to pages.
  void Leave(uint64_t bytes) {
    options_.gpu_memory_utilization = static_cast<double>(kSpare + ModelBytes() + bytes) /
                                      static_cast<double>(device_->memory_bytes());
  }
  std::unique_ptr<Runtime> Create() { return Runtime::Create(options_).value(); }
  std::string Refusal() {
    const auto runtime = Runtime::Create(options_);
    return runtime ? "" : runtime.error().message;
  }

  const TempDir dir_;
  CudaDevice* device_ = nullptr;
  RuntimeOptions options_;
};

// The model, its scratch and what is spared come first, and each page needs its place in two lists
// of every slice.
TEST_F(RuntimeCudaTest, PagesHaveWhatTheModelLeaves) {
  options_.max_sequences = 256;
  const uint64_t listed = 2 * sizeof(PageId) * (options_.max_sequences + 1);
  Leave(100 * (PageBytes() + listed) + PageBytes() / 2);
  EXPECT_EQ(Create()->pool().pages(), 100u);
  Leave(PageBytes() / 2);
  const std::string none = Refusal();
  EXPECT_THAT(none, HasSubstr("raise --gpu-memory-utilization, or lower --slice-tokens"));
  EXPECT_THAT(none, HasSubstr("and a page " + std::to_string(PageBytes())));
  options_.rank_tokens_max = kSlice + options_.max_sequences + 1;
  EXPECT_THAT(Refusal(), HasSubstr("or lower --rank-tokens-max"));
}

#ifdef KVCAKE_CUDA_EMULATED  // which gives and takes to the byte
// Others may have most of a device.
TEST_F(RuntimeCudaTest, PagesHaveNoMoreThanWhatIsFree) {
  const uint64_t left = kSpare + ModelBytes() + 100 * PageBytes();
  std::byte* const others = device_->Allocate(device_->free_bytes() - left).value();
  options_.gpu_memory_utilization = 1;
  const uint64_t pages = Create()->pool().pages();
  device_->Free(others);
  EXPECT_GT(pages, 90u);
  EXPECT_LE(pages, 100u);
}
#endif

// Chunks go to the RAM tier or to the store and come back, though they cannot touch the pages.
TEST_F(RuntimeCudaTest, APromptIsRestoredAsItWasComputed) {
  constexpr int kTokens = 400 / kChunk * kChunk;
  Request compute = Ask(Prompt(400, 1), Policy::kCompute),
          load = Ask(Prompt(400, 1), Policy::kLoad);
  compute.logprobs = load.logprobs = true;
  Completion first;
  {
    const auto runtime = Create();
    first = runtime->engine().Answer(compute).value();
    runtime->engine().FlushStore();
  }
  const auto another = Create();
  const Completion from_disk = another->engine().Answer(load).value();
  ExpectSame(first, from_disk, options_.path);
  EXPECT_EQ(from_disk.report.tokens_loaded.at("disk"), kTokens);

  options_.stores.clear();
  options_.ram_capacity_bytes = 64 * PageBytes();
  const auto runtime = Create();
  ExpectSame(first, runtime->engine().Answer(compute).value(), options_.path);
  runtime->engine().FlushStore();
  runtime->pool().DropCached();
  const Completion from_ram = runtime->engine().Answer(load).value();
  ExpectSame(first, from_ram, options_.path);
  // A page whose write has only just ended may be in memory still.
  EXPECT_EQ(from_ram.report.loaded() + from_ram.report.tokens_reused, kTokens);
}

// A budget's slice has room in a step beside as many sequences as there may be.
TEST_F(RuntimeCudaTest, AFullStepHasRoomForOthers) {
  class Others : public StepBudget {
   public:
    explicit Others(PagePool& pool) : page_(*pool.Draw()), ids_{page_.id()} {}
    ComputeBudget ForRestorations(TimePoint) override { return {.chunks = 1}; }
    std::optional<Slice> Fill(int, int) override {
      ++slices;
      return Slice{.tokens = tokens_, .pages = ids_};
    }
    void Ran(TimePoint, int) override {}
    uint64_t pages() const override { return 1; }
    int slices = 0;

   private:
    const PageHandle page_;
    const std::vector<PageId> ids_;
    const std::vector<int32_t> tokens_ = {1, 2, 3};
  };
  options_.max_sequences = 1;
  const auto runtime = Create();
  Others others(runtime->pool());
  runtime->engine().SetStepBudget(&others);
  EXPECT_TRUE(runtime->engine().Answer(Ask(Prompt(4 * kChunk, 1))));
  runtime->engine().SetStepBudget(nullptr);
  EXPECT_GT(others.slices, 0);
}

TEST_F(RuntimeCudaTest, WhatRanksSendPassesThroughMemoryOfItsOwn) {
  EXPECT_EQ(Create()->rank_staging().copier, nullptr);
  options_.rank_tokens_max = kSlice;
  {
    const auto runtime = Create();
    EXPECT_NE(runtime->rank_staging().copier, nullptr);
    EXPECT_EQ(runtime->rank_staging().memory.size(), options_.staging_capacity_bytes);
  }
  options_.stores.clear();
  const uint64_t piece = Create()->pool().layout().slab_payload_bytes();
  options_.staging_capacity_bytes = 2 * piece - 1;
  EXPECT_THAT(Refusal(), HasSubstr("pieces of " + std::to_string(piece) + " bytes"));
  options_.staging_capacity_bytes = 1ull << 50;
  EXPECT_THAT(Refusal(), HasSubstr("--staging-capacity of 1125899906842624 bytes"));
}

TEST_F(RuntimeCudaTest, StepsAreEnqueuedOrReplayedAsIsAsked) {
  for (const bool eager : {false, true}) {
    options_.enforce_eager = eager;
    const auto runtime = Create();
    ASSERT_TRUE(runtime->engine().Answer(Ask(Prompt(20, 1))));
    const auto& model = dynamic_cast<const TransformerModel&>(runtime->model());
    EXPECT_EQ(model.graph_launches() == 0, eager);
  }
}

TEST_F(RuntimeCudaTest, StepsAreLongerThanOnACpu) {
  options_.slice_tokens = 0;
  options_.gpu_memory_utilization = 0.9;
  EXPECT_EQ(Create()->options().slice_tokens, 2048);
}

}  // namespace
}  // namespace kvcake
