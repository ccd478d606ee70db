// What people look at in S3 by hand (store/remote_tools.h).
//
// What is told was found by listing, which costs a request for a thousand objects and is on no
// prompt's path. S3 does not keep when an object was used: it is when it was written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/remote_tools.h"
#include "store/s3_place.h"

namespace kvcake {

// The errors of S3Client::Open.
Result<std::unique_ptr<RemoteListing>> OpenS3Listing(const S3Place& place);

struct S3Page {
  struct Object {
    std::string name;
    uint64_t bytes = 0;
    int64_t modified_s = 0;  // unix time; 0: it is not said
  };
  std::vector<Object> objects;
  std::string next;  // where the next page begins; empty: this is the last
};
// A reply to ListObjectsV2. kIo where it is none.
Result<S3Page> ParseS3Page(std::string_view xml);

}  // namespace kvcake
