// Machines that are not here.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "base/source_dir_testing.h"
#include "base/temp_dir_testing.h"
#include "engine/runtime.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

class EmulatedRuntimeTest : public testing::Test {
 protected:
  EmulatedRuntimeTest() {
    std::ofstream(dir_ + "/p.json")
        << R"({"name": "p", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 4096,)"
        << R"( "attention": "causal", "c0": 1e-4, "b": 2e-6, "a": 1e-10})";
    options_.stores = {{.dir = dir_ + "/store"}};
    options_.ram_capacity_bytes = 64 << 20;
    options_.chunk_tokens = 32;
    options_.slice_tokens = 128;
    options_.threads = 1;
  }

  RuntimeOptions Emulated() const {
    RuntimeOptions options = options_;
    options.emulate = dir_ + "/p.json";
    return options;
  }
  static Request Ask(Policy policy) {
    std::mt19937 rng(1);
    Request request{.prompt = {}, .max_tokens = 4};
    for (int i = 0; i < 700; ++i) request.prompt.push_back(static_cast<int32_t>(rng() % 512));
    request.policy = policy;
    return request;
  }
  // Computed, then restored from the store under every policy: always the same answer.
  static void CheckPolicies(Runtime& runtime) {
    const Completion first = runtime.engine().Answer(Ask(Policy::kCompute)).value();
    EXPECT_EQ(first.report.tokens_computed, 700);
    EXPECT_GT(first.report.turns, 0);
    for (Policy policy : {Policy::kLoad, Policy::kPublished, Policy::kCake, Policy::kCompute}) {
      runtime.engine().FlushStore();
      runtime.pool().DropCached();
      const Completion again = runtime.engine().Answer(Ask(policy)).value();
      EXPECT_EQ(again.tokens, first.tokens) << PolicyName(policy);
      // A page whose write has only just ended may be in memory still.
      const int restored = again.report.loaded() + again.report.tokens_reused;
      EXPECT_EQ(again.report.tokens_computed + restored, 700);
      if (policy == Policy::kLoad) {
        EXPECT_EQ(restored, 21 * 32);
      }
      // All may be loaded before the first turn; the last, partial chunk wants none.
      if (again.report.tokens_computed >= 32) {
        EXPECT_GT(again.report.turns, 0) << PolicyName(policy);
      }
    }
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
  RuntimeOptions options_;
};

TEST_F(EmulatedRuntimeTest, AnswersAsOneModelWhateverIsLoaded) {
  RuntimeOptions options = Emulated();
  options.stores[0].load_rate_bytes_per_s = 1e9;
  const auto runtime = Runtime::Create(options).value();
  EXPECT_TRUE(runtime->emulated());
  // The link keeps the time of the real chunks: 64 KiB a token at 1 GB/s.
  const double page_s =
      static_cast<double>(runtime->pool().layout().page_bytes()) / runtime->link()->rate();
  EXPECT_NEAR(page_s, 32 * 65536 / 1e9, 1e-9);
  CheckPolicies(*runtime);
}

TEST_F(EmulatedRuntimeTest, AStoreSaysWhichProfilesChunksItHas) {
  RuntimeOptions options = Emulated();
  options.model_dir = SourceDir() + "/models/demo";
  { Runtime::Create(options).value()->engine().Answer(Ask(Policy::kCompute)).value(); }
  const auto roots = ListStore(dir_ + "/store").value();
  ASSERT_EQ(roots.size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(roots[0].description).at("model"), "p.json");
}

TEST_F(EmulatedRuntimeTest, SpeaksTheLanguageOfAModelDirectory) {
  EXPECT_FALSE(Runtime::Create(Emulated()).value()->has_tokenizer());
  RuntimeOptions options = Emulated();
  options.model_dir = SourceDir() + "/models/demo";
  const auto runtime = Runtime::Create(options).value();
  EXPECT_TRUE(runtime->emulated());
  ASSERT_TRUE(runtime->has_tokenizer());
  EXPECT_EQ(runtime->model().vocab_size(), runtime->config().vocab_size);
  const std::string text = "every token of an answer is one of the model's";
  Request request{.prompt = runtime->tokenizer().Encode(text).value(), .max_tokens = 64};
  const Completion completion = runtime->engine().Answer(std::move(request)).value();
  for (const int32_t token : completion.tokens) EXPECT_LT(token, runtime->config().vocab_size);
  EXPECT_FALSE(runtime->tokenizer().Decode(completion.tokens, true).empty());
}

TEST_F(EmulatedRuntimeTest, AProfileThatIsNotThereIsRefused) {
  RuntimeOptions options = options_;
  options.emulate = dir_ + "/none.json";
  EXPECT_FALSE(Runtime::Create(options));
}

}  // namespace
}  // namespace kvcake
