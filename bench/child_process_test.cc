#include "bench/child_process.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/temp_dir_testing.h"

namespace kvcake::bench {
namespace {

using testing::HasSubstr;

std::string TextOf(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(ChildProcess, PrintsToItsLogAndTellsHowItEnded) {
  const TempDir dir;
  const std::string log = dir.path() + "/log";
  ChildProcess child =
      ChildProcess::Start({"/bin/sh", "-c", "echo a; echo b >&2; exit 3"}, log).value();
  EXPECT_EQ(child.Wait(), 3);
  EXPECT_EQ(TextOf(log), "a\nb\n");
  EXPECT_TRUE(child.Ended());
  EXPECT_EQ(ChildProcess::Start({dir.path() + "/none"}, log).value().Wait(), 127);
  EXPECT_THAT(ChildProcess::Start({"/bin/true"}, dir.path() + "/none/log").error().message,
              HasSubstr("cannot write"));
}

// Nothing is known of a process that is gone, which is no success.
TEST(ChildProcess, FailsWhereAnotherHasTakenItsEnd) {
  const TempDir dir;
  ChildProcess child = ChildProcess::Start({"/bin/true"}, dir.path() + "/log").value();
  EXPECT_EQ(waitpid(child.pid(), nullptr, 0), child.pid());
  EXPECT_EQ(child.Wait(), -1);
}

TEST(ChildProcessDeathTest, WaitsForNoneButItsOwn) {
  EXPECT_DEATH(ChildProcess().Wait(), "pid_ > 0");
}

TEST(ChildProcess, IsKilledWithItsOwner) {
  const TempDir dir;
  pid_t pid = -1;
  {
    ChildProcess child =
        ChildProcess::Start({"/bin/sh", "-c", "sleep 100"}, dir.path() + "/log").value();
    EXPECT_FALSE(child.Ended());
    const ChildProcess moved = std::move(child);
    pid = moved.pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

TEST(FindProgram, LooksInAllDirectoriesAndNamesThePackage) {
  const TempDir dir;
  const std::string program = dir.path() + "/some-program";
  EXPECT_EQ(FindProgram("some-program", "some-package", "/nowhere::" + dir.path()).error().message,
            "some-program is not installed: install the Debian package some-package");
  std::ofstream(program) << "#!/bin/sh\n";
  chmod(program.c_str(), 0600);
  EXPECT_FALSE(FindProgram("some-program", "some-package", dir.path())) << "it cannot be run";
  chmod(program.c_str(), 0700);
  EXPECT_EQ(FindProgram("some-program", "some-package", "/nowhere::" + dir.path()).value(),
            program);
  EXPECT_TRUE(FindProgram("sh", "dash"));
}

TEST(HeldPort, IsBelowThoseThatTheSystemGivesAwayAndNobodyElsesUntilItIsReleased) {
  HeldPort held = HeldPort::Hold().value();
  EXPECT_GE(held.port(), 15000);
  EXPECT_LE(held.port(), 32000);
  const auto can_bind = [&] {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(held.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    return bound;
  };
  EXPECT_FALSE(can_bind());
  held.Release();
  EXPECT_TRUE(can_bind());
}

TEST(HeldPort, SaysWhyThereIsNone) {
  ASSERT_TRUE(HeldPort::Hold()) << "which opens what it keeps open";
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = files.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto held = HeldPort::Hold();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  ASSERT_FALSE(held);
  EXPECT_EQ(held.error().message, "cannot hold a port: Too many open files");
}

}  // namespace
}  // namespace kvcake::bench
