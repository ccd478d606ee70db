// What does it cost to know what is on the disk: memory for each chunk, time for a lookup, and time
// to start with many files?
#include "store/catalogue.h"

#include <fmt/core.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/check.h"
#include "base/cpu.h"
#include "base/peak_rss.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/scratch_dir.h"
#include "store/disk_tier.h"

namespace kvcake::bench {
namespace {

constexpr int kLookup = 128;

// The n-th of as many keys as are asked for: digests as good as a hash's.
ChunkKey KeyOf(uint64_t n) {
  std::mt19937_64 random(n);
  ChunkKey key;
  for (size_t at = 0; at < key.digest.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(&key.digest[at], &word, 8);
  }
  return key;
}

// Median microseconds of a lookup of 128 keys, all known or all unknown, none looked up before.
template <typename Lookup>
double LookupMicroseconds(const CatalogueOptions& options, bool known, Lookup lookup) {
  std::mt19937_64 random(known ? 1 : 2);
  std::vector<double> times;
  for (int repeat = 0; repeat < options.lookups; ++repeat) {
    std::vector<ChunkKey> keys;
    for (int i = 0; i < kLookup; ++i) {
      keys.push_back(KeyOf(random() % options.chunks + (known ? 0 : options.chunks)));
    }
    const TimePoint start = Clock::Real().Now();
    const std::vector<bool> found = lookup(keys);
    times.push_back(1e6 * (Clock::Real().Now() - start).count());
    CHECK(found == std::vector<bool>(kLookup, known));
  }
  return Median(std::move(times));
}

// As many files of one header and one slab (sparse: only their names and sizes count).
Status MakeFiles(const CatalogueOptions& options, const StoreDir& store, const ChunkKey& root,
                 uint64_t bytes) {
  for (uint64_t n = 0; n < options.chunks; ++n) {
    const ChunkId id{root, KeyOf(n)};
    if (n < 4096) RETURN_IF_ERROR(FileSystem::Real().MakeDirs(store.ShardDir(id)));
    const std::string path = store.ChunkPath(id);
    std::ofstream(path).flush();
    std::error_code error;
    std::filesystem::resize_file(path, bytes, error);
    if (error) return Fail(ErrorCode::kIo, "cannot make {}: {}", path, error.message());
  }
  return {};
}

Status MeasureStart(const CatalogueOptions& options, const std::string& dir) {
  DiskTierOptions disk;
  disk.dir = dir;
  disk.layout = {.layers = 1, .kv_heads = 1, .head_dim = 16, .chunk_tokens = 16};
  disk.root = KvIdentity().Add("bench", "catalogue").Root();
  disk.capacity_bytes = 1ull << 50;
  RETURN_IF_ERROR(MakeFiles(options, StoreDir(dir), disk.root, disk.layout.page_bytes()));
  std::vector<double> starts, processor;
  double known_us = 0;
  for (int repeat = 0; repeat < 3; ++repeat) {
    const TimePoint start = Clock::Real().Now();
    const double cpu = CpuSeconds();
    ASSIGN_OR_RETURN(const auto tier, DiskTier::Open(disk));
    starts.push_back((Clock::Real().Now() - start).count());
    processor.push_back(CpuSeconds() - cpu);
    if (tier->Stats().chunks != options.chunks) {
      return Fail(ErrorCode::kIo, "{} of {} files were found", tier->Stats().chunks,
                  options.chunks);
    }
    known_us = LookupMicroseconds(
        options, true, [&](const std::vector<ChunkKey>& keys) { return tier->Residency(keys); });
  }
  fmt::print("{:<44} {:>10.2f} s\n", fmt::format("start with {} files, warm", options.chunks),
             Median(starts));
  fmt::print("{:<44} {:>10.2f} s\n", "  processor time of that", Median(processor));
  fmt::print("{:<44} {:>10.1f} us\n", "Residency of 128 chunks, known", known_us);
  return {};
}

}  // namespace

Status RunCatalogue(const CatalogueOptions& options) {
  fmt::print("{}, {} chunks\n", CpuName(), options.chunks);
  const ChunkKey root = KvIdentity().Add("bench", "catalogue").Root();
  const uint64_t before = RssBytes();
  Catalogue catalogue;
  for (uint64_t n = 0; n < options.chunks; ++n) catalogue.Add({{root, KeyOf(n)}, 1 << 20, 1});
  const double bytes =
      static_cast<double>(RssBytes() - before) / static_cast<double>(options.chunks);
  fmt::print("{:<44} {:>10.1f} bytes\n", "memory for each chunk", bytes);
  fmt::print("{:<44} {:>10.1f} MB\n", "memory for a million chunks", bytes);
  const auto lookup = [&](const std::vector<ChunkKey>& keys) {
    return catalogue.Contains(root, keys);
  };
  fmt::print("{:<44} {:>10.1f} us\n", "lookup of 128 chunks, known",
             LookupMicroseconds(options, true, lookup));
  fmt::print("{:<44} {:>10.1f} us\n", "lookup of 128 chunks, unknown",
             LookupMicroseconds(options, false, lookup));
  if (!options.files) return {};
  ASSIGN_OR_RETURN(const ScratchDir dir, ScratchDir::Make(options.dir, "catalogue"));
  return MeasureStart(options, dir.path());
}

}  // namespace kvcake::bench
