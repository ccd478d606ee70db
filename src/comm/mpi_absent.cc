// In place of mpi_comm.cc where kvcake is built without MPI.
#include "comm/mpi_comm.h"

namespace kvcake {

bool StartedByMpirun() { return false; }

Result<std::unique_ptr<MpiSession>> StartMpi(const MpiOptions&) {
  return Fail(ErrorCode::kUnsupported,
              "this kvcake was built without MPI: build it with -DKVCAKE_MPI=ON, or let its ranks "
              "talk over TCP");
}

}  // namespace kvcake
