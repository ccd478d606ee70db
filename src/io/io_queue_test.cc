// One suite for every queue: io_uring where the kernel allows it, helper threads everywhere.
#include "io/io_queue.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/open_descriptors_testing.h"
#include "base/temp_dir_testing.h"
#include "io/empty_file_testing.h"
#include "io/faulty_file_system_testing.h"

namespace kvcake {
namespace {

struct QueueCase {
  const char* name;
  std::function<Result<std::unique_ptr<IoQueue>>(const IoQueueOptions&)> make;
  bool direct;
};

const QueueCase kCases[] = {
    {"uring_direct", NewUringQueue, true},
    {"uring_buffered", NewUringQueue, false},
    {"blocking_direct", NewBlockingQueue, true},
    {"blocking_buffered", NewBlockingQueue, false},
};

constexpr size_t kFileBytes = 64 * 4096;

class IoQueueTest : public testing::TestWithParam<QueueCase> {
 protected:
  void SetUp() override {
    memory_.reset(static_cast<std::byte*>(aligned_alloc(4096, 2 * kFileBytes)));
    for (size_t i = 0; i < kFileBytes; ++i) memory_[i] = static_cast<std::byte>(i / 7 + i / 4096);
    auto out = FileSystem::Real().Create(dir_ + "/file", false);
    const std::span<const std::byte> all(memory_.get(), kFileBytes);
    CHECK(out && WriteFully(**out, {&all, 1}, 0));
    file_ = std::move(*FileSystem::Real().OpenRead(dir_ + "/file", GetParam().direct));
    IoQueueOptions options;
    options.requests_max = 8;
    options.bytes_max = kFileBytes;
    Make(options);
  }
  void Make(const IoQueueOptions& options) {
    auto queue = GetParam().make(options);
    if (!queue) GTEST_SKIP() << queue.error().message;
    queue_ = std::move(*queue);
  }
  // Where reads land; the first half holds what the file holds.
  std::span<std::byte> landing() { return {memory_.get() + kFileBytes, kFileBytes}; }
  IoOp ReadOp(uint64_t offset, size_t bytes, uint64_t user_data) {
    return {file_.get(), offset, landing().subspan(offset % kFileBytes, bytes), user_data};
  }
  std::map<uint64_t, Result<uint64_t>> WaitForAll() {
    std::map<uint64_t, Result<uint64_t>> results;
    std::vector<IoCompletion> completions;
    while (queue_->in_flight() > 0) {
      completions.clear();
      EXPECT_TRUE(queue_->Wait(completions, std::nullopt));
      for (auto& c : completions) EXPECT_TRUE(results.emplace(c.user_data, c.bytes).second);
    }
    return results;
  }
  bool Landed(size_t begin, size_t end) {
    return std::memcmp(memory_.get() + begin, landing().data() + begin, end - begin) == 0;
  }

