#include "io/power_loss_file_system_testing.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "io/io_queue.h"

namespace kvcake {
namespace {

constexpr size_t kBlock = 4096;

tl::unexpected<Error> FailWith(int error, const char* action, const std::string& path) {
  return tl::unexpected(ErrnoError(error, action, path));
}

class MemoryLock : public FileLock {
 public:
  Result<FileInfo> Info() override { return FileInfo{}; }
};

}  // namespace

class PowerLossFileSystem::MemoryFile : public File {
 public:
  MemoryFile(PowerLossFileSystem& fs, std::shared_ptr<Node> node, std::string path)
      : fs_(fs), node_(std::move(node)), path_(std::move(path)) {}

  Result<size_t> ReadAt(std::span<std::byte> buffer, uint64_t offset) override {
    MutexLock lock(fs_.mutex_);
    const std::string& bytes = node_->now;
    if (offset >= bytes.size()) return 0u;
    const size_t n = std::min<size_t>(buffer.size(), bytes.size() - offset);
    std::memcpy(buffer.data(), bytes.data() + offset, n);
    return n;
  }

  Result<size_t> WriteAt(std::span<const std::span<const std::byte>> buffers,
                         uint64_t offset) override {
    MutexLock lock(fs_.mutex_);
    RETURN_IF_ERROR(fs_.PowerLocked());
    size_t written = 0;
    for (const auto& buffer : buffers) {
      const uint64_t end = offset + written + buffer.size();
      if (node_->now.size() < end) node_->now.resize(end);
      std::memcpy(node_->now.data() + offset + written, buffer.data(), buffer.size());
      written += buffer.size();
    }
    return written;
  }

  Result<FileInfo> Info() override {
    MutexLock lock(fs_.mutex_);
    return FileInfo{FileInfo::Kind::kRegular, node_->now.size(), node_->mtime_s};
  }

  Status Sync() override {
    MutexLock lock(fs_.mutex_);
    RETURN_IF_ERROR(fs_.PowerLocked());
    node_->durable = node_->now;
    node_->durable_attributes = node_->attributes;
    return {};
  }

  Status Close() override { return {}; }

  Status SetAttribute(const char* name, std::string_view value) override {
    MutexLock lock(fs_.mutex_);
    RETURN_IF_ERROR(fs_.PowerLocked());
    node_->attributes[name] = value;
    return {};
  }

  int fd() const override { return -1; }
  bool direct() const override { return false; }
  const std::string& path() const override { return path_; }

 private:
  PowerLossFileSystem& fs_;
  const std::shared_ptr<Node> node_;
  const std::string path_;
};

void PowerLossFileSystem::LosePower(double kept) {
  MutexLock lock(mutex_);
  calls_left_ = UINT64_MAX;
  for (const Change& change : changes_) {
    if (HappensLocked(kept)) Apply(change, durable_);
  }
  changes_.clear();
  // What lies below a directory that was lost cannot be reached.
  for (auto it = durable_.begin(); it != durable_.end();) {
    const std::string parent = ParentOf(it->first);
    it = parent.empty() || durable_.contains(parent) ? std::next(it) : durable_.erase(it);
  }
  now_.clear();
  for (auto& [path, node] : durable_) {
    auto after = std::make_shared<Node>(*node);
    if (!after->directory) LoseBytesLocked(*after, kept);
    now_.emplace(path, std::move(after));
  }
  durable_ = now_;
}

void PowerLossFileSystem::LoseBytesLocked(Node& node, double kept) {
  std::string after = node.durable;
  if (after.size() != node.now.size() && HappensLocked(kept)) after.resize(node.now.size());
  for (size_t at = 0; at < std::min(after.size(), node.now.size()); at += kBlock) {
    const size_t n = std::min({kBlock, after.size() - at, node.now.size() - at});
    if (std::memcmp(&after[at], &node.now[at], n) == 0) continue;
    if (HappensLocked(kept)) std::memcpy(&after[at], &node.now[at], n);
  }
  node.now = node.durable = std::move(after);
  if (node.attributes != node.durable_attributes && HappensLocked(kept)) {
    node.durable_attributes = node.attributes;
  }
  node.attributes = node.durable_attributes;
}

bool PowerLossFileSystem::HappensLocked(double probability) {
  const bool happens = std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  lost_ += !happens;
  return happens;
}

void PowerLossFileSystem::CutAfter(uint64_t calls) {
  MutexLock lock(mutex_);
  calls_left_ = calls;
}

bool PowerLossFileSystem::cut() const {
  MutexLock lock(mutex_);
  return calls_left_ == 0;
}

Status PowerLossFileSystem::PowerLocked() {
  if (calls_left_ == 0) return Fail(ErrorCode::kIo, "the power is gone");
  --calls_left_;
  return {};
}

uint64_t PowerLossFileSystem::lost() const {
  MutexLock lock(mutex_);
  return lost_;
}

std::string PowerLossFileSystem::ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

auto PowerLossFileSystem::FindLocked(const std::string& path) const
    -> Result<std::shared_ptr<Node>> {
  const auto it = now_.find(path);
  if (it == now_.end()) return FailWith(ENOENT, "open", path);
  return it->second;
}

void PowerLossFileSystem::Apply(const Change& change, Names& names) {
  if (!change.removed.empty()) names.erase(change.removed);
  if (!change.added.empty()) names[change.added] = change.node;
}

void PowerLossFileSystem::ApplyLocked(Change change) {
  Apply(change, now_);
  changes_.push_back(std::move(change));
}

Result<std::unique_ptr<File>> PowerLossFileSystem::OpenRead(const std::string& path, bool) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(auto node, FindLocked(path));
  if (node->directory) return FailWith(EISDIR, "open", path);
  return std::make_unique<MemoryFile>(*this, std::move(node), path);
}

