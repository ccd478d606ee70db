#include "server/api_keys.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace kvcake {
namespace {

constexpr size_t kKeysMax = 1 << 16;

Digest HashKey(std::string_view key) { return Sha256().Update(key).Finish(); }

}  // namespace

Result<ApiKeys> ApiKeys::Load(const std::vector<std::string>& keys, const std::string& file) {
  ApiKeys made;
  for (const std::string& key : keys) {
    if (key.empty()) return Fail(ErrorCode::kInvalidArgument, "--api-key is empty");
    made.Add(key, "");
  }
  if (!file.empty()) RETURN_IF_ERROR(made.Read(file));
  return made;
}

bool ApiKeys::Add(std::string_view key, const std::string& tenant) {
  const Digest digest = HashKey(key);
  const auto known = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == digest; });
  if (known != entries_.end()) return known->tenant == tenant;
  entries_.push_back({.key = digest, .tenant = tenant});
  return true;
}

Status ApiKeys::Read(const std::string& file) {
  std::ifstream in(file);
  if (!in) return Fail(ErrorCode::kIo, "cannot open --api-key-file {}", file);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line);
    std::string tenant, key, more;
    if (!(words >> tenant) || tenant.starts_with('#')) continue;
    if (!(words >> key) || key.starts_with('#') || (words >> more && !more.starts_with('#'))) {
      return Fail(ErrorCode::kInvalidArgument, "{}:{}: not a tenant's name and its key", file,
                  number);
    }
    if (entries_.size() >= kKeysMax) {
      return Fail(ErrorCode::kResourceExhausted, "{}: more than {} keys", file, kKeysMax);
    }
    if (!Add(key, tenant)) {
      return Fail(ErrorCode::kInvalidArgument, "{}:{}: the key of {} is another tenant's too", file,
                  number, tenant);
    }
  }
  if (entries_.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "{}: no keys: nobody could use the server", file);
  }
  return {};
}

std::optional<std::string> ApiKeys::Tenant(std::string_view authorization) const {
  static constexpr std::string_view kBearer = "bearer ";
  const std::string scheme(authorization.substr(0, kBearer.size()));
  if (strcasecmp(scheme.c_str(), kBearer.data()) != 0) return std::nullopt;
  const Digest key = HashKey(authorization.substr(kBearer.size()));
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {  // all of them, wherever it is
    if (CRYPTO_memcmp(entry.key.data(), key.data(), key.size()) == 0) found = &entry;
  }
  if (found == nullptr) return std::nullopt;
  return found->tenant;
}

std::string CacheSalt(std::string_view tenant, std::string_view salt) {
  if (tenant.empty() && salt.empty()) return "";
  return fmt::format("{}:{}{}", tenant.size(), tenant, salt);
}

}  // namespace kvcake
