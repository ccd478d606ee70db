// AWS's Signature Version 4, by which S3 and its like know who asks.
//
// https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcake {

// Who asks. Never logged.
struct S3Credentials {
  std::string access_key;
  std::string secret_key;
  std::string session_token = {};  // of those that expire; empty: none
  int64_t expires_s = 0;           // unix time; 0: never
};

using UrlQuery = std::vector<std::pair<std::string, std::string>>;  // not encoded
using HeaderList = std::vector<std::pair<std::string, std::string>>;

// A request as far as it is signed.
struct SignableRequest {
  std::string method;
  std::string path;  // as it is sent: encoded, from its first '/'
  UrlQuery query = {};
  HeaderList headers = {};     // those that are signed, `host` and `x-amz-date` among them
  std::string payload_sha256;  // in hexadecimal, or what stands for it
};

// Where a signature is good.
struct SignatureScope {
  std::string region;
  std::string service = "s3";
};

// All but letters, digits and -._~ as %XX; '/', too, unless it is to be kept.
std::string UriEncode(std::string_view text, bool keep_slash = false);
// Sorted, as it is signed: name=value&...; empty where there is nothing.
std::string UriEncode(const UrlQuery& query);

// As in the header x-amz-date: 20130524T000000Z.
std::string AmzDate(int64_t unix_s);

// The value of the header Authorization.
std::string Authorization(const SignableRequest& request, const S3Credentials& credentials,
                          const SignatureScope& scope);

}  // namespace kvcake
