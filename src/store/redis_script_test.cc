// What a client, and claims, make of replies that servers give at rare moments.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <thread>

#include "store/redis_claims.h"
#include "store/redis_client.h"
#include "store/scripted_redis_testing.h"
#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::ElementsAre;
using testing::HasSubstr;
using Words = ScriptedRedis::Words;

constexpr const char* kNil = "$-1\r\n";

std::string Bulk(const std::string& text) {
  return fmt::format("${}\r\n{}\r\n", text.size(), text);
}

class RedisScriptTest : public testing::Test {
 protected:
  ~RedisScriptTest() override { Close(); }

  void Open(RedisClientOptions options) { client_.emplace(context_, std::move(options)); }
  // A client of a cluster that begins with this node, and looks again as soon as it wants to.
  void OpenCluster(const ScriptedRedis& node, Seconds refresh_min = Seconds(0)) {
    Open({.seeds = {{"127.0.0.1", node.port()}},
          .is_cluster = true,
          .retry_min = Seconds(3600),
          .retry_max = Seconds(3600),
          .refresh_min = refresh_min});
  }
  void Close() {
    if (!client_) return;
    bool closed = false;
    client_->Close([&] { closed = true; });
    while (!closed) context_.run_one();
    client_.reset();
  }
  template <typename Done>
  bool RunUntil(Done done) {
    const TimePoint until = Clock::Real().Now() + kPatience;
    while (!done() && Clock::Real().Now() < until) {
      context_.run_one_for(std::chrono::seconds(1));
    }
    return done();
  }
  std::string Get(const std::string& key) {
    std::optional<std::string> answer;
    client_->Send(key, {.words = {"GET", key}, .done = [&](Result<RespReply> reply) {
                          answer = reply ? reply->text : reply.error().message;
                        }});
    RunUntil([&] { return answer.has_value(); });
    return answer.value_or("no answer");
  }
  // All slots are those of one node, whose host is that of who says so.
  static std::string AllSlotsAt(uint16_t port) {
    return fmt::format("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\n?\r\n:{}\r\n", port);
  }

  boost::asio::io_context context_;
  const boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      context_.get_executor()};
  std::optional<RedisClient> client_;
  int looks_ = 0, gets_ = 0;
};

TEST_F(RedisScriptTest, ASlotThatHasMovedIsAskedForWhereItIsFromThenOn) {
  uint16_t port = 0;
  ScriptedRedis second(context_, [](const Words&) { return Bulk("value"); });
  ScriptedRedis first(context_, [&](const Words& words) {
    if (words[0] == "CLUSTER") return ++looks_, AllSlotsAt(port);
    ++gets_;
    return fmt::format("-MOVED {} :{}\r\n", RedisSlot("foo"), second.port());
  });
  port = first.port();
  OpenCluster(first, /*refresh_min=*/Seconds(3600));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Get("foo"), "value");
  EXPECT_EQ(gets_, 1);
  EXPECT_EQ(looks_, 1) << "not as often as somebody wants to";
}

TEST_F(RedisScriptTest, WhileNoMoreConnectionsAreToBeHadTheOneThatIsUpServes) {
  ScriptedRedis node(context_, [](const Words& words) {
    return words[0] == "GET" ? Bulk("value") : "";  // it hangs up
  });
  Open({.seeds = {{"127.0.0.1", node.port()}},
        .connections_per_node = 2,
        .retry_min = Seconds(3600),
        .retry_max = Seconds(3600)});
  // The second command is sent while the first one is under way.
  const auto both = [&](const std::string& second) {
    std::vector<bool> answered;
    for (const std::string& word : {std::string("GET"), second}) {
      client_->Send("foo", {.words = {word, "foo"}, .done = [&](Result<RespReply> reply) {
                              answered.push_back(reply.has_value());
                            }});
    }
    RunUntil([&] { return answered.size() == 2; });
    return std::count(answered.begin(), answered.end(), true);
  };
  EXPECT_EQ(both("QUIT"), 1);
  EXPECT_EQ(both("GET"), 2);
  EXPECT_EQ(node.connections(), 2);
}

TEST_F(RedisScriptTest, EverySlotOfARangeIsItsNodes) {
  uint16_t port = 0;
  ScriptedRedis node(context_, [&](const Words& words) {
    return words[0] == "CLUSTER" ? AllSlotsAt(port) : Bulk("value");
  });
  port = node.port();
  OpenCluster(node);
  for (const int slot : {0, kRedisSlots - 1}) {
    std::string key = "0";
    for (int i = 1; RedisSlot(key) != slot; ++i) key = std::to_string(i);
    EXPECT_EQ(Get(key), "value") << slot;
  }
}

