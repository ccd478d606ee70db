#include "bench/child_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>

#include "base/check.h"

namespace kvcake::bench {
namespace {

constexpr std::string_view kSystemPrograms = "/usr/local/sbin:/usr/sbin:/sbin";
constexpr int kPortTries = 100;

// A socket that has the port, or -1, where errno says why.
int Bind(uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd >= 0 && bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return fd;
  }
  const int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

}  // namespace

Result<ChildProcess> ChildProcess::Start(std::vector<std::string> words, const std::string& log) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (out < 0) return Fail(ErrorCode::kIo, "cannot write {}: {}", log, std::strerror(errno));
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(out);
  if (pid < 0) return Fail(ErrorCode::kIo, "cannot start {}: {}", words[0], std::strerror(errno));
  return ChildProcess(pid);
}

bool ChildProcess::Ended() const {
  siginfo_t ended = {};
  return pid_ < 0 ||
         (waitid(P_PID, pid_, &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid != 0);
}

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  Wait();
}

int ChildProcess::Wait() {
  CHECK(pid_ > 0);  // of -1, waitpid takes any child's end, which its owner then never sees
  int status = 0;
  pid_t ended;
  do {
    ended = waitpid(pid_, &status, 0);
  } while (ended < 0 && errno == EINTR);
  pid_ = -1;
  return ended > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

Result<std::string> FindProgram(std::string_view name, std::string_view package,
                                std::string_view directories) {
  const std::string all = fmt::format("{}:{}:", directories, kSystemPrograms);
  for (size_t from = 0, colon; (colon = all.find(':', from)) != std::string::npos;
       from = colon + 1) {
    if (colon == from) continue;
    const std::string path = fmt::format("{}/{}", all.substr(from, colon - from), name);
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return Fail(ErrorCode::kNotFound, "{} is not installed: install the Debian package {}", name,
              package);
}

Result<std::string> FindProgram(std::string_view name, std::string_view package) {
  const char* path = std::getenv("PATH");
  return FindProgram(name, package, path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
}

Result<HeldPort> HeldPort::Hold() {
  static std::random_device random;
  std::uniform_int_distribution<uint16_t> any(15000, 32000);
  HeldPort held;
  for (int i = 0; i < kPortTries; ++i) {
    held.port_ = any(random);
    held.socket_ = Bind(held.port_);
    if (held.socket_ >= 0) return held;
    if (errno != EADDRINUSE) {
      return Fail(ErrorCode::kIo, "cannot hold a port: {}", std::strerror(errno));
    }
  }
  return Fail(ErrorCode::kResourceExhausted, "{} ports of this machine are all in use", kPortTries);
}

void HeldPort::Release() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
}

}  // namespace kvcake::bench
