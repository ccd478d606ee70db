// Waiting for transfers: knows whose `done`s are still to come.
#pragma once

#include <memory>
#include <string_view>

#include "base/clock.h"
#include "comm/comm.h"

namespace kvcake {

// Thread-safe. The `done`s it has given out may outlive it.
class TransferWait {
 public:
  TransferWait();

  // For one transfer more to wait for, with this rank.
  [[nodiscard]] Comm::Done Add(int peer);
  // Sleeps until every transfer added so far has ended: the first error among them. Earlier, with
  // the first error of a transfer or with kDeadline, which names `what` and the ranks that are
  // left: then buffers are still the transfers', until Done() or the Comm is closed.
  Status Wait(TimePoint deadline, std::string_view what) const;
  // Whether every transfer added so far has ended.
  bool Done() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvcake
