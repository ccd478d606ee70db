#include "io/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <random>
#include <utility>

#include "io/io_queue.h"

namespace kvcake {
namespace {

constexpr int kIovecsMax = 64;

tl::unexpected<Error> FailErrno(const char* action, const std::string& path) {
  return tl::unexpected(ErrnoError(errno, action, path));
}

// Retries a system call that a signal interrupted.
template <typename Call>
auto NoIntr(Call call) {
  decltype(call()) r;
  do {
    r = call();
  } while (r < 0 && errno == EINTR);
  return r;
}

FileInfo InfoOf(const struct stat& st) {
  FileInfo info;
  if (S_ISREG(st.st_mode)) info.kind = FileInfo::Kind::kRegular;
  if (S_ISDIR(st.st_mode)) info.kind = FileInfo::Kind::kDirectory;
  info.bytes = static_cast<uint64_t>(st.st_size);
  info.mtime_s = st.st_mtim.tv_sec;
  info.device = st.st_dev;
  info.inode = st.st_ino;
  return info;
}

class RealFile : public File {
 public:
  RealFile(int fd, bool direct, std::string path)
      : fd_(fd), direct_(direct), path_(std::move(path)) {}
  ~RealFile() override {
    if (fd_ >= 0) close(fd_);
  }

  Result<size_t> ReadAt(std::span<std::byte> buffer, uint64_t offset) override {
    const ssize_t n = NoIntr(
        [&] { return pread(fd_, buffer.data(), buffer.size(), static_cast<off_t>(offset)); });
    if (n < 0) return FailErrno("read", path_);
    return static_cast<size_t>(n);
  }

  Result<size_t> WriteAt(std::span<const std::span<const std::byte>> buffers,
                         uint64_t offset) override {
    iovec iov[kIovecsMax];
    const int count = static_cast<int>(std::min<size_t>(buffers.size(), kIovecsMax));
    for (int i = 0; i < count; ++i) {
      iov[i] = {const_cast<std::byte*>(buffers[i].data()), buffers[i].size()};
    }
    const ssize_t n = NoIntr([&] { return pwritev(fd_, iov, count, static_cast<off_t>(offset)); });
    if (n < 0) return FailErrno("write", path_);
    return static_cast<size_t>(n);
  }

  Result<FileInfo> Info() override {
    struct stat st;
    if (fstat(fd_, &st) != 0) return FailErrno("examine", path_);
    return InfoOf(st);
  }

  Status Sync() override {
    if (NoIntr([&] { return fsync(fd_); }) != 0) return FailErrno("sync", path_);
    return {};
  }

  Status Close() override {
    // Where that is interrupted the descriptor is gone, and nobody knows of the last bytes.
    if (close(std::exchange(fd_, -1)) != 0) return FailErrno("close", path_);
    return {};
  }

  Status SetAttribute(const char* name, std::string_view value) override {
    if (fsetxattr(fd_, name, value.data(), value.size(), 0) != 0) {
      return FailErrno("set an attribute of", path_);
    }
    return {};
  }

  int fd() const override { return fd_; }
  bool direct() const override { return direct_; }
  const std::string& path() const override { return path_; }

 private:
  int fd_;
  const bool direct_;
  const std::string path_;
};

class RealLock : public FileLock {
 public:
  RealLock(int fd, std::string path) : file_(fd, /*direct=*/false, std::move(path)) {}
  // A process that was forked meanwhile has it open, too.
  ~RealLock() override { (void)flock(file_.fd(), LOCK_UN); }

  Result<FileInfo> Info() override { return file_.Info(); }

