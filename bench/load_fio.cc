#include "bench/load_fio.h"

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace kvcake::bench {
namespace {

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

Result<double> FioRate(const std::string& file, uint64_t bytes, bool write) {
  const uint64_t block = 4 << 20;
  std::error_code ignored;
  if (write) std::filesystem::remove(file, ignored);
  ASSIGN_OR_RETURN(
      const std::string out,
      Output(fmt::format("fio --name=yardstick '--filename={}' --size={} --bs={} --direct=1 "
                         "--ioengine=io_uring --iodepth=16 --rw={} --output-format=json",
                         file, (bytes + block - 1) / block * block, block,
                         write ? "write" : "read")));
  const auto json = nlohmann::json::parse(out.substr(std::min(out.find('{'), out.size())), nullptr,
                                          /*allow_exceptions=*/false);
  try {
    return json.at("jobs").at(0).at(write ? "write" : "read").at("bw_bytes").get<double>();
  } catch (const nlohmann::json::exception&) {
    return Fail(ErrorCode::kIo, "fio printed something unexpected: {}", out.substr(0, 200));
  }
}

}  // namespace kvcake::bench
