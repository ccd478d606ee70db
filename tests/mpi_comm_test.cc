// The ranks of mpirun keep what every Comm promises, and end when one of them does. The tests start
// this program again under mpirun, where it is one rank of a scenario.
#include "comm/mpi_comm.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "comm/contract_testing.h"
#include "comm/handshake.h"

namespace kvcake {
namespace {

using namespace testing_util;
using testing::HasSubstr;

struct Ended {
  int status;
  std::string output;
};

// What becomes of this program as a rank that does `what`, started so; ends within a minute.
Ended RunAs(const std::string& launcher, const std::string& what) {
  const std::string command = fmt::format(
      "exec timeout --kill-after=5 60 {} /proc/{}/exe rank {} 2>&1", launcher, getpid(), what);
  FILE* pipe = popen(command.c_str(), "r");
  CHECK(pipe != nullptr);
  Ended ended;
  char piece[4096];
  for (size_t n; (n = fread(piece, 1, sizeof(piece), pipe)) > 0;) ended.output.append(piece, n);
  const int status = pclose(pipe);
  ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

// By the loopback interface alone: those that other tests make are gone a little later.
Ended MpiRun(int ranks, const std::string& what) {
  return RunAs(fmt::format("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                           "OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo "
                           "mpirun -n {} --oversubscribe",
                           ranks),
               what);
}

constexpr int kTimedOut = 124;

// A rank has ended all with this status, which mpirun passes on, unless it crashes while it ends,
// as that of Open MPI 4.1 sometimes does after MPI_Abort.
void ExpectAbort(const Ended& ended, int status) {
  const bool is_crash_of_mpirun = ended.output.find("(PMIx_server_finalize") != std::string::npos;
  EXPECT_EQ(ended.status, is_crash_of_mpirun ? 128 + SIGSEGV : status) << ended.output;
}

class MpiContractTest : public testing::TestWithParam<int> {};

TEST_P(MpiContractTest, Holds) {
  for (const Scenario& scenario : kScenarios) {
    const Ended ended = MpiRun(GetParam(), scenario.name);
    EXPECT_EQ(ended.status, 0) << scenario.name << "\n" << ended.output;
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_THAT(ended.output,
                  HasSubstr(fmt::format("rank {} has done {}\n", rank, scenario.name)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MpiContractTest, testing::Values(2, 3, 4));

TEST(MpiTest, WithoutMpirunThereIsOneRank) {
  if (StartedByMpirun()) GTEST_SKIP() << "mpirun has started the tests";
  const Ended ended = RunAs("", "alone");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST(MpiTest, RanksThatDifferSaySoAndEnd) {
  const Ended ended = MpiRun(3, "differ");
  ExpectAbort(ended, 3);
  EXPECT_THAT(ended.output, HasSubstr("rank 1 has another model than rank 0 (m1; rank 0: m0)"));
}

TEST(MpiTest, ARankThatIsKilledEndsTheOthers) {
  const Ended ended = MpiRun(3, "die");
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.status, kTimedOut) << ended.output;
}

TEST(MpiTest, ARankThatLeavesWithoutAWordEndsTheOthers) {
  const Ended ended = MpiRun(3, "leave");
  EXPECT_NE(ended.status, 0);
  EXPECT_NE(ended.status, kTimedOut) << ended.output;
}

TEST(MpiTest, ARankThatStandsStillIsADeadlineOfTheOthers) {
  const Ended ended = MpiRun(2, "stall");
  ExpectAbort(ended, 5);
  EXPECT_THAT(ended.output, HasSubstr("rank 0: layer 7: rank 1 is not done in time"));
}

TEST(MpiTest, WhatCloseTakesBackDoesNotKeepTheRankFromEnding) {
  const Ended ended = MpiRun(2, "close");
  EXPECT_EQ(ended.status, 0) << ended.output;
}

TEST(MpiTest, TransfersThatCannotEndEndTheProcess) {
  const Ended ended = MpiRun(2, "unfinished");
  ExpectAbort(ended, 1);
  EXPECT_THAT(ended.output, HasSubstr("rank 0 ends all ranks: it has transfers that cannot end"));
}

TEST(MpiTest, TheOtherRanksAreWaitedForOnlySoLong) {
  const Ended ended = MpiRun(2, "absent");
  EXPECT_NE(ended.status, 0) << ended.output;
  EXPECT_NE(ended.status, kTimedOut) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("rank 0: the other ranks have not ended within 0.5 s"));
}

// What the ranks do; the result is the process's exit status.

int Print(const Comm& comm, const Status& status) {
  if (status) return 0;
  std::fprintf(stderr, "rank %d: %s\n", comm.rank(), status.error().message.c_str());
  return 1;
}

int Differ(Comm& comm) {
  const std::vector<Fact> facts = {{"version", "1"}, {"model", fmt::format("m{}", comm.rank())}};
  return 3 * Print(comm, Handshake(comm, facts, Seconds(60)));
}

// The last rank goes by `go` while the others are sending to it.
int WhileTheLastOneGoes(Comm& comm, void (*go)()) {
  const int last = comm.size() - 1;
  Bytes bytes(100'000), into(100'000);
  if (comm.rank() != last) {
    while (SendAndWait(comm, last, 1, bytes)) {
    }
    return 1;
  }
  for (int i = 0; i < 10; ++i) ExpectOk(ReceiveAndWait(comm, i % last, 1, into));
  go();
  return 0;
}

int Stall(Comm& comm) {
  if (comm.rank() == 1) {
    raise(SIGSTOP);
    return 0;
  }
  TransferWait wait;
  Bytes out(20 << 20), in(1);
  comm.Send(1, 1, out, wait.Add(1));
  comm.Receive(1, 1, in, wait.Add(1));
  return 5 * Print(comm, wait.Wait(Clock::Real().Now() + Seconds(0.5), "layer 7"));
}

int CloseInTime(Comm& comm) {
  Bytes into(1 << 20, std::byte{1});
  int stopped = 0;
  for (int tag = 0; tag < 10; ++tag) {
    comm.Receive(1 - comm.rank(), tag, into,
                 [&](Status status) { stopped += !status && status.error().message == "stop"; });
  }
  comm.Close({ErrorCode::kCancelled, "stop"});
  const Status late = ReceiveAndWait(comm, 1 - comm.rank(), 0, into);
  return stopped == 10 && !late && late.error().message == "stop" ? 0 : 1;
}

int Unfinished(Comm& comm) {
  static Bytes nobody_receives(20 << 20);
  if (comm.rank() == 0) {
    std::atomic<int> ended = 0;
    comm.Send(1, 1, nobody_receives, [&](Status status) { ended += status ? 0 : 1; });
    comm.Close({ErrorCode::kCancelled, "stop"});
    return ended == 1 ? 0 : 9;
  }
  Bytes never(1);
  return ReceiveAndWait(comm, 0, 2, never) ? 0 : 1;
}

// What a scenario's name stands for.
int Do(const std::string& what, Comm& comm) {
  if (what == "differ") return Differ(comm);
  if (what == "die") return WhileTheLastOneGoes(comm, [] { raise(SIGKILL); });
  if (what == "leave") return WhileTheLastOneGoes(comm, [] { _exit(0); });
  if (what == "stall") return Stall(comm);
  if (what == "alone") return comm.size() == 1 && !StartedByMpirun() && !StartMpi({}) ? 0 : 1;
  if (what == "close") return CloseInTime(comm);
  if (what == "unfinished") return Unfinished(comm);
  if (what == "absent") {
    if (comm.rank() == 1) pause();
    return 0;
  }
  for (const Scenario& scenario : kScenarios) {
    if (what != scenario.name) continue;
    scenario.run(comm);
    if (testing::Test::HasFailure()) return 1;
    std::printf("rank %d has done %s\n", comm.rank(), scenario.name);
    std::fflush(stdout);
    return 0;
  }
  CHECK(false);
}

int RankMain(const std::string& what) {
  auto session = StartMpi({.close_timeout = Seconds(what == "close" ? 60 : 0.5),
                           .end_timeout = Seconds(what == "absent" ? 0.5 : 60)});
  CHECK(session.has_value());
  auto comm = (*session)->NewComm();
  const int status = Do(what, *comm);
  comm.reset();
  (*session)->End(status);
  return status;
}

}  // namespace
}  // namespace kvcake

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc == 3 && std::strcmp(argv[1], "rank") == 0) return kvcake::RankMain(argv[2]);
  return RUN_ALL_TESTS();
}
