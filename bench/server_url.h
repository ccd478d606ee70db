// Where an OpenAI-compatible server is.
#pragma once

#include <string>

#include "base/status.h"

namespace kvcake::bench {

struct ServerUrl {
  std::string host, port;
  std::string path;  // before /v1: empty, or "/prefix"

  // "http://host:port", with or without a path and the /v1 that clients are given.
  // kInvalidArgument: it is none; kUnsupported: https.
  static Result<ServerUrl> Parse(const std::string& url);
  // "host:port", with brackets around an IPv6 address.
  std::string HostHeader() const;
};

}  // namespace kvcake::bench
