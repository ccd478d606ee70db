#include "server/api_keys.h"

#include <fmt/core.h>
#include <openssl/crypto.h>

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
    made.entries_.push_back({.key = HashKey(key), .tenant = ""});
  }
  if (!file.empty()) RETURN_IF_ERROR(made.Read(file));
  return made;
}

Status ApiKeys::Read(const std::string& file) {
  std::ifstream in(file);
  if (!in) return Fail(ErrorCode::kIo, "cannot open --api-key-file {}", file);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string tenant, key, more;
    if (!(words >> tenant)) continue;
    if (!(words >> key) || words >> more) {
      return Fail(ErrorCode::kInvalidArgument, "{}:{}: not a tenant's name and its key", file,
                  number);
    }
    if (entries_.size() >= kKeysMax) {
      return Fail(ErrorCode::kResourceExhausted, "{}: more than {} keys", file, kKeysMax);
    }
    entries_.push_back({.key = HashKey(key), .tenant = tenant});
  }
  if (entries_.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "{}: no keys: nobody could use the server", file);
  }
  return {};
}

std::optional<std::string> ApiKeys::Tenant(std::string_view authorization) const {
  static constexpr std::string_view kBearer = "Bearer ";
  if (!authorization.starts_with(kBearer)) return std::nullopt;
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
