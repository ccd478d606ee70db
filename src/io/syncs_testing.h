// What the process syncs.
#pragma once

namespace kvcake {

// Counts the files and directories that the process has had the kernel sync so far.
int SyncsSoFar();

}  // namespace kvcake
