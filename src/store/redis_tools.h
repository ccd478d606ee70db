// What people look at in Redis servers by hand (store/remote_tools.h).
//
// What is told was found by SCAN. Bytes are those of the servers' memory, and the time of last use
// is as near as Redis keeps it, which it does not with an LFU policy; neither is a use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "store/redis_place.h"
#include "store/remote_tools.h"

namespace kvcake {

Result<std::unique_ptr<RemoteListing>> OpenRedisListing(const RedisPlace& place);

struct RedisMemory {
  uint64_t used_bytes = 0;  // of all servers, whoever uses them
  uint64_t max_bytes = 0;   // 0: one has no bound
  std::string policy;       // what it evicts then; the first server's
};
// kIo where a server does not answer.
Result<RedisMemory> MemoryOfRedis(const RedisPlace& place);

}  // namespace kvcake
