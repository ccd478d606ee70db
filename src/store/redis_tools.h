// What people do to a Redis store by hand: look, read everything back, make room. Safe beside
// processes that use the store: every step of theirs is one command.
//
// What is told was found by SCAN, a bounded page at a time, while others may write. Bytes are those
// of the servers' memory, and the time of last use is as near as Redis keeps it; neither is a use.
// All are kIo where a server does not answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/redis_place.h"
#include "store/store_dir.h"
#include "store/store_tools.h"

namespace kvcake {

// By root, ordered by newest use, newest first; without descriptions and usage, which Redis has
// not. Times are 0 where the server does not keep them (an LFU policy).
Result<std::vector<StoreRoot>> ListRedis(const RedisPlace& place);

struct RedisMemory {
  uint64_t used_bytes = 0;  // of all servers, whoever uses them
  uint64_t max_bytes = 0;   // 0: one has no bound
  std::string policy;       // what it evicts then; the first server's
};
Result<RedisMemory> MemoryOfRedis(const RedisPlace& place);

// Reads every chunk and checks each byte, which is a use of it. Writes nothing: what is bad is
// removed by who reads it next.
Result<VerifiedStore> VerifyRedis(const RedisPlace& place);

// kUnsupported where the rule wants times and the server keeps none.
Result<ClearedStore> EvictRedis(const RedisPlace& place, const EvictRule& rule);

// Removes all that is kept with the place's prefix, claims too.
Result<ClearedStore> ClearRedis(const RedisPlace& place);

}  // namespace kvcake