TEST_F(RedisScriptTest, WhereOneSlotHasMovedAllAreLookedForAgain) {
  ScriptedRedis second(context_, [](const Words&) { return Bulk("value"); });
  uint16_t port = 0;
  ScriptedRedis first(context_, [&](const Words& words) {
    if (words[0] == "CLUSTER") return AllSlotsAt(looks_++ == 0 ? port : second.port());
    return fmt::format("-MOVED {} :{}\r\n", RedisSlot("foo"), second.port());
  });
  port = first.port();
  OpenCluster(first);
  EXPECT_EQ(Get("foo"), "value");
  EXPECT_TRUE(RunUntil([&] { return looks_ == 2; }));
}

TEST_F(RedisScriptTest, ASlotThatIsNowhereEnds) {
  uint16_t port = 0;
  ScriptedRedis node(context_, [&](const Words& words) {
    if (words[0] == "CLUSTER") return AllSlotsAt(port);
    return ++gets_ > 20 ? Bulk("value")
                        : fmt::format("-MOVED {} 127.0.0.1:{}\r\n", RedisSlot("foo"), port);
  });
  port = node.port();
  OpenCluster(node);
  EXPECT_THAT(Get("foo"), HasSubstr("redirects to nowhere"));
  EXPECT_EQ(gets_, 1 + 5);
}

TEST_F(RedisScriptTest, ANodeThatCannotAnswerHasTheSlotsLookedForAgain) {
  for (const std::string word : {"CLUSTERDOWN", "READONLY", "MASTERDOWN"}) {
    looks_ = 0;
    uint16_t port = 0;
    ScriptedRedis node(context_, [&](const Words& words) {
      if (words[0] == "CLUSTER") return ++looks_, AllSlotsAt(port);
      return "-" + word + " for a while\r\n";
    });
    port = node.port();
    OpenCluster(node);
    EXPECT_NE(Get("foo"), "no answer");
    EXPECT_TRUE(RunUntil([&] { return looks_ == 2; })) << word;
    Close();
  }
}

// The node itself is not to be tried again for an hour.
TEST_F(RedisScriptTest, WhoHasTheSlotsOfALostNodeIsAskedUntilSomebodyHas) {
  uint16_t port = 0;
  bool is_replaced = false;
  ScriptedRedis lost(context_, [](const Words&) { return ""; });
  ScriptedRedis other(context_, [&](const Words& words) {
    if (words[0] == "CLUSTER") return ++looks_, AllSlotsAt(is_replaced ? port : lost.port());
    return Bulk("value");
  });
  port = other.port();
  OpenCluster(other);
  EXPECT_NE(Get("foo"), "value");
  ASSERT_TRUE(RunUntil([&] { return looks_ == 2; }));
  is_replaced = true;
  EXPECT_TRUE(RunUntil([&] { return Get("foo") == "value"; }));
}

TEST_F(RedisScriptTest, WhereANodeIsLostOthersAreAskedWhoHasItsSlots) {
  uint16_t port = 0;
  ScriptedRedis lost(context_, [](const Words&) { return ""; });
  ScriptedRedis other(context_, [&](const Words& words) {
    if (words[0] == "CLUSTER") return AllSlotsAt(looks_++ == 0 ? lost.port() : port);
    return Bulk("value");
  });
  port = other.port();
  OpenCluster(other);
  EXPECT_NE(Get("foo"), "value");
  EXPECT_TRUE(RunUntil([&] { return looks_ == 2; }));
  EXPECT_TRUE(RunUntil([&] { return Get("foo") == "value"; }));
}

TEST_F(RedisScriptTest, WhatIsAskedOfAClusterThatWasNotToBeFoundWaitsUntilItIs) {
  uint16_t port = 0;
  ScriptedRedis node(context_, [&](const Words& words) {
    if (words[0] != "CLUSTER") return Bulk("value");
    return looks_++ == 0 ? "-ERR not yet\r\n" : AllSlotsAt(port);
  });
  port = node.port();
  OpenCluster(node);
  EXPECT_NE(Get("foo"), "value");
  EXPECT_EQ(Get("foo"), "value");
}

