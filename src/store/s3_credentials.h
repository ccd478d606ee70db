// Where S3 credentials come from: what AWS's own programs look at, in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "store/curl_client.h"
#include "store/s3_signature.h"

namespace kvcake {

// Reads AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN; else the profile in the
// files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name, ~/.aws/credentials and
// ~/.aws/config where they do not. Nothing where none of them says anything; kInvalidArgument,
// naming the variable or the file, where one says half.
Result<std::optional<S3Credentials>> LocalCredentials(const std::string& profile);

// What the instance endpoint answers about a role. kIo where it is something else.
Result<S3Credentials> ParseInstanceCredentials(std::string_view json);

// The credentials that requests are signed with: read once, and asked for again where they expire.
// Everything happens on the client's thread, but for construction.
class S3CredentialSource {
 public:
  using Ready = std::function<void(Result<S3Credentials>)>;

  // `http` outlives it. `given`, where there is one, is what Get tells.
  S3CredentialSource(CurlClient& http, std::string profile,
                     std::optional<S3Credentials> given = std::nullopt);

  // Calls `ready`, within the call where they are known or were refused a moment ago. The instance
  // endpoint is asked once for all that wait, and again before they expire, while these are used.
  void Get(Ready ready);
  // The server says that these are no good any more: the next Get looks anew, unless that has
  // happened since. False where there is nothing else to look for.
  bool Forget(const S3Credentials& bad);

 private:
  void AskForToken();
  void AskForRole(const std::string& token);
  void AskForCredentials(const std::string& token, const std::string& role);
  void Ask(CurlRequest request, std::function<void(const CurlReply&)> next);
  void Answer(Result<S3Credentials> result);

  CurlClient& http_;
  const std::string profile_;
  const std::string instance_endpoint_;  // empty: it is not asked
  const bool is_given_;
  std::optional<S3Credentials> known_, forgotten_;
  std::optional<Error> refused_;  // by the instance endpoint, the last time
  TimePoint asked_{};             // it, the last time
  bool is_asking_ = false;
  std::vector<Ready> waiting_;
};

}  // namespace kvcake
