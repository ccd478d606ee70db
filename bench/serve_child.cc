#include "bench/serve_child.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "io/file_system.h"

namespace kvcake::bench {
namespace {

constexpr std::chrono::minutes kStartMax{5};
constexpr uint64_t kLogMax = 1 << 20;  // of what is printed until then

// The port in the line that says where it serves; 0: there is none yet.
uint16_t PortIn(const std::string& log) {
  const size_t url = log.find("http://");
  const size_t colon = url == std::string::npos ? url : log.find(':', url + 5);
  if (colon == std::string::npos || log.find("/v1", colon) == std::string::npos) return 0;
  return static_cast<uint16_t>(std::strtoul(log.c_str() + colon + 1, nullptr, 10));
}

}  // namespace

Result<std::unique_ptr<ServeChild>> ServeChild::Start(const std::string& program,
                                                      const std::vector<std::string>& flags,
                                                      const std::string& log) {
  std::vector<std::string> words = {program, "serve", "--port", "0"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (out < 0) return Fail(ErrorCode::kIo, "cannot write {}: {}", log, std::strerror(errno));
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(program.c_str(), arguments.data());
    _exit(127);
  }
  close(out);
  if (pid < 0) return Fail(ErrorCode::kIo, "cannot start {}: {}", program, std::strerror(errno));
  std::unique_ptr<ServeChild> child(new ServeChild(pid));
  const auto deadline = std::chrono::steady_clock::now() + kStartMax;
  while (child->port_ == 0) {
    siginfo_t ended = {};
    waitid(P_PID, pid, &ended, WEXITED | WNOHANG | WNOWAIT);
    ASSIGN_OR_RETURN(const std::string text, ReadText(FileSystem::Real(), log, kLogMax));
    child->port_ = PortIn(text);
    if (ended.si_pid != 0 || std::chrono::steady_clock::now() > deadline) {
      return Fail(ErrorCode::kIo, "{} serve does not start: {}", program, text);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return child;
}

ServeChild::~ServeChild() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

Result<uint64_t> ServeChild::RssBytes() const {
  const std::string path = fmt::format("/proc/{}/statm", pid_);
  std::ifstream file(path);
  uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return Fail(ErrorCode::kIo, "cannot read {}", path);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace kvcake::bench