 private:
  RealFile file_;
};

class RealFileSystem : public FileSystem {
 public:
  Result<std::unique_ptr<File>> OpenRead(const std::string& path, bool direct) override {
    // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
    ASSIGN_OR_RETURN(auto file, OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, direct));
    ASSIGN_OR_RETURN(const FileInfo info, file->Info());
    if (info.kind != FileInfo::Kind::kRegular) {
      return Fail(ErrorCode::kCorrupt, "{} is not a regular file", path);
    }
    // io_uring answers EAGAIN, instead of waiting, for files that stay non-blocking.
    const int flags = fcntl(file->fd(), F_GETFL);
    if (flags < 0 || fcntl(file->fd(), F_SETFL, flags & ~O_NONBLOCK) != 0) {
      return FailErrno("open", path);
    }
    return file;
  }

  Result<std::unique_ptr<File>> Create(const std::string& path, bool direct) override {
    return OpenFile(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, direct);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return FailErrno("make", to);
    return {};
  }

  Status SyncDir(const std::string& path) override {
    const int fd = NoIntr([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return FailErrno("open", path);
    return RealFile(fd, /*direct=*/false, path).Sync();
  }

  Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return FailErrno("remove", path);
    return {};
  }

  Status RemoveDir(const std::string& path) override {
    if (rmdir(path.c_str()) != 0) return FailErrno("remove directory", path);
    return {};
  }

  Status MakeDirs(const std::string& path) override {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
        // A parent that exists may refuse mkdir (read-only, no permission) yet be all we need.
        struct stat st;
        const int error = errno;
        if (stat(part.c_str(), &st) != 0) {
          errno = error;
          return FailErrno("make directory", part);
        }
      }
      if (end == std::string::npos) break;
    }
    struct stat st;
    if (stat(path.c_str(), &st) != 0) return FailErrno("make directory", path);
    if (!S_ISDIR(st.st_mode)) return Fail(ErrorCode::kIo, "{} is not a directory", path);
    return {};
  }

  Status SpreadSubdirs(const std::string& path) override {
    const int fd =
        NoIntr([&] { return open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); });
    if (fd < 0) return FailErrno("open", path);
    const RealFile dir(fd, /*direct=*/false, path);
    int flags = 0;  // the kernel reads an int, whatever the macros' names say
    if (ioctl(fd, FS_IOC_GETFLAGS, &flags) != 0) return FailErrno("read the flags of", path);
    if ((flags & FS_TOPDIR_FL) != 0) return {};
    flags |= FS_TOPDIR_FL;
    if (ioctl(fd, FS_IOC_SETFLAGS, &flags) != 0) return FailErrno("set the flags of", path);
    return {};
  }

  Result<std::vector<DirEntry>> List(const std::string& path) override {
    std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(path.c_str()), closedir);
    if (!dir) return FailErrno("list", path);
    std::vector<DirEntry> entries;
    while (true) {
      errno = 0;
      const dirent* entry = readdir(dir.get());
      if (entry == nullptr) {
        if (errno != 0) return FailErrno("list", path);
        return entries;
      }
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat st;
      if (fstatat(dirfd(dir.get()), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
        if (errno == ENOENT) continue;
        entries.push_back({name, {}});  // one odd entry does not hide the others
        continue;
      }
      entries.push_back({name, InfoOf(st)});
    }
  }

  Result<FileInfo> Stat(const std::string& path) override {
    struct stat st;
    if (lstat(path.c_str(), &st) != 0) return FailErrno("examine", path);
    return InfoOf(st);
  }

  Status Touch(const std::string& path, int64_t mtime_s) override {
    const timespec times[2] = {{mtime_s, 0}, {mtime_s, 0}};
    if (utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW) != 0) {
      return FailErrno("touch", path);
    }
    return {};
  }

  Result<std::string> Attribute(const std::string& path, const char* name,
                                size_t bytes_max) override {
    std::string value(bytes_max, '\0');
    const ssize_t n = lgetxattr(path.c_str(), name, value.data(), value.size());
    if (n < 0) return FailErrno("read an attribute of", path);
    value.resize(static_cast<size_t>(n));
    return value;
  }

  Result<std::unique_ptr<FileLock>> TryLock(const std::string& path) override {
    const int fd = NoIntr([&] {
      return open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    });
    if (fd < 0) return FailErrno("open", path);
    auto lock = std::make_unique<RealLock>(fd, path);
    if (NoIntr([&] { return flock(fd, LOCK_EX | LOCK_NB); }) != 0) {
      if (errno == EWOULDBLOCK) return nullptr;
      return FailErrno("lock", path);
    }
    return lock;
  }

  Result<SpaceInfo> Space(const std::string& path) override {
    struct statvfs st;
    if (statvfs(path.c_str(), &st) != 0) return FailErrno("examine", path);
    return SpaceInfo{.free_bytes = st.f_bavail * uint64_t{st.f_frsize},
                     .bytes = st.f_blocks * uint64_t{st.f_frsize}};
  }

  Result<std::unique_ptr<IoQueue>> NewQueue(const IoQueueOptions& options) override {
    return NewIoQueue(options);
  }

 private:
  static Result<std::unique_ptr<File>> OpenFile(const std::string& path, int flags, bool direct) {
    flags |= O_CLOEXEC;
    const auto opened = [&](int more) {
      return NoIntr([&] { return open(path.c_str(), flags | more, 0600); });
    };
    int fd = -1;
#ifdef O_DIRECT
    if (direct) {
      fd = opened(O_DIRECT);
      if (fd >= 0) return std::make_unique<RealFile>(fd, /*direct=*/true, path);
      if (errno != EINVAL) return FailErrno("open", path);
      flags &= ~O_EXCL;  // some file systems say EINVAL after having created the file
    }
#endif
    fd = opened(0);
    if (fd < 0) return FailErrno("open", path);
    auto file = std::make_unique<RealFile>(fd, /*direct=*/false, path);
    if (!direct) return file;
    const auto info = file->Info();  // a directory says EINVAL too, wherever it is
    if (info && info->kind == FileInfo::Kind::kRegular) WarnNoDirectIo(path);
    return file;
  }
};

}  // namespace

