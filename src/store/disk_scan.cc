#include "store/disk_scan.h"

#include <fmt/core.h>
#include <signal.h>

#include <cerrno>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace kvcake {
namespace {

constexpr size_t kSuspectsMax = 1024;
// A second of directories' times, and what the clock that they are taken from may be behind.
constexpr Seconds kTimeStep{1.02};

bool IsSame(const FileInfo& a, const FileInfo& b) {
  return a.inode == b.inode && a.bytes == b.bytes && a.mtime_s == b.mtime_s;
}

// True also for one in another pid namespace, or on another machine.
bool ProcessIsDead(int pid) { return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH); }

}  // namespace

void DiskScan::RunFirst(int threads) {
  (void)NoteTimes();
  Run(threads);
}

void DiskScan::RunIfChanged() {
  if (NoteTimes()) Run();
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
      // What is known already has its owner, too, and its time is what others have made it since:
      // where a server's clock is ahead, or another host's, no scan sets back all of them again.
      const bool known = files.Contains(id);
      const std::string path = context_.store.ChunkPath(id);
      const FileInfo file = known ? info : context_.Dated(path, info);
      files.Add({id, file.bytes, file.mtime_s, known ? kNobody : context_.OwnerOf(path)});
    }
  };
  visitor.temporary = [&](const std::string& path, int pid, const FileInfo& info) {
    const auto age_s = static_cast<double>(now_s - info.mtime_s);
    if (!ProcessIsDead(pid) && age_s <= options.temporary_age_max.count()) return;
    if (suspects.size() >= kSuspectsMax) return;  // they are other scans'
    const auto before = suspects_.find(path);
    const bool known = before != suspects_.end() && IsSame(before->second.info, info);
    suspects[path] = known ? before->second : Suspect{info, clock_.Now()};
  };
  visitor.stop = [&] { return stop_.load(); };
  files.BeginScan();
  const auto status = ScanStore(context_.fs, context_.store, visitor, threads);
  // What another thread evicted after it had been listed is not there.
  for (const ChunkId& id : files.EndScan(/*complete=*/status.has_value())) {
    const auto info = context_.fs.Stat(context_.store.ChunkPath(id));
    if (!info && info.error().code == ErrorCode::kNotFound) files.Remove(id);
  }
  ended_ = clock_.Now();
  if (status) {
    faults_.Succeeded();
  } else if (status.error().code != ErrorCode::kCancelled) {
    faults_.Failed(status.error());
  }
  suspects_ = std::move(suspects);
  Sweep();
  // Chunks get their names when they are whole, so none is seen half written.
  for (const auto& [path, bad] : wrong_size) {
    context_.bad_files.MoveAway(path, *context_.WrongSize(bad), bad);
  }
}

void DiskScan::Sweep() {
  const TimePoint now = clock_.Now();
  std::erase_if(suspects_, [&](const auto& entry) {
    const auto& [path, suspect] = entry;
    if (now - suspect.since < context_.options.temporary_age_min) return false;
    const auto info = context_.fs.Stat(path);
    if (info && IsSame(*info, suspect.info)) (void)context_.fs.Remove(path);
    return true;  // one that has changed is being written: a scan finds it again
  });
}

bool DiskScan::NoteTimes() {
  const uint64_t times = DigestOfTimes();
  const TimePoint now = clock_.Now();  // after they were read, before a scan begins
  if (times != std::exchange(times_, times)) {
    changed_ = now;
  } else if (heeded_ - changed_ >= kTimeStep) {
    return false;
  }
  heeded_ = now;
  return true;
}

// A sum, as directories are listed in no order.
uint64_t DiskScan::DigestOfTimes() const {
  uint64_t digest = 0;
  const auto add = [&](const std::string& path, const FileInfo& info) {
    const std::string text = fmt::format("{} {} {}", path, info.inode, info.mtime_s);
    digest += Xxh3_64(std::as_bytes(std::span(text)));
  };
  FileSystem& fs = context_.fs;
  const std::string& base = context_.store.Base();
  if (const auto info = fs.Stat(base)) add(base, *info);
  const auto roots = fs.List(base);
  if (!roots) return digest;
  for (const DirEntry& root : *roots) {
    if (root.info.kind != FileInfo::Kind::kDirectory || !ParseKeyHex(root.name)) continue;
    const std::string path = base + "/" + root.name;
    add(path, root.info);
    const auto shards = fs.List(path);
    if (!shards) continue;
    for (const DirEntry& shard : *shards) {
      if (shard.info.kind == FileInfo::Kind::kDirectory) add(path + "/" + shard.name, shard.info);
    }
  }
  return digest;
}

}  // namespace kvcake
