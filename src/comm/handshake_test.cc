#include "comm/handshake.h"

#include <gmock/gmock.h>

#include <functional>
#include <thread>
#include <vector>

#include "comm/contract_testing.h"
#include "comm/local_comms_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

constexpr Seconds kPatience(120);

class HandshakeTest : public testing::TestWithParam<bool> {
 protected:
  static Comms Make(int size) { return NewLocalComms(GetParam(), size); }

  static std::vector<Status> All(const Comms& comms,
                                 const std::function<Status(Comm&)>& rank_does) {
    std::vector<Status> statuses(comms.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < comms.size(); ++rank) {
      threads.emplace_back([&, rank] { statuses[rank] = rank_does(*comms[rank]); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
};

TEST_P(HandshakeTest, AlikeRanksMayStart) {
  const Comms comms = Make(4);
  const std::vector<Fact> facts = {{"version", "0.1.0"}, {"model", std::string(4000, 'm')}};
  for (const Status& status :
       All(comms, [&](Comm& comm) { return Handshake(comm, facts, kPatience); })) {
    ExpectOk(status);
  }
}

TEST_P(HandshakeTest, EveryRankSaysWhoDiffersInWhat) {
  const Comms comms = Make(3);
  for (const Status& status : All(comms, [](Comm& comm) {
         const std::vector<Fact> facts = {{"version", "0.1.0"},
                                          {"model", comm.rank() == 2 ? "b7" : "a1"}};
         return Handshake(comm, facts, kPatience);
       })) {
    ExpectCode(status, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message,
                HasSubstr("rank 2 has another model than rank 0 (b7; rank 0: a1)"));
  }
}

TEST_P(HandshakeTest, WhatARankSaysOfItselfIsPrintable) {
  const Comms comms = Make(2);
  for (const Status& status : All(comms, [](Comm& comm) {
         const std::vector<Fact> facts = {{"model", comm.rank() == 1 ? "b\n\x1b[2J" : "a"}};
         return Handshake(comm, facts, kPatience);
       })) {
    ExpectCode(status, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr("another model than rank 0 (b??[2J; rank 0: a)"));
  }
}

TEST_P(HandshakeTest, AnOlderVersionMayKnowFewerFacts) {
  const Comms comms = Make(2);
  for (const Status& status : All(comms, [](Comm& comm) {
         std::vector<Fact> facts = {{"version", "1"}};
         if (comm.rank() == 0) facts.push_back({"paths", "f32"});
         return Handshake(comm, facts, kPatience);
       })) {
    ExpectCode(status, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr("rank 1 has another paths than rank 0 (nothing"));
  }
}

TEST_P(HandshakeTest, AFactThatTheFirstRankLacksIsADifference) {
  const Comms comms = Make(2);
  for (const Status& status : All(comms, [](Comm& comm) {
         std::vector<Fact> facts = {{"version", "1"}};
         if (comm.rank() == 1) facts.push_back({"lossy", "int8"});
         return Handshake(comm, facts, kPatience);
       })) {
    ExpectCode(status, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message,
                HasSubstr("rank 1 has another lossy than rank 0 (int8; rank 0: nothing)"));
  }
}

TEST_P(HandshakeTest, AFactThatSomeLackIsComparedWithNoOther) {
  const Comms comms = Make(2);
  for (const Status& status : All(comms, [](Comm& comm) {
         std::vector<Fact> facts = {{"version", "1"}, {"lossy", "int8"}, {"model", "ab"}};
         if (comm.rank() == 1) facts = {{"version", "1"}, {"model", "cd"}};
         return Handshake(comm, facts, kPatience);
       })) {
    ExpectCode(status, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message,
                HasSubstr("rank 1 has another lossy than rank 0 (nothing; rank 0: int8)"));
  }
}

TEST_P(HandshakeTest, ARankThatDoesNotAnswerIsNamed) {
  const Comms comms = Make(4);
  const auto statuses = All(comms, [](Comm& comm) {
    return comm.rank() % 2 == 1 ? Status()
                                : Handshake(comm, std::vector<Fact>{{"version", "1"}}, Seconds(5));
  });
  for (size_t rank : {0u, 2u}) {
    ExpectCode(statuses[rank], ErrorCode::kDeadline);
    EXPECT_EQ(statuses[rank].error().message, "no answer from rank 1, 3 within 5 s");
  }
}

TEST_P(HandshakeTest, ARankThatIsGoneIsAnError) {
  Comms comms = Make(2);
  comms[1].reset();
  const Status status = Handshake(*comms[0], std::vector<Fact>{{"version", "1"}}, kPatience);
  ExpectCode(status, ErrorCode::kIo);
  EXPECT_THAT(status.error().message, HasSubstr("rank 1"));
}

INSTANTIATE_TEST_SUITE_P(All, HandshakeTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "tcp" : "memory"; });

}  // namespace
}  // namespace kvcake
