// Chunks in a Redis server, or in a Redis or Valkey Cluster.
//
// A chunk is one value, named PREFIX:v1:ROOT:KEY. The server makes room: what its maxmemory evicts
// is a miss.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "store/discards.h"
#include "store/redis_claims.h"
#include "store/redis_client.h"
#include "store/remote_store.h"
#include "store/remote_tier.h"

namespace kvcake {

struct RedisStoreOptions {
  RedisClientOptions client = {};
  ChunkKey root = {};
  std::string prefix = "kvcake";
  Seconds time_to_live{0};  // since the last use, which renews it; 0: as long as there is room
  Seconds goodbye{1};       // that the end waits, at most, for the server to hear of it
};

// Its own thread talks to the servers. Nobody is asked before something is wanted.
class RedisStore : public RemoteStore {
 public:
  explicit RedisStore(RedisStoreOptions options);
  ~RedisStore() override;

  void Post(std::function<void()> function) override;
  void Get(RemoteGet get) override;
  void Has(const ChunkKey& key, std::function<void(Result<bool>)> done) override;
  void Discard(const ChunkKey& key) override;
  bool renews() const override { return options_.time_to_live.count() > 0; }
  void Touch(std::span<const ChunkKey> keys) override;
  bool Claim(ClaimRequest request) override;
  void Disclaim(std::span<const ChunkKey> keys) override;
  void Close(std::function<void()> closed) override;
  bool is_closing() const override { return client_.is_closing(); }
  Result<PutOutcome> Put(const ChunkKey& key,
                         std::span<const std::span<const std::byte>> pieces) override;
  Result<bool> Remove(const ChunkKey& key) override;

 private:
  std::string NameOf(const ChunkKey& key) const;
  // Sends a command about the key's value from any other thread, and waits for the reply.
  Result<RespReply> Ask(const ChunkKey& key, RedisCommand command);
  void CloseNow();

  const RedisStoreOptions options_;
  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  // The thread's.
  RedisClient client_;
  RedisClaims claims_;
  Discards discards_;
  boost::asio::steady_timer goodbye_;
  std::function<void()> closed_;

  std::thread thread_;
};

// A tier over such a store; `options` are of both.
struct RedisTierOptions : RemoteTierOptions {
  RedisClientOptions client = {};
  std::string prefix = "kvcake";
  Seconds time_to_live{0};
  Seconds goodbye{1};
};
// RemoteTier::Open's errors.
Result<std::unique_ptr<RemoteTier>> OpenRedisTier(const RedisTierOptions& options);

}  // namespace kvcake
