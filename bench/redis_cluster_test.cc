#include "bench/redis_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/temp_dir_testing.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;

// Programs of Redis's names that do what a test says.
class RedisClusterTest : public testing::Test {
 protected:
  RedisClusterTest() {
    Write("redis-server", "echo Ready to accept connections; exec /bin/sleep 100");
    setenv("PATH", dir_.path().c_str(), 1);
  }
  ~RedisClusterTest() override { setenv("PATH", path_.c_str(), 1); }

  void Write(const std::string& name, const std::string& script) {
    const std::string file = dir_.path() + "/" + name;
    std::ofstream(file) << "#!/bin/sh\n" << script << "\n";
    chmod(file.c_str(), 0700);
  }

  std::string Failure() {
    const auto cluster = RedisCluster::Start(1, dir_.path() + "/cluster");
    return cluster ? "it starts" : cluster.error().message;
  }

  const TempDir dir_;
  const std::string path_ = std::getenv("PATH");
};

TEST_F(RedisClusterTest, SaysWhatRedisRefuses) {
  Write("redis-cli", "echo ERR Slot 0 is already busy");
  EXPECT_EQ(Failure(),
            "Redis answers CLUSTER ADDSLOTSRANGE 0 16383 with: ERR Slot 0 is already busy");
}

TEST_F(RedisClusterTest, SaysWhyRedisCannotBeAsked) {
  Write("redis-cli", "echo Could not connect >&2; exit 1");
  EXPECT_THAT(Failure(), HasSubstr("/redis-cli fails to ask Redis CLUSTER ADDSLOTSRANGE 0 16383, "
                                   "exit code 1: Could not connect"));
}

TEST_F(RedisClusterTest, StartsOnceAllSlotsCount) {
  Write("redis-cli",
        "if [ $4 = INFO ]; then echo cluster_state:ok cluster_slots_ok:16384 "
        "cluster_known_nodes:1; else echo OK; fi");
  EXPECT_EQ(Failure(), "it starts");
}

}  // namespace
}  // namespace kvcake::bench
