#include "io/faulty_file_system_testing.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "io/io_queue.h"

namespace kvcake {

class FaultyFileSystem::FaultyFile : public File {
 public:
  FaultyFile(FaultyFileSystem& fs, std::unique_ptr<File> inner, bool direct_asked)
      : fs_(fs), inner_(std::move(inner)), direct_asked_(direct_asked) {}

  Result<size_t> ReadAt(std::span<std::byte> buffer, uint64_t offset) override {
    RETURN_IF_ERROR(DirectError());
    if (fs_.Draw(&FileFaults::read_error)) {
      return tl::unexpected(fs_.ReadError("read", path()));
    }
    fs_.MaybeStall(&FileFaults::read_stall);
    if (buffer.size() > 1 && fs_.Draw(&FileFaults::short_read)) {
      buffer = buffer.first(Shorter(buffer.size()));
    }
    ASSIGN_OR_RETURN(const size_t n, inner_->ReadAt(buffer, offset));
    if (n > 0 && fs_.Draw(&FileFaults::bit_flip)) {
      buffer[fs_.Below(n)] ^= static_cast<std::byte>(1u << fs_.Below(8));
    }
    return n;
  }

  Result<size_t> WriteAt(std::span<const std::span<const std::byte>> buffers,
                         uint64_t offset) override {
    RETURN_IF_ERROR(DirectError());
    RETURN_IF_ERROR(fs_.Change("write", path()));
    fs_.MaybeStall(&FileFaults::write_stall);
    if (fs_.Draw(&FileFaults::write_error)) return Fail(ErrorCode::kIo, "injected: write error");
    if (fs_.Draw(&FileFaults::no_space)) {
      return Fail(ErrorCode::kNoSpace, "injected: no space left on device");
    }
    if (fs_.Draw(&FileFaults::lost_write)) {
      size_t bytes = 0;
      for (const auto& buffer : buffers) bytes += buffer.size();
      return bytes;
    }
    if (!buffers.empty() && buffers[0].size() > 1 && fs_.Draw(&FileFaults::short_write)) {
      const auto part = buffers[0].first(Shorter(buffers[0].size()));
      return inner_->WriteAt({&part, 1}, offset);
    }
    return inner_->WriteAt(buffers, offset);
  }

  Result<FileInfo> Info() override {
    if (fs_.Draw(&FileFaults::info_error)) {
      return tl::unexpected(ErrnoError(EIO, "examine", path()));
    }
    return inner_->Info();
  }
  Status Sync() override {
    RETURN_IF_ERROR(fs_.SyncFault(path()));
    return inner_->Sync();
  }
  Status Close() override {
    RETURN_IF_ERROR(inner_->Close());
    if (!fs_.Draw(&FileFaults::no_space_at_close)) return {};
    std::error_code none;
    std::filesystem::resize_file(path(), 0, none);
    return Fail(ErrorCode::kNoSpace, "injected: no space left on device");
  }
  Status SetAttribute(const char* name, std::string_view value) override {
    RETURN_IF_ERROR(fs_.Change("set an attribute of", path()));
    RETURN_IF_ERROR(fs_.AttributeFault(path()));
    return inner_->SetAttribute(name, value);
  }
  int fd() const override { return -1; }
  bool direct() const override { return inner_->direct(); }
  const std::string& path() const override { return inner_->path(); }

 private:
  Status DirectError() {
    if (!direct_asked_ || !fs_.Draw(&FileFaults::direct_error)) return {};
    return Fail(ErrorCode::kIo, "injected: direct I/O error");
  }
  size_t Shorter(size_t bytes) {
    const size_t n = 1 + fs_.Below(bytes - 1);
    if (inner_->direct()) return std::max<size_t>(n / kDirectAlign, 1) * kDirectAlign;
    return n;
  }

