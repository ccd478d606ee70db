// Which chunks are being computed by which of the processes that share a Redis server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "base/clock.h"
#include "store/redis_client.h"
#include "store/tier.h"

namespace kvcake {

// A claim is a value of its own beside the chunk's, which names its owner and expires by itself.
// Everything happens on the client's thread.
class RedisClaims {
 public:
  // `client` outlives it; `name_of` names a chunk's value.
  RedisClaims(RedisClient& client, std::function<std::string(const ChunkKey&)> name_of);

  // Tier::Claim.
  void Claim(ClaimRequest request);
  // Ends those of the claims that are held.
  void End(std::span<const ChunkKey> keys);
  // Ends all, also those that are being asked for, and calls `ended` when the servers have heard of
  // it. Once, and nothing is claimed afterwards.
  void EndAll(std::function<void()> ended);

 private:
  struct Asking;
  using AskingPtr = std::shared_ptr<Asking>;

  std::string ClaimOf(const ChunkKey& key) const { return name_of_(key) + ":claim"; }
  // Sends a command about a key for a request, which goes on once all its replies have come.
  void Ask(const AskingPtr& asking, const std::string& name, std::vector<std::string> words,
           std::function<void(const RespReply&)> on_reply);
  void GoOn(const AskingPtr& asking);
  void Take(const AskingPtr& asking);
  void Answer(const AskingPtr& asking);
  void SendEnd(const ChunkKey& key);
  void CountDown();
  void ForgetExpired();

  RedisClient& client_;
  const std::function<std::string(const ChunkKey&)> name_of_;
  const std::string owner_;                       // no other process's
  std::unordered_map<ChunkKey, TimePoint> held_;  // until then
  size_t under_way_ = 0;                          // requests and ends of claims, until answered
  std::function<void()> ended_;                   // null until all are to end
};

}  // namespace kvcake
