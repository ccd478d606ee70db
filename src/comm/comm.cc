#include "comm/comm.h"

namespace kvcake {

Status CheckTransfer(const Comm& comm, int peer, int tag) {
  if (peer < 0 || peer >= comm.size() || peer == comm.rank()) {
    return Fail(ErrorCode::kInvalidArgument, "rank {} of {} has no peer {}", comm.rank(),
                comm.size(), peer);
  }
  if (tag < 0) return Fail(ErrorCode::kInvalidArgument, "tag {} is negative", tag);
  return {};
}

Status CheckSize(int from, int tag, uint64_t into_bytes, uint64_t bytes) {
  if (bytes == into_bytes) return {};
  return Fail(ErrorCode::kCorrupt,
              "rank {} sent {} bytes with tag {} where {} were expected: the ranks disagree", from,
              bytes, tag, into_bytes);
}

}  // namespace kvcake
