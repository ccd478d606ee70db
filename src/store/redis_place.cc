#include "store/redis_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/host_port.h"

namespace kvcake {
namespace {

constexpr std::string_view kSecure = "rediss", kCluster = "+cluster";
constexpr size_t kPrefixMax = 64, kSeedsMax = 64;
constexpr int kDatabaseMax = 1 << 20;

std::optional<int> ReadNumber(std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  if (!is_number || value < least || value > most) return std::nullopt;
  return value;
}

// host, host:port or [host]:port.
Result<RedisAddress> ReadAddress(std::string_view text) {
  if (text.find("%40") != text.npos) {  // what is before it may be a password
    return RefuseUrl("the '@' between a password and the host is written as it is, not %40");
  }
  const bool has_brackets = text.starts_with('[');
  const size_t host_end = has_brackets ? text.find(']') : text.find(':');
  RedisAddress address{std::string(text.substr(0, host_end))};
  std::string_view rest = host_end == text.npos ? "" : text.substr(host_end);
  if (has_brackets) {
    if (rest.empty()) return RefuseUrl("'{}' has a '[' without its ']'", text);
    address.host.erase(0, 1);
    rest.remove_prefix(1);
  }
  if (address.host.empty()) return RefuseUrl("'{}' names no host: HOST or HOST:PORT", text);
  if (rest.empty()) return address;
  const auto port = rest[0] == ':' ? ReadNumber(rest.substr(1), 1, 65535) : std::nullopt;
  if (!port) {
    return RefuseUrl(
        "'{}' has a bad port: HOST:PORT with a PORT from 1 to 65535 (an IPv6 address is "
        "written [HOST]:PORT)",
        text);
  }
  address.port = static_cast<uint16_t>(*port);
  return address;
}

// user:password, user or :password.
Result<RedisLogin> ReadLogin(std::string_view text) {
  const size_t colon = text.find(':');
  const auto user = DecodeUrlText(text.substr(0, colon));
  const auto password = DecodeUrlText(colon == text.npos ? "" : text.substr(colon + 1));
  if (user && password) return RedisLogin{*user, *password};
  return RefuseUrl(
      "a '%' of its user or password is not followed by two hexadecimal digits (a '%' is "
      "written %25)");
}

std::string FromEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

Status TakeTlsFiles(StoreUrl& url, RedisPlace& place) {
  const std::pair<const char*, std::string*> files[] = {{"tls-ca", &place.tls_files.ca},
                                                        {"tls-cert", &place.tls_files.certificate},
                                                        {"tls-key", &place.tls_files.key}};
  for (const auto& [name, file] : files) {
    auto value = TakeOption(url, name);
    if (!value) continue;
    if (!place.is_tls) {
      return RefuseUrl("{} is for TLS: {}s{}://", name, "redis", place.is_cluster ? kCluster : "");
    }
    *file = std::move(*value);
  }
  if (place.tls_files.certificate.empty() == place.tls_files.key.empty()) return {};
  return RefuseUrl("tls-cert and tls-key go together");
}

// Names can be looked for by a pattern, and a cluster takes what is in braces for the whole.
Status CheckPrefix(const std::string& prefix) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("-_.:/").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!prefix.empty() && prefix.size() <= kPrefixMax &&
      std::all_of(prefix.begin(), prefix.end(), fits)) {
    return {};
  }
  return RefuseUrl("prefix '{}' must be 1 to {} letters, digits and -_.:/", prefix, kPrefixMax);
}

Status ReadDatabase(std::string_view path, RedisPlace& place) {
  if (path.empty() || path == "/") return {};
  if (place.is_cluster) return RefuseUrl("'{}': a cluster has no numbered databases", path);
  const auto number = ReadNumber(path.substr(1), 0, kDatabaseMax);
  if (!number) return RefuseUrl("'{}' is no number of a database: HOST:PORT/0", path);
  place.database = *number;
  return {};
}

Status ReadSeeds(std::string_view hosts, RedisPlace& place) {
  while (true) {
    const size_t comma = hosts.find(',');
    ASSIGN_OR_RETURN(RedisAddress address, ReadAddress(hosts.substr(0, comma)));
    place.seeds.push_back(std::move(address));
    if (comma == hosts.npos) break;
    if (!place.is_cluster) {
      return RefuseUrl(
          "one server has one HOST:PORT; nodes of a cluster are named by {}+cluster://",
          place.is_tls ? "rediss" : "redis");
    }
    if (place.seeds.size() == kSeedsMax) {
      return RefuseUrl("more than {} nodes are named", kSeedsMax);
    }
    hosts.remove_prefix(comma + 1);
  }
  return {};
}

}  // namespace

bool IsHost(std::string_view text) {
  constexpr size_t kHostBytesMax = 255;
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view(".:_%-").find(static_cast<char>(c)) != std::string_view::npos;
  };
  return !text.empty() && text.size() <= kHostBytesMax &&
         std::all_of(text.begin(), text.end(), fits);
}

std::string RedisAddress::Text() const { return HostAndPort(host, port); }

std::string RedisPlace::Text() const {
  std::string text = fmt::format("redis{}{}://", is_tls ? "s" : "", is_cluster ? kCluster : "");
  for (size_t i = 0; i < seeds.size(); ++i) {
    if (i > 0) text += ',';
    text += seeds[i].Text();
  }
  if (database > 0) text += fmt::format("/{}", database);
  if (prefix != RedisPlace().prefix) text += "?prefix=" + prefix;
  return text;
}

bool IsRedisScheme(const std::string& scheme) {
  return scheme == "redis" || scheme == "rediss" || scheme == "redis+cluster" ||
         scheme == "rediss+cluster";
}

Result<RedisPlace> TakeRedisPlace(StoreUrl& url) {
  RedisPlace place;
  place.is_tls = url.scheme.starts_with(kSecure);
  place.is_cluster = url.scheme.ends_with(kCluster);
  std::string_view rest = url.place;
  if (const size_t at = rest.rfind('@'); at != rest.npos) {
    ASSIGN_OR_RETURN(place.login, ReadLogin(rest.substr(0, at)));
    rest.remove_prefix(at + 1);
  }
  const size_t slash = rest.find('/');
  RETURN_IF_ERROR(ReadSeeds(rest.substr(0, slash), place));
  RETURN_IF_ERROR(ReadDatabase(slash == rest.npos ? "" : rest.substr(slash), place));
  if (auto prefix = TakeOption(url, "prefix")) {
    RETURN_IF_ERROR(CheckPrefix(*prefix));
    place.prefix = std::move(*prefix);
  }
  RETURN_IF_ERROR(TakeTlsFiles(url, place));
  if (place.login.user.empty()) place.login.user = FromEnvironment("KVCAKE_REDIS_USER");
  if (place.login.password.empty()) place.login.password = FromEnvironment("KVCAKE_REDIS_PASSWORD");
  if (!place.login.user.empty() && place.login.password.empty()) {
    return RefuseUrl(
        "it names a user and no password: USER:PASSWORD@HOST, or KVCAKE_REDIS_PASSWORD");
  }
  return place;
}

}  // namespace kvcake
