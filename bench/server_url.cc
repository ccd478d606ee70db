#include "bench/server_url.h"

#include <algorithm>
#include <string_view>

#include "base/host_port.h"

namespace kvcake::bench {

Result<ServerUrl> ServerUrl::Parse(const std::string& url) {
  constexpr std::string_view kScheme = "http://", kVersion = "/v1";
  if (url.starts_with("https://")) {
    return Fail(ErrorCode::kUnsupported,
                "{}: this client speaks plain http: ask the server behind the proxy that adds TLS, "
                "or let a proxy here take TLS off (e.g. socat, stunnel)",
                url);
  }
  const auto refused = [&](std::string_view why) {
    return Fail(ErrorCode::kInvalidArgument, "{}: {}: a URL is like http://localhost:8000", url,
                why);
  };
  if (!url.starts_with(kScheme)) return refused("it does not begin with http://");
  std::string_view rest = std::string_view(url).substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash), path = rest.substr(slash);
  if (path.find_first_of("?#") != std::string_view::npos ||
      authority.find_first_of("?#@") != std::string_view::npos) {
    return refused("it has more than a host, a port and a path");
  }
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with(kVersion)) path.remove_suffix(kVersion.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  ServerUrl parsed{.host = {}, .port = "80", .path = std::string(path)};
  const size_t bracket = authority.starts_with('[') ? authority.find(']') : 0;
  const size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  if (colon != std::string_view::npos) {
    parsed.port = authority.substr(colon + 1);
    authority = authority.substr(0, colon);
    if (parsed.port.empty() || parsed.port.size() > 5 ||
        parsed.port.find_first_not_of("0123456789") != std::string::npos) {
      return refused("its port is no number");
    }
  }
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  if (authority.empty()) return refused("it has no host");
  parsed.host = authority;
  return parsed;
}

std::string ServerUrl::HostHeader() const { return HostAndPort(host, port); }

}  // namespace kvcake::bench
