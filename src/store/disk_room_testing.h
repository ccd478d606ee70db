// A directory that holds more than it may, and who makes room in it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "store/disk_room.h"
#include "store/disk_testing.h"

namespace kvcake {

class DiskRoomTest : public testing::Test {
 protected:
  // There is room for four chunks. The files of five are there, the first used longest ago.
  DiskRoomTest() {
    options_ = testing_util::SmallOptions(dir_.path());
    options_.capacity_bytes = 4 * options_.layout.page_bytes();
    for (size_t i = 0; i < chain_.size(); ++i) {
      WriteFile(PathOf(i), options_.layout.page_bytes(), 1000 * static_cast<int64_t>(i + 1));
    }
  }
  void Open() {
    context_.emplace(options_, fs_);
    room_.emplace(*context_);
    room_->ScanFirst();
  }
  std::string PathOf(size_t i) const {
    return StoreDir(options_.dir).ChunkPath({testing_util::Root(), chain_[i]});
  }
  int64_t TimeOf(size_t i) const { return FileSystem::Real().Stat(PathOf(i))->mtime_s; }
  int64_t Ahead() const { return now_s_ + 1000000; }
  static void WriteFile(const std::string& path, uint64_t bytes, int64_t mtime_s) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << std::string(bytes, 'x');
    ASSERT_TRUE(FileSystem::Real().Touch(path, mtime_s));
  }
  std::vector<bool> OnDisk() const {
    std::vector<bool> there;
    for (size_t i = 0; i < chain_.size(); ++i) there.push_back(std::filesystem::exists(PathOf(i)));
    return there;
  }
  TierStats Stats() const {
    TierStats stats;
    room_->AddStats(stats);
    return stats;
  }

  const int64_t now_s_ = UnixSeconds();
  TempDir dir_;
  testing_util::HookedFileSystem fs_;
  DiskTierOptions options_;
  const std::vector<ChunkKey> chain_ = testing_util::Chain(5);
  std::optional<DiskContext> context_;
  std::optional<DiskRoom> room_;
};

}  // namespace kvcake
