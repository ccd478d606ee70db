// System calls that fail for a thread, as a container's seccomp profile has it.
#pragma once

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstdint>
#include <span>
#include <vector>

namespace kvcake::testing_util {

// From now on the calling thread, and what it starts, gets `error` for calls of these numbers
// (__NR_...). False where the system has no seccomp.
inline bool ForbidCalls(std::span<const uint32_t> numbers, int error) {
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto to_error = static_cast<uint8_t>(numbers.size() - i);
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], to_error, 0));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)));
  const sock_fprog program = {static_cast<unsigned short>(code.size()), code.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// From now on the calling thread starts no other, as where the system has no more.
inline bool ForbidThreads() {
  constexpr uint32_t kClones[] = {__NR_clone3, __NR_clone};
  return ForbidCalls(kClones, EAGAIN);
}

}  // namespace kvcake::testing_util
