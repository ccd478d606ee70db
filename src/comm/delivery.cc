#include "comm/delivery.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>

namespace kvcake {
namespace {

// In vain: the last acknowledgement may be old only because nothing was sent since.
constexpr int kTriesMin = 3;

}  // namespace

Delivery DeliveryOf(int socket, Seconds patience) {
  int left = 0;
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
      bytes < offsetof(tcp_info, tcpi_pmtu) || ioctl(socket, SIOCOUTQ, &left) != 0 || left == 0) {
    return Delivery::kAcknowledged;
  }
  const bool silent = Seconds(info.tcpi_last_ack_recv * 1e-3) >= patience;
  const bool tried = info.tcpi_retransmits + info.tcpi_probes >= kTriesMin;
  return silent && tried ? Delivery::kUnanswered : Delivery::kUnderWay;
}

}  // namespace kvcake
