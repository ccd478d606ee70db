#include "bench/haproxy_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <sstream>

#include "base/source_dir_testing.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::array<uint16_t, 2> kPorts = {15001, 15002};

TEST(HaproxyConfig, NamesItsServersAndHowTheyAreChosen) {
  const std::string next = HaproxyConfig(Balance::kRoundRobin, 15000, kPorts);
  EXPECT_THAT(next, HasSubstr("bind 127.0.0.1:15000\n"));
  EXPECT_THAT(next, HasSubstr("  balance roundrobin\n  server s0 127.0.0.1:15001\n"
                              "  server s1 127.0.0.1:15002\n"));
  EXPECT_THAT(next, Not(HasSubstr("{")));
  const std::string prefix = HaproxyConfig(Balance::kPrefix, 15000, kPorts);
  EXPECT_THAT(prefix, Not(HasSubstr("roundrobin")));
  EXPECT_THAT(prefix, HasSubstr("option http-buffer-request\n")) << "else there is no body yet";
  EXPECT_THAT(prefix, HasSubstr("balance hash req.body,bytes(0,1024)\n"));
}

// Else the bench measures another configuration than the one that users are given.
TEST(HaproxyConfig, AgreesWithTheOneThatIsDeployed) {
  std::ifstream file(SourceDir() + "/deploy/haproxy.cfg");
  ASSERT_TRUE(file);
  std::ostringstream deployed;
  deployed << file.rdbuf();
  for (const char* line :
       {"balance roundrobin\n", "balance hash req.body,bytes(0,1024)\n", "hash-type consistent\n",
        "hash-balance-factor 200\n", "option http-buffer-request\n", "option redispatch 1\n",
        "retries 1\n", "retry-on conn-failure empty-response 503\n"}) {
    EXPECT_THAT(deployed.str(), HasSubstr(line));
    EXPECT_THAT(
        HaproxyConfig(Balance::kRoundRobin, 1, kPorts) + HaproxyConfig(Balance::kPrefix, 1, kPorts),
        HasSubstr(line));
  }
}

constexpr const char* kLog =
    "[NOTICE]   (1) : haproxy version is 2.6.12\n"
    "request s0 -- 200\n"
    "request s1 SD 200\n"
    "request s1 -- 200\n"
    "request s0 CD 200\n"
    "request s1 SH 502\n"
    "request <NOSRV> SC 503\n"
    "Server servers/s1 is DOWN, reason: Layer4 connection problem\n"
    "request s0 --";

TEST(HaproxyLog, CountsRequestsAndThoseThatAServerDidNotEnd) {
  const auto counts = CountBalanced(kLog);
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts.at("s0").all, 3);
  EXPECT_EQ(counts.at("s0").cut, 0) << "clients may go";
  EXPECT_EQ(counts.at("s1").all, 3);
  EXPECT_EQ(counts.at("s1").cut, 2);
  EXPECT_EQ(counts.at("<NOSRV>").cut, 0) << "no server had it";
  EXPECT_TRUE(CountBalanced("").empty());
}

TEST(HaproxyLog, TellsWhatBecameOfAServer) {
  std::string log = kLog;
  EXPECT_EQ(LastState(log, "s1"), "DOWN");
  EXPECT_EQ(LastState(log, "s0"), "") << "nothing was said of it";
  log += "\n[WARNING]  (1) : Server servers/s1 is UP, reason: Layer7 check passed\n";
  EXPECT_EQ(LastState(log, "s1"), "UP");
  EXPECT_EQ(LastState(log, "s"), "");
  log += "Server servers/s1 is DOWN\n";
  EXPECT_EQ(LastState(log, "s1"), "DOWN");
}

}  // namespace
}  // namespace kvcake::bench
