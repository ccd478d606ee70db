// How fast do chunks come from and go to the disk, as a share of what fio does on the same file
// system in the same run?
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/benches.h"
#include "bench/chunk_run.h"
#include "bench/harness.h"
#include "bench/load_beside.h"
#include "bench/load_copies.h"
#include "bench/load_fio.h"
#include "bench/load_remote.h"
#include "bench/scratch_dir.h"
#include "store/store_tools.h"

namespace kvcake::bench {
namespace {

// What encryption leaves of the rate at which chunks are read; both are read in turn.
class EncryptedReads {
 public:
  EncryptedReads(const LoadOptions& options, std::string dir, uint64_t chunk_bytes)
      : options_(options), dir_(std::move(dir)), chunk_bytes_(chunk_bytes) {}

  Status Open() {
    ASSIGN_OR_RETURN(StoreKey key, StoreKey::Of(std::string(32, 'k'), "the bench"));
    ASSIGN_OR_RETURN(
        run_, ChunkRun::Open({.dir = dir_, .key = std::make_shared<const StoreKey>(std::move(key))},
                             chunk_bytes_, options_.bytes, options_.path));
    return run_->Write().map([](const Rate&) {});
  }
  Status Measure(const Rate& plain) {
    ASSIGN_OR_RETURN(const Rate rate, run_->Read());
    rate_.push_back(rate.bytes_per_s);
    cpu_.push_back(rate.cpu_share);
    plain_.push_back(plain.bytes_per_s);
    plain_cpu_.push_back(plain.cpu_share);
    share_.push_back(rate.bytes_per_s / plain.bytes_per_s);
    return {};
  }
  Status Report(nlohmann::ordered_json& json) {
    fmt::print(
        "{:<6} {:>8.1f} {:>10.0f} encrypted, {:.1f}% of {:.0f} as it is ({:.1f} to {:.1f}%), "
        "{:.1f}% of one core, {:.1f}%\n",
        "read", static_cast<double>(chunk_bytes_) / (1 << 20), Median(rate_) / 1e6,
        100 * Median(share_), Median(plain_) / 1e6, 100 * std::ranges::min(share_),
        100 * std::ranges::max(share_), 100 * Median(cpu_), 100 * Median(plain_cpu_));
    json.push_back({{"op", "read encrypted"},
                    {"chunk_bytes", chunk_bytes_},
                    {"bytes_per_s", Median(rate_)},
                    {"plain_bytes_per_s", Median(plain_)},
                    {"of_plain", Median(share_)},
                    {"cpu_share", Median(cpu_)},
                    {"plain_cpu_share", Median(plain_cpu_)}});
    run_.reset();
    return ClearStore(dir_).map([](const ClearedStore&) {});
  }

 private:
  const LoadOptions& options_;
  const std::string dir_;
  const uint64_t chunk_bytes_;
  std::unique_ptr<ChunkRun> run_;
  std::vector<double> rate_, plain_, share_, cpu_, plain_cpu_;
};

// As kvcake store verify does.
Result<Rate> Verify(const std::string& dir) {
  const Stopwatch watch;
  ASSIGN_OR_RETURN(const VerifiedStore verified, VerifyStore(dir, {}));
  if (!verified.bad.empty()) {
    return Fail(ErrorCode::kCorrupt, "{}: {}", verified.bad[0].path, verified.bad[0].reason);
  }
  return watch.Of(verified.bytes);
}

struct Cell {
  std::vector<double> rate, fio, cpu;
  bool fio_large_pages = true;  // in each repeat

