// What a disk tier is told when it is opened.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "kv/chunk_key.h"
#include "kv/kv_layout.h"
#include "store/chunk_form.h"
#include "store/write_turns.h"

namespace kvcake {

struct DiskTierOptions {
  std::string name = "disk";  // in reports
  std::string dir;
  KvLayout layout;
  // What files have in their headers and lie under: FormRoot of the model's.
  ChunkKey root;
  // How files are encoded. Where it is not raw, what is put is a whole file (ChunkWrite::page), as
  // EncodedTier makes them, and what is read lands where it lies in the file: a landing has room
  // for FileBytesMax, also of a read of some layers, which lands their parts and the header.
  ChunkForm form = {};
  std::string description;  // JSON text for model.json; empty: none is written

  uint64_t capacity_bytes = 20ull << 30;  // of the whole directory, all roots together
  uint64_t owner_quota_bytes = 0;         // of it, for each owner; 0: no quotas
  double free_share_min = 0;  // of the file system, in [0, 1): when less is free, chunks make way
  int max_reads_in_flight = 16;
  uint64_t max_read_bytes_in_flight = 64ull << 20;
  int reads_in_flight_min = 4;  // so many may be in flight whatever their bytes, so that a device
                                // has work while one that has come is verified
  int call_threads = 16;  // that open files, and as many that look for them: on a file system whose
                          // calls take long, so many are made at a time
  uint64_t io_bytes_max = (4ull << 20) + kPageHeaderBytes;  // of one request to the kernel
  bool direct = true;                                       // where the file system can; Open tries
  WriteTurnsOptions write_turns = {};                       // beside reads
  bool durable = false;  // Put returns when the chunk would survive a power cut; otherwise it may
                         // be lost, or fail verification, but is never served wrong

  // Chunks that nobody has used for this long are removed, of whatever root; 0: never.
  Seconds time_to_live{0};
  Seconds touch_interval{600};  // how coarse last use is on disk; finer for a short time_to_live
  // How often upkeep looks for the files of other processes: where a directory's time says that
  // something changed; and, from the end of one scan, though none says so, while chunks are
  // written.
  Seconds upkeep_interval{1};
  Seconds rescan_interval{60};
  Seconds open_wait{60};            // Open waits so long for the first scan at most: what is not
                                    // known by then is found by looking
  int claims_max = 64;              // of keys that this process computes: each has an open file
  Seconds claims_pause{10};         // where one cannot be made, none is tried for so long
  Seconds missing_ttl{1};           // how long a key that was not on disk is not asked for again
  Seconds temporary_age_max{3600};  // older temporaries may be leftovers, whoever wrote them; they
  Seconds temporary_age_min{60};    // are, like those of writers that no process here has the pid
                                    // of, when they have been seen unchanged for so long
  Seconds overdue_after{30};        // a read that takes longer is overdue: nothing more is asked
  int failures_max = 8;             // as after so many reads in a row that fail,
  Seconds probe_interval{1};        // until a probe, one of which is made this often, goes well
  int quarantine_files_max = 64;    // bad files beyond these bounds are deleted instead
  uint64_t quarantine_bytes_max = 256ull << 20;
};

}  // namespace kvcake
