#include "bench/shared_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/temp_dir_testing.h"
#include "bench/harness.h"
#include "model/synth.h"

namespace kvcake::bench {
namespace {

constexpr int kChunk = 32, kPromptTokens = 700;

class SharedStepsTest : public testing::Test {
 protected:
  SharedStepsTest() {
    std::ofstream(dir_ + "/p.json")
        << R"({"name": "p", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 4096,)"
        << R"( "attention": "causal", "c0": 1e-4, "b": 2e-6, "a": 1e-10})";
    options_.ram_capacity_bytes = 64 << 20;
    options_.chunk_tokens = kChunk;
    options_.slice_tokens = 128;
    options_.threads = 1;
  }

  // A runtime with a store of its own.
  std::unique_ptr<Runtime> Open(RuntimeOptions options) {
    options.stores = {{.dir = dir_ + "/store" + std::to_string(stores_++)}};
    return Runtime::Create(options).value();
  }
  RuntimeOptions Emulated() const {
    RuntimeOptions options = options_;
    options.emulate = dir_ + "/p.json";
    return options;
  }
  RuntimeOptions Synthetic() const {
    RuntimeOptions options = options_;
    options.model_dir = dir_ + "/model";
    return options;
  }
  static Request Ask(Policy policy) {
    Request request{.prompt = RandomPrompt(kPromptTokens, 512, 1), .max_tokens = 4};
    request.policy = policy;
    return request;
  }
  // Computed, then restored from the store under every policy: always the same answer.
  static std::vector<int32_t> CheckPolicies(Runtime& runtime) {
    const Completion first = runtime.engine().Answer(Ask(Policy::kCompute)).value();
    EXPECT_EQ(first.report.tokens_computed, kPromptTokens);
    EXPECT_GT(first.report.turns, 0);
    for (Policy policy : {Policy::kLoad, Policy::kPublished, Policy::kCake, Policy::kCompute}) {
      runtime.engine().FlushStore();
      runtime.pool().DropCached();
      const Completion again = runtime.engine().Answer(Ask(policy)).value();
      EXPECT_EQ(again.tokens, first.tokens) << PolicyName(policy);
      // A page whose write has only just ended may be in memory still.
      const int restored = again.report.loaded() + again.report.tokens_reused;
      EXPECT_EQ(again.report.tokens_computed + restored, kPromptTokens);
      if (policy == Policy::kLoad) {
        EXPECT_EQ(restored, kPromptTokens / kChunk * kChunk);
      }
      // All may be loaded before the first turn; the last, partial chunk wants none.
      if (again.report.tokens_computed >= kChunk) {
        EXPECT_GT(again.report.turns, 0) << PolicyName(policy);
      }
    }
    return first.tokens;
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
  RuntimeOptions options_;
  int stores_ = 0;
};

TEST_F(SharedStepsTest, AnswersAreTheSame) {
  for (const double share : {1.0, 0.5, 0.125}) {
    const auto runtime = Open(Emulated());
    const auto shared = SharedSteps::Install(*runtime, SpeedTrace({{0, share}})).value();
    CheckPolicies(*runtime);
  }
  ASSERT_TRUE(WriteSynthModel("tiny", dir_ + "/model"));
  const auto whole = Open(Synthetic())->engine().Answer(Ask(Policy::kCompute)).value();
  const auto runtime = Open(Synthetic());
  // A budget of 0 is legal.
  const auto shared = SharedSteps::Install(*runtime, SpeedTrace({{0, 0}, {0.05, 0.3}})).value();
  EXPECT_EQ(CheckPolicies(*runtime), whole.tokens);
}

TEST_F(SharedStepsTest, RestorationsGetTheirShareOfEachStep) {
  const auto runtime = Open(Emulated());
  const auto most = [&](double share) {
    const auto shared = SharedSteps::Install(*runtime, SpeedTrace({{0, share}})).value();
    int most = 0;
    runtime->engine().SetStepObserver(
        [&](const StepRecord& step) { most = std::max(most, step.fresh + step.restored); });
    runtime->pool().DropCached();
    EXPECT_TRUE(runtime->engine().Answer(Ask(Policy::kCompute)));
    runtime->engine().SetStepObserver({});
    runtime->engine().FlushStore();
    EXPECT_EQ(runtime->pool().Stats().referenced, shared->pages());
    return most;
  };
  EXPECT_EQ(most(1), 128);
  EXPECT_EQ(most(0.5), 64);
  EXPECT_EQ(runtime->pool().Stats().referenced, 0u) << "its pages go back";
}

TEST_F(SharedStepsTest, WithoutSharesThereIsNone) {
  const auto runtime = Open(Emulated());
  EXPECT_EQ(SharedSteps::Install(*runtime, std::nullopt).value(), nullptr);
  EXPECT_EQ(runtime->pool().Stats().referenced, 0u);
}

TEST_F(SharedStepsTest, ItsPagesMustFit) {
  RuntimeOptions options = Emulated();
  options.slice_tokens = 2048;
  options.ram_capacity_bytes = 1 << 20;
  const auto runtime = Open(options);
  const auto shared = SharedSteps::Install(*runtime, SpeedTrace({{0, 0.5}}));
  ASSERT_FALSE(shared);
  EXPECT_NE(shared.error().message.find("--ram-capacity"), std::string::npos);
}

}  // namespace
}  // namespace kvcake::bench
