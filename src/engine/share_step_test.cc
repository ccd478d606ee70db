#include "engine/share_step.h"

#include <gtest/gtest.h>

namespace kvcake {
namespace {

std::vector<std::unique_ptr<Sequence>> Running(int prompt, Sequence::State state) {
  std::vector<std::unique_ptr<Sequence>> running;
  running.push_back(std::make_unique<Sequence>());
  running.back()->prefill_tokens = prompt;
  running.back()->state = state;
  return running;
}

TEST(ShareStepTest, TakesWhatTheFitExpectsToEndInTime) {
  const auto restoring = Running(1000, Sequence::State::kRestoring);
  const ComputeFit fit{.c0 = 0.01, .b = 1e-3, .samples = 5};  // 0.138 s, 0.266 s, ...
  const auto tokens = [&](double step_s) {
    return ShareStep(restoring, fit, Seconds(step_s), 128, 512);
  };
  EXPECT_EQ(tokens(1), 512);
  EXPECT_EQ(tokens(0.3), 256);
  EXPECT_EQ(tokens(0.266), 256);
  EXPECT_EQ(tokens(0.2), 128);
  EXPECT_EQ(tokens(0.001), 128);                                      // prompts never starve
  EXPECT_EQ(ShareStep(restoring, fit, Seconds(1), 128, 500), 384);    // whole chunks
  EXPECT_EQ(ShareStep(restoring, {}, Seconds(1e-9), 128, 500), 500);  // nothing is known
}

TEST(ShareStepTest, ExpectsTheLastSliceOfTheLongestPrompt) {
  const ComputeFit fit{.b = 1e-3, .a = 1e-6, .samples = 5};
  const auto tokens = [&](int prompt, Sequence::State state) {
    return ShareStep(Running(prompt, state), fit, Seconds(0.8), 128, 512);
  };
  EXPECT_EQ(tokens(100, Sequence::State::kPrefilling), 384);
  EXPECT_EQ(tokens(1000, Sequence::State::kPrefilling), 128);
  EXPECT_EQ(tokens(1000, Sequence::State::kDecoding), 512);
}

}  // namespace
}  // namespace kvcake
