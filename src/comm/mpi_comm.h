// Ranks over MPI: the processes that one mpirun has started.
//
// kvcake makes Open MPI's settings itself (environment variables that the user has set stay): TCP
// whose progress a thread of Open MPI's makes, so that transfers go on behind compute; else they
// stand still until somebody calls MPI. MPI gets the callers' buffers themselves; a thread asks for
// the open transfers 5000 times a second or more, and sleeps while there are none.
//
// When a rank ends without MpiSession::End, or is killed, mpirun ends all others.
#pragma once

#include <memory>

#include "base/clock.h"
#include "comm/comm.h"

namespace kvcake {

struct MpiOptions {
  Seconds close_timeout{1};  // of Close, for transfers that MPI cannot take back
  Seconds end_timeout{10};   // of End, for the other ranks
};

// MPI in this process, from StartMpi to End; at most one.
class MpiSession {
 public:
  // End(0), unless it has been called.
  virtual ~MpiSession() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // One at a time; it must be gone before the session. Its Close takes back what MPI can: receives
  // that no message has met. It waits close_timeout for the others to end (a large send that nobody
  // receives cannot); then it calls their `done` with `why`, although MPI may still use their
  // buffers: these must stay until the process has ended, and End will not spare it. Close is not
  // noticed by the other ranks, and the transfers with a rank whose Comm is gone do not end.
  // A message of 2 GiB or more is kUnsupported.
  virtual std::unique_ptr<Comm> NewComm() = 0;

  // With status 0, and nothing left by Close: waits until every rank has come here, and returns.
  // Otherwise, or if they have not come within end_timeout: a message, and the process ends with
  // `status` (1 if it is 0); mpirun ends the other ranks, too, and exits with it.
  virtual void End(int status) = 0;
};

// kUnsupported where kvcake was built without MPI.
Status CheckMpi();
// Whether mpirun has started this process.
bool StartedByMpirun();

// Without mpirun it is a session of one rank. Fails as CheckMpi does.
Result<std::unique_ptr<MpiSession>> StartMpi(const MpiOptions& options);

}  // namespace kvcake
