// Where a Redis server is, or a cluster of them, and how to get in: what a store's URL says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "store/store_url.h"

namespace kvcake {

struct RedisAddress {
  std::string host;
  uint16_t port = 6379;

  auto operator<=>(const RedisAddress&) const = default;
  std::string Text() const;  // host:port, [host]:port
};

// Whether it can be a host's name or address: some come from servers, and go into messages.
bool IsHost(std::string_view text);

struct RedisLogin {
  std::string user = {};      // of the server's ACL; empty: its default user
  std::string password = {};  // empty: no AUTH
};

struct RedisTlsFiles {
  std::string ca = {};                     // whom to believe, in PEM; empty: whom the system does
  std::string certificate = {}, key = {};  // this side's, for servers that ask for one
};

struct RedisPlace {
  std::vector<RedisAddress> seeds;  // of a cluster, any of its nodes; else the one server
  bool is_cluster = false;
  bool is_tls = false;
  int database = 0;
  RedisLogin login = {};
  RedisTlsFiles tls_files = {};
  std::string prefix = "kvcake";  // of the names of all that is kept

  // For people, without user and password: redis://host:port/2?prefix=kvcake.
  std::string Text() const;
};

// Whether a URL's scheme is one of redis, rediss, redis+cluster and rediss+cluster.
bool IsRedisScheme(const std::string& scheme);

// What `url`, with such a scheme, says of the place; its options `prefix`, `tls-ca`, `tls-cert` and
// `tls-key` are taken out of it. A user and a password that it does not name are those of
// KVCAKE_REDIS_USER and KVCAKE_REDIS_PASSWORD, where these are set.
// kInvalidArgument, with what is wrong and what would be right, and no password.
Result<RedisPlace> TakeRedisPlace(StoreUrl& url);

}  // namespace kvcake
