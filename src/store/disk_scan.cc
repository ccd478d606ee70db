#include "store/disk_scan.h"

#include <signal.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

namespace kvcake {
namespace {

constexpr size_t kSuspectsMax = 1024;

bool IsSame(const FileInfo& a, const FileInfo& b) {
  return a.inode == b.inode && a.bytes == b.bytes && a.mtime_s == b.mtime_s;
}

// True also for one in another pid namespace, or on another machine.
bool ProcessIsDead(int pid) { return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH); }

}  // namespace

void DiskScan::RunFirst(int threads) {
  seen_unix_s_ = UnixSeconds();
  Run(threads);
}

void DiskScan::RunIfChanged() {
  if (!ChangedSince(seen_unix_s_)) return;
  seen_unix_s_ = UnixSeconds();
  Run();
}

void DiskScan::Run(int threads) {
  const TimedCall timed(context_.scans);
  const DiskTierOptions& options = context_.options;
  Catalogue& files = context_.index.files();
  const int64_t now_s = UnixSeconds();
  std::vector<std::pair<std::string, FileInfo>> wrong_size;
  Suspects suspects;
  ScanVisitor visitor;
  visitor.chunk = [&](const ChunkId& id, const FileInfo& info) {
    if (id.root == options.root && context_.WrongSize(info)) {
      wrong_size.emplace_back(context_.store.ChunkPath(id), info);
    } else {
      // What is known already has its owner, too.
      const OwnerId owner =
          files.Contains(id) ? kNobody : context_.OwnerOf(context_.store.ChunkPath(id));
      files.Add({id, info.bytes, info.mtime_s, owner});
    }
  };
  visitor.temporary = [&](const std::string& path, int pid, const FileInfo& info) {
    const auto age_s = static_cast<double>(now_s - info.mtime_s);
    if (!ProcessIsDead(pid) && age_s <= options.temporary_age_max.count()) return;
    if (suspects.size() >= kSuspectsMax) return;  // they are other scans'
    const auto before = suspects_.find(path);
    const bool known = before != suspects_.end() && IsSame(before->second.info, info);
    suspects[path] = known ? before->second : Suspect{info, Clock::Real().Now()};
  };
  visitor.stop = [&] { return stop_.load(); };
  files.BeginScan();
  const auto status = ScanStore(context_.fs, context_.store, visitor, threads);
  // What another thread evicted after it had been listed is not there.
  for (const ChunkId& id : files.EndScan(/*complete=*/status.has_value())) {
    const auto info = context_.fs.Stat(context_.store.ChunkPath(id));
    if (!info && info.error().code == ErrorCode::kNotFound) files.Remove(id);
  }
  ended_ = Clock::Real().Now();
  if (status) {
    faults_.Succeeded();
  } else if (status.error().code != ErrorCode::kCancelled) {
    faults_.Failed(status.error());
  }
  suspects_ = std::move(suspects);
  Sweep(ended_);
  // Chunks get their names when they are whole, so none is seen half written.
  for (const auto& [path, bad] : wrong_size) {
    context_.bad_files.MoveAway(path, *context_.WrongSize(bad), bad);
  }
}

void DiskScan::Sweep(TimePoint now) {
  std::erase_if(suspects_, [&](const auto& entry) {
    const auto& [path, suspect] = entry;
    if (now - suspect.since < context_.options.temporary_age_min) return false;
    const auto info = context_.fs.Stat(path);
    if (info && IsSame(*info, suspect.info)) (void)context_.fs.Remove(path);
    return true;  // one that has changed is being written: a scan finds it again
  });
}

// A directory's mtime may be of this second and a change still come: such a directory counts as
// changed once more.
bool DiskScan::ChangedSince(int64_t unix_s) {
  FileSystem& fs = context_.fs;
  const std::string& base_dir = context_.store.Base();
  const auto changed = [&](const FileInfo& info) { return info.mtime_s + 1 >= unix_s; };
  const auto base = fs.Stat(base_dir);
  if (!base) {
    return base.error().code == ErrorCode::kNotFound && context_.index.files().bytes() > 0;
  }
  if (changed(*base)) return true;
  const auto roots = fs.List(base_dir);
  if (!roots) return false;
  for (const DirEntry& root : *roots) {
    if (root.info.kind != FileInfo::Kind::kDirectory || !ParseKeyHex(root.name)) continue;
    if (changed(root.info)) return true;
    const auto shards = fs.List(base_dir + "/" + root.name);
    if (!shards) continue;
    for (const DirEntry& shard : *shards) {
      if (shard.info.kind == FileInfo::Kind::kDirectory && changed(shard.info)) return true;
    }
  }
  return false;
}

}  // namespace kvcake
