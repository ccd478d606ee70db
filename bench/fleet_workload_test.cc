#include "bench/fleet_workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "base/source_dir_testing.h"

namespace kvcake::bench {
namespace {

const FleetWorkloadOptions kSmall{.seed = 3,
                                  .documents = 4,
                                  .document_tokens = 300,
                                  .questions = 5,
                                  .more_questions = 2,
                                  .answer_tokens = 8};

std::vector<std::string> Labels(const Workload& workload) {
  std::vector<std::string> labels;
  for (const WorkloadRequest& request : workload.requests) {
    labels.push_back(request.text[0].label + " / " + request.text[1].label);
  }
  return labels;
}

TEST(FleetWorkload, AsksTheSameForTheSameSeed) {
  const FleetWorkload one = MakeFleetWorkload(kSmall).value();
  EXPECT_EQ(Labels(one.traffic), Labels(MakeFleetWorkload(kSmall).value().traffic));
  FleetWorkloadOptions other = kSmall;
  other.seed = 4;
  EXPECT_NE(Labels(one.traffic), Labels(MakeFleetWorkload(other).value().traffic));
}

TEST(FleetWorkload, AsksEachQuestionOnceAndAboutEachDocumentAsOften) {
  const FleetWorkload workload = MakeFleetWorkload(kSmall).value();
  EXPECT_EQ(workload.traffic.requests.size(), 20u);
  EXPECT_EQ(workload.joining.requests.size(), 4u);
  EXPECT_EQ(workload.killing.requests.size(), 8u);
  std::set<std::string> questions;
  std::map<std::string, int> documents;
  for (const Workload* part : {&workload.traffic, &workload.joining, &workload.killing}) {
    for (const WorkloadRequest& request : part->requests) {
      questions.insert(request.text[1].label);
      ++documents[request.text[0].label];
      EXPECT_EQ(request.at_s, 0);
      EXPECT_EQ(request.max_tokens, 8);
    }
  }
  EXPECT_EQ(questions.size(), 32u);
  EXPECT_EQ(documents.size(), 4u);
  for (const auto& [label, times] : documents) EXPECT_EQ(times, 8) << label;
}

TEST(FleetPrompts, HaveTheLengthThatIsAskedForAndTheirDocumentsInCommon) {
  const std::string model = SourceDir() + "/models/demo";
  const FleetPrompts prompts = FleetPrompts::Open(model + "/held_out", model).value();
  const FleetWorkload workload = MakeFleetWorkload(kSmall).value();
  const auto asked = prompts.Of(workload.traffic).value();
  ASSERT_EQ(asked.size(), 20u);
  for (const PromptIds& prompt : asked) {
    EXPECT_GT(prompt.size(), 250u);
    EXPECT_LT(prompt.size(), 420u);
  }
  const ChunkCounts counts = CountChunks(asked, 64);
  EXPECT_GE(counts.shared, 4 * 3);
  EXPECT_LE(counts.shared, 4 * 6);
  EXPECT_GT(counts.distinct, counts.shared) << "some hold a part of a question";
  const double known = KnownShare(prompts.Of(workload.joining).value(), asked, 64);
  EXPECT_GT(known, 0.6);
  EXPECT_LT(known, 1);
  EXPECT_FALSE(FleetPrompts::Open(model + "/held_out", SourceDir() + "/src"));
  EXPECT_FALSE(FleetPrompts::Open(model + "/no_text", model));
}

PromptIds Ids(int first, int count) {
  PromptIds ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(CountChunks, ChunksAreTheSameWhereAllBeforeThemIs) {
  PromptIds tail = Ids(0, 8);
  tail[0] = 99;  // the second chunk has the tokens of another prompt's, and not what is before it
  const std::vector<PromptIds> prompts = {Ids(0, 11), Ids(0, 8), tail, Ids(50, 3), Ids(0, 12)};
  const ChunkCounts counts = CountChunks(prompts, 4);
  EXPECT_EQ(counts.distinct, 2 + 2 + 1);
  EXPECT_EQ(counts.shared, 2);
  EXPECT_EQ(CountChunks({}, 4).distinct, 0);
}

TEST(KnownShare, IsOfWholeChunks) {
  const std::vector<PromptIds> asked = {Ids(0, 10), Ids(100, 10)}, before = {Ids(0, 9)};
  EXPECT_DOUBLE_EQ(KnownShare(asked, before, 4), 8.0 / 20);
  EXPECT_DOUBLE_EQ(KnownShare(asked, {}, 4), 0);
  EXPECT_DOUBLE_EQ(KnownShare({}, before, 4), 0);
}

}  // namespace
}  // namespace kvcake::bench
