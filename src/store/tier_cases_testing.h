// Every tier and decorator, for the suites of promises that are run against all of them.
#pragma once

#include <memory>

#include "store/faulty_tier_testing.h"
#include "store/late_tier.h"
#include "store/throttled_tier.h"
#include "store/tier_contract_testing.h"
#include "store/tier_testing.h"

namespace kvcake::testing_util {

struct TierCase {
  const char* name;
  Factory make;
  // A tier of the same chunks, as another process has it; where there are claims.
  Factory another = nullptr;
  bool is_bounded = true;  // makes room itself
};

inline const TierCase kCases[] = {
    {"memory", MakeMemory},
    {"memory_copied", MakeCopiedMemory},
    {"disk", MakeRealDisk, MakeRealDisk},
    {"disk_in_pieces",
     [](World& world) { return MakeDisk(world, FileSystem::Real(), kDirectAlign); }, MakeRealDisk},
    {"disk_without_uring", [](World& world) { return MakeDisk(world, world.blocking, 4 << 20); },
     MakeRealDisk},
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
     MakeRealDisk},
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
     MakeRealDisk},
    {"throttled_faulty_disk",
     [](World& world) {
       return std::make_unique<ThrottledTier>(
           std::make_unique<FaultyTier>(MakeRealDisk(world), FaultyTierOptions{.read_delay = 0.5}),
           ThrottledTierOptions{.rate_bytes_per_s = 200e6});
     },
     MakeRealDisk},
    {"redis", MakeRedis, MakeRedis, false},
    {"lossless_redis", [](World& world) { return MakeEncodedRedis(world, Codec::kLossless); },
     [](World& world) { return MakeEncodedRedis(world, Codec::kLossless); }, false},
    {"encrypted_redis", MakeEncryptedRedis, MakeEncryptedRedis, false},
    {"int8_redis", [](World& world) { return MakeEncodedRedis(world, Codec::kInt8); },
     [](World& world) { return MakeEncodedRedis(world, Codec::kInt8); }, false},
    {"s3", MakeS3, nullptr, false},
    {"lossless_s3", [](World& world) { return MakeEncodedS3(world, Codec::kLossless); }, nullptr,
     false},
    {"int8_s3", [](World& world) { return MakeEncodedS3(world, Codec::kInt8); }, nullptr, false},
    {"staged_memory", [](World& world) { return MakeStaged(world, MakeMemory(world)); }},
    {"staged_disk", [](World& world) { return MakeStaged(world, MakeRealDisk(world)); },
     MakeRealDisk},
    {"lossless_disk", MakeLossless, MakeLossless},
    {"lossless_disk_in_pieces",
     [](World& world) {
       return MakeEncoded(world, Codec::kLossless, FileSystem::Real(), kDirectAlign);
     },
     MakeLossless},
    {"lossless_throttled", MakeThrottledEncoded, MakeLossless},
    {"lossless_staged", [](World& world) { return MakeStaged(world, MakeLossless(world)); },
     MakeLossless},
    {"int8_disk_without_uring",
     [](World& world) { return MakeEncoded(world, Codec::kInt8, world.blocking); },
     [](World& world) { return MakeEncoded(world, Codec::kInt8); }},
    {"encrypted_disk", [](World& world) { return MakeEncrypted(world, Codec::kRaw); },
     [](World& world) { return MakeEncrypted(world, Codec::kRaw); }},
    {"encrypted_lossless_disk", [](World& world) { return MakeEncrypted(world, Codec::kLossless); },
     [](World& world) { return MakeEncrypted(world, Codec::kLossless); }},
    {"cachegen_disk", [](World& world) { return MakeEncoded(world, Codec::kCacheGen); },
     [](World& world) { return MakeEncoded(world, Codec::kCacheGen); }},
    {"kvquant3_disk", [](World& world) { return MakeEncoded(world, Codec::kKvQuant3); },
     [](World& world) { return MakeEncoded(world, Codec::kKvQuant3); }},
};

}  // namespace kvcake::testing_util