  void Add(const Rate& ours, const FioRate& yardstick) {
    rate.push_back(ours.bytes_per_s);
    cpu.push_back(ours.cpu_share);
    fio.push_back(yardstick.bytes_per_s);
    fio_large_pages = fio_large_pages && yardstick.large_pages;
  }
};

void Print(const char* op, uint64_t chunk_bytes, const Cell& cell) {
  const double rate = Median(cell.rate), fio = Median(cell.fio), cpu = Median(cell.cpu);
  fmt::print("{:<6} {:>8.1f} {:>10.0f} {:>10.0f} {:>8.1f}% {:>10.1f}% {:>12}\n", op,
             static_cast<double>(chunk_bytes) / (1 << 20), rate / 1e6, fio / 1e6, 100 * rate / fio,
             100 * cpu, cell.fio_large_pages ? "2 MiB" : "4 KiB");
}

nlohmann::ordered_json ToJson(const char* op, uint64_t chunk_bytes, const Cell& cell) {
  return {{"op", op},
          {"chunk_bytes", chunk_bytes},
          {"bytes_per_s", Median(cell.rate)},
          {"fio_bytes_per_s", Median(cell.fio)},
          {"cpu_share", Median(cell.cpu)}};
}

Status Measure(const LoadOptions& options, const std::string& dir, nlohmann::ordered_json& json) {
  const std::string fio_file = dir + "/fio.bin";
  fmt::print("{:<6} {:>8} {:>10} {:>10} {:>9} {:>11} {:>12}\n", "op", "MiB", "MB/s", "fio MB/s",
             "of fio", "of one core", "fio's pages");
  for (const uint64_t chunk_bytes : options.chunk_bytes) {
    ASSIGN_OR_RETURN(const auto run, ChunkRun::Open({.dir = dir + "/store"}, chunk_bytes,
                                                    options.bytes, options.path));
    std::optional<EncryptedReads> encrypted;
    if (options.encrypted) {
      encrypted.emplace(options, dir + "/encrypted", chunk_bytes);
      RETURN_IF_ERROR(encrypted->Open());
    }
    Cell write, read, beside, verify;
    FioRate read_by_fio;
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (Cell* cell : {&write, &read}) {
        const bool writes = cell == &write;
        Rate rate;
        FioRate fio;
        for (const bool ours : {repeat % 2 == 0, repeat % 2 != 0}) {  // in turn the first
          if (ours) {
            ASSIGN_OR_RETURN(rate, writes ? run->Write() : run->Read());
          } else {
            ASSIGN_OR_RETURN(fio, RunFio(fio_file, run->bytes(), writes, options.fio_large_pages));
          }
        }
        cell->Add(rate, fio);
        if (!writes) read_by_fio = fio;
        if (!writes && encrypted) RETURN_IF_ERROR(encrypted->Measure(rate));
      }
      ASSIGN_OR_RETURN(const Rate beside_writes, run->ReadBesideWrites());
      beside.Add(beside_writes, read_by_fio);
      ASSIGN_OR_RETURN(const Rate verified, Verify(dir + "/store"));
      verify.Add(verified, read_by_fio);
    }
    Print("read", chunk_bytes, read);
    Print("beside", chunk_bytes, beside);
    Print("write", chunk_bytes, write);
    Print("verify", chunk_bytes, verify);
    json.push_back(ToJson("read", chunk_bytes, read));
    json.push_back(ToJson("beside", chunk_bytes, beside));
    json.push_back(ToJson("write", chunk_bytes, write));
    json.push_back(ToJson("verify", chunk_bytes, verify));
    if (encrypted) RETURN_IF_ERROR(encrypted->Report(json));
    RETURN_IF_ERROR(ClearStore(dir + "/store"));
  }
  return {};
}

}  // namespace

Status RunLoad(const LoadOptions& options) {
  RETURN_IF_ERROR(CheckDevice(options.path));
  if (!options.store.empty()) return MeasureRemote(options);
  ASSIGN_OR_RETURN(const ScratchDir dir, ScratchDir::Make(options.dir, "load"));
  fmt::print("{}, {} MiB each, median of {} repeats, in {}\n", DeviceName(options.path),
             options.bytes >> 20, options.repeats, dir.path());
  auto json = nlohmann::ordered_json::array();
  if (OnCuda(options.path)) RETURN_IF_ERROR(MeasureCopies(options, &json));
  if (!options.beside.empty()) RETURN_IF_ERROR(MeasureBeside(options, dir.path(), &json));
  if (!options.json.empty()) RETURN_IF_ERROR(WriteJson(options.json, json));
  RETURN_IF_ERROR(CheckFio());
  RETURN_IF_ERROR(Measure(options, dir.path(), json));
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
