// What a bare loop gets from a server: reads into memory that is there, checks nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/stopwatch.h"
#include "store/redis_place.h"
#include "store/s3_place.h"

namespace kvcake::bench {

// GETs all names, of values of `bytes` each: over plain connections, each with so many commands
// under way. kUnsupported with TLS.
Result<Rate> BareRedisGets(const RedisPlace& place, const std::vector<std::string>& names,
                           uint64_t bytes, int connections, int pipelined);

// The same of objects: with so many handles of libcurl, which signs as it does by itself.
Result<Rate> BareS3Gets(const S3Place& place, const std::vector<std::string>& names, uint64_t bytes,
                        int handles);

}  // namespace kvcake::bench
