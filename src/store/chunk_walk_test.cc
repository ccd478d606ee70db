#include "store/chunk_walk.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace kvcake