  struct Free {
    void operator()(std::byte* p) const { free(p); }
  };
  const TempDir temp_;
  const std::string dir_ = temp_.path();
  std::unique_ptr<std::byte[], Free> memory_;
  std::unique_ptr<File> file_;
  std::unique_ptr<IoQueue> queue_;
};

TEST_P(IoQueueTest, ReadsLandWhereTheyShould) {
  if (!queue_) return;
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(queue_->Submit(ReadOp(i * kFileBytes / 8, kFileBytes / 8, i)));
  }
  const auto results = WaitForAll();
  ASSERT_EQ(results.size(), 8u);
  for (const auto& [id, bytes] : results) EXPECT_EQ(*bytes, kFileBytes / 8) << id;
  EXPECT_TRUE(Landed(0, kFileBytes));
}

TEST_P(IoQueueTest, BoundsAreKept) {
  if (!queue_) return;
  EXPECT_TRUE(queue_->HasRoom(10 * kFileBytes)) << "an idle queue takes any size";
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(queue_->Submit(ReadOp(i * 4096, 4096, i)));
  EXPECT_FALSE(queue_->HasRoom(1));
  EXPECT_EQ(queue_->Submit(ReadOp(0, 4096, 99)).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(WaitForAll().size(), 8u);
  ASSERT_TRUE(queue_->Submit(ReadOp(0, kFileBytes - 4096, 1)));
  EXPECT_TRUE(queue_->HasRoom(4096));
  EXPECT_FALSE(queue_->HasRoom(8192));
  EXPECT_EQ(WaitForAll().size(), 1u);
}

TEST_P(IoQueueTest, TheEndOfTheFileIsAShortRead) {
  if (!queue_) return;
  std::filesystem::resize_file(dir_ + "/file", 10000);
  ASSERT_TRUE(queue_->Submit(ReadOp(4096, 16384, 1)));
  ASSERT_TRUE(queue_->Submit(ReadOp(32768, 4096, 2)));
  const auto results = WaitForAll();
  EXPECT_EQ(*results.at(1), 10000u - 4096);
  EXPECT_EQ(*results.at(2), 0u);
  EXPECT_TRUE(Landed(4096, 10000));
}

TEST_P(IoQueueTest, ErrorsNameTheFile) {
  if (!queue_) return;
  auto write_only = FileSystem::Real().Create(dir_ + "/write_only", false);
  ASSERT_TRUE(write_only);
  IoOp op = ReadOp(0, 4096, 1);
  op.file = write_only->get();
  ASSERT_TRUE(queue_->Submit(op));
  const auto results = WaitForAll();
  ASSERT_FALSE(results.at(1));
  EXPECT_EQ(results.at(1).error().code, ErrorCode::kIo);
  EXPECT_NE(results.at(1).error().message.find("write_only"), std::string::npos);
}

TEST_P(IoQueueTest, CancelledOperationsAreAnsweredOnce) {
  if (!queue_) return;
  for (int round = 0; round < 50; ++round) {
    for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(queue_->Submit(ReadOp(i * 4096, 4096, i)));
    for (uint64_t i = 0; i < 8; i += 2) queue_->Cancel(i);
    queue_->Cancel(12345);
    const auto results = WaitForAll();
    ASSERT_EQ(results.size(), 8u);
    for (const auto& [id, bytes] : results) {
      if (bytes) {
        EXPECT_EQ(*bytes, 4096u);
      } else {
        EXPECT_EQ(bytes.error().code, ErrorCode::kCancelled);
        EXPECT_EQ(id % 2, 0u);
      }
    }
  }
}

// The read end of a pipe: reads of it stall until something is written.
class PipeFile : public EmptyFile {
 public:
  PipeFile() : EmptyFile("pipe") { CHECK(pipe(ends_) == 0); }
  ~PipeFile() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  void Feed(std::span<const std::byte> bytes) {
    CHECK(write(ends_[1], bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }

  Result<size_t> ReadAt(std::span<std::byte> buffer, uint64_t) override {
    const ssize_t n = read(ends_[0], buffer.data(), buffer.size());
    CHECK(n >= 0);
    return static_cast<size_t>(n);
  }
  Result<size_t> WriteAt(std::span<const std::span<const std::byte>>, uint64_t) override {
    return Fail(ErrorCode::kIo, "not for writing");
  }
  int fd() const override { return ends_[0]; }

 private:
  int ends_[2];
};

TEST_P(IoQueueTest, AStalledOperationEndsCancelled) {
  PipeFile pipe;
  IoQueueOptions options;
  options.helper_threads = 1;  // the first read holds it, the second waits
  Make(options);
  if (!queue_) return;
  for (uint64_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(queue_->Submit({&pipe, 0, landing().subspan(i * 4096, 4096), i}));
  }
  // The helper may take the first at any time, but never the second.
  queue_->Cancel(1);
  std::vector<IoCompletion> completions;
  const TimePoint deadline = Clock::Real().Now() + Seconds(60);
  while (completions.empty() && Clock::Real().Now() < deadline) {
    ASSERT_TRUE(queue_->Wait(completions, deadline));
  }
  ASSERT_EQ(completions.size(), 1u) << "Cancel did nothing";
  EXPECT_EQ(completions[0].user_data, 1u);
  ASSERT_FALSE(completions[0].bytes);
  EXPECT_EQ(completions[0].bytes.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(queue_->in_flight(), 1);
  pipe.Feed({memory_.get(), 4096});
  EXPECT_EQ(*WaitForAll().at(0), 4096u);
  EXPECT_TRUE(Landed(0, 4096));
  queue_.reset();
}

// A part has been read when Cancel comes: the kernel has nothing to cancel then, and the rest would
// be waited for.
TEST(UringQueueTest, ACancelledOperationDoesNotGoOn) {
  PipeFile pipe;
  const auto queue = NewUringQueue({});
  if (!queue) GTEST_SKIP() << queue.error().message;
  std::vector<std::byte> bytes(8192);
  pipe.Feed(std::span(bytes).first(4096));
  ASSERT_TRUE((*queue)->Submit({&pipe, 0, bytes, 1}));
  (*queue)->Cancel(1);
  std::vector<IoCompletion> completions;
  const TimePoint deadline = Clock::Real().Now() + Seconds(60);
  while (completions.empty() && Clock::Real().Now() < deadline) {
    ASSERT_TRUE((*queue)->Wait(completions, deadline));
  }
  if (completions.empty()) pipe.Feed(std::span(bytes).last(4096));  // what the destructor awaits
  ASSERT_EQ(completions.size(), 1u) << "it was begun again";
  ASSERT_FALSE(completions[0].bytes);
  EXPECT_EQ(completions[0].bytes.error().code, ErrorCode::kCancelled);
  EXPECT_EQ((*queue)->in_flight(), 0);
}

TEST_P(IoQueueTest, AWakeEndsAWait) {
  if (!queue_) return;
  std::vector<IoCompletion> completions;
  for (int round = 0; round < 20; ++round) {
    std::thread other([&] { queue_->Wake(); });
    EXPECT_TRUE(queue_->Wait(completions, std::nullopt));
    other.join();
  }
  queue_->Wake();  // one that comes before the wait is not lost
  EXPECT_TRUE(queue_->Wait(completions, std::nullopt));
  EXPECT_TRUE(completions.empty());
  const TimePoint deadline = Clock::Real().Now() + Seconds(0.01);
  EXPECT_TRUE(queue_->Wait(completions, deadline));
  EXPECT_GE(Clock::Real().Now(), deadline) << "one wake ends one wait";
}

TEST_P(IoQueueTest, AWaitEndsAtItsDeadline) {
  if (!queue_) return;
  std::vector<IoCompletion> completions;
  const TimePoint deadline = Clock::Real().Now() + Seconds(0.01);
  EXPECT_TRUE(queue_->Wait(completions, deadline));
  EXPECT_GE(Clock::Real().Now(), deadline);
  EXPECT_TRUE(completions.empty());
  EXPECT_TRUE(queue_->Wait(completions, TimePoint{})) << "one that has passed only polls";
}

TEST_P(IoQueueTest, TheDestructorWaitsForTheKernel) {
  if (!queue_) return;
  for (uint64_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(queue_->Submit(ReadOp(i * kFileBytes / 8, kFileBytes / 8, i)));
  }
  queue_.reset();
  EXPECT_TRUE(Landed(0, kFileBytes));
}

TEST_P(IoQueueTest, ItsDescriptorsGoWithIt) {
  queue_.reset();
  const size_t before = testing_util::OpenDescriptors();
  Make({});
  if (!queue_) return;
  queue_.reset();
  EXPECT_EQ(testing_util::OpenDescriptors(), before);
}

INSTANTIATE_TEST_SUITE_P(Queues, IoQueueTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(FaultyQueueTest, ShortReadsAreContinuedForBothKindsOfFile) {
  const TempDir temp;
  const std::string& dir = temp.path();
  FaultyFileSystem fs(FileSystem::Real(), 3);
  std::string text(50000, 0);
  std::mt19937 random(1);
  for (char& c : text) c = static_cast<char>(random());
  ASSERT_TRUE(WriteText(fs, dir + "/file", text));
  fs.Set({.short_read = 0.9});
  auto* memory = static_cast<std::byte*>(aligned_alloc(4096, 57344));
  for (bool direct : {false, true}) {
    auto file = fs.OpenRead(dir + "/file", direct);
    auto queue = fs.NewQueue({});
    ASSERT_TRUE(file && queue);
    for (uint64_t round = 0; round < 50; ++round) {
      std::memset(memory, 0, 57344);
      ASSERT_TRUE((*queue)->Submit({file->get(), 0, std::span(memory, 57344), round}));
      std::vector<IoCompletion> completions;
      while (completions.empty()) ASSERT_TRUE((*queue)->Wait(completions, std::nullopt));
      ASSERT_EQ(*completions[0].bytes, text.size());
      ASSERT_EQ(std::memcmp(memory, text.data(), text.size()), 0);
    }
  }
  EXPECT_GT(fs.faults(), 100u);
  free(memory);
}

}  // namespace
}  // namespace kvcake