FileSystem& FileSystem::Real() {
  // Never destroyed, as threads may use it as the process ends.
  static RealFileSystem* const fs = new RealFileSystem();
  return *fs;
}

bool IsAligned(std::span<const std::byte> bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % kDirectAlign == 0;
}

int64_t UnixSeconds() {
  // Not time(): it may lag a tick behind the time that a file has just been given.
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

Status WriteFully(File& file, std::span<const std::span<const std::byte>> buffers,
                  uint64_t offset) {
  std::vector<std::span<const std::byte>> left(buffers.begin(), buffers.end());
  std::erase_if(left, [](const auto& buffer) { return buffer.empty(); });
  while (!left.empty()) {
    ASSIGN_OR_RETURN(size_t n, file.WriteAt(left, offset));
    if (n == 0) {
      return Fail(ErrorCode::kIo, "cannot write {}: no byte was accepted", file.path());
    }
    offset += n;
    size_t whole = 0;
    while (whole < left.size() && n >= left[whole].size()) n -= left[whole++].size();
    left.erase(left.begin(), left.begin() + static_cast<ptrdiff_t>(whole));
    if (n > 0) left.front() = left.front().subspan(n);
  }
  return {};
}

Status MakeDirsDurably(FileSystem& fs, const std::string& path) {
  std::vector<std::string> dirs;  // the innermost first, the one that has no parent left out
  std::vector<std::string> parents;
  for (std::string dir = path; true; dir = parents.back()) {
    while (dir.size() > 1 && dir.back() == '/') dir.pop_back();
    if (dir == "/" || dir == ".") break;
    const size_t slash = dir.rfind('/');
    dirs.push_back(dir);
    parents.push_back(slash == std::string::npos ? "." : slash == 0 ? "/" : dir.substr(0, slash));
  }
  size_t made = 0;
  while (made < dirs.size() && !fs.Stat(dirs[made])) ++made;
  RETURN_IF_ERROR(fs.MakeDirs(path));
  for (size_t i = 0; i < parents.size(); ++i) {
    // Others may have made one just now; those that are not ours to read have been there for long.
    const auto status = fs.SyncDir(parents[i]);
    if (!status && i < made) return status;
  }
  return {};
}

Result<std::string> ReadText(FileSystem& fs, const std::string& path, uint64_t bytes_max) {
  ASSIGN_OR_RETURN(auto file, fs.OpenRead(path, /*direct=*/false));
  ASSIGN_OR_RETURN(const FileInfo info, file->Info());
  if (info.bytes > bytes_max) {
    return Fail(ErrorCode::kResourceExhausted, "{} has {} bytes, at most {} are read", path,
                info.bytes, bytes_max);
  }
  std::string text(info.bytes, '\0');
  size_t done = 0;
  while (done < text.size()) {
    ASSIGN_OR_RETURN(const size_t n,
                     file->ReadAt(std::as_writable_bytes(std::span(text)).subspan(done), done));
    if (n == 0) break;
    done += n;
  }
  text.resize(done);
  return text;
}

std::string TemporaryName(const std::string& path) {
  // Not from 0, nor from the time: a process in another container may have our pid, and may have
  // started with us.
  static std::atomic<uint64_t> next{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  return fmt::format("{}.tmp.{}.{}", path, getpid(), next.fetch_add(1));
}

namespace {

// A block written to a new file and read back.
Status TryBlock(FileSystem& fs, const std::string& path, bool direct) {
  struct alignas(kDirectAlign) Block {
    std::array<std::byte, kDirectAlign> bytes;
  };
  const auto out = std::make_unique<Block>();
  const auto in = std::make_unique<Block>();
  out->bytes.fill(std::byte{0x5a});
  {
    ASSIGN_OR_RETURN(auto file, fs.Create(path, direct));
    const std::span<const std::byte> bytes = out->bytes;
    RETURN_IF_ERROR(WriteFully(*file, {&bytes, 1}, 0));
    RETURN_IF_ERROR(file->Close());
  }
  ASSIGN_OR_RETURN(auto file, fs.OpenRead(path, direct));
  ASSIGN_OR_RETURN(const size_t n, file->ReadAt(in->bytes, 0));
  if (n == 0 || !std::equal(in->bytes.begin(), in->bytes.begin() + n, out->bytes.begin())) {
    return Fail(ErrorCode::kIo, "cannot read {} back", path);
  }
  return {};
}

}  // namespace

void WarnNoDirectIo(const std::string& path) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  spdlog::warn(
      "direct I/O is not possible for {}: falling back to the operating system's cache, which "
      "takes memory and time from computing; put the store on a local disk (ext4, xfs)",
      path);
}

bool DirectIoWorks(FileSystem& fs, const std::string& path) {
  const auto works = [&](bool direct) {
    const std::string temporary = TemporaryName(path);
    const auto status = TryBlock(fs, temporary, direct);
    (void)fs.Remove(temporary);
    return status.has_value();
  };
  // What fails both ways (a full or read-only file system) does not fail for being direct.
  if (works(true) || !works(false)) return true;
  WarnNoDirectIo(path);
  return false;
}

Status WriteText(FileSystem& fs, const std::string& path, const std::string& text) {
  const std::string temporary = TemporaryName(path);
  {
    ASSIGN_OR_RETURN(auto file, fs.Create(temporary, /*direct=*/false));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
    auto status = WriteFully(*file, {&bytes, 1}, 0);
    if (status) status = file->Close();
    if (!status) {
      (void)fs.Remove(temporary);
      return status;
    }
  }
  auto status = fs.Rename(temporary, path);
  if (!status) (void)fs.Remove(temporary);
  return status;
}

}  // namespace kvcake
