#include "store/redis_server_testing.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string_view>

#include "base/check.h"

namespace kvcake {
namespace {

// Starts a program whose output can be read from *out, and which dies with this process.
pid_t Spawn(const std::vector<std::string>& words, int* out) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  CHECK(pipe2(ends, O_CLOEXEC) == 0);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  *out = ends[0];
  return pid;
}

// Reads until `text` has come, or everything.
std::string ReadUntil(int fd, std::string_view text) {
  std::string all;
  char some[4096];
  while (text.empty() || all.find(text) == std::string::npos) {
    const ssize_t bytes = read(fd, some, sizeof(some));
    if (bytes <= 0) break;
    all.append(some, bytes);
  }
  return all;
}

constexpr std::string_view kReady = "Ready to accept connections";
constexpr int kTries = 20;

// Below those that the system gives to whoever asks for any: while the server is down nobody else
// gets its port. One that is taken all the same shows when it starts.
uint16_t AnyPort() {
  static std::random_device random;
  return std::uniform_int_distribution<uint16_t>(15000, 32000)(random);
}

}  // namespace

RedisServer::RedisServer(std::vector<std::string> options, Transport transport)
    : options_(std::move(options)), transport_(transport) {
  for (int i = 0; i < kTries; ++i) {
    port_ = AnyPort();
    if (std::count(options_.begin(), options_.end(), "--cluster-enabled")) bus_port_ = AnyPort();
    if (TryStart()) return;
  }
  CHECK(!"redis-server starts: is the Debian package redis-server installed?");
}

RedisServer::~RedisServer() { Kill(); }

void RedisServer::Start() { CHECK(TryStart()); }

bool RedisServer::TryStart() {
  const std::string port = std::to_string(port_);
  const bool is_tls = transport_ == Transport::kTls;
  std::vector<std::string> words = {
      "redis-server", "--bind", "127.0.0.1", "--port",   is_tls ? "0" : port, "--save", "",
      "--appendonly", "no",     "--dir",     dir_.path()};
  if (is_tls) words.insert(words.end(), {"--tls-port", port});
  words.insert(words.end(), options_.begin(), options_.end());
  if (bus_port_ > 0) words.insert(words.end(), {"--cluster-port", std::to_string(bus_port_)});
  int out = -1;
  pid_ = Spawn(words, &out);
  const bool ready = ReadUntil(out, kReady).find(kReady) != std::string::npos;
  close(out);
  if (!ready) Kill();
  return ready;
}

void RedisServer::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void RedisServer::Pause() { CHECK(kill(pid_, SIGSTOP) == 0); }

void RedisServer::Resume() { CHECK(kill(pid_, SIGCONT) == 0); }

std::string RedisServer::Cli(const std::vector<std::string>& command) const {
  std::vector<std::string> words = {"redis-cli", "-p", std::to_string(port_)};
  words.insert(words.end(), command.begin(), command.end());
  int out = -1;
  const pid_t pid = Spawn(words, &out);
  const std::string text = ReadUntil(out, "");
  close(out);
  waitpid(pid, nullptr, 0);
  return text;
}

RedisMasters::RedisMasters(int masters) {
  for (int i = 0; i < masters; ++i) {
    servers_.push_back(std::make_unique<RedisServer>(
        std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-node-timeout", "2000",
                                 "--cluster-require-full-coverage", "no"}));
    // Each of its own, as masters that begin with the same one settle that later, and whichever
    // comes out ahead takes slots back that it has given away meanwhile.
    servers_[i]->Cli({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    const int first = i * 16384 / masters, last = (i + 1) * 16384 / masters - 1;
    servers_[i]->Cli({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)});
    servers_[0]->Cli({"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[i]->port()),
                      std::to_string(servers_[i]->bus_port())});
  }
  const std::string known = fmt::format("cluster_known_nodes:{}", masters);
  for (const auto& server : servers_) {
    // All slots, as a cluster that need not have them all calls itself ok before.
    for (std::string info; info.find("cluster_slots_ok:16384") == std::string::npos ||
                           info.find("cluster_state:ok") == std::string::npos ||
                           info.find(known) == std::string::npos;) {
      info = server->Cli({"CLUSTER", "INFO"});
    }
  }
}

std::string RedisMasters::Id(int i) const {
  const std::string id = servers_[i]->Cli({"CLUSTER", "MYID"});
  return id.substr(0, id.find('\n'));
}

}  // namespace kvcake
