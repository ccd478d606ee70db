#include "server/api_keys.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <strings.h>

#include <algorithm>
#include <sstream>

#include "base/read_file.h"

namespace kvcake {
namespace {

constexpr size_t kKeysMax = 1 << 16;
constexpr uint64_t kKeyFileBytesMax = 16 << 20;

Digest HashKey(std::string_view key) { return Sha256().Update(key).Finish(); }

// The digest of the key in "Bearer KEY"; empty for other schemes.
std::optional<Digest> BearerKey(std::string_view authorization) {
  static constexpr std::string_view kBearer = "bearer ";
  const std::string scheme(authorization.substr(0, kBearer.size()));
  if (strcasecmp(scheme.c_str(), kBearer.data()) != 0) return std::nullopt;
  return HashKey(authorization.substr(kBearer.size()));
}

// Whether a header can carry the key: a secret's file often ends in a newline that no client sends.
Status CheckKey(std::string_view key, const char* flags) {
  if (key.empty()) return Fail(ErrorCode::kInvalidArgument, "{} is empty", flags);
  const auto odd = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (std::ranges::none_of(key, odd) && key.front() != ' ' && key.back() != ' ') return {};
  return Fail(ErrorCode::kInvalidArgument,
              "{} begins or ends with white space, or has a control character in it, as a line's "
              "end: no client could send it",
              flags);
}

Result<std::istringstream> Open(const char* flag, const std::string& path) {
  auto text = ReadFile(path, kKeyFileBytesMax);
  if (text) return std::istringstream(*std::move(text));
  return Fail(text.error().code, "{}: {}", flag, text.error().message);
}

// Compares in constant time.
bool Same(const Digest& a, const Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Result<ApiKeys> ApiKeys::Load(const KeySources& sources) {
  ApiKeys made;
  for (const std::string& key : sources.keys) {
    RETURN_IF_ERROR(CheckKey(key, "--api-key (or KVCAKE_API_KEY)"));
    made.Add(key, "");
  }
  if (!sources.file.empty()) RETURN_IF_ERROR(made.Read(sources.file));
  RETURN_IF_ERROR(made.ReadAdmin(sources));
  return made;
}

Status ApiKeys::ReadAdmin(const KeySources& sources) {
  std::string key = sources.admin_key.value_or("");
  if (sources.admin_key) RETURN_IF_ERROR(CheckKey(key, "--admin-key (or KVCAKE_ADMIN_KEY)"));
  if (!sources.admin_file.empty()) {
    if (sources.admin_key) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--admin-key (or KVCAKE_ADMIN_KEY) and --admin-key-file are both given: which is "
                  "the key?");
    }
    ASSIGN_OR_RETURN(std::istringstream in, Open("--admin-key-file", sources.admin_file));
    if (!(in >> key)) {
      return Fail(ErrorCode::kInvalidArgument, "--admin-key-file {} has no key",
                  sources.admin_file);
    }
  }
  if (key.empty()) return {};
  admin_ = HashKey(key);
  for (const Entry& entry : entries_) {
    if (entry.key != *admin_) continue;
    return Fail(ErrorCode::kInvalidArgument,
                "the admin key is a key of clients{}{} too: it must be nobody else's",
                entry.tenant.empty() ? "" : " of ", entry.tenant);
  }
  return {};
}

bool ApiKeys::Add(std::string_view key, const std::string& tenant) {
  const Digest digest = HashKey(key);
  const auto [known, added] = index_.try_emplace(digest, entries_.size());
  if (!added) return entries_[known->second].tenant == tenant;
  entries_.push_back({.key = digest, .tenant = tenant});
  if (!tenant.empty()) tenants_.insert(tenant);
  return true;
}

Status ApiKeys::Read(const std::string& file) {
  ASSIGN_OR_RETURN(std::istringstream in, Open("--api-key-file", file));
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    std::istringstream words(line);
    std::string tenant, key, more;
    if (!(words >> tenant) || tenant.starts_with('#')) continue;
    if (!(words >> key) || key.starts_with('#') || (words >> more && !more.starts_with('#'))) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--api-key-file {}:{}: not a tenant's name and its key, with white space between",
                  file, number);
    }
    if (entries_.size() >= kKeysMax) {
      return Fail(ErrorCode::kResourceExhausted, "--api-key-file {}: more than {} keys", file,
                  kKeysMax);
    }
    if (!Add(key, tenant)) {
      return Fail(ErrorCode::kInvalidArgument,
                  "--api-key-file {}:{}: the key of {} is another tenant's too", file, number,
                  tenant);
    }
  }
  if (entries_.empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "--api-key-file {}: no keys: nobody could use the server", file);
  }
  return {};
}

const ApiKeys::Entry* ApiKeys::Find(std::string_view authorization) const {
  const std::optional<Digest> key = BearerKey(authorization);
  if (!key) return nullptr;
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {  // all of them, wherever it is
    if (Same(entry.key, *key)) found = &entry;
  }
  return found;
}

std::optional<std::string> ApiKeys::Tenant(std::string_view authorization) const {
  const Entry* found = Find(authorization);
  if (found == nullptr) return std::nullopt;
  return found->tenant;
}

ApiKeys::Admin ApiKeys::AdminOf(std::string_view authorization) const {
  const std::optional<Digest> key = BearerKey(authorization);
  const Entry* found = Find(authorization);
  if (admin_ && key && Same(*admin_, *key)) return Admin::kMay;
  if (open() && !admin_) return Admin::kMay;
  if (found == nullptr) return Admin::kUnknownKey;
  const bool alone = std::ranges::all_of(
      entries_, [&](const Entry& entry) { return entry.tenant == found->tenant; });
  if (alone && !admin_) return Admin::kMay;
  return found->tenant.empty() ? Admin::kMayNot : Admin::kOwn;
}

std::string CacheSalt(std::string_view tenant, std::string_view salt) {
  if (tenant.empty() && salt.empty()) return "";
  return fmt::format("{}:{}{}", tenant.size(), tenant, salt);
}

}  // namespace kvcake
