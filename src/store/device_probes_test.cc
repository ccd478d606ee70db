#include "store/device_probes.h"

#include <gtest/gtest.h>

#include "store/disk_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DeviceProbesTest : public testing::Test {
 protected:
  static constexpr Seconds kInterval{5}, kOverdueAfter{30};

  static DiskTierOptions Options() {
    DiskTierOptions options = SmallOptions("nowhere");
    options.failures_max = 1;
    options.probe_interval = kInterval;
    return options;
  }
  DeviceProbes::Files Files() {
    return {
        .open = [this](uint64_t tag, const std::string& path) { asked_.emplace_back(tag, path); },
        .close = [](std::shared_ptr<File> file) { file = nullptr; },
        .sample = [](uint64_t) { return std::optional<std::string>("other"); }};
  }
  // The tag of the probe that is started at this time; 0: none is.
  uint64_t Start(TimePoint now) {
    const size_t before = asked_.size();
    probes_.StartIfDue(now);
    return asked_.size() > before ? asked_.back().first : 0;
  }
  void Open(uint64_t tag) { probes_.Opened(tag, std::make_shared<FakeFile>(open_)); }
  // Time passes: each is late enough for another probe to be due.
  TimePoint Later() { return now_ += kOverdueAfter + kInterval; }

  int open_ = 0;  // files
  TimePoint now_ = Clock::Real().Now();
  DeviceHealth health_{Options()};
  FakeQueue queue_;
  std::vector<std::pair<uint64_t, std::string>> asked_;  // to be opened
  DeviceProbes probes_{health_, queue_, kOverdueAfter, Files()};
};

TEST_F(DeviceProbesTest, NoneIsMadeOfADeviceThatAnswers) {
  EXPECT_EQ(Start(Later()), 0u);
  EXPECT_FALSE(probes_.NextStart(now_));
  health_.Failed("file");
  EXPECT_EQ(Start(now_ - Seconds(1000)), 0u) << "none is due yet";
  EXPECT_NE(Start(Later()), 0u);
  EXPECT_TRUE(DeviceProbes::IsProbe(asked_[0].first));
}

TEST_F(DeviceProbesTest, WhatIsReadOpensTheStoreAgain) {
  health_.Failed("file");
  Open(Start(Later()));
  ASSERT_EQ(queue_.submitted.size(), 1u);
  EXPECT_EQ(queue_.submitted[0].buffer.size(), DeviceProbes::kProbeBytes);
  EXPECT_FALSE(health_.answers());
  probes_.Completed(queue_.Take(0, DeviceProbes::kProbeBytes));
  EXPECT_TRUE(health_.answers());
  EXPECT_TRUE(probes_.empty());
  EXPECT_EQ(open_, 0);
}

TEST_F(DeviceProbesTest, OneThatFailsIsFollowedByOneOfAnotherFile) {
  health_.Failed("file");
  for (const char* path : {"file", "other", "file"}) {
    Open(Start(Later()));
    EXPECT_EQ(asked_.back().second, path);
    probes_.Completed(queue_.Take(0, Fail(ErrorCode::kIo, "injected")));
    EXPECT_FALSE(health_.answers());
    health_.Failed("file");
  }
  EXPECT_EQ(open_, 0);
}

TEST_F(DeviceProbesTest, AFileThatCannotBeOpenedIsAnAnswerUnlessTheDeviceFails) {
  health_.Failed("file");
  probes_.Opened(Start(Later()), Fail(ErrorCode::kIo, "injected"));
  EXPECT_FALSE(health_.answers());
  probes_.Opened(Start(Later()), Fail(ErrorCode::kNotFound, "gone"));
  EXPECT_TRUE(health_.answers());
  EXPECT_TRUE(probes_.empty());
}

TEST_F(DeviceProbesTest, OneThatIsLostIsPutAsideAndSoManyMayBe) {
  health_.Failed("file");
  ASSERT_NE(Start(Later()), 0u);  // and is never opened
  for (int i = 1; i < DeviceProbes::kProbesMax; ++i) {
    const uint64_t next = Start(Later());
    ASSERT_NE(next, 0u) << i;
    Open(next);
    EXPECT_EQ(Start(now_ + kInterval), 0u) << "it may still come";
  }
  EXPECT_EQ(Start(Later()), 0u);
  EXPECT_FALSE(probes_.NextStart(now_));
  probes_.Completed(queue_.Take(1, DeviceProbes::kProbeBytes));
  EXPECT_TRUE(health_.answers()) << "whichever comes first";
  EXPECT_FALSE(probes_.empty());
}

TEST_F(DeviceProbesTest, TheNextIsDueWhenTheOneBeforeItIsLost) {
  health_.Failed("file");
  const TimePoint began = Later();
  Open(Start(began));
  EXPECT_EQ(probes_.NextStart(began + kInterval), began + kOverdueAfter);
  EXPECT_EQ(probes_.NextStart(began + kOverdueAfter), began + kInterval) << "it is overdue itself";
}

TEST_F(DeviceProbesTest, WhatIsCancelledSaysNothing) {
  health_.Failed("file");
  Open(Start(Later()));
  const uint64_t opening = Start(Later());
  probes_.Cancel();
  EXPECT_EQ(queue_.cancelled, std::vector<uint64_t>{asked_[0].first});
  probes_.Completed(queue_.Take(0, Fail(ErrorCode::kCancelled, "cancelled")));
  EXPECT_TRUE(probes_.empty());
  Open(opening);
  EXPECT_EQ(open_, 0) << "closed, as nobody wants it";
  EXPECT_TRUE(queue_.submitted.empty());
  EXPECT_FALSE(health_.answers());
}

TEST_F(DeviceProbesTest, AQueueThatIsFullSaysNothing) {
  health_.Failed("file");
  queue_.refuses = true;
  Open(Start(Later()));
  EXPECT_TRUE(probes_.empty());
  EXPECT_EQ(open_, 0);
  EXPECT_FALSE(health_.answers());
}

}  // namespace
}  // namespace kvcake
