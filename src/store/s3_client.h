// Requests about the objects of one bucket, signed, and tried again where that may help.
//
// Everything happens on the thread of the CurlClient, but for construction and destruction.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "store/curl_client.h"
#include "store/s3_credentials.h"
#include "store/s3_place.h"
#include "store/s3_signature.h"

namespace kvcake {

struct S3ClientOptions {
  S3Place place;
  std::optional<S3Credentials> credentials = {};  // else those that S3CredentialSource finds
  int connections = 32;
  Seconds connect_timeout{2};
  Seconds stall_timeout{5};
  int tries = 3;                          // of a request, at most
  Seconds retry_min{0.05}, retry_max{1};  // between tries, at random up to a bound that doubles
  // A request altogether, and as long again as all its bytes take at the rate. Restorations wait
  // longer for a tier that is silent: it says first what is wrong.
  Seconds give_up{20};
  double slowest_bytes_per_s = 1 << 20;
};

struct S3Request {
  std::string method = "GET";
  std::string name = {};    // of the object, with the place's prefix; empty: the bucket itself
  UrlQuery query = {};      // not encoded
  HeaderList headers = {};  // besides those that every request has; names in lower case
  std::vector<std::span<const std::byte>> body = {};
  std::string payload_sha256 = {};    // PayloadSha256(body), where it is known
  std::span<std::byte> landing = {};  // CurlRequest's, as the next
  int landing_status = 200;
  int tries = 0;                              // 0: S3ClientOptions'
  std::function<bool()> is_wanted = nullptr;  // CurlRequest's; asked before each try, too
  // Called exactly once, never from within Send: what the server says of it in the end, which need
  // not be ok; or CurlRequest's errors. Its is_sent_again is also that of tries before, which may
  // have been carried out.
  std::function<void(Result<CurlReply>)> done = nullptr;
};

std::string PayloadSha256(std::span<const std::span<const std::byte>> body);

// What is between <tag> and its end, the first time; entities stay as they are. Empty where there
// is none.
std::string_view XmlElement(std::string_view xml, std::string_view tag);

// What a reply that is not ok says went wrong: NoSuchKey, AccessDenied, SlowDown, ...; empty where
// it says nothing, as replies to HEAD do.
std::string S3ErrorCode(const CurlReply& reply);
// For people: "403 AccessDenied: Access Denied".
std::string S3ErrorText(const CurlReply& reply);

class S3Client {
 public:
  // CurlClient::Open's errors; and kInvalidArgument where the environment or AWS's files name
  // credentials that cannot be.
  static Result<std::unique_ptr<S3Client>> Open(S3ClientOptions options);

  const S3Place& place() const { return options_.place; }
  CurlClient& http() { return *http_; }
  void Send(S3Request request);

 private:
  struct Asked;
  using AskedPtr = std::shared_ptr<Asked>;

  explicit S3Client(S3ClientOptions options) : options_(std::move(options)) {}

  void Try(const AskedPtr& asked);
  void SendSigned(const AskedPtr& asked, const S3Credentials& credentials);
  void OnReply(const AskedPtr& asked, Result<CurlReply> reply);
  // Learns from what a server refuses, unless another request's reply has taught it since; whether
  // the same request may now be answered.
  bool Mend(const Asked& asked, const CurlReply& reply);
  bool MayRetry(const Asked& asked) const;
  void Retry(const AskedPtr& asked, bool may_be_done);
  Seconds Left(const Asked& asked) const;

  S3ClientOptions options_;
  std::optional<S3CredentialSource> credentials_;
  int64_t server_ahead_s_ = 0;  // its clock against this machine's, where it complains
  std::mt19937_64 random_{std::random_device{}()};
  std::unique_ptr<CurlClient> http_;  // last: its thread ends before the rest goes
};

}  // namespace kvcake
