#include "comm/cluster_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/check.h"
#include "base/file_mode.h"

namespace kvcake {
namespace {

constexpr const char* kVariable = "KVCAKE_CLUSTER_KEY";
constexpr const char* kWhiteSpace = " \t\r\n";

void AppendPart(std::string* message, std::string_view part) {
  const uint64_t bytes = part.size();
  *message += PartOf(bytes);
  *message += part;
}

// Reads an open file, whose name may be another's by now.
Result<std::string> ReadSecret(int fd, const std::string& file) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    return Fail(ErrorCode::kIo, "--cluster-key-file {}: {}", file, std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument, "--cluster-key-file {} is no file", file);
  }
  if (const std::string fault = ModeFault(info.st_mode, file); !fault.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--cluster-key-file {} {}", file, fault);
  }
  std::string text(kClusterKeyBytesMax + 64, '\0');  // with white space at its end
  const ssize_t bytes = pread(fd, text.data(), text.size(), 0);
  if (bytes < 0) {
    return Fail(ErrorCode::kIo, "--cluster-key-file {}: {}", file, std::strerror(errno));
  }
  text.resize(bytes);
  text.erase(text.find_last_not_of(kWhiteSpace) + 1);
  return text;
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
    return Of(secret, kVariable);
  }
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return Fail(ErrorCode::kIo, "cannot open --cluster-key-file {}: {}", file,
                std::strerror(errno));
  }
  const Result<std::string> secret = ReadSecret(fd, file);
  close(fd);
  if (!secret) return tl::unexpected<Error>(secret.error());
  return Of(*secret, "--cluster-key-file " + file);
}

Digest ClusterKey::Prove(std::string_view purpose,
                         std::initializer_list<std::string_view> transcript) const {
  std::string message;
  AppendPart(&message, purpose);
  for (const std::string_view part : transcript) AppendPart(&message, part);
  Digest proof;
  unsigned int bytes = proof.size();
  CHECK(HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), proof.data(),
             &bytes) != nullptr);
  return proof;
}

bool SameProof(const Digest& one, const Digest& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace kvcake
