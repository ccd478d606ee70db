#include "app/worker_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/check.h"
#include "comm/local_join.h"

namespace kvcake {
namespace {

constexpr int kEndMsMax = 5000;  // from SIGTERM on
constexpr size_t kLineBytesMax = 1024;
constexpr int kControlFd = STDERR_FILENO + 1;  // the worker's

struct SpawnAttributes {
  // Its own process group: Ctrl-C is for the server, which lets its workers go when it has done.
  SpawnAttributes() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnAttributes() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
};

}  // namespace

std::vector<std::string> FlagsOfWorkers(const CLI::App& command) {
  const CLI::App* worker = command.get_parent()->get_subcommand("worker");
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (name == "--config") continue;  // whose flags are given by now
    if (option->count() == 0 || worker->get_option_no_throw(name) == nullptr) continue;
    for (const std::string& value : option->results()) flags.push_back(name + "=" + value);
  }
  return flags;
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const std::vector<std::string>& flags) {
  std::vector<std::string> words = {"kvcake", "worker",
                                    fmt::format("--listen={}{}", kInherited, kControlFd),
                                    fmt::format("--parent={}", getpid())};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  ASSIGN_OR_RETURN(const ControlSockets control, NewControlSockets());
  std::array<int, 2> ends;
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    close(control.leader);
    close(control.worker);
    return Fail(ErrorCode::kResourceExhausted, "no pipe for a worker: {}", std::strerror(errno));
  }
  SpawnAttributes spawn;
  posix_spawn_file_actions_adddup2(&spawn.actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&spawn.actions, control.worker, kControlFd);
  posix_spawn_file_actions_addclosefrom_np(&spawn.actions, kControlFd + 1);
  pid_t pid;
  // This very program, also when another one has been installed in its place.
  const int error = posix_spawn(&pid, "/proc/self/exe", &spawn.actions, &spawn.attributes,
                                arguments.data(), environ);
  close(ends[1]);
  close(control.worker);
  if (error != 0) {
    close(ends[0]);
    close(control.leader);
    return Fail(ErrorCode::kIo, "cannot start a worker: {}", std::strerror(error));
  }
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(pid, ends[0], control.leader));
}

WorkerProcess::~WorkerProcess() {
  kill(pid_, SIGTERM);
  pollfd ended = {.fd = out_, .events = 0, .revents = 0};  // POLLHUP is always told
  if (poll(&ended, 1, kEndMsMax) != 1) kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(out_);
  close(control_);
}

Status WorkerProcess::AwaitReady(const std::stop_token& stop) {
  const int stopped = eventfd(0, EFD_CLOEXEC);
  CHECK(stopped >= 0);
  Status status;
  {
    const std::stop_callback stops(stop, [stopped] { eventfd_write(stopped, 1); });
    while (status && !said_.ends_with('\n')) {
      std::array<pollfd, 2> ready = {pollfd{.fd = out_, .events = POLLIN, .revents = 0},
                                     pollfd{.fd = stopped, .events = POLLIN, .revents = 0}};
      if (poll(ready.data(), ready.size(), -1) < 0) continue;
      std::array<char, kLineBytesMax> bytes;
      if (ready[1].revents != 0) {
        status = Fail(ErrorCode::kCancelled, "stopped");
      } else if (const ssize_t n = read(out_, bytes.data(), bytes.size()); n > 0) {
        said_.append(bytes.data(), n);
      } else {
        status = Fail(ErrorCode::kIo, "worker {} has ended, and its last words say why", pid_);
      }
    }
  }
  close(stopped);
  return status;
}

bool WorkerProcess::Ended() const {
  pollfd ended = {.fd = out_, .events = 0, .revents = 0};
  return poll(&ended, 1, 0) == 1;
}

void WorkerProcess::Kill() { kill(pid_, SIGKILL); }

}  // namespace kvcake
