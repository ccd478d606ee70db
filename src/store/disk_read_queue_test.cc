// The reads of a tier without its threads: what is asked of the kernel when, and what ends how.
#include "store/disk_read_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "io/faulty_file_system_testing.h"
#include "store/disk_room.h"
#include "store/disk_testing.h"
#include "store/disk_writer.h"

namespace kvcake {
namespace {

using namespace testing_util;

class DiskReadQueueTest : public testing::Test {
 protected:
  DiskReadQueueTest() {
    options_ = SmallOptions(dir_.path());
    options_.max_reads_in_flight = 2;
    options_.io_bytes_max = options_.layout.page_bytes();  // one piece
    context_.emplace(options_, fs_);
    DiskRoom room(*context_);
    DiskWriter writer(*context_, room);
    PageBuffer page(options_.layout);
    for (size_t i = 0; i < chain_.size(); ++i) {
      FillPage(chain_[i], page.span());
      EXPECT_TRUE(writer.Put({chain_[i], ParentOf(chain_, i), NumericPath::kUnknown, page.span()}));
    }
    opener_.emplace(*context_);
    DiskReadQueue::Hooks hooks;
    hooks.answer = [this](ReadId id, Result<std::shared_ptr<File>> file) {
      MutexLock lock(mutex_);
      answers_.emplace_back(id, std::move(file));
    };
    hooks.touch = [this](const std::string& path, int64_t) { touched_.push_back(path); };
    reads_.emplace(*context_, queue_, *opener_, std::move(hooks));
  }

  // The number of the read is that of the chunk, from 1.
  void Add(size_t i) {
    landings_.push_back(std::make_unique<PageBuffer>(options_.layout));
    auto read = std::make_unique<DiskRead>(
        ReadRequest{.key = chain_[i],
                    .parent = ParentOf(chain_, i),
                    .landing = landings_.back()->span(),
                    .done = [this, i](ReadResult result) { done_[i] = std::move(result); }},
        options_);
    read->id = i + 1;
    reads_->Add(std::move(read));
  }
  // Hands over what the opener's threads have answered, once there are so many, by the reads'
  // numbers.
  void OnFiles(size_t count) {
    ASSERT_TRUE(Eventually([&] {
      MutexLock lock(mutex_);
      return answers_.size() >= count;
    }));
    MutexLock lock(mutex_);
    std::sort(answers_.begin(), answers_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto& [id, file] : answers_) reads_->OnFile(id, std::move(file));
    answers_.clear();
  }
  // Reads what the first of the queue asks for, as the kernel would.
  void Complete() {
    const IoOp op = queue_.submitted.at(0);
    const auto bytes = op.file->ReadAt(op.buffer, op.offset);
    ASSERT_TRUE(bytes);
    reads_->OnCompletion(queue_.Take(0, *bytes));
  }
  std::optional<ErrorCode> ErrorOf(size_t i) {
    const Status& status = done_.at(i).status;
    return status ? std::nullopt : std::optional(status.error().code);
  }
  std::string PathOf(size_t i) { return context_->PathOf(chain_[i]); }

