#include "comm/survey.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/local_comms_testing.h"
#include "comm/shaped_comm.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::ElementsAre;

constexpr Seconds kSurveyPatience(120);

std::vector<Result<Survey>> SurveyAll(const Comms& comms, const std::vector<std::string>& names) {
  std::vector<Result<Survey>> surveys(comms.size(), Survey());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < comms.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { surveys[rank] = SurveyRanks(*comms[rank], names[rank], kSurveyPatience); });
  }
  for (std::thread& thread : threads) thread.join();
  return surveys;
}

class SurveyTest : public testing::TestWithParam<bool> {
 protected:
  static Comms Make(int size) { return NewLocalComms(GetParam(), size); }
};

TEST_P(SurveyTest, TheLastRankKnowsAll) {
  const std::string longest(kMachineBytesMax, 'z');
  const auto surveys = SurveyAll(Make(3), {"a", "b, 2 threads", longest + "y"});
  for (const auto& survey : surveys) ASSERT_TRUE(survey) << survey.error().message;
  EXPECT_TRUE(surveys[0]->machines.empty());
  EXPECT_TRUE(surveys[1]->machines.empty());
  EXPECT_THAT(surveys[2]->machines, ElementsAre("a", "b, 2 threads", longest));
  EXPECT_GT(surveys[2]->latency_s, 0);
  EXPECT_GT(surveys[2]->bytes_per_s, 0);
}

// A shape only slows down: what is told cannot be much better.
TEST_P(SurveyTest, TheSlowestLinkIsTold) {
  constexpr LinkShape kFast{.rate_bytes_per_s = 1e9}, kSlow{.rate_bytes_per_s = 2e7};
  constexpr LinkShape kFar{.rate_bytes_per_s = 1e9, .latency = Seconds(0.02)};
  Comms comms = Make(3);
  comms[0] = NewShapedComm(std::move(comms[0]), {.link = kFar});
  comms[1] = NewShapedComm(std::move(comms[1]), {.link = kFast, .link_to = {{2, kSlow}}});
  comms[2] = NewShapedComm(std::move(comms[2]), {.link = kFast});
  const auto surveys = SurveyAll(comms, {"a", "b", "c"});
  ASSERT_TRUE(surveys[2]) << surveys[2].error().message;
  EXPECT_GE(surveys[2]->latency_s, 0.01) << "half of the round trip with the far one";
  EXPECT_LE(surveys[2]->bytes_per_s, 2 * kSlow.rate_bytes_per_s);
}

// It took at least the sixteen short round trips, the shortest of which is told by its half.
TEST_P(SurveyTest, TheLatencyIsThatOfOneWay) {
  constexpr LinkShape kFar{.rate_bytes_per_s = 1e9, .latency = Seconds(0.01)};
  Comms comms = Make(2);
  for (auto& comm : comms) comm = NewShapedComm(std::move(comm), {.link = kFar});
  const TimePoint began = Clock::Real().Now();
  const auto surveys = SurveyAll(comms, {"a", "b"});
  const double took_s = (Clock::Real().Now() - began).count();
  ASSERT_TRUE(surveys[1]) << surveys[1].error().message;
  EXPECT_GE(surveys[1]->latency_s, kFar.latency.count());
  EXPECT_LE(16 * 2 * surveys[1]->latency_s, took_s);
}

TEST_P(SurveyTest, ARankThatIsGoneIsAnError) {
  Comms comms = Make(2);
  comms[0].reset();
  EXPECT_FALSE(SurveyRanks(*comms[1], "b", kSurveyPatience));
}

TEST_P(SurveyTest, ARankThatDoesNotAnswerIsADeadline) {
  const Comms comms = Make(2);
  const auto survey = SurveyRanks(*comms[0], "a", Seconds(0.05));
  ASSERT_FALSE(survey);
  EXPECT_EQ(survey.error().code, ErrorCode::kDeadline);
}

INSTANTIATE_TEST_SUITE_P(All, SurveyTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "tcp" : "memory"; });

}  // namespace
}  // namespace kvcake
