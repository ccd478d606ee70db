#include "store/chunk_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/seccomp_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

TEST(ChunkWalkTest, WithoutThreadsTheCallerVisitsAll) {
  std::vector<FoundChunk> chunks;
  for (const ChunkKey& key : Chain(20)) chunks.push_back({{Root(), key}, FileInfo{}});
  bool is_forbidden = false;
  std::set<ChunkId> visited;
  std::thread([&] {  // what is forbidden to it stays so
    is_forbidden = ForbidThreads();
    if (!is_forbidden) return;
    VisitChunks(FileSystem::Real(), chunks, 4,
                [&](ChunkFileReader&, const FoundChunk& chunk) { visited.insert(chunk.id); }, {});
  })
      .join();
  if (!is_forbidden) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(visited.size(), chunks.size());
}

TEST(ChunkWalkTest, ProgressIsToldInBytesUntilAllAreDone) {
  std::vector<FoundChunk> chunks;
  for (const ChunkKey& key : Chain(20)) chunks.push_back({{Root(), key}, FileInfo{.bytes = 100}});
  std::vector<uint64_t> done;
  VisitChunks(
      FileSystem::Real(), chunks, 4, [](ChunkFileReader&, const FoundChunk&) {},
      [&](uint64_t bytes_done, uint64_t bytes_total) {
        EXPECT_EQ(bytes_total, 2000u);
        done.push_back(bytes_done);
      });
  ASSERT_EQ(done.size(), chunks.size());
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.front(), 100u);
  EXPECT_EQ(done.back(), 2000u);
}

}  // namespace
}  // namespace kvcake
