// A program that runs beside a bench.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

// Owns the process: it is killed with this object, and with the bench at the latest. One thread.
class ChildProcess {
 public:
  // Starts words[0], a path. What it prints goes to the file `log`, which is emptied first.
  static Result<ChildProcess> Start(std::vector<std::string> words, const std::string& log);
  ChildProcess() = default;  // owns none
  ~ChildProcess() { Kill(); }
  ChildProcess(ChildProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }

  pid_t pid() const { return pid_; }
  // Tells whether it has ended, also by itself.
  bool Ended() const;
  // Ends it at once, as a crash does.
  void Kill();
  // Waits until it ends by itself; there is one. Returns its exit code, or -1 where a signal ended
  // it or nothing can be known.
  int Wait();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid) {}

  pid_t pid_ = -1;
};

// The path of a program in `directories`, which are separated by colons, or in those of system
// programs, which a user's PATH need not have. kNotFound names the Debian package that has it.
Result<std::string> FindProgram(std::string_view name, std::string_view package,
                                std::string_view directories);
// The same in PATH.
Result<std::string> FindProgram(std::string_view name, std::string_view package);

// A port of this machine that nobody listens at, and nobody else can until it is released. It lies
// below those that the system gives to whoever asks for any.
class HeldPort {
 public:
  static Result<HeldPort> Hold();
  HeldPort() = default;  // holds none
  ~HeldPort() { Release(); }
  HeldPort(HeldPort&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), port_(other.port_) {}
  HeldPort& operator=(HeldPort&& other) noexcept {
    std::swap(socket_, other.socket_);
    std::swap(port_, other.port_);
    return *this;
  }

  uint16_t port() const { return port_; }
  // Lets whoever it is meant for listen there.
  void Release();

 private:
  int socket_ = -1;
  uint16_t port_ = 0;
};

}  // namespace kvcake::bench
