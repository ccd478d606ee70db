// Where chunks are kept in S3 or what speaks its protocol: what a store's URL says.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "store/store_url.h"

namespace kvcake {

struct S3Place {
  std::string bucket;
  std::string prefix = {};     // of the names of all that is kept; empty, or ends with a '/'
  std::string region;          // us-east-1, ...
  std::string endpoint = {};   // https://HOST[:PORT]; empty: AWS's of the region
  bool is_path_style = false;  // ENDPOINT/BUCKET/..., not BUCKET.ENDPOINT/...
  std::string profile = {};    // of the shared files; empty: AWS_PROFILE's, or "default"
  std::string ca = {};         // whom to believe, in PEM; empty: whom the system does

  // For people: s3://bucket/prefix?endpoint=http://host:9000.
  std::string Text() const;
  // What requests go to: https://bucket.s3.us-east-1.amazonaws.com, or endpoint/bucket.
  std::string BaseUrl() const;
};

// Whether it may be the name of a region: letters, digits and '-'.
bool IsS3Region(std::string_view name);

// What `url`, whose scheme is s3, says of the place: BUCKET or BUCKET/PREFIX; its options
// `endpoint`, `region`, `addressing` (path or virtual), `profile` and `tls-ca` are taken out of it.
// What it does not say is AWS_ENDPOINT_URL_S3's, AWS_ENDPOINT_URL's, AWS_REGION's and
// AWS_DEFAULT_REGION's, where these are set.
// kInvalidArgument, with what is wrong and what would be right.
Result<S3Place> TakeS3Place(StoreUrl& url);

}  // namespace kvcake
