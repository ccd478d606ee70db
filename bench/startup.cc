// How long is it from exec to the first forward pass, against loading the weights once?
#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "model/config.h"

namespace kvcake::bench {
namespace {

// Runs this program with `arguments`; what it wrote to stdout.
Result<std::string> RunSelf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "kvcake");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return Fail(ErrorCode::kIo, "cannot make a pipe: {}", std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string out;
  char block[4096];
  for (ssize_t n; error == 0 && (n = read(ends[0], block, sizeof(block))) > 0;)
    out.append(block, n);
  close(ends[0]);
  if (error != 0) return Fail(ErrorCode::kIo, "cannot run kvcake: {}", std::strerror(error));
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) return Fail(ErrorCode::kIo, "kvcake {} failed", arguments[1]);
  return out;
}

std::vector<std::string> WeightFiles(const std::string& dir) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  return files;
}

// Puts the files out of the page cache.
Status DropFromPageCache(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    const bool done =
        fd >= 0 && fdatasync(fd) == 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0;
    if (fd >= 0) close(fd);
    if (!done) return Fail(ErrorCode::kIo, "cannot put {} out of the page cache", file);
  }
  return {};
}

// Seconds for reading the files with every thread, and nothing else: the floor.
Result<double> Read(const std::vector<std::string>& files, ThreadPool& threads) {
  constexpr int64_t kBlock = 4 << 20;
  std::vector<std::vector<std::byte>> blocks(threads.size(), std::vector<std::byte>(kBlock));
  const TimePoint start = Clock::Real().Now();
  for (const std::string& file : files) {
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return Fail(ErrorCode::kIo, "cannot open {}: {}", file, std::strerror(errno));
    const auto size = static_cast<int64_t>(std::filesystem::file_size(file));
    std::atomic<int64_t> bytes{0};
    threads.ParallelFor((size + kBlock - 1) / kBlock, [&](int64_t block, int worker) {
      bytes += pread(fd, blocks[worker].data(), kBlock, block * kBlock);
    });
    close(fd);
    if (bytes != size) return Fail(ErrorCode::kIo, "cannot read all of {}", file);
  }
  return (Clock::Real().Now() - start).count();
}

// Seconds for reading, packing and digesting the weights once, in a process that is there already.
Result<double> Load(const std::string& dir, ThreadPool& threads) {
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
  const Compute compute(threads);
  const TimePoint start = Clock::Real().Now();
  ASSIGN_OR_RETURN(const TensorFiles files, TensorFiles::Open(dir));
  const WeightSource source = WeightSource::FromFiles(files);
  ASSIGN_OR_RETURN(const ModelWeights weights,
                   LoadWeights(compute, config, source, WeightFormat::kBf16));
  RETURN_IF_ERROR(source.digest().map([](const Digest&) {}));
  return (Clock::Real().Now() - start).count();
}

// From exec to the first forward pass of a `kvcake run`.
Result<double> FirstForward(const StartupOptions& options, const std::string& dir) {
  std::vector<std::string> arguments = {
      "run", "--model", dir, "--json", "--prompt", "Once upon a time", "--max-tokens", "1"};
  if (options.threads > 0) {
    arguments.insert(arguments.end(), {"--threads", std::to_string(options.threads)});
  }
  ASSIGN_OR_RETURN(const std::string out, RunSelf(arguments));
  return nlohmann::json::parse(out)["startup"]["first_forward_s"].get<double>();
}

struct Times {
  std::vector<double> read, load, run, ratio;  // a value each repeat; seconds
};

Status Measure(const StartupOptions& options, const std::string& dir, bool cold,
               ThreadPool& threads, Times* times) {
  const std::vector<std::string> files = WeightFiles(dir);
  const auto prepare = [&] { return cold ? DropFromPageCache(files) : Status(); };
  RETURN_IF_ERROR(prepare());
  ASSIGN_OR_RETURN(times->read.emplace_back(), Read(files, threads));
  RETURN_IF_ERROR(prepare());
  ASSIGN_OR_RETURN(const double load, Load(dir, threads));
  RETURN_IF_ERROR(prepare());
  ASSIGN_OR_RETURN(const double run, FirstForward(options, dir));
  times->load.push_back(load);
  times->run.push_back(run);
  times->ratio.push_back(run / load);
  return {};
}

}  // namespace

Status RunStartup(const StartupOptions& options) {
  ASSIGN_OR_RETURN(const std::string dir, ModelDirOf(options.model_dir, options.arch));
  RETURN_IF_ERROR(LoadModelConfig(dir).map([](const auto&) {}));  // it is a model
  const std::string name = options.model_dir.empty() ? options.arch : options.model_dir;
  ThreadPool threads(options.threads > 0 ? options.threads : UsableCores());
  Times warm, cold;
  RETURN_IF_ERROR(Read(WeightFiles(dir), threads).map([](double) {}));  // now they are warm
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    RETURN_IF_ERROR(Measure(options, dir, /*cold=*/false, threads, &warm));
    RETURN_IF_ERROR(Measure(options, dir, /*cold=*/true, threads, &cold));
  }
  uint64_t bytes = 0;
  for (const std::string& file : WeightFiles(dir)) bytes += std::filesystem::file_size(file);
  fmt::print("{}, {} threads; {}: {} MiB of weights\n", CpuName(), threads.size(), name,
             bytes >> 20);
  fmt::print("{:<6} {:>22} {:>26} {:>26} {:>24}\n", "cache", "read alone, s",
             "read+pack+digest once, s", "exec to first forward, s", "ratio (min - max)");
  auto json = nlohmann::ordered_json::array();
  for (const bool is_cold : {false, true}) {
    const Times& times = is_cold ? cold : warm;
    const double load = Median(times.load), run = Median(times.run);
    fmt::print("{:<6} {:>22} {:>26} {:>26} {:>24}\n", is_cold ? "cold" : "warm",
               Spread(times.read, 2), Spread(times.load, 2), Spread(times.run, 2),
               Spread(times.ratio, 2));
    json.push_back({{"model", name},
                    {"cache", is_cold ? "cold" : "warm"},
                    {"weights_bytes", bytes},
                    {"read_s", Median(times.read)},
                    {"load_once_s", load},
                    {"first_forward_s", run},
                    {"ratio", Median(times.ratio)},
                    {"cpu", CpuName()},
                    {"repeats", times.run}});
  }
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
