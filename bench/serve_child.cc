#include "bench/serve_child.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
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
                                                      const std::string& log, uint16_t port) {
  std::vector<std::string> words = {program, "serve", "--port", std::to_string(port)};
  words.insert(words.end(), flags.begin(), flags.end());
  ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(std::move(words), log));
  std::unique_ptr<ServeChild> child(new ServeChild(std::move(process)));
  const auto deadline = std::chrono::steady_clock::now() + kStartMax;
  while (child->port_ == 0) {
    const bool ended = child->process_.Ended();
    ASSIGN_OR_RETURN(const std::string text, ReadText(FileSystem::Real(), log, kLogMax));
    child->port_ = PortIn(text);
    if (ended || std::chrono::steady_clock::now() > deadline) {
      return Fail(ErrorCode::kIo, "{} serve does not start: {}", program, text);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return child;
}

Result<uint64_t> ServeChild::RssBytes() const {
  const std::string path = fmt::format("/proc/{}/statm", process_.pid());
  std::ifstream file(path);
  uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return Fail(ErrorCode::kIo, "cannot read {}", path);
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace kvcake::bench