  TempDir dir_;
  FaultyFileSystem fs_{FileSystem::Real(), 1};
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = Chain(5);
  FakeQueue queue_;
  std::vector<std::unique_ptr<PageBuffer>> landings_;
  std::map<size_t, ReadResult> done_;
  std::vector<std::string> touched_;
  Mutex mutex_;
  std::vector<std::pair<ReadId, Result<std::shared_ptr<File>>>> answers_ GUARDED_BY(mutex_);
  std::optional<DiskContext> context_;
  std::optional<ChunkOpener> opener_;  // its thread ends before what it answers to goes
  std::optional<DiskReadQueue> reads_;
};

TEST_F(DiskReadQueueTest, SoManyAreUnderWayAndTheRestWaitInOrder) {
  for (size_t i = 0; i < chain_.size(); ++i) Add(i);
  reads_->Start();
  OnFiles(2);
  EXPECT_EQ(queue_.submitted.size(), 2u);
  reads_->Start();
  for (size_t i = 0; i < chain_.size(); ++i) {
    Complete();
    EXPECT_EQ(ErrorOf(i), std::nullopt);
    EXPECT_TRUE(HoldsChunk(chain_[i], *landings_[i]));
    EXPECT_EQ(done_.size(), i + 1);
    reads_->Start();
    if (i + 2 < chain_.size()) OnFiles(1);
  }
  EXPECT_TRUE(reads_->empty());
  TierStats stats;
  reads_->AddStats(stats);
  EXPECT_EQ(stats.reads, chain_.size());
  EXPECT_EQ(stats.read_bytes, chain_.size() * options_.layout.page_bytes());
}

TEST_F(DiskReadQueueTest, WhatTheKernelHasIsItsUntilItLetsGo) {
  for (size_t i = 0; i < 4; ++i) Add(i);
  reads_->Start();
  OnFiles(2);
  reads_->Cancel(std::vector<ReadId>{1, 4, 77});
  EXPECT_EQ(queue_.cancelled.front() / PiecesMax(options_), 1u);
  EXPECT_EQ(done_.size(), 1u);
  EXPECT_EQ(ErrorOf(3), ErrorCode::kCancelled) << "it had not begun";
  reads_->OnCompletion(queue_.Take(0, Fail(ErrorCode::kCancelled, "cancelled")));
  EXPECT_EQ(ErrorOf(0), ErrorCode::kCancelled);
  Complete();
  EXPECT_EQ(ErrorOf(1), std::nullopt);
  reads_->CancelAll();
  EXPECT_EQ(ErrorOf(2), ErrorCode::kCancelled);
  EXPECT_TRUE(reads_->empty());
  TierStats stats;
  reads_->AddStats(stats);
  EXPECT_EQ(stats.reads_failed, 0u);
}

TEST_F(DiskReadQueueTest, ABadFileHasGoneWhenItsReadIsAnswered) {
  std::fstream file(PathOf(0), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(kPageHeaderBytes + 5);
  file.put('?');
  file.close();
  Add(0);
  reads_->Start();
  OnFiles(1);
  Complete();
  reads_->CancelAll();
  EXPECT_TRUE(done_.empty()) << "it is being moved away, cancelled or not";
  OnFiles(1);
  EXPECT_EQ(ErrorOf(0), ErrorCode::kCorrupt);
  EXPECT_FALSE(std::filesystem::exists(PathOf(0)));
  EXPECT_FALSE(context_->index.Contains(chain_[0]));
  EXPECT_TRUE(reads_->empty());
}

TEST_F(DiskReadQueueTest, AChunkThatHasGoneIsAMissAndNoFailure) {
  std::filesystem::remove(PathOf(0));
  Add(0);
  reads_->Start();
  OnFiles(1);
  EXPECT_EQ(ErrorOf(0), ErrorCode::kNotFound);
  EXPECT_TRUE(context_->index.IsMissing(chain_[0]));
  EXPECT_FALSE(context_->index.IsUnreadable(chain_[0]));
  TierStats stats;
  reads_->AddStats(stats);
  EXPECT_EQ(stats.reads_failed, 0u);
}

TEST_F(DiskReadQueueTest, TooFewDescriptorsAreAnErrorOfTheReadAlone) {
  fs_.Set({.open_error = 1, .read_errno = EMFILE});
  Add(0);
  reads_->Start();
  OnFiles(1);
  EXPECT_EQ(ErrorOf(0), ErrorCode::kIo) << "a tier says nothing else";
  EXPECT_FALSE(context_->index.IsUnreadable(chain_[0])) << "it is not the file that is bad";
}

TEST_F(DiskReadQueueTest, WhereTheDeviceDoesNotAnswerNobodyWaitsForIt) {
  for (size_t i = 0; i < 4; ++i) Add(i);
  reads_->Start();
  OnFiles(2);
  context_->health.Check(Clock::Real().Now() + Seconds(1000));
  reads_->Start();
  EXPECT_EQ(ErrorOf(2), ErrorCode::kIo);
  EXPECT_EQ(ErrorOf(3), ErrorCode::kIo);
  EXPECT_EQ(done_.size(), 2u) << "the others' buffers are the device's";
  EXPECT_TRUE(context_->index.Contains(chain_[2])) << "its silence says nothing of the chunk";
  // Probes go well, but the reads that it has forgotten are all that there may be.
  context_->health.Succeeded();
  reads_->Start();
  EXPECT_FALSE(context_->health.MayRead());
  EXPECT_TRUE(context_->health.answers());
  Complete();
  reads_->Start();
  EXPECT_TRUE(context_->health.MayRead()) << "one has come back";
  reads_->CancelAll();
  reads_->OnCompletion(queue_.Take(0, Fail(ErrorCode::kCancelled, "cancelled")));
}

TEST_F(DiskReadQueueTest, AFileUsedLongAgoIsTouchedAfterItsAnswer) {
  DiskIndex& index = context_->index;
  index.Remove(chain_[0]);
  index.Add(chain_[0], {.bytes = options_.layout.page_bytes(), .mtime_s = 1000});
  for (size_t i = 0; i < 2; ++i) Add(i);
  reads_->Start();
  OnFiles(2);
  Complete();
  Complete();
  EXPECT_EQ(touched_, std::vector<std::string>{PathOf(0)}) << "the other is new";
}

}  // namespace
}  // namespace kvcake
