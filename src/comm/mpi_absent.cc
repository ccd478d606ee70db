// In place of mpi_comm.cc where kvcake is built without MPI.
#include "comm/mpi_comm.h"

namespace kvcake {

Status CheckMpi() {
  return Fail(ErrorCode::kUnsupported,
              "this kvcake was built without MPI: build it with -DKVCAKE_MPI=ON, or let its ranks "
              "talk over TCP, as those of kvcake serve do");
}

bool StartedByMpirun() { return false; }

Result<std::unique_ptr<MpiSession>> StartMpi(const MpiOptions&) {
  return tl::unexpected<Error>(CheckMpi().error());
}

}  // namespace kvcake
