// Every tier and decorator, made as the suites of promises that are run against all of them want
// them.
#pragma once

#include <stdlib.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "io/faulty_file_system_testing.h"
#include "kv/page_copier_testing.h"
#include "store/disk_tier.h"
#include "store/faulty_tier_testing.h"
#include "store/late_tier.h"
#include "store/memory_tier.h"
#include "store/staged_tier.h"
#include "store/throttled_tier.h"
#include "store/tier_testing.h"

namespace kvcake::testing_util {

inline constexpr int kCapacityChunks = 40;

struct World {
  TempDir dir;
  FaultyFileSystem blocking{FileSystem::Real(), 1};  // without faults: the path without io_uring
  KvLayout layout = SmallLayout();
  std::unique_ptr<std::byte, void (*)(void*)> staging{nullptr, free};
  FakeCopier copier;
};

using Factory = std::function<std::unique_ptr<Tier>(World&)>;

inline MemoryTierOptions MemoryOptions(World& world) {
  return {.layout = world.layout, .capacity_bytes = kCapacityChunks * world.layout.page_bytes()};
}

inline std::unique_ptr<Tier> MakeMemory(World& world) {
  return std::make_unique<MemoryTier>(MemoryOptions(world));
}

inline std::unique_ptr<Tier> MakeCopiedMemory(World& world) {
  MemoryTierOptions options = MemoryOptions(world);
  options.copier = &world.copier;
  return std::make_unique<MemoryTier>(options);
}

inline std::unique_ptr<Tier> MakeSlowMemory(World& world, PageCopier* copier) {
  MemoryTierOptions options = MemoryOptions(world);
  options.read_latency = Seconds(0.2);
  options.copier = copier;
  return std::make_unique<MemoryTier>(options);
}

inline std::unique_ptr<Tier> MakeDisk(World& world, FileSystem& fs, uint64_t io_bytes_max,
                                      int max_reads_in_flight = 16) {
  DiskTierOptions options;
  options.dir = world.dir.path();
  options.layout = world.layout;
  options.root = Root();
  options.capacity_bytes = kCapacityChunks * world.layout.page_bytes();
  options.io_bytes_max = io_bytes_max;
  options.max_reads_in_flight = max_reads_in_flight;
  auto tier = DiskTier::Open(options, fs);
  CHECK(tier.has_value());
  return std::move(*tier);
}

inline std::unique_ptr<Tier> MakeRealDisk(World& world) {
  return MakeDisk(world, FileSystem::Real(), 4 << 20);
}

inline std::unique_ptr<Tier> MakeStaged(World& world, std::unique_ptr<Tier> inner,
                                        int read_slots = 3) {
  const StagedTierOptions options{.read_slots = read_slots, .layout = world.layout};
  const uint64_t bytes = options.staging_bytes();
  world.staging.reset(static_cast<std::byte*>(aligned_alloc(4096, bytes)));
  return std::make_unique<StagedTier>(std::move(inner), world.copier,
                                      std::span(world.staging.get(), bytes), options);
}

struct TierCase {
  const char* name;
  Factory make;
  bool claims = false;  // whether it makes any
};

inline const TierCase kCases[] = {
    {"memory", MakeMemory},
    {"memory_copied", MakeCopiedMemory},
    {"disk", MakeRealDisk, /*claims=*/true},
    {"disk_in_pieces",
     [](World& world) { return MakeDisk(world, FileSystem::Real(), kDirectAlign); }, true},
    {"disk_without_uring", [](World& world) { return MakeDisk(world, world.blocking, 4 << 20); },
     true},
    {"throttled_memory",
     [](World& world) {
       return std::make_unique<ThrottledTier>(
           MakeMemory(world),
           ThrottledTierOptions{.rate_bytes_per_s = 200e6, .latency = Seconds(1e-4)});
     }},
    {"throttled_disk",
     [](World& world) {
       return std::make_unique<ThrottledTier>(MakeRealDisk(world),
                                              ThrottledTierOptions{.rate_bytes_per_s = 200e6});
     },
     true},
    {"faulty_memory",
     [](World& world) {
       return std::make_unique<FaultyTier>(MakeMemory(world), FaultyTierOptions{.read_delay = 0.5});
     }},
    {"late_memory",
     [](World& world) {
       return std::make_unique<LateTier>(MakeMemory(world),
                                         LateTierOptions{.share = 0.5, .delay = Seconds(2e-3)});
     }},
    {"throttled_late_disk",
     [](World& world) {
       return std::make_unique<ThrottledTier>(
           std::make_unique<LateTier>(MakeRealDisk(world),
                                      LateTierOptions{.share = 0.5, .delay = Seconds(2e-3)}),
           ThrottledTierOptions{.rate_bytes_per_s = 200e6});
     },
     true},
    {"throttled_faulty_disk",
     [](World& world) {
       return std::make_unique<ThrottledTier>(
           std::make_unique<FaultyTier>(MakeRealDisk(world), FaultyTierOptions{.read_delay = 0.5}),
           ThrottledTierOptions{.rate_bytes_per_s = 200e6});
     },
     true},
    {"staged_memory", [](World& world) { return MakeStaged(world, MakeMemory(world)); }},
    {"staged_disk", [](World& world) { return MakeStaged(world, MakeRealDisk(world)); }, true},
};

}  // namespace kvcake::testing_util
