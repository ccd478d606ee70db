// Chunks as files of one directory, read by direct I/O straight into pages.
//
//   DIR/v1/<root>/<aa>/<key>             one chunk (docs/format.md); aa: the key's first byte
//   DIR/v1/<root>/<aa>/<key>.tmp.<pid>.<n>  being written; renamed when complete
//   DIR/v1/<root>/model.json             what the root stands for, for people
//   DIR/v1/quarantine/                   files that failed verification
//   DIR/v1/lock                          held while evicting
//
// Several processes may share DIR. Nothing but the files is trusted: the catalogue is rebuilt from
// names and sizes, and every read is verified before `done`. A cache, not an archive: unless it is
// told to be durable nothing is synced, and what a power cut tears fails verification and is a
// miss.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/callback_thread.h"
#include "base/clock.h"
#include "io/file_system.h"
#include "io/io_queue.h"
#include "store/breaker.h"
#include "store/catalogue.h"
#include "store/overdue_watch.h"
#include "store/pins.h"
#include "store/store_dir.h"
#include "store/tier.h"

namespace kvcake {

struct DiskTierOptions {
  std::string name = "disk";  // in reports
  std::string dir;
  KvLayout layout;
  ChunkKey root;
  std::string description;  // JSON text for model.json; empty: none is written

  uint64_t capacity_bytes = 20ull << 30;  // of the whole directory, all roots together
  int max_reads_in_flight = 16;
  uint64_t max_read_bytes_in_flight = 64ull << 20;
  uint64_t io_bytes_max = (4ull << 20) + kPageHeaderBytes;  // of one request to the kernel
  bool direct = true;                                       // where the file system can; Open tries
  bool durable = false;  // Put returns when the chunk would survive a power cut; otherwise it may
                         // be lost, or fail verification, but is never served wrong

  // Chunks that nobody has used for this long are removed, of whatever root; 0: never.
  Seconds time_to_live{0};
  Seconds touch_interval{600};  // how coarse last use is on disk; finer for a short time_to_live
  Seconds rescan_interval{60};  // how often a writer looks for the files of other processes
  Seconds upkeep_interval{1};   // how often they are looked for besides, where something changed
  Seconds missing_ttl{1};       // how long a key that was not on disk is not asked for again
  Seconds temporary_age_max{3600};  // temporaries older than that are leftovers, whoever wrote them
  Seconds temporary_age_min{60};    // younger ones stay: a writer that no process here has the pid
                                    // of may live in another pid namespace
  Seconds overdue_after{30};        // a read that takes longer is overdue: nothing more is asked
  int failures_max = 8;             // as after so many reads in a row that fail,
  Seconds probe_interval{1};        // until a probe, one of which is made this often, goes well
  int quarantine_files_max = 64;    // bad files beyond these bounds are deleted instead
  uint64_t quarantine_bytes_max = 256ull << 20;
};

// One I/O thread runs every read and calls every `done`, one opens files for it, one looks for the
// files of other processes when asked to, and one removes what is too old or too much. Put runs on
// its caller's thread; everything else but Evict only touches memory, whatever the device does. The
// destructor cancels what has not started and waits for what the kernel holds: a device that never
// answers makes it wait as long (such reads are counted in Stats().reads_overdue, and
// max_reads_in_flight caps them).
class DiskTier : public Tier {
 public:
  // kInvalidArgument, kUnsupported or kIo, naming the option or the path.
  static Result<std::unique_ptr<DiskTier>> Open(DiskTierOptions options,
                                                FileSystem& fs = FileSystem::Real());
  ~DiskTier() override;

  std::string_view name() const override { return options_.name; }
  int max_reads_in_flight() const override { return options_.max_reads_in_flight; }
  uint64_t max_read_bytes_in_flight() const override { return options_.max_read_bytes_in_flight; }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override;
  bool Look(LookRequest request) override;
  void Pin(std::span<const ChunkKey> keys) override { pins_.Add(keys); }
  void Unpin(std::span<const ChunkKey> keys) override;
  ReadId Get(ReadRequest request) override;
  void Cancel(ReadId id) override;
  Status Put(const ChunkWrite& chunk) override;
  Status Evict(const ChunkKey& key) override;
  TierStats Stats() const override;

 private:
  static constexpr uint64_t kProbeTag = UINT64_MAX / 2;  // no read's; + the probe's number
  struct Read;
  struct Probe;
  // Of the files thread: what it opened for a read, or why there is nothing to be read. What is
  // corrupt has been moved away.
  struct FileAnswer {
    ReadId id;
    Result<std::shared_ptr<File>> file;
  };
  // A fault is logged when it begins and when it has gone, not for every chunk it meets, and a
  // flickering one at most once a minute.
  class FaultLog {
   public:
    explicit FaultLog(const char* what) : what_(what) {}
    void Failed(const Error& error);
    void Succeeded();

   private:
    const char* const what_;
    std::mutex mutex_;
    std::atomic<bool> failing_{false};  // logged as such; written under mutex_
    TimePoint quiet_until_;             // guarded by mutex_
  };

