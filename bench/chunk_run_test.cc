#include "bench/chunk_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/temp_dir_testing.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kKiB = 1 << 10;

Result<std::unique_ptr<ChunkRun>> Open(const std::string& dir, uint64_t chunk_bytes) {
  return ChunkRun::Open({.dir = dir}, chunk_bytes, chunk_bytes, NumericPath::kUnknown);
}

TEST(ChunkRun, ChunksAreAsLargeAsItIsTold) {
  const TempDir dir;
  for (const uint64_t kib : {256, 768, 1024, 1536, 4096}) {
    const auto run = Open(dir.path(), kib * kKiB).value();
    EXPECT_GE(run->page_bytes(), kib * kKiB);
    EXPECT_LE(run->page_bytes(), kib * kKiB + 4 * kKiB) << "and a header";
  }
}

TEST(ChunkRun, RefusesSizesThatNoChunkHas) {
  const TempDir dir;
  for (const uint64_t kib : {300, 1100}) {
    const auto run = Open(dir.path(), kib * kKiB);
    ASSERT_FALSE(run) << kib;
    EXPECT_EQ(run.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(run.error().message, testing::HasSubstr("--chunk-bytes"));
  }
}

}  // namespace
}  // namespace kvcake::bench
