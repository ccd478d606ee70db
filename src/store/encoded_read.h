// What differs in a disk tier's read of an encoded chunk: how long it is only its file tells, and
// where its layers lie only its header. Bytes land in a staging slot, where they lie in the file.
#pragma once

#include "store/disk_read.h"

namespace kvcake {

// The first pieces of a new read: as much as a chunk can have, or, for some layers, the header.
void PlanEncoded(DiskRead& read, const DiskTierOptions& options);
// Plans the pieces of a read's layers when all pieces before have come, once. False where there are
// none, or the read has failed, also now, as the header is not the chunk's.
bool PlanNextPieces(DiskRead& read, const DiskTierOptions& options);

}  // namespace kvcake
