#include "server/client_rules.h"

#include <arpa/inet.h>
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvcake {
namespace {

constexpr size_t kNameShown = 80;  // bytes of a stranger's name in a message

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  }
  return lower;
}

std::vector<std::string> Lower(std::vector<std::string> names) {
  for (std::string& name : names) name = Lower(name);
  return names;
}

bool Contains(const std::vector<std::string>& list, std::string_view name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool IsPort(std::string_view text) {
  return text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// The name in "name:port" or "[address]:port", in lower case; none where it is neither.
std::optional<std::string> NameOf(std::string_view host) {
  size_t end;
  if (host.starts_with('[')) {
    end = host.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    ++end;
  } else {
    end = std::min(host.find(':'), host.size());
  }
  const std::string_view port = host.substr(end);
  if (!port.empty() && (port[0] != ':' || !IsPort(port.substr(1)))) return std::nullopt;
  std::string_view name = host.substr(0, end);
  if (name.ends_with('.')) name.remove_suffix(1);  // as absolute names are written
  if (name.empty()) return std::nullopt;
  return Lower(name);
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool IsLoopbackName(std::string_view name) {
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  const std::string text = Lower(name);
  if (text == "localhost") return true;
  in_addr v4 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6 = {};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

std::string CheckAllowedHost(const std::string& name) {
  const bool is_name =
      name.find_first_of("/*@ \t") == std::string::npos && NameOf(name) == Lower(name);
  if (name == "*" || is_name) return {};
  return fmt::format(
      "'{}' is no name as clients send it in Host: kv.example.org, 192.0.2.7 or [2001:db8::7], "
      "without a scheme, a port or wildcards; *: any",
      name);
}

std::string CheckAllowedOrigin(const std::string& origin) {
  if (origin == "*" || origin == "loopback" || origin == "null") return {};
  const size_t scheme = origin.find("://");
  const bool is_origin = scheme != std::string::npos && scheme > 0 && scheme + 3 < origin.size() &&
                         origin.find_first_of("/?#*@ \t", scheme + 3) == std::string::npos;
  if (is_origin) return {};
  return fmt::format(
      "'{}' is no origin as browsers send it: https://chat.example.org or http://192.0.2.7:3000, "
      "without a path, a slash at its end or wildcards; *: all",
      origin);
}

HostRule::HostRule(std::string bound, std::vector<std::string> allowed)
    : bound_(Lower(bound)),
      allowed_(Lower(std::move(allowed))),
      any_(Contains(allowed_, "*") || (allowed_.empty() && !IsLoopbackName(bound_))) {}

std::optional<ApiError> HostRule::Check(std::string_view host) const {
  if (any_) return std::nullopt;
  const auto name = NameOf(host);
  if (name && (IsLoopbackName(*name) || *name == bound_ || *name == "[" + bound_ + "]" ||
               Contains(allowed_, *name))) {
    return std::nullopt;
  }
  return ApiError{.status = 403,
                  .message = fmt::format("this server is not called \"{}\": ask for localhost, or "
                                         "start it with --allowed-hosts NAME",
                                         host.substr(0, kNameShown)),
                  .code = "host_not_allowed"};
}

OriginRule::OriginRule(std::vector<std::string> allowed)
    : allowed_(Lower(std::move(allowed))), any_(Contains(allowed_, "*")) {}

std::string OriginRule::Answer(std::string_view origin) const {
  if (any_) return "*";
  if (origin.empty()) return {};
  const std::string lower = Lower(origin);
  if (Contains(allowed_, lower)) return std::string(origin);
  if (!Contains(allowed_, "loopback")) return {};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!lower.starts_with(scheme)) continue;
    const auto name = NameOf(std::string_view(lower).substr(scheme.size()));
    if (name && IsLoopbackName(*name)) return std::string(origin);
  }
  return {};
}

std::optional<ApiError> CheckJsonType(std::string_view content_type) {
  const std::string type = Lower(Trimmed(content_type.substr(0, content_type.find(';'))));
  if (type == "application/json" || (type.starts_with("application/") && type.ends_with("+json"))) {
    return std::nullopt;
  }
  return ApiError{.status = 415,
                  .message =
                      "a POST must have the header Content-Type: application/json, with or "
                      "without a body: add it (curl -H), or start the server with "
                      "--any-content-type",
                  .code = "unsupported_content_type"};
}

std::optional<ApiError> CheckUncoded(std::string_view content_encoding) {
  const std::string coding = Lower(Trimmed(content_encoding));
  if (coding.empty() || coding == "identity") return std::nullopt;
  return ApiError{
      .status = 415,
      .message = fmt::format("the header Content-Encoding says that the body is \"{}\": "
                             "this server takes bodies that are not compressed",
                             coding.substr(0, kNameShown)),
      .code = "unsupported_content_encoding"};
}

std::vector<std::string> SplitList(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> list;
  if (json.is_array()) {
    for (const auto& element : json) {
      list.push_back(element.is_string() ? element.get<std::string>() : element.dump());
    }
    return list;
  }
  for (std::string_view rest = text; !rest.empty();) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view element = Trimmed(rest.substr(0, comma));
    if (!element.empty()) list.emplace_back(element);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return list;
}

}  // namespace kvcake
