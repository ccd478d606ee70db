// Which clients a server answers, by what browsers say of their scripts: the name that they asked
// for, the page that they come from, the kind of body that they send.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace kvcake {

// True of "localhost" and of loopback addresses, "[::1]" among them.
bool IsLoopbackName(std::string_view name);

// What is wrong with an element of --allowed-hosts or --allowed-origins, as no client would ever
// send what it is compared with; empty: nothing.
std::string CheckAllowedHost(const std::string& name);
std::string CheckAllowedOrigin(const std::string& origin);

// The names that a server goes by. A script whose own name has come to mean a loopback address (DNS
// rebinding) sends that name in Host, which no page can change: a server that listens at loopback
// addresses alone answers to their names, the one that it was bound to, and those that it is told.
// One that listens elsewhere answers to any, unless it is told some.
class HostRule {
 public:
  // `allowed` without ports; "*": any.
  HostRule(std::string bound, std::vector<std::string> allowed);
  // The error to answer with; none where the Host field is one of the names.
  std::optional<ApiError> Check(std::string_view host) const;

 private:
  const std::string bound_;
  const std::vector<std::string> allowed_;
  const bool any_;
};

// The pages whose scripts may read answers (CORS).
class OriginRule {
 public:
  // Origins as "https://example.org:8443"; "*": all; "loopback": those of this machine's servers.
  explicit OriginRule(std::vector<std::string> allowed);
  // The value of Access-Control-Allow-Origin; empty: none.
  std::string Answer(std::string_view origin) const;
  // Answers differ by the asker's origin.
  bool varies() const { return !any_ && !allowed_.empty(); }

 private:
  const std::vector<std::string> allowed_;
  const bool any_;
};

// The error to answer a POST of another type than JSON with. Any page's script can have a browser
// send the types of forms, and no type with an empty body, without asking first.
std::optional<ApiError> CheckJsonType(std::string_view content_type);

// The error to answer a body with that is compressed, as its Content-Encoding says.
std::optional<ApiError> CheckUncoded(std::string_view content_encoding);

// The elements of a list as people write it: "a,b", or as JSON, ["a", "b"].
std::vector<std::string> SplitList(const std::string& text);

}  // namespace kvcake