// Nothing was due from it meanwhile, whether anybody looked or not.
TEST_F(RedisScriptTest, AConnectionThatWasIdleForLongIsUsedAgain) {
  ScriptedRedis node(context_, [](const Words&) { return Bulk("value"); });
  Open({.seeds = {{"127.0.0.1", node.port()}},
        .connection = {.stall_timeout = Seconds(1), .reply_timeout = Seconds(1)}});
  EXPECT_EQ(Get("foo"), "value");
  context_.run_for(std::chrono::milliseconds(1100));
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(Get("foo"), "value");
  EXPECT_EQ(node.connections(), 1);
}

// The name of the one server is another's after a failover.
TEST_F(RedisScriptTest, AServerThatIsNoMasterIsConnectedToAnew) {
  for (const std::string word : {"READONLY", "MASTERDOWN"}) {
    ScriptedRedis server(context_, [&](const Words&) { return "-" + word + " no more\r\n"; });
    Open({.seeds = {{"127.0.0.1", server.port()}}, .connections_per_node = 1});
    for (int i = 0; i < 2; ++i) EXPECT_THAT(Get("foo"), HasSubstr(word));
    EXPECT_EQ(server.connections(), 2) << word;
    Close();
  }
}

// Claims at a server that has the values that a test gives it.
class RedisClaimsScriptTest : public RedisScriptTest {
 protected:
  using enum ClaimState;

  RedisClaimsScriptTest() {
    Open({.seeds = {{"127.0.0.1", server_.port()}}, .connections_per_node = 1});
    claims_.emplace(*client_, [this](const ChunkKey& key) {
      return std::to_string(std::find(chain_.begin(), chain_.end(), key) - chain_.begin());
    });
  }
  ~RedisClaimsScriptTest() override { Close(); }

  std::string Answer(const Words& words) {
    const std::string& name = words[words[0] == "EVAL" ? 3 : 1];
    if (before_) before_(words[0] + " " + name);
    const auto at = values_.find(name);
    if (words[0] == "GET") return at == values_.end() ? kNil : Bulk(at->second);
    if (words[0] == "EVAL") return fmt::format(":{}\r\n", values_.erase(name));
    if (words[0] == "SET") return values_.try_emplace(name, words[2]).second ? "+OK\r\n" : kNil;
    return fmt::format(":{}\r\n", at == values_.end() ? 0 : 1);  // EXISTS, PEXPIRE
  }
  std::vector<ClaimState> Claim(std::vector<ChunkKey> keys) {
    std::optional<std::vector<ClaimState>> answer;
    claims_->Claim({.keys = std::move(keys), .lasts = kPatience, .done = [&](const auto& states) {
                      answer = states;
                    }});
    RunUntil([&] { return answer.has_value(); });
    return answer.value_or(std::vector<ClaimState>());
  }

  const std::vector<ChunkKey> chain_ = Chain(3);
  std::map<std::string, std::string> values_;       // chunks "0", "1", ...; claims "0:claim", ...
  std::function<void(const std::string&)> before_;  // a command and its name
  ScriptedRedis server_{context_, [this](const Words& words) { return Answer(words); }};
  std::optional<RedisClaims> claims_;
};

TEST_F(RedisClaimsScriptTest, AClaimOfWhatIsKeptStopsNobody) {
  values_ = {{"0", "a chunk"}, {"0:claim", "another's"}};
  EXPECT_THAT(Claim({chain_[0], chain_[1]}), ElementsAre(kStored, kMine));
}

TEST_F(RedisClaimsScriptTest, WhatAnotherTakesMeanwhileIsTheirsAndWhatIsBehindItIsGivenBack) {
  before_ = [&](const std::string& command) {
    if (command == "SET 0:claim") values_["0:claim"] = "another's";
  };
  EXPECT_THAT(Claim({chain_[0], chain_[1]}), ElementsAre(kTheirs, kNone));
  EXPECT_TRUE(RunUntil([&] { return !values_.contains("1:claim"); }));
  EXPECT_EQ(values_["0:claim"], "another's");
}

TEST_F(RedisClaimsScriptTest, AClaimThatEndsAsItIsMadeAgainIsNone) {
  ASSERT_THAT(Claim({chain_[0]}), ElementsAre(kMine));
  before_ = [&](const std::string& command) {
    if (command == "PEXPIRE 0:claim") values_.erase("0:claim");
  };
  EXPECT_THAT(Claim({chain_[0]}), ElementsAre(kNone));
}

}  // namespace
}  // namespace kvcake