  DiskTier(DiskTierOptions options, FileSystem& fs);

  void Prepare();
  // Moves a bad file out of the way, or deletes it when the quarantine is full, unless another has
  // its name by now. False when it is still there. Any thread.
  bool Quarantine(const std::string& path, const Error& reason, const FileInfo& bad);

  // Reads; on the I/O thread.
  void Loop();
  bool TakeWork();
  void DropUnread(const std::function<bool(const Read&)>& which, const Status& status);
  bool HasRoomFor(uint64_t reads) const;
  void StartReads();
  void OnFile(FileAnswer answer);
  void Close(std::shared_ptr<File> file);
  void Submit(Read& read);
  void OnCompletion(const IoCompletion& completion);
  void Land(Read& read);
  Result<NumericPath> Verify(const Read& read);
  void Finish(std::unique_ptr<Read> read, Status status);
  void Failed(const Read& read, const Error& error);

  // Reads; on the files thread.
  Result<std::shared_ptr<File>> OpenChunk(const ChunkKey& key, const std::string& path,
                                          bool direct);
  void MoveAway(const ChunkKey& key, const std::string& path, const Error& reason,
                const FileInfo& bad);
  void Answer(FileAnswer answer);

  // What is in the directory; on threads of their own.
  bool Stopping() const;
  void Forget(const ChunkKey& key);
  void NoteMissing(const ChunkKey& key, Seconds until_after);
  bool IsMissing(const ChunkKey& key) const;  // and need not be looked for
  void NoteUnreadable(const ChunkKey& key);
  bool IsUnreadable(const ChunkKey& key) const;
  bool IsExpired(int64_t mtime_s) const;
  bool IsOnDisk(const ChunkKey& key);
  void LookFor(const LookRequest& request);
  void Upkeep();
  bool ChangedSince(int64_t unix_s);
  void Expire();

  // The device's health; on the I/O thread.
  void CheckHealth();
  bool ReadsAreLost() const;
  bool MayProbe(TimePoint now) const;
  void StartProbe(std::string path);
  void OnProbeOpened(uint64_t tag, Result<std::shared_ptr<File>> file);
  void CancelProbes();
  void OnProbe(const IoCompletion& completion);
  TimePoint NextCheck() const;

  // Writes; on the callers' threads.
  Status WriteChunk(const ChunkWrite& chunk);
  Status WriteTemporary(const std::string& path, const ChunkWrite& chunk);
  Status SyncNames(const ChunkId& id);
  Status MoveIntoPlace(const std::string& from, const std::string& to);
  Result<std::unique_ptr<FileLock>> LockToEvict(bool patient);
  Status MakeRoom(uint64_t bytes);
  enum class Eviction { kDone, kPinned, kFailed };
  Eviction EvictColdest(const CatalogueEntry& coldest);
  void RescanLocked(int threads = 1);

  // Constant after construction; the file system is thread-safe.
  const DiskTierOptions options_;
  FileSystem& fs_;
  const StoreDir store_;
  const uint64_t pieces_;  // requests to the kernel per read, at most

  // Self-synchronised.
  Catalogue catalogue_;
  Pins pins_;
  Breaker breaker_;
  OverdueWatch watch_;
  std::atomic<bool> lost_{false};                       // ReadsAreLost; written by the I/O thread
  std::array<std::atomic<bool>, 256> shards_synced_{};  // the names down to the shard are durable
  FaultLog read_faults_{"reading chunks"};
  FaultLog write_faults_{"writing chunks"};
  FaultLog scan_faults_{"looking for files"};
  FaultLog quarantine_faults_{"moving bad files away"};
  FaultLog eviction_faults_{"removing files to make room"};
  std::mutex eviction_mutex_;   // one writer makes room or rescans at a time
  TimePoint scanned_at_;        // guarded by eviction_mutex_
  int64_t scanned_unix_s_ = 0;  // the last one by Upkeep; guarded by eviction_mutex_

  // The I/O thread's own.
  std::unique_ptr<IoQueue> queue_;
  std::deque<std::unique_ptr<Read>> waiting_;
  std::unordered_map<ReadId, std::unique_ptr<Read>> at_files_;   // the kernel has nothing of theirs
  std::unordered_map<ReadId, std::unique_ptr<Read>> in_flight_;  // in the queue now
  std::unordered_map<uint64_t, std::shared_ptr<Probe>> probes_;  // by tag: being opened or read
  uint64_t next_probe_ = 0;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Read>> arrived_;
  std::vector<ReadId> cancelled_;
  std::vector<FileAnswer> answers_;
  std::unordered_map<ChunkKey, TimePoint> missing_;  // until then not looked for again
  std::unordered_set<ChunkKey> unreadable_;          // to be written anew, whatever is there
  ReadId next_id_ = 1;
  TierStats stats_;
  bool stop_ = false;

  std::thread thread_;

  // Last: they end before the rest goes.
  CallbackThread files_;
  CallbackThread looks_;
  CallbackThread upkeep_;
};

}  // namespace kvcake
