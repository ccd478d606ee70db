#include "store/chunk_walk.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <set>
#include <thread>

#include "store/tier_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

// From now on the calling thread starts no other, as where the system has no more.
bool ForbidThreads() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone3, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_clone, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

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
