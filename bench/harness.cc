#include "bench/harness.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/check.h"
#include "base/dump_json.h"
#include "io/file_system.h"
#include "model/synth.h"

namespace kvcake::bench {

std::string CacheDir() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (xdg != nullptr && *xdg != '\0') return std::string(xdg) + "/kvcake";
  return std::string(home != nullptr ? home : "/tmp") + "/.cache/kvcake";
}

namespace {

// Null where the file system has no locks.
std::unique_ptr<FileLock> WaitForLock(const std::string& path) {
  for (;;) {
    auto lock = FileSystem::Real().TryLock(path);
    if (!lock) return nullptr;
    if (*lock) return *std::move(lock);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

Result<std::string> SynthModelDir(const std::string& arch) {
  RETURN_IF_ERROR(SynthArch(arch));  // before anything of that name is touched
  const std::string models = CacheDir() + "/models", dir = models + "/" + arch;
  std::error_code ignored;
  std::filesystem::create_directories(models, ignored);
  // Ranks begin at the same time: one writes it.
  const auto lock = WaitForLock(models + "/." + arch + ".lock");
  // config.json is written last: with it the model is complete.
  if (std::filesystem::exists(dir + "/config.json")) return dir;
  std::filesystem::remove_all(dir, ignored);
  std::filesystem::create_directories(dir, ignored);
  fmt::print(stderr, "writing random weights in the shape of {} to {}\n", arch, dir);
  RETURN_IF_ERROR(WriteSynthModel(arch, dir));
  return dir;
}

double Median(std::vector<double> values) {
  CHECK(!values.empty());
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + middle, values.end());
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle] + *std::max_element(values.begin(), values.begin() + middle)) / 2;
}

double Quantile(std::vector<double> values, double q) {
  CHECK(!values.empty());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  const size_t at = std::clamp<size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[at];
}

std::string Spread(const std::vector<double>& values, int decimals) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return fmt::format("{:.{}f} ({:.{}f} - {:.{}f})", Median(values), decimals, *least, decimals,
                     *most, decimals);
}

std::vector<std::string> ModelNames(const std::string& dir, const std::vector<std::string>& archs) {
  return dir.empty() ? archs : std::vector{dir};
}

Result<std::string> ModelDirOf(const std::string& dir, const std::string& arch) {
  if (!dir.empty()) return dir;
  return SynthModelDir(arch);
}

Result<std::string> ModelDirNamed(const std::string& name) {
  std::error_code none;
  const auto archs = SynthArchNames();
  const bool is_dir = std::filesystem::is_directory(name, none);
  return is_dir && std::ranges::count(archs, name) == 0 ? name : SynthModelDir(name);
}

Status CheckDevice(NumericPath path) {
  return PageMemoryOf(path).map([](const auto&) {});
}

void SetPageBytes(uint64_t bytes, RuntimeOptions* options) {
  options->ram_capacity_bytes = OnCuda(options->path) ? 0 : bytes;
}

double CpuSeconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

uint16_t NextSmallBf16(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint16_t>(0x3c00 | (*state >> 32 & 0x81ff));
}

std::vector<uint16_t> RandomPage(const KvLayout& layout) {
  std::vector<uint16_t> page(layout.page_bytes() / sizeof(uint16_t));
  uint64_t seed = 1;
  for (uint16_t& element : page) element = NextSmallBf16(&seed);
  return page;
}

Result<PageTable> DrawPages(Runtime& runtime, int count, std::span<const uint16_t> contents) {
  PageTable pages;
  for (int i = 0; i < count; ++i) {
    auto page = runtime.pool().Draw();
    if (!page) return Fail(ErrorCode::kResourceExhausted, "no pages are left");
    if (!contents.empty()) {
      WriteTo(MemoryOf(runtime.model().numeric_path()), runtime.pool().Data(page->id()),
              std::as_bytes(contents));
    }
    pages.push_back(std::move(*page));
  }
  return pages;
}

std::vector<int32_t> RandomPrompt(int count, int vocab, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<int32_t> prompt(count);
  for (int32_t& token : prompt) token = static_cast<int32_t>(rng() % vocab);
  return prompt;
}

void EmptyMemory(Runtime& runtime) {
  Restorer& restorer = runtime.restorer();
  const TimePoint give_up = Clock::Real().Now() + runtime.options().stall_timeout;
  uint64_t events = 0;
  while (restorer.Stats().reads_in_flight > 0 && Clock::Real().Now() < give_up) {
    events = restorer.EventsAfter(events, give_up);
  }
  runtime.pool().DropCached();
}

Result<Completion> RunCold(Runtime& runtime, const std::vector<int32_t>& prompt, Policy policy,
                           int max_tokens, bool store) {
  EmptyMemory(runtime);
  ASSIGN_OR_RETURN(
      Completion completion,
      runtime.engine().Answer(
          {.prompt = prompt, .max_tokens = max_tokens, .store = store, .policy = policy}));
  runtime.engine().FlushStore();
  if (completion.report.tokens_reused > 0) {
    return Fail(ErrorCode::kResourceExhausted, "{} tokens were in memory in a run meant to be cold",
                completion.report.tokens_reused);
  }
  return completion;
}

std::vector<std::optional<PageHandle>> PagesInMemory(Runtime& runtime,
                                                     const std::vector<int32_t>& prompt) {
  std::vector<std::optional<PageHandle>> pages;
  for (const ChunkKey& key :
       ChunkKeys(runtime.model().identity().Root(), prompt, runtime.pool().layout().chunk_tokens)) {
    pages.push_back(runtime.pool().Lookup(key));
  }
  return pages;
}

Result<std::vector<std::optional<PageHandle>>> ComputedPages(Runtime& runtime,
                                                             const std::vector<int32_t>& prompt) {
  RETURN_IF_ERROR(RunCold(runtime, prompt, Policy::kCompute, /*max_tokens=*/1, /*store=*/false));
  return PagesInMemory(runtime, prompt);
}

Result<std::array<Completion, kPolicies.size()>> RunPolicies(Runtime& runtime,
                                                             const std::vector<int32_t>& prompt,
                                                             bool store) {
  std::array<Completion, kPolicies.size()> done;
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    ASSIGN_OR_RETURN(done[i], RunCold(runtime, prompt, kPolicies[i], kAnswerTokens, store));
    if (done[i].tokens != done[0].tokens) {
      return Fail(ErrorCode::kCorrupt, "policy {} answered '{}', policy {} '{}'",
                  PolicyName(kPolicies[i]), runtime.tokenizer().Decode(done[i].tokens),
                  PolicyName(kPolicies[0]), runtime.tokenizer().Decode(done[0].tokens));
    }
  }
  return done;
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::error_code ignored;
  const auto parent = std::filesystem::path(path).parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, ignored);
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    return Fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
  }
  return {};
}

Status MakeDir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return tl::unexpected<Error>(ErrnoError(error.value(), "make directory", path));
  return {};
}

Status WriteJson(const std::string& path, const nlohmann::json& json) {
  return WriteFile(path, DumpJson(json, 2) + "\n");
}

}  // namespace kvcake::bench
