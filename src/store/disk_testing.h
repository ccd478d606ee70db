// What the tests of a disk tier's parts share: options, and a queue and files that do what the test
// says.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/empty_file_testing.h"
#include "io/faulty_file_system_testing.h"
#include "io/io_queue.h"
#include "store/disk_tier_options.h"
#include "store/tier_testing.h"

namespace kvcake::testing_util {

inline DiskTierOptions SmallOptions(const std::string& dir) {
  DiskTierOptions options;
  options.dir = dir;
  options.layout = SmallLayout();
  options.root = Root();
  return options;
}

// Calls what a test wants to happen at a call, with its path; set before there are threads.
class HookedFileSystem : public FaultyFileSystem {
 public:
  using Hook = std::function<void(const std::string& path)>;
  HookedFileSystem() : FaultyFileSystem(FileSystem::Real(), 1) {}

  Result<std::vector<DirEntry>> List(const std::string& path) override {
    if (before_list) before_list(path);
    auto entries = FaultyFileSystem::List(path);
    if (after_list) after_list(path);
    return entries;
  }
  Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) override {
    if (before_create) before_create(path);
    return FaultyFileSystem::Create(path, direct);
  }
  Status Remove(const std::string& path) override {
    if (before_remove) before_remove(path);
    return FaultyFileSystem::Remove(path);
  }

  Status Touch(const std::string& path, int64_t mtime_s) override {
    ++touches;
    return keeps_times ? FaultyFileSystem::Touch(path, mtime_s) : Status();
  }
  Result<std::unique_ptr<FileLock>> TryLock(const std::string& path) override {
    if (before_lock) before_lock(path);
    return FaultyFileSystem::TryLock(path);
  }
  Result<SpaceInfo> Space(const std::string& path) override {
    if (before_space) before_space(path);
    return space ? *space : FaultyFileSystem::Space(path);
  }

  Hook before_list, after_list, before_create, before_remove, before_lock, before_space;
  std::optional<Result<SpaceInfo>> space;  // in the place of the real one
  std::atomic<int> touches = 0;
  bool keeps_times = true;  // else a Touch changes nothing
};

// Counts itself in `open` while it is there.
class FakeFile : public EmptyFile {
 public:
  explicit FakeFile(int& open) : EmptyFile("fake"), open_(open) { ++open_; }
  ~FakeFile() override { --open_; }
  bool direct() const override { return true; }

 private:
  int& open_;
};

// Takes what is submitted and completes nothing: the test does.
class FakeQueue : public IoQueue {
 public:
  bool HasRoom(uint64_t) const override { return true; }
  Status Submit(const IoOp& op) override {
    if (!refuses) submitted.push_back(op);
    return refuses ? Status(Fail(ErrorCode::kResourceExhausted, "injected: full")) : Status();
  }
  void Cancel(uint64_t user_data) override { cancelled.push_back(user_data); }
  Status Wait(std::vector<IoCompletion>&, std::optional<TimePoint>) override { return {}; }
  void Wake() override {}
  int in_flight() const override { return static_cast<int>(submitted.size()); }

  // The completion of the operation, which is not there any more.
  IoCompletion Take(size_t i, Result<uint64_t> bytes) {
    const IoCompletion completion{submitted.at(i).user_data, std::move(bytes)};
    submitted.erase(submitted.begin() + static_cast<std::ptrdiff_t>(i));
    return completion;
  }

  bool refuses = false;
  std::vector<IoOp> submitted;
  std::vector<uint64_t> cancelled;
};

}  // namespace kvcake::testing_util
