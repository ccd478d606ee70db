// What must hold of a Restorer whenever nobody is in a call of it.
#pragma once

#include "base/check.h"
#include "cake/restorer_impl.h"

namespace kvcake {

// CHECKs that every chunk has one owner, and that boards, owners and reads agree. The Restorer is
// one of NewRestorer's. O(open chunks).
inline void CheckInvariants(const Restorer& restorer) {
  const auto& impl = static_cast<const RestorerImpl&>(restorer);
  MutexLock lock(impl.mutex());
  const InFlightTable& table = impl.table();
  size_t owned = 0, loading = 0, reading = 0;
  for (const Board* board : table.boards()) {
    CHECK(!board->closed());
    const Claims& claims = board->claims();
    for (int i = 0; i < claims.size(); ++i) {
      const Board* owner = table.OwnerOf(board->key(i));
      const ChunkState state = claims.state(i);
      // Slices that are private own nothing, and have no pages.
      const bool alone = board->request().private_slices;
      const bool claimed =
          state == ChunkState::kLoading || (state == ChunkState::kComputing && !alone);
      CHECK((owner == board) == claimed);
      owned += claimed;
      loading += state == ChunkState::kLoading;
      if (state == ChunkState::kAbsent) CHECK(owner == nullptr);
      if (state == ChunkState::kElsewhere) CHECK(owner != nullptr);
      if (state == ChunkState::kComputing) {
        CHECK(board->slice() && claims.Valid(board->slice()->claim));
      }
      if (!alone && (state == ChunkState::kComputing || state == ChunkState::kResident)) {
        CHECK(static_cast<bool>(board->pages()[i]));
      }
    }
  }
  CHECK(owned == table.size());
  for (const LoadLane& lane : impl.lanes()) {
    for (const auto& [number, read] : lane.reads()) {
      CHECK(static_cast<bool>(read.page) && read.cancelled == (read.owner == nullptr));
      if (read.owner == nullptr) continue;
      ++reading;
      const int chunk = read.claim.first;
      CHECK(read.owner->claims().Valid(read.claim) && read.claim.count == 1);
      CHECK(read.owner->claims().state(chunk) == ChunkState::kLoading);
      CHECK(read.owner->key(chunk) == read.key);
    }
  }
  CHECK(reading == loading);
}

}  // namespace kvcake
