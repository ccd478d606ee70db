// Chunks in a Redis server, or in a Redis or Valkey Cluster.
//
// A chunk is one value, of the bytes of a chunk file (docs/format.md), named PREFIX:v1:ROOT:KEY. It
// is verified on every read as a file is; what fails is removed. The server makes room: what its
// maxmemory evicts is a miss.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "store/call_times.h"
#include "store/chunk_kind.h"
#include "store/fault_log.h"
#include "store/known_keys.h"
#include "store/redis_claims.h"
#include "store/redis_client.h"
#include "store/tier.h"

namespace kvcake {

struct RedisTierOptions {
  RedisClientOptions client = {};
  KvLayout layout = {};
  // What values have in their headers and names: FormRoot of the model's.
  ChunkKey root = {};
  ChunkForm form = {};  // how they are encoded, and what is put and lands then: DiskTierOptions'
  std::string name = "redis";
  std::string prefix = "kvcake";
  Seconds time_to_live{0};  // since the last use, which renews it; 0: as long as there is room
  int max_reads_in_flight = 32;
  uint64_t max_read_bytes_in_flight = 256ull << 20;
  Seconds goodbye{1};  // that the end waits, at most, for the server to hear of it
  size_t known_keys_max = 1 << 20;
};

// Its own thread talks to the servers, verifies what comes, and calls `done`.
class RedisTier : public Tier {
 public:
  // kUnsupported where a chunk's header has no room for so many layers. Nobody is asked yet.
  static Result<std::unique_ptr<RedisTier>> Open(RedisTierOptions options);
  ~RedisTier() override;

  std::string_view name() const override { return options_.name; }
  int max_reads_in_flight() const override { return options_.max_reads_in_flight; }
  uint64_t max_read_bytes_in_flight() const override { return options_.max_read_bytes_in_flight; }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    return known_.Contains(keys);
  }
  // In one round trip.
  bool Look(LookRequest request) override;
  // Pins nothing: a use, which renews what would expire.
  void Unpin(std::span<const ChunkKey> keys) override;
  bool Claim(ClaimRequest request) override;
  void Disclaim(std::span<const ChunkKey> keys) override;
  ReadId Get(ReadRequest request) override EXCLUDES(mutex_);
  // Only what has not been asked for yet ends early: the rest is on its way.
  void Cancel(ReadId id) override EXCLUDES(mutex_);
  Status Put(const ChunkWrite& chunk) override EXCLUDES(mutex_);
  Status Evict(const ChunkKey& key) override EXCLUDES(mutex_);
  TierStats Stats() const override EXCLUDES(mutex_);

 private:
  struct Read;
  struct Looking;
  using ReadPtr = std::shared_ptr<Read>;

  explicit RedisTier(RedisTierOptions options);

  std::string NameOf(const ChunkKey& key) const;
  // Sends a command from any thread, and waits for the reply.
  Result<RespReply> Ask(const std::string& name, RedisCommand command);
  // On the tier's thread.
  void Close();
  void Begin(const ReadPtr& read);
  void AskForAll(const ReadPtr& read);
  void AskForPart(const ReadPtr& read, uint64_t offset, std::span<std::byte> landing);
  void SendFor(const ReadPtr& read, RedisCommand command);
  void OnPart(const ReadPtr& read, Result<RespReply> reply);
  // The layers of an encoded chunk, whose header says where they are.
  void AskForParts(const ReadPtr& read);
  Status Verify(Read& read) const;
  void Finish(const ReadPtr& read) EXCLUDES(mutex_);
  void Remove(const ChunkKey& key);
  void OnLooked(const std::shared_ptr<Looking>& looking, size_t i, Result<RespReply> reply);

  const RedisTierOptions options_;
  const ChunkKind kind_;
  KnownKeys known_;
  FaultLog read_faults_{"reading chunks from Redis"}, write_faults_{"writing chunks to Redis"};
  CallTimes looks_;

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  // The thread's.
  RedisClient client_;
  RedisClaims claims_;
  boost::asio::steady_timer goodbye_;

  mutable Mutex mutex_;
  std::unordered_map<ReadId, ReadPtr> reads_ GUARDED_BY(mutex_);  // that have not ended
  ReadId next_id_ GUARDED_BY(mutex_) = 1;
  TierStats stats_ GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace kvcake
