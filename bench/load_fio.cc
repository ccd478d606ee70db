#include "bench/load_fio.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/large_pages.h"

namespace kvcake::bench {
namespace {

constexpr uint64_t kBlock = 4 << 20;
constexpr uint64_t kDepth = 16;

// By the whole system, since it started; 0 where it does not say.
uint64_t LargePagesMade() {
  std::ifstream counts("/proc/vmstat");
  std::string name;
  uint64_t count = 0;
  while (counts >> name >> count) {
    if (name == "thp_fault_alloc") return count;
  }
  return 0;
}

// What a command prints; its exit code must be 0.
Result<std::string> Output(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return Fail(ErrorCode::kIo, "cannot run {}", command);
  std::string out;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) out.append(buffer, n);
  const int status = pclose(pipe);
  if (status != 0) {
    return Fail(WEXITSTATUS(status) == 127 ? ErrorCode::kNotFound : ErrorCode::kIo,
                "{} ended with exit code {}", command, WEXITSTATUS(status));
  }
  return out;
}

}  // namespace

Status CheckFio() {
  if (Output("fio --version 2>/dev/null")) return {};
  return Fail(ErrorCode::kNotFound,
              "this bench compares with fio, which is not installed: apt-get install fio");
}

void SettleFileSystem(const std::string& dir) {
  const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  (void)syncfs(fd);
  close(fd);
}

Result<FioRate> RunFio(const std::string& file, uint64_t bytes, bool write, bool large_pages) {
  const uint64_t large_pages_before = LargePagesMade();
  std::error_code ignored;
  if (write) std::filesystem::remove(file, ignored);
  SettleFileSystem(std::filesystem::path(file).parent_path());
  ASSIGN_OR_RETURN(
      const std::string out,
      // glibc's malloc asks for large pages, which fio itself would only take from a reserve that
      // few systems have (--iomem=mmaphuge).
      Output(fmt::format("GLIBC_TUNABLES=glibc.malloc.hugetlb={} fio --name=yardstick "
                         "'--filename={}' --size={} --bs={} --direct=1 "
                         "--ioengine=io_uring --iodepth={} --rw={} --output-format=json",
                         large_pages ? 1 : 0, file, (bytes + kBlock - 1) / kBlock * kBlock, kBlock,
                         kDepth, write ? "write" : "read")));
  const auto json = nlohmann::json::parse(out.substr(std::min(out.find('{'), out.size())), nullptr,
                                          /*allow_exceptions=*/false);
  try {
    FioRate rate;
    rate.bytes_per_s = json.at("jobs").at(0).at(write ? "write" : "read").at("bw_bytes");
    rate.large_pages =
        LargePagesMade() - large_pages_before >= kDepth * kBlock / kLargePageBytes / 2;
    return rate;
  } catch (const nlohmann::json::exception&) {
    return Fail(ErrorCode::kIo, "fio printed something unexpected: {}", out.substr(0, 200));
  }
}

}  // namespace kvcake::bench
