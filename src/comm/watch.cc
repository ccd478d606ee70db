#include "comm/watch.h"

#include <array>
#include <memory>

#include "comm/room_tags.h"

namespace kvcake {

void WatchPeer(Comm& comm, int peer, const std::function<void(const Error&)>& lost) {
  const auto nothing = std::make_shared<std::array<std::byte, 1>>();
  comm.Receive(peer, kWatchTag, *nothing, [nothing, lost](const Status& status) {
    if (!status) lost(status.error());
  });
}

void WatchPeers(Comm& comm, const std::function<void(const Error&)>& lost) {
  for (int peer = 0; peer < comm.size(); ++peer) {
    if (peer != comm.rank()) WatchPeer(comm, peer, lost);
  }
}

}  // namespace kvcake
