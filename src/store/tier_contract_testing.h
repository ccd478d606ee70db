// The tiers and decorators that the contract suite runs over, each in a world of its own.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "io/faulty_file_system_testing.h"
#include "kv/page_copier_testing.h"
#include "store/disk_tier.h"
#include "store/encoded_testing.h"
#include "store/memory_tier.h"
#include "store/redis_server_testing.h"
#include "store/redis_store.h"
#include "store/s3_server_testing.h"
#include "store/s3_store.h"
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
  uint64_t chunk_bytes = layout.page_bytes();  // as the tier keeps them
  std::unique_ptr<RedisServer> redis;          // once it is used
  std::unique_ptr<S3Server> s3;                // as well
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
  options.read_latency = Seconds(2);
  options.copier = copier;
  return std::make_unique<MemoryTier>(options);
}

inline DiskTierOptions DiskOptions(World& world, uint64_t io_bytes_max,
                                   int max_reads_in_flight = 16) {
  DiskTierOptions options;
  options.dir = world.dir.path();
  options.layout = world.layout;
  options.root = Root();
  options.capacity_bytes = kCapacityChunks * world.chunk_bytes;
  options.io_bytes_max = io_bytes_max;
  options.max_reads_in_flight = max_reads_in_flight;
  options.upkeep_interval = Seconds(3600);  // what a scan finds counts as used when it ends
  return options;
}

inline std::unique_ptr<Tier> MakeDisk(World& world, FileSystem& fs, uint64_t io_bytes_max,
                                      int max_reads_in_flight = 16) {
  const DiskTierOptions options = DiskOptions(world, io_bytes_max, max_reads_in_flight);
  auto tier = DiskTier::Open(options, fs);
  CHECK(tier.has_value());
  return std::move(*tier);
}

inline std::unique_ptr<Tier> MakeRealDisk(World& world) {
  return MakeDisk(world, FileSystem::Real(), 4 << 20);
}

inline RedisTierOptions RedisOptions(World& world) {
  if (!world.redis) world.redis = std::make_unique<RedisServer>();
  RedisTierOptions options;
  options.client.seeds = {{"127.0.0.1", world.redis->port()}};
  options.layout = world.layout;
  options.root = Root();
  options.goodbye = kPatience;
  return options;
}

inline std::unique_ptr<Tier> MakeRedis(World& world) {
  return OpenRedisTier(RedisOptions(world)).value();
}

inline S3TierOptions S3Options(World& world) {
  if (!world.s3) world.s3 = std::make_unique<S3Server>();
  S3TierOptions options;
  options.client = {.place = world.s3->Place(), .credentials = S3Server::Credentials()};
  options.layout = world.layout;
  options.root = Root();
  return options;
}

inline std::unique_ptr<Tier> MakeS3(World& world) { return OpenS3Tier(S3Options(world)).value(); }

inline std::unique_ptr<Tier> MakeStaged(World& world, std::unique_ptr<Tier> inner,
                                        int read_slots = 3) {
  const StagedTierOptions options{.read_slots = read_slots, .layout = world.layout};
  const uint64_t bytes = options.staging_bytes();
  world.staging.reset(static_cast<std::byte*>(aligned_alloc(4096, bytes)));
  return std::make_unique<StagedTier>(std::move(inner), world.copier,
                                      std::span(world.staging.get(), bytes), options);
}

// A small chunk's header and its parts, rounded up to blocks. No codec makes any bits smaller.
inline constexpr uint64_t kLosslessBytes = 3 * 4096, kLossyBytes = 2 * 4096;
inline constexpr uint64_t kUnfilledBytes = 2 * 4096;  // raw, without the filling that pages have

// `tier` keeps natural numbers by this codec; any bytes can be put.
inline std::unique_ptr<Tier> OfAnyBytes(World& world, const StoreCodec& natural,
                                        std::unique_ptr<Tier> tier) {
  world.chunk_bytes = natural.row->lossy ? kLossyBytes : kLosslessBytes;
  if (!natural.row->lossy) return tier;
  return std::make_unique<AnyBytesTier>(std::move(tier), world.layout,
                                        natural.Make(world.layout).value());
}

inline std::unique_ptr<Tier> MakeEncoded(World& world, Codec codec,
                                         FileSystem& fs = FileSystem::Real(),
                                         uint64_t io_bytes_max = 4 << 20,
                                         int max_reads_in_flight = 16) {
  const StoreCodec natural = NaturalCodec(codec, world.layout);
  world.chunk_bytes = natural.row->lossy ? kLossyBytes : kLosslessBytes;  // for its capacity
  return OfAnyBytes(
      world, natural,
      OpenEncodedDisk(DiskOptions(world, io_bytes_max, max_reads_in_flight), natural, fs));
}

inline std::unique_ptr<Tier> MakeEncodedRedis(World& world, Codec codec) {
  const StoreCodec natural = NaturalCodec(codec, world.layout);
  const RedisTierOptions options = EncodedOptions(RedisOptions(world), natural);
  return OfAnyBytes(world, natural, OverFiles(OpenRedisTier(options).value(), options, natural));
}

inline std::unique_ptr<Tier> MakeEncodedS3(World& world, Codec codec) {
  const StoreCodec natural = NaturalCodec(codec, world.layout);
  const S3TierOptions options = EncodedOptions(S3Options(world), natural);
  return OfAnyBytes(world, natural, OverFiles(OpenS3Tier(options).value(), options, natural));
}

inline std::unique_ptr<Tier> MakeEncrypted(World& world, Codec codec) {
  world.chunk_bytes = codec == Codec::kRaw ? kUnfilledBytes : kLosslessBytes;
  return OpenEncryptedDisk(DiskOptions(world, 4 << 20), NaturalCodec(codec, world.layout));
}

inline std::unique_ptr<Tier> MakeEncryptedRedis(World& world) {
  world.chunk_bytes = kUnfilledBytes;
  const RedisTierOptions raw = RedisOptions(world);
  const auto key = ATestsKey();
  const StoreCodec codec = NaturalCodec(Codec::kRaw, world.layout);
  const RedisTierOptions options = EncodedOptions(raw, codec, key.get());
  return OverNames(OpenRedisTier(options).value(), raw.root, options, codec, key);
}

inline std::unique_ptr<Tier> MakeLossless(World& world) {
  return MakeEncoded(world, Codec::kLossless);
}

inline std::unique_ptr<Tier> MakeThrottledEncoded(World& world) {
  world.chunk_bytes = kLosslessBytes;
  const StoreCodec codec = NaturalCodec(Codec::kLossless, world.layout);
  const DiskTierOptions options = EncodedOptions(DiskOptions(world, 4 << 20), codec);
  auto link = std::make_unique<ThrottledTier>(DiskTier::Open(options).value(),
                                              ThrottledTierOptions{.rate_bytes_per_s = 200e6});
  return OverFiles(std::move(link), options, codec);
}

}  // namespace kvcake::testing_util
