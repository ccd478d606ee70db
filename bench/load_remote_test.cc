#include "bench/load_remote.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/redis_server_testing.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;

Status MeasureQuarters(const std::string& store) {
  LoadOptions options;
  options.store = store;
  options.chunk_bytes = {256 << 10};
  options.bytes = 1 << 20;
  options.repeats = 1;
  return MeasureRemote(options);
}

TEST(LoadRemote, RemovesWhatItHasWrittenAlsoWhereReadingFails) {
  const RedisServer open;
  ASSERT_TRUE(MeasureQuarters(fmt::format("redis://127.0.0.1:{}", open.port())));
  EXPECT_THAT(open.Cli({"DBSIZE"}), testing::StartsWith("0"));

  const RedisServer unreadable;
  unreadable.Cli({"ACL", "SETUSER", "default", "-get", "-getrange"});
  ASSERT_FALSE(MeasureQuarters(fmt::format("redis://127.0.0.1:{}", unreadable.port())));
  EXPECT_THAT(unreadable.Cli({"INFO", "commandstats"}), HasSubstr("cmdstat_set:"));
  EXPECT_THAT(unreadable.Cli({"DBSIZE"}), testing::StartsWith("0"));
}

TEST(LoadRemote, RefusesTlsBeforeAnythingIsWritten) {
  // Nobody listens there.
  const Status measured = MeasureQuarters("rediss://127.0.0.1:1");
  ASSERT_FALSE(measured);
  EXPECT_EQ(measured.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(measured.error().message, HasSubstr("TLS"));
}

TEST(LoadRemote, LogsInWithAnyPassword) {
  const RedisServer locked({"--requirepass", "two words \"and\" more"});
  const Status measured = MeasureQuarters(
      fmt::format("redis://:two%20words%20%22and%22%20more@127.0.0.1:{}", locked.port()));
  EXPECT_TRUE(measured) << measured.error().message;
}

}  // namespace
}  // namespace kvcake::bench
