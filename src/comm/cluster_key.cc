#include "comm/cluster_key.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <cstdlib>

#include "base/check.h"
#include "base/secret_file.h"

namespace kvcake {
namespace {

constexpr const char* kVariable = "KVCAKE_CLUSTER_KEY";
constexpr const char* kFlag = "--cluster-key-file";

void AppendPart(std::string* message, std::string_view part) {
  const uint64_t bytes = part.size();
  *message += PartOf(bytes);
  *message += part;
}

}  // namespace

Nonce NewNonce() {
  Nonce nonce;
  CHECK(RAND_bytes(nonce.data(), static_cast<int>(nonce.size())) == 1);
  return nonce;
}

Result<ClusterKey> ClusterKey::Of(std::string_view secret, const std::string& name) {
  if (secret.size() < kClusterKeyBytesMin || secret.size() > kClusterKeyBytesMax) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: a cluster's key has {} to {} bytes, and this one {}: {}", name,
                kClusterKeyBytesMin, kClusterKeyBytesMax, secret.size(), kClusterKeyRemedy);
  }
  ClusterKey key;
  key.secret_ = secret;
  return key;
}

Result<ClusterKey> ClusterKey::Load(const std::string& file) {
  if (file.empty()) {
    const char* secret = std::getenv(kVariable);
    if (secret == nullptr) return ClusterKey();
    return Of(WithoutSpaceAtEnd(secret), kVariable);
  }
  ASSIGN_OR_RETURN(const std::string secret, ReadSecretFile(file, kFlag, kClusterKeyBytesMax));
  return Of(secret, fmt::format("{} {}", kFlag, file));
}

Digest ClusterKey::Prove(std::string_view purpose,
                         std::initializer_list<std::string_view> transcript) const {
  std::string message;
  AppendPart(&message, purpose);
  for (const std::string_view part : transcript) AppendPart(&message, part);
  return HmacSha256(secret_, message);
}

bool SameProof(const Digest& one, const Digest& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace kvcake