  FaultyFileSystem& fs_;
  const std::unique_ptr<File> inner_;
  const bool direct_asked_;
};

void FaultyFileSystem::Set(const FileFaults& faults) {
  MutexLock lock(mutex_);
  faults_ = faults;
}

Status FaultyFileSystem::Change(const char* action, const std::string& path) {
  MaybeStall(&FileFaults::change_stall);
  MutexLock lock(mutex_);
  if (!DrawLocked(&FileFaults::change_error)) return {};
  return tl::unexpected(ErrnoError(faults_.change_errno, action, path));
}

Status FaultyFileSystem::SyncFault(const std::string& path) {
  MaybeStall(&FileFaults::sync_stall);
  if (!Draw(&FileFaults::sync_error)) return {};
  return tl::unexpected(ErrnoError(EIO, "sync", path));
}

Status FaultyFileSystem::AttributeFault(const std::string& path) {
  if (!Draw(&FileFaults::no_attribute)) return {};
  return tl::unexpected(ErrnoError(EOPNOTSUPP, "use an attribute of", path));
}

Error FaultyFileSystem::ReadError(const char* action, const std::string& path) {
  MutexLock lock(mutex_);
  return ErrnoError(faults_.read_errno, action, path);
}

void FaultyFileSystem::MaybeStall(double FileFaults::*which) {
  MutexLock lock(mutex_);
  if (!DrawLocked(which)) return;
  const uint64_t seen = releases_;
  while (releases_ == seen) released_.Wait(mutex_);
}

void FaultyFileSystem::ReleaseStalled() {
  MutexLock lock(mutex_);
  ++releases_;
  released_.NotifyAll();
}

uint64_t FaultyFileSystem::faults() const {
  MutexLock lock(mutex_);
  return count_;
}

bool FaultyFileSystem::Draw(double FileFaults::*which) {
  MutexLock lock(mutex_);
  return DrawLocked(which);
}

bool FaultyFileSystem::DrawLocked(double FileFaults::*which) {
  const bool hit = std::uniform_real_distribution<double>(0, 1)(random_) < faults_.*which;
  if (hit) ++count_;
  return hit;
}

uint64_t FaultyFileSystem::Below(uint64_t n) {
  MutexLock lock(mutex_);
  return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_);
}

Result<std::unique_ptr<File>> FaultyFileSystem::OpenRead(const std::string& path, bool direct) {
  MaybeStall(&FileFaults::open_stall);
  if (Draw(&FileFaults::open_error)) return tl::unexpected(ReadError("open", path));
  ASSIGN_OR_RETURN(auto file, inner_.OpenRead(path, direct));
  return std::make_unique<FaultyFile>(*this, std::move(file), direct);
}

Result<std::unique_ptr<File>> FaultyFileSystem::Create(const std::string& path, bool direct) {
  RETURN_IF_ERROR(Change("open", path));
  {
    MutexLock lock(mutex_);
    if (DrawLocked(&FileFaults::create_error)) {
      return tl::unexpected(ErrnoError(faults_.create_errno, "open", path));
    }
  }
  ASSIGN_OR_RETURN(auto file, inner_.Create(path, direct));
  return std::make_unique<FaultyFile>(*this, std::move(file), direct);
}

Status FaultyFileSystem::Rename(const std::string& from, const std::string& to) {
  RETURN_IF_ERROR(Change("make", to));
  MaybeStall(&FileFaults::rename_stall);
  if (Draw(&FileFaults::rename_error)) {
    return Fail(ErrorCode::kIo, "injected: rename error: {}", from);
  }
  return inner_.Rename(from, to);
}

Status FaultyFileSystem::SyncDir(const std::string& path) {
  RETURN_IF_ERROR(SyncFault(path));
  return inner_.SyncDir(path);
}

Status FaultyFileSystem::Remove(const std::string& path) {
  RETURN_IF_ERROR(Change("remove", path));
  return inner_.Remove(path);
}

Status FaultyFileSystem::RemoveDir(const std::string& path) {
  RETURN_IF_ERROR(Change("remove directory", path));
  return inner_.RemoveDir(path);
}

Status FaultyFileSystem::MakeDirs(const std::string& path) {
  if (!inner_.Stat(path)) RETURN_IF_ERROR(Change("make directory", path));
  return inner_.MakeDirs(path);
}

Status FaultyFileSystem::SpreadSubdirs(const std::string& path) {
  RETURN_IF_ERROR(Change("set the flags of", path));
  return inner_.SpreadSubdirs(path);
}

Result<std::vector<DirEntry>> FaultyFileSystem::List(const std::string& path) {
  if (Draw(&FileFaults::list_error)) return tl::unexpected(ErrnoError(EIO, "list", path));
  return inner_.List(path);
}

Result<FileInfo> FaultyFileSystem::Stat(const std::string& path) {
  MaybeStall(&FileFaults::stat_stall);
  return inner_.Stat(path);
}

Status FaultyFileSystem::Touch(const std::string& path, int64_t mtime_s) {
  RETURN_IF_ERROR(Change("touch", path));
  return inner_.Touch(path, mtime_s);
}

Result<std::string> FaultyFileSystem::Attribute(const std::string& path, const char* name,
                                                size_t bytes_max) {
  RETURN_IF_ERROR(AttributeFault(path));
  return inner_.Attribute(path, name, bytes_max);
}

Result<std::unique_ptr<FileLock>> FaultyFileSystem::TryLock(const std::string& path) {
  RETURN_IF_ERROR(Change("open", path));
  return inner_.TryLock(path);
}

Result<std::unique_ptr<IoQueue>> FaultyFileSystem::NewQueue(const IoQueueOptions& options) {
  return NewBlockingQueue(options);
}

}  // namespace kvcake
