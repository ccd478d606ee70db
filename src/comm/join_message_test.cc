#include "comm/join_message.h"

#include <gmock/gmock.h>

namespace kvcake {
namespace {

std::string WithoutEnd(const std::string& line) {
  EXPECT_EQ(line.back(), '\n');
  return line.substr(0, line.size() - 1);
}

// A leader and a worker that talk, up to what a test wants to change.
struct Talks {
  ClusterKey key = *ClusterKey::Of("a secret of this cluster's", "test");
  LeaderTalk leader{key};
  WorkerTalk worker{key};
  Call call{
      .roster = {.chain = {7}, .addresses = {"10.0.0.1:1", "[::1]:2"}}, .facts = {1}, .rank = 1};
  bool proved = false;

  void Greet() {
    EXPECT_TRUE(worker.HearGreeting(WithoutEnd(leader.Greeting())));
    EXPECT_TRUE(leader.HearGreeting(WithoutEnd(worker.Greeting())));
  }
};

TEST(JoinMessageTest, ACallComesAsItWent) {
  Talks talks;
  talks.Greet();
  const auto call =
      talks.worker.HearCall(WithoutEnd(talks.leader.CallOf(talks.call)), &talks.proved);
  ASSERT_TRUE(call);
  EXPECT_TRUE(talks.proved);
  EXPECT_EQ(call->rank, 1);
  EXPECT_EQ(call->roster.addresses, talks.call.roster.addresses);
  EXPECT_EQ(call->roster.digest(), talks.call.roster.digest());
  EXPECT_EQ(call->facts, talks.call.facts);
  EXPECT_EQ(talks.leader.HearAnswer(WithoutEnd(talks.worker.Ready({}))),
            LeaderTalk::Answer::kReady);
  EXPECT_TRUE(talks.worker.HearGo(WithoutEnd(talks.leader.Go())));
}

// The proof of one line in another's place, of either side.
TEST(JoinMessageTest, NoProofIsAnotherOnes) {
  Talks talks;
  talks.Greet();
  const std::string call = WithoutEnd(talks.leader.CallOf(talks.call));
  ASSERT_TRUE(talks.worker.HearCall(call, &talks.proved));
  const std::string proof = call.substr(5, 64);
  EXPECT_EQ(talks.leader.HearAnswer("ready " + proof + " " + std::string(64, '0')),
            LeaderTalk::Answer::kUnproved);
  EXPECT_FALSE(talks.worker.HearGo("go " + proof));
  const std::string ready = WithoutEnd(talks.worker.Ready({}));
  EXPECT_FALSE(talks.worker.HearGo("go " + ready.substr(6, 64)));
  EXPECT_EQ(talks.leader.HearAnswer(ready), LeaderTalk::Answer::kReady);
}

// What was said in one conversation means nothing in another one of the same cluster.
TEST(JoinMessageTest, NoLineIsOfTwoConversations) {
  Talks one, other;
  for (Talks* talks : {&one, &other}) talks->Greet();
  const std::string call = WithoutEnd(one.leader.CallOf(one.call));
  const std::string other_call = WithoutEnd(other.leader.CallOf(other.call));
  (void)other.worker.HearCall(call, &other.proved);
  EXPECT_FALSE(other.proved);
  ASSERT_TRUE(one.worker.HearCall(call, &one.proved));
  ASSERT_TRUE(other.worker.HearCall(other_call, &other.proved));
  EXPECT_TRUE(one.proved && other.proved);
  const std::string ready = WithoutEnd(one.worker.Ready({}));
  EXPECT_EQ(other.leader.HearAnswer(ready), LeaderTalk::Answer::kUnproved);
  ASSERT_EQ(one.leader.HearAnswer(ready), LeaderTalk::Answer::kReady);
  ASSERT_EQ(other.leader.HearAnswer(WithoutEnd(other.worker.Ready({}))),
            LeaderTalk::Answer::kReady);
  EXPECT_FALSE(other.worker.HearGo(WithoutEnd(one.leader.Go())));
  EXPECT_TRUE(one.worker.HearGo(WithoutEnd(one.leader.Go())));
}

TEST(JoinMessageTest, EveryBitOfACallIsProved) {
  Talks talks;
  talks.Greet();
  const std::string call = WithoutEnd(talks.leader.CallOf(talks.call));
  for (size_t at = 0; at < call.size(); ++at) {
    std::string changed = call;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    bool proved = false;
    (void)talks.worker.HearCall(changed, &proved);
    EXPECT_FALSE(proved) << at;
  }
}

TEST(JoinMessageTest, EveryBitOfAnAnswerIsProved) {
  Talks talks;
  talks.Greet();
  ASSERT_TRUE(talks.worker.HearCall(WithoutEnd(talks.leader.CallOf(talks.call)), &talks.proved));
  const std::string ready = WithoutEnd(talks.worker.Ready({3}));
  for (size_t at = 0; at < ready.size(); ++at) {
    std::string changed = ready;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_NE(talks.leader.HearAnswer(changed), LeaderTalk::Answer::kReady) << at;
  }
}

TEST(JoinMessageTest, WhatIsNoLineIsNone) {
  Talks talks;
  const std::string hex(64, 'a');
  for (const std::string& line :
       {std::string(), std::string("kvcake-chain 2"), "kvcake-chain 3 " + hex,
        "kvcake-chain 2 " + hex + " ", "kvcake-chain 2 " + hex + "a",
        "kvcake-chain 2 " + std::string(64, 'A'), "kvcake-chain 2  " + hex,
        "kvcake-chain 2x" + hex}) {
    EXPECT_FALSE(talks.worker.HearGreeting(line)) << line;
  }
  talks.Greet();
  const std::string begin = "call " + hex + " " + hex + " " + hex;
  for (const std::string rest : {"", " ", " 0", " 0 ", " 1 a:1", " -1 a:1", " 0 a:1  b:2", " x a:1",
                                 " 0x a:1", " 99999999999 a:1"}) {
    EXPECT_FALSE(talks.worker.HearCall(begin + rest, &talks.proved)) << rest;
  }
  std::string many = begin + " 0";
  for (size_t i = 0; i < kRanksMax; ++i) many += " a:1";
  EXPECT_FALSE(talks.worker.HearCall(many, &talks.proved));
  for (const std::string& line : {std::string(), std::string("ready"), "ready " + hex, hex}) {
    EXPECT_EQ(talks.leader.HearAnswer(line), LeaderTalk::Answer::kStranger) << line;
  }
}

TEST(JoinMessageTest, ARefusalIsOneLineOfText) {
  Talks talks;
  const std::string line = WithoutEnd(WorkerTalk::Refused("a\n\x1b[1mb" + std::string(2000, 'x')));
  EXPECT_LT(line.size(), kAnswerBytesMax);
  EXPECT_EQ(talks.leader.HearAnswer(line), LeaderTalk::Answer::kRefused);
  EXPECT_THAT(talks.leader.why(), testing::StartsWith("a??[1mbxxx"));
  EXPECT_EQ(talks.leader.HearAnswer("refused a\x9b\x1b"), LeaderTalk::Answer::kRefused);
  EXPECT_EQ(talks.leader.why(), "a??");
  EXPECT_EQ(talks.leader.HearAnswer(WithoutEnd(WorkerTalk::Taken("b"))),
            LeaderTalk::Answer::kTaken);
  EXPECT_EQ(talks.leader.why(), "b");
}

TEST(JoinMessageTest, ARosterIsItsChainAndItsAddresses) {
  const Roster roster{.chain = {1}, .addresses = {"a:1", "b:2"}};
  for (const Roster& other : {Roster{.chain = {2}, .addresses = {"a:1", "b:2"}},
                              Roster{.chain = {1}, .addresses = {"b:2", "a:1"}},
                              Roster{.chain = {1}, .addresses = {"a:1"}},
                              Roster{.chain = {1}, .addresses = {"a:1b:2"}}}) {
    EXPECT_NE(roster.digest(), other.digest());
  }
}

}  // namespace
}  // namespace kvcake
