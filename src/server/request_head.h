// The head of an HTTP/1.1 request: whether it says where the request ends, and what handlers are
// told of it.
#pragma once

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"

namespace kvcake {

struct HttpRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // without the query
  std::string authorization = {};
  std::string content_type = {};
  std::string content_encoding = {};
  std::string id = {};      // X-Request-Id, the client's where it has a sane one
  std::string client = {};  // its address
  bool admin = false;       // it has come to the listener for those who run the server
};

using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;
using HeadFields = boost::beast::http::fields;
using RequestHead = boost::beast::http::header<true, HeadFields>;

// Why the request cannot be taken: two readers of it, a proxy and we, might not agree on where it
// ends (RFC 9112, 6.3), on whom it is for (3.2), or on whose it is. What follows it on its
// connection must then not be read as another request.
std::optional<ApiError> CheckFraming(const RequestHead& head);

HttpRequest ToRequest(const RequestHead& head);

// An id that a client may give its request: 1 to 128 letters, digits and marks of ASCII.
bool IsSaneRequestId(std::string_view id);

}  // namespace kvcake
