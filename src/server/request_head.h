// The head of an HTTP/1.1 request: whether it says where the request ends, and what handlers are
// told of it.
#pragma once

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>
#include <string>

#include "server/api_error.h"

namespace kvcake {

struct HttpRequest {
  std::string method = {};  // "GET"
  std::string path = {};    // without the query
  std::string authorization = {};
  std::string content_type = {};
  bool admin = false;  // it has come to the listener for those who run the server
};

using RequestParser = boost::beast::http::request_parser<boost::beast::http::string_body>;
using RequestFields = boost::beast::http::fields;
using RequestHead = boost::beast::http::header<true, RequestFields>;

// Why the request cannot be taken: two readers of it, a proxy and we, might not agree on where it
// ends (RFC 9112, 6.3), or on whom it is for (3.2). What follows it on its connection must then not
// be read as another request.
std::optional<ApiError> CheckFraming(const RequestHead& head);

HttpRequest ToRequest(const RequestHead& head);

}  // namespace kvcake
