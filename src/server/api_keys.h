// Who may use a server, and whose cache is whose.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "base/status.h"

namespace kvcake {

// Where keys come from: all may be missing, but a key that is given is a word that a header can
// carry.
struct KeySources {
  std::vector<std::string> keys = {};  // of clients that share one cache
  std::string file = {};               // of tenants
  std::optional<std::string> admin_key = {};
  std::string admin_file = {};   // whose first word is the admin key
  std::string config_file = {};  // that some of these are from
};

// Immutable after Load. Keys are kept as digests only, and compared in constant time.
class ApiKeys {
 public:
  // `file` has a tenant on each line: a name, white space,
  // and its key; a word that begins with # begins a comment. A tenant's cache is its own, and goes
  // by its name: it survives restarts and new keys. Several keys of one name are several keys of
  // one tenant; one key of two tenants is kInvalidArgument, and so is the admin key if it is also a
  // tenant's.
  static Result<ApiKeys> Load(const KeySources& sources);

  // Nobody is asked for a key.
  bool open() const { return entries_.empty(); }
  // The names of those who have a cache of their own, each once.
  const std::set<std::string>& tenants() const { return tenants_; }
  // The tenant ("" for those without a cache of their own) of an Authorization header's value,
  // "Bearer KEY"; empty where there is no such key.
  std::optional<std::string> Tenant(std::string_view authorization) const;
  // What the holder of an Authorization header may do that touches all tenants. Where there is an
  // admin key, its holder alone may; where there is none, everybody who may use the server, if
  // there is one cache for all of them, else nobody. Who may not, and is a tenant with a cache of
  // its own, may do it with that (kOwn).
  enum class Admin { kMay, kOwn, kMayNot, kUnknownKey };
  Admin AdminOf(std::string_view authorization) const;

 private:
  struct Entry {
    Digest key;
    std::string tenant;
  };
  Status Read(const std::string& file);
  Status ReadAdmin(const KeySources& sources);
  // False: it is another tenant's.
  bool Add(std::string_view key, const std::string& tenant);

  const Entry* Find(std::string_view authorization) const;

  std::vector<Entry> entries_;
  std::map<Digest, size_t> index_;  // of entries_; what clients send is not looked up in it
  std::set<std::string> tenants_;
  std::optional<Digest> admin_;
};

// What joins the root of the chunks of a tenant's request (Request::salt): different for every
// pair, and empty where both are.
std::string CacheSalt(std::string_view tenant, std::string_view salt);

}  // namespace kvcake
