#include "server/request_head.h"

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>
#include <boost/beast/core/string.hpp>
#include <string_view>

namespace kvcake {

namespace beast = boost::beast;
namespace http = beast::http;

namespace {

ApiError Refusal(std::string message) {
  return {.status = 400, .message = "this is not HTTP: " + std::move(message)};
}

bool IsNumber(beast::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Without the server's name, which is there for a proxy (RFC 9112, 3.2.2), and without the query.
std::string PathOf(std::string target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::istarts_with(target, scheme)) continue;
    const size_t path = target.find_first_of("/?", scheme.size());
    if (path == scheme.size()) break;  // a server without a name is none
    target = path == target.npos || target[path] == '?' ? "/" : target.substr(path);
    break;
  }
  return target.substr(0, target.find('?'));
}

}  // namespace

std::optional<ApiError> CheckFraming(const RequestHead& head) {
  const size_t lengths = head.count(http::field::content_length);
  const size_t codings = head.count(http::field::transfer_encoding);
  const size_t hosts = head.count(http::field::host);
  if (codings > 0) {
    if (head.version() < 11) return Refusal("HTTP/1.0 has no Transfer-Encoding");
    if (lengths > 0) return Refusal("both Transfer-Encoding and Content-Length");
    // Another coding before the last would have to be undone, and none here is.
    if (codings > 1 || !beast::iequals(head[http::field::transfer_encoding], "chunked")) {
      return Refusal("the only Transfer-Encoding here is \"chunked\"");
    }
  }
  if (lengths > 1 || (lengths == 1 && !IsNumber(head[http::field::content_length]))) {
    return Refusal("Content-Length must be one number");
  }
  if (hosts > 1) return Refusal("more than one Host");
  if (hosts == 0 && head.version() >= 11) return Refusal("HTTP/1.1 needs a Host");
  if (head.count(http::field::authorization) > 1) return Refusal("more than one Authorization");
  return std::nullopt;
}

bool IsSaneRequestId(std::string_view id) {
  constexpr size_t kIdMax = 128;
  return !id.empty() && id.size() <= kIdMax &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

HttpRequest ToRequest(const RequestHead& head) {
  HttpRequest request;
  request.method = std::string(head.method_string());
  request.path = PathOf(std::string(head.target()));
  request.authorization = std::string(head[http::field::authorization]);
  request.content_type = std::string(head[http::field::content_type]);
  request.content_encoding = std::string(head[http::field::content_encoding]);
  const auto id = head["X-Request-Id"];
  if (head.count("X-Request-Id") == 1 && IsSaneRequestId({id.data(), id.size()})) {
    request.id = std::string(id);
  }
  return request;
}

}  // namespace kvcake