Result<std::unique_ptr<File>> PowerLossFileSystem::Create(const std::string& path, bool) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  if (now_.contains(path)) return FailWith(EEXIST, "open", path);
  if (!now_.contains(ParentOf(path))) return FailWith(ENOENT, "open", path);
  auto node = std::make_shared<Node>();
  node->mtime_s = UnixSeconds();
  ApplyLocked({.removed = {}, .added = path, .node = node});
  return std::make_unique<MemoryFile>(*this, std::move(node), path);
}

Status PowerLossFileSystem::Rename(const std::string& from, const std::string& to) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  ASSIGN_OR_RETURN(auto node, FindLocked(from));
  if (!now_.contains(ParentOf(to))) return FailWith(ENOENT, "make", to);
  if (now_.contains(to) && now_.at(to)->directory) return FailWith(EISDIR, "make", to);
  ApplyLocked({.removed = from, .added = to, .node = std::move(node)});
  return {};
}

Status PowerLossFileSystem::SyncDir(const std::string& path) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  if (path != "/") RETURN_IF_ERROR(FindLocked(path));
  const std::string dir = path == "/" ? "" : path;
  std::erase_if(changes_, [&](const Change& change) {
    mutex_.AssertHeld();
    const bool here = ParentOf(change.added.empty() ? change.removed : change.added) == dir;
    if (here) Apply(change, durable_);
    return here;
  });
  return {};
}

Status PowerLossFileSystem::Remove(const std::string& path) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  ASSIGN_OR_RETURN(const auto node, FindLocked(path));
  if (node->directory) return FailWith(EISDIR, "remove", path);
  ApplyLocked({.removed = path, .added = {}, .node = {}});
  return {};
}

Status PowerLossFileSystem::RemoveDir(const std::string& path) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  RETURN_IF_ERROR(FindLocked(path));
  const auto next = std::next(now_.find(path));
  if (next != now_.end() && next->first.starts_with(path + "/")) {
    return FailWith(ENOTEMPTY, "remove directory", path);
  }
  ApplyLocked({.removed = path, .added = {}, .node = {}});
  return {};
}

Status PowerLossFileSystem::MakeDirs(const std::string& path) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (!now_.contains(part)) {
      auto node = std::make_shared<Node>();
      node->directory = true;
      ApplyLocked({.removed = {}, .added = part, .node = std::move(node)});
    }
    if (end == std::string::npos) return {};
  }
}

Status PowerLossFileSystem::SpreadSubdirs(const std::string& path) {
  return FailWith(EOPNOTSUPP, "set the flags of", path);
}

Result<std::vector<DirEntry>> PowerLossFileSystem::List(const std::string& path) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(FindLocked(path));
  std::vector<DirEntry> entries;
  const std::string prefix = path + "/";
  for (auto it = now_.lower_bound(prefix); it != now_.end() && it->first.starts_with(prefix);
       ++it) {
    const Node& node = *it->second;
    if (it->first.find('/', prefix.size()) != std::string::npos) continue;
    entries.push_back({it->first.substr(prefix.size()),
                       {node.directory ? FileInfo::Kind::kDirectory : FileInfo::Kind::kRegular,
                        node.now.size(), node.mtime_s}});
  }
  return entries;
}

Result<FileInfo> PowerLossFileSystem::Stat(const std::string& path) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const auto node, FindLocked(path));
  return FileInfo{node->directory ? FileInfo::Kind::kDirectory : FileInfo::Kind::kRegular,
                  node->now.size(), node->mtime_s};
}

Status PowerLossFileSystem::Touch(const std::string& path, int64_t mtime_s) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(PowerLocked());
  ASSIGN_OR_RETURN(const auto node, FindLocked(path));
  node->mtime_s = mtime_s;
  return {};
}

Result<std::string> PowerLossFileSystem::Attribute(const std::string& path, const char* name,
                                                   size_t bytes_max) {
  MutexLock lock(mutex_);
  ASSIGN_OR_RETURN(const auto node, FindLocked(path));
  const auto it = node->attributes.find(name);
  if (it == node->attributes.end()) return FailWith(ENODATA, "read an attribute of", path);
  if (it->second.size() > bytes_max) return FailWith(ERANGE, "read an attribute of", path);
  return it->second;
}

Result<std::unique_ptr<FileLock>> PowerLossFileSystem::TryLock(const std::string&) {
  return std::make_unique<MemoryLock>();  // of one process, whose tiers take turns in the tests
}

Result<SpaceInfo> PowerLossFileSystem::Space(const std::string&) {
  return SpaceInfo{.free_bytes = uint64_t{1} << 40, .bytes = uint64_t{1} << 40};
}

Result<std::unique_ptr<IoQueue>> PowerLossFileSystem::NewQueue(const IoQueueOptions& options) {
  return NewBlockingQueue(options);
}

}  // namespace kvcake
