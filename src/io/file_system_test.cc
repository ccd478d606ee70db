#include "io/file_system.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/open_descriptors_testing.h"
#include "base/temp_dir_testing.h"
#include "io/empty_file_testing.h"
#include "io/faulty_file_system_testing.h"
#include "io/power_loss_file_system_testing.h"
#include "io/syncs_testing.h"

namespace kvcake {
namespace {

namespace stdfs = std::filesystem;

class FileSystemTest : public testing::Test {
 protected:
  std::string In(const std::string& name) const { return dir_ + "/" + name; }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
  FileSystem& fs_ = FileSystem::Real();
};

TEST_F(FileSystemTest, TextComesBack) {
  for (const std::string& text : {std::string(), std::string("one"), std::string(100000, 'x')}) {
    ASSERT_TRUE(WriteText(fs_, In("a"), text));
    EXPECT_EQ(*ReadText(fs_, In("a"), 100000), text);
  }
  EXPECT_EQ(ReadText(fs_, In("a"), 99999).error().code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(fs_.List(dir_)->size(), 1u) << "a temporary was left";
}

// Chunks tell what was asked, to whoever can read them.
TEST_F(FileSystemTest, WhatIsMadeIsForItsUserAlone) {
  ASSERT_TRUE(fs_.MakeDirs(In("dirs/below")));
  ASSERT_TRUE(fs_.Create(In("file"), /*direct=*/false));
  ASSERT_TRUE(fs_.TryLock(In("lock")));
  for (const char* name : {"dirs", "dirs/below", "file", "lock"}) {
    const auto others = stdfs::perms::group_all | stdfs::perms::others_all;
    EXPECT_EQ(stdfs::status(In(name)).permissions() & others, stdfs::perms::none) << name;
  }
}

TEST_F(FileSystemTest, ErrorsHaveTheirCodesAndNames) {
  const auto missing = fs_.OpenRead(In("missing"), true);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find(In("missing")), std::string::npos);
  EXPECT_EQ(fs_.Stat(In("missing")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fs_.Remove(In("missing")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fs_.List(In("missing")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fs_.Rename(In("missing"), In("b")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(fs_.OpenRead(dir_, false).error().code, ErrorCode::kCorrupt);
  ASSERT_TRUE(WriteText(fs_, In("file"), "x"));
  EXPECT_EQ(fs_.Create(In("file"), true).error().code, ErrorCode::kIo) << "the name exists";
  stdfs::create_symlink(In("file"), In("link"));
  EXPECT_EQ(fs_.OpenRead(In("link"), true).error().code, ErrorCode::kCorrupt);
  ASSERT_EQ(mkfifo(In("pipe").c_str(), 0600), 0);
  EXPECT_EQ(fs_.OpenRead(In("pipe"), false).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(fs_.MakeDirs(In("file")).error().code, ErrorCode::kIo);
}

TEST_F(FileSystemTest, WhatTheSystemSaysIsToldWithWhatCanBeDone) {
  const auto expect = [](int error, ErrorCode code, const std::string& remedy) {
    const Error told = ErrnoError(error, "write", "/a");
    EXPECT_EQ(told.code, code) << error;
    EXPECT_EQ(told.message, fmt::format("cannot write /a: {}{}", strerror(error), remedy));
  };
  using enum ErrorCode;
  expect(ENOTDIR, kNotFound, "");
  expect(ENODATA, kNotFound, "");
  expect(ENXIO, kCorrupt, "");
  expect(EOPNOTSUPP, kUnsupported, "");
  expect(ENOSPC, kNoSpace, "; free space on that file system");
  expect(EDQUOT, kNoSpace, "; free space or raise the quota");
  expect(EMFILE, kResourceExhausted, "; raise the limit of open files (ulimit -n)");
  expect(ENFILE, kResourceExhausted, "; raise the limit of open files (ulimit -n)");
  expect(EFBIG, kIo, "; raise the limit of a file's size (ulimit -f)");
  expect(EACCES, kInvalidArgument, "; let this user read and write there");
  expect(EPERM, kInvalidArgument, "; let this user read and write there");
  expect(EROFS, kIo, "; mount that file system writable");
  expect(EIO, kIo, "; the device may be failing: see the kernel's log");
}

TEST_F(FileSystemTest, NothingBehindALinkIsTouchedOrLocked) {
  ASSERT_TRUE(WriteText(fs_, In("file"), "x"));
  ASSERT_TRUE(fs_.Touch(In("file"), 1000));
  stdfs::create_symlink(In("file"), In("link"));
  ASSERT_TRUE(fs_.Touch(In("link"), 5000));
  EXPECT_EQ(fs_.Stat(In("file"))->mtime_s, 1000);
  EXPECT_EQ(fs_.Stat(In("link"))->mtime_s, 5000);
  EXPECT_FALSE(fs_.TryLock(In("link")));
}

TEST_F(FileSystemTest, DirectoriesAreMadeListedAndRemoved) {
  ASSERT_TRUE(fs_.MakeDirs(In("a/b/c")));
  ASSERT_TRUE(fs_.MakeDirs(In("a/b/c")));
  EXPECT_EQ(stdfs::status(In("a/b")).permissions(), stdfs::perms::owner_all);
  ASSERT_TRUE(WriteText(fs_, In("a/file"), "12345"));
  ASSERT_TRUE(fs_.Touch(In("a/file"), 1234567));
  stdfs::create_symlink("nowhere", In("a/link"));
  auto entries = *fs_.List(In("a"));
  std::sort(entries.begin(), entries.end(), [](auto& x, auto& y) { return x.name < y.name; });
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "b");
  EXPECT_EQ(entries[0].info.kind, FileInfo::Kind::kDirectory);
  EXPECT_EQ(entries[1].name, "file");
  EXPECT_EQ(entries[1].info.kind, FileInfo::Kind::kRegular);
  EXPECT_EQ(entries[1].info.bytes, 5u);
  EXPECT_EQ(entries[1].info.mtime_s, 1234567);
  EXPECT_EQ(entries[2].info.kind, FileInfo::Kind::kOther);
  EXPECT_FALSE(fs_.RemoveDir(In("a"))) << "it is not empty";
  EXPECT_TRUE(fs_.RemoveDir(In("a/b/c")));
  EXPECT_GT(fs_.Space(dir_)->free_bytes, 0u);
  EXPECT_GE(fs_.Space(dir_)->bytes, fs_.Space(dir_)->free_bytes);
}

TEST_F(FileSystemTest, DirectoriesThatAreNotDurableAreAnErrorToWhoMadeThem) {
  FaultyFileSystem faulty(fs_, 1);
  faulty.Set({.sync_error = 1});
  EXPECT_FALSE(MakeDirsDurably(faulty, In("one")));
  EXPECT_FALSE(MakeDirsDurably(faulty, In("a/b")));
  EXPECT_TRUE(MakeDirsDurably(faulty, In("a/b"))) << "whoever did has seen to it";
}

TEST_F(FileSystemTest, WhatTheSystemSaysAtTheEndOfAFileIsTold) {
  auto file = fs_.Create(In("file"), /*direct=*/false).value();
  const int fd = file->fd();
  EXPECT_TRUE(file->Close());
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "it is closed";
  file = fs_.Create(In("other"), /*direct=*/false).value();
  close(file->fd());
  const Status closed = file->Close();
  ASSERT_FALSE(closed);
  EXPECT_NE(closed.error().message.find(In("other")), std::string::npos);
}

TEST_F(FileSystemTest, NothingStaysOpen) {
  ASSERT_TRUE(WriteText(fs_, In("file"), "x"));
  const size_t before = testing_util::OpenDescriptors();
  for (const bool direct : {false, true}) {
    EXPECT_TRUE(fs_.OpenRead(In("file"), direct));
    EXPECT_FALSE(fs_.OpenRead(dir_, direct));
  }
  EXPECT_TRUE(fs_.SyncDir(dir_));
  EXPECT_TRUE(fs_.List(dir_));
  EXPECT_TRUE(fs_.TryLock(In("lock")));
  const auto lock = fs_.TryLock(In("lock"));
  EXPECT_EQ(*fs_.TryLock(In("lock")), nullptr);
  EXPECT_EQ(testing_util::OpenDescriptors(), before + 1) << "the lock's";
}

TEST_F(FileSystemTest, WhatIsOpenIsNoOtherProgramsAndWaitsForTheDevice) {
  ASSERT_TRUE(WriteText(fs_, In("file"), "x"));
  for (const bool direct : {false, true}) {
    const auto file = fs_.OpenRead(In("file"), direct);
    ASSERT_TRUE(file);
    EXPECT_NE(fcntl((*file)->fd(), F_GETFD) & FD_CLOEXEC, 0);
    EXPECT_EQ(fcntl((*file)->fd(), F_GETFL) & O_NONBLOCK, 0) << "io_uring would not wait";
  }
}

TEST_F(FileSystemTest, FilesAndNamesAreSyncedBySystemCalls) {
  const auto file = fs_.Create(In("file"), /*direct=*/false);
  ASSERT_TRUE(file);
  const int before = SyncsSoFar();
  EXPECT_TRUE((*file)->Sync());
  EXPECT_EQ(SyncsSoFar(), before + 1);
  EXPECT_TRUE(fs_.SyncDir(dir_));
  EXPECT_EQ(SyncsSoFar(), before + 2);
  EXPECT_EQ(fs_.SyncDir(In("missing")).error().code, ErrorCode::kNotFound);
}

TEST_F(FileSystemTest, DirectoriesThatAreMadeDurablySurviveAPowerLoss) {
  for (const char* path : {"/a", "/a/b/c", "/a/b/c/", "/"}) {
    PowerLossFileSystem fs(1);
    ASSERT_TRUE(MakeDirsDurably(fs, path)) << path;
    fs.LosePower(/*kept=*/0);
    EXPECT_TRUE(std::string_view(path) == "/" || fs.Stat("/a")) << path;
    EXPECT_EQ(std::string_view(path).size() > 2, fs.Stat("/a/b/c").has_value()) << path;
  }
}

// IOV_MAX is what one system call takes; these are more.
TEST_F(FileSystemTest, ManyBuffersAreWrittenOneBehindTheOther) {
  const std::string text(3000, 'x');
  std::vector<std::span<const std::byte>> buffers;
  for (size_t i = 0; i < text.size(); i += 2) {
    buffers.push_back(std::as_bytes(std::span(text)).subspan(i, 2));
    buffers.emplace_back();
  }
  {
    const auto file = fs_.Create(In("file"), /*direct=*/false);
    ASSERT_TRUE(file);
    ASSERT_TRUE(WriteFully(**file, buffers, 5));
  }
  EXPECT_EQ(ReadText(fs_, In("file"), 4000).value(), std::string(5, '\0') + text);
}

// Most of it is a hole, which takes no room.
TEST_F(FileSystemTest, OffsetsMayBeBeyond32Bits) {
  const std::string text = "far";
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  constexpr uint64_t kFar = (5ull << 30) + 1;
  {
    const auto file = fs_.Create(In("file"), /*direct=*/false);
    ASSERT_TRUE(file);
    ASSERT_TRUE(WriteFully(**file, {&bytes, 1}, kFar));
  }
  EXPECT_EQ(fs_.Stat(In("file"))->bytes, kFar + text.size());
  const auto file = fs_.OpenRead(In("file"), /*direct=*/false);
  ASSERT_TRUE(file);
  std::string read(5, ' ');
  EXPECT_EQ((*file)->ReadAt(std::as_writable_bytes(std::span(read)), kFar), text.size());
  EXPECT_EQ(read, "far  ");
}

// A file of the kernel's says that it has a page, and has a line.
TEST_F(FileSystemTest, ATextEndsWhereItsFileDoesWhateverItsSizeWas) {
  const std::string path = "/sys/devices/system/cpu/online";
  const auto info = fs_.Stat(path);
  if (!info || info->bytes < 1000) GTEST_SKIP() << path << " is not there, or has its own size";
  const auto text = ReadText(fs_, path, info->bytes);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_EQ(text->find('\n'), text->size() - 1);
}

TEST(WriteFullyTest, WhatTakesNothingIsNotTriedForEver) {
  EmptyFile file("full");
  const std::string text = "x";
  const std::span<const std::byte> bytes = std::as_bytes(std::span(text));
  const Status written = WriteFully(file, {&bytes, 1}, 0);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().message, "cannot write full: no byte was accepted");
}

TEST_F(FileSystemTest, ATextThatIsNotKeptLeavesTheOldOne) {
  FaultyFileSystem full(fs_, 1);
  ASSERT_TRUE(WriteText(full, In("text"), "old"));
  for (const FileFaults& faults : {FileFaults{.no_space = 1}, FileFaults{.no_space_at_close = 1}}) {
    full.Set(faults);
    EXPECT_FALSE(WriteText(full, In("text"), "new"));
    EXPECT_EQ(fs_.List(dir_)->size(), 1u);
    EXPECT_EQ(fs_.Stat(In("text"))->bytes, 3u);
  }
}

// As `lsattr -d` shows it.
bool IsTopOfHierarchies(const std::string& dir) {
  const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY);
  int flags = 0;
  EXPECT_EQ(ioctl(fd, FS_IOC_GETFLAGS, &flags), 0);
  close(fd);
  return (flags & FS_TOPDIR_FL) != 0;
}

TEST_F(FileSystemTest, SubdirectoriesAreSpreadWhereThatCanBeSaid) {
  EXPECT_EQ(fs_.SpreadSubdirs(In("missing")).error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(fs_.MakeDirs(In("a/b")));
  stdfs::create_directory_symlink("a", In("link"));
  EXPECT_FALSE(fs_.SpreadSubdirs(In("link"))) << "what lies behind it is not ours, perhaps";
  struct statfs st;
  ASSERT_EQ(statfs(dir_.c_str(), &st), 0);
  const Status spread = fs_.SpreadSubdirs(In("a"));
  if (st.f_type != EXT4_SUPER_MAGIC) {
    EXPECT_EQ(spread ? ErrorCode::kUnsupported : spread.error().code, ErrorCode::kUnsupported);
    GTEST_SKIP() << "only ext4 is known to take the hint: TMPDIR names a directory";
  }
  ASSERT_TRUE(spread);
  EXPECT_TRUE(IsTopOfHierarchies(In("a")));
  EXPECT_FALSE(IsTopOfHierarchies(In("a/b")));
  EXPECT_TRUE(fs_.SpreadSubdirs(In("a"))) << "once more changes nothing";
  EXPECT_TRUE(IsTopOfHierarchies(In("a")));
}

TEST_F(FileSystemTest, AttributesComeBackWhereThereAreAny) {
  const auto file = fs_.Create(In("a"), false);
  ASSERT_TRUE(file);
  const Status set = (*file)->SetAttribute("user.kvcake.test", "value");
  if (!set) {
    EXPECT_EQ(set.error().code, ErrorCode::kUnsupported);
    GTEST_SKIP() << set.error().message;
  }
  EXPECT_EQ(fs_.Attribute(In("a"), "user.kvcake.test", 5).value(), "value");
  ASSERT_TRUE((*file)->SetAttribute("user.kvcake.test", "more"));
  EXPECT_EQ(fs_.Attribute(In("a"), "user.kvcake.test", 5).value(), "more");
  ASSERT_TRUE(fs_.Rename(In("a"), In("b")));
  EXPECT_EQ(fs_.Attribute(In("b"), "user.kvcake.test", 5).value(), "more");
  const auto code = [&](const char* name, const char* attribute, size_t bytes_max) {
    return fs_.Attribute(In(name), attribute, bytes_max).error().code;
  };
  EXPECT_EQ(code("b", "user.kvcake.test", 3), ErrorCode::kResourceExhausted);
  EXPECT_EQ(code("b", "user.kvcake.other", 5), ErrorCode::kNotFound);
  EXPECT_EQ(code("a", "user.kvcake.test", 5), ErrorCode::kNotFound);
  FaultyFileSystem faulty(fs_, 1);
  faulty.Set({.no_attribute = 1});
  EXPECT_EQ(faulty.Attribute(In("b"), "user.kvcake.test", 5).error().code, ErrorCode::kUnsupported);
}

TEST_F(FileSystemTest, ALockIsExclusiveUntilItGoes) {
  auto first = fs_.TryLock(In("lock"));
  ASSERT_TRUE(first && *first);
  auto second = fs_.TryLock(In("lock"));
  ASSERT_TRUE(second);
  EXPECT_EQ(*second, nullptr);
  first->reset();
  auto third = fs_.TryLock(In("lock"));
  ASSERT_TRUE(third);
  EXPECT_NE(*third, nullptr);
}

// One that was forked while it was held, and lives on, has its descriptor, too.
TEST_F(FileSystemTest, AForkedProcessKeepsNoLock) {
  auto lock = fs_.TryLock(In("lock"));
  ASSERT_TRUE(lock && *lock);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    char byte;
    _exit(static_cast<int>(read(ends[0], &byte, 1)));  // 0: the parent has closed its end
  }
  ASSERT_GT(child, 0);
  lock->reset();
  const auto again = fs_.TryLock(In("lock"));
  EXPECT_TRUE(again && *again);
  close(ends[0]);
  close(ends[1]);
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(FileSystemTest, TemporaryNamesNeverRepeat) {
  std::vector<std::string> texts(4);
  std::vector<std::thread> writers;
  for (size_t t = 0; t < texts.size(); ++t) {
    texts[t] = std::string(20000, static_cast<char>('a' + t));
    writers.emplace_back([&, t] {
      for (int n = 0; n < 50; ++n) EXPECT_TRUE(WriteText(fs_, In("shared"), texts[t]));
    });
  }
  for (std::thread& writer : writers) writer.join();
  const auto text = ReadText(fs_, In("shared"), 100000);
  ASSERT_TRUE(text);
  EXPECT_NE(std::find(texts.begin(), texts.end(), *text), texts.end()) << "two writers mixed";
  EXPECT_EQ(fs_.List(dir_)->size(), 1u) << "a temporary was left";
}

TEST_F(FileSystemTest, DirectIoIsTriedAndOnlyItsOwnFailureCounts) {
  EXPECT_TRUE(DirectIoWorks(fs_, In("missing/probe"))) << "cannot be told";
  FaultyFileSystem faulty(fs_, 1);
  EXPECT_TRUE(DirectIoWorks(faulty, In("probe")));
  faulty.Set({.direct_error = 1});
  EXPECT_FALSE(DirectIoWorks(faulty, In("probe")));
  faulty.Set({.no_space = 1});
  EXPECT_TRUE(DirectIoWorks(faulty, In("probe"))) << "a full disk says nothing of direct I/O";
  EXPECT_TRUE(fs_.List(dir_)->empty()) << "a temporary was left";
}

TEST_F(FileSystemTest, FaultsAreInjectedByProbability) {
  FaultyFileSystem faulty(fs_, 1);
  ASSERT_TRUE(WriteText(faulty, In("a"), "hello"));
  EXPECT_EQ(faulty.faults(), 0u);
  faulty.Set({.open_error = 1});
  EXPECT_EQ(faulty.OpenRead(In("a"), false).error().code, ErrorCode::kIo);
  faulty.Set({.read_error = 1});
  EXPECT_EQ(ReadText(faulty, In("a"), 100).error().code, ErrorCode::kIo);
  faulty.Set({.bit_flip = 1});
  EXPECT_NE(*ReadText(faulty, In("a"), 100), "hello");
  faulty.Set({.no_space = 1});
  EXPECT_EQ(WriteText(faulty, In("a"), "x").error().code, ErrorCode::kNoSpace);
  faulty.Set({.rename_error = 1});
  EXPECT_EQ(WriteText(faulty, In("a"), "x").error().code, ErrorCode::kIo);
  faulty.Set({.short_read = 0.5, .short_write = 0.5});
  for (int i = 0; i < 50; ++i) {
    const std::string text(static_cast<size_t>(i) * 37, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(WriteText(faulty, In("b"), text));
    ASSERT_EQ(*ReadText(faulty, In("b"), 10000), text);
  }
  faulty.Set({});
  EXPECT_EQ(*ReadText(faulty, In("a"), 100), "hello") << "a failed write replaced the file";
  faulty.Set({.lost_write = 1});
  ASSERT_TRUE(WriteText(faulty, In("c"), "hello"));
  EXPECT_EQ(*ReadText(faulty, In("c"), 100), "");
  EXPECT_EQ(fs_.List(dir_)->size(), 3u) << "a temporary was left";
}

}  // namespace
}  // namespace kvcake
