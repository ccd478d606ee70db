// A machine that loses its power, for tests.
#pragma once

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/check.h"

namespace kvcake::testing_util {

// What comes to this socket is dropped before TCP sees it: it acknowledges nothing, and never
// hangs up.
inline void Vanish(int socket) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program = {.len = 1, .filter = &drop};
  CHECK(setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) == 0);
}

// Whether the kernel tells what became of what this socket has sent; qemu-user hides it.
inline bool TellsOfDelivery(int socket) {
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 && bytes > sizeof(int);
}

}  // namespace kvcake::testing_util
