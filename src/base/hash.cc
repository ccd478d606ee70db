#include "base/hash.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#if defined(__x86_64__) && !defined(KVCAKE_WHEEL)  // Debian's static library has no dispatcher
#include <xxh_x86dispatch.h>  // the widest vectors that the CPU has, for the same names and numbers
#else
#include <xxhash.h>
#endif

#include "base/check.h"

namespace kvcake {

struct Sha256::Context {
  EVP_MD_CTX* evp = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(evp); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  CHECK(EVP_DigestInit_ex(context_->evp, EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

Sha256& Sha256::Update(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(context_->evp, bytes.data(), bytes.size()) == 1);
  return *this;
}

Digest Sha256::Finish() {
  Digest digest;
  CHECK(EVP_DigestFinal_ex(context_->evp, digest.data(), nullptr) == 1);
  CHECK(EVP_DigestInit_ex(context_->evp, nullptr, nullptr) == 1);
  return digest;
}

Digest HmacSha256(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned int bytes = digest.size();
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(message.data()), message.size(), digest.data(),
             &bytes) != nullptr);
  return digest;
}

uint64_t Xxh3_64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

namespace {

std::array<uint8_t, 16> Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::array<uint8_t, 16> out;
  std::copy(std::begin(canonical.digest), std::end(canonical.digest), out.begin());
  return out;
}

}  // namespace

struct Xxh3_128Stream::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

Xxh3_128Stream::Xxh3_128Stream() : state_(std::make_unique<State>()) {
  CHECK(state_->xxh != nullptr && XXH3_128bits_reset(state_->xxh) == XXH_OK);
}

Xxh3_128Stream::~Xxh3_128Stream() = default;

void Xxh3_128Stream::Update(std::span<const std::byte> bytes) {
  CHECK(XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size()) == XXH_OK);
}

std::array<uint8_t, 16> Xxh3_128Stream::Finish() {
  const auto hash = Canonical(XXH3_128bits_digest(state_->xxh));
  CHECK(XXH3_128bits_reset(state_->xxh) == XXH_OK);
  return hash;
}

std::string ToHex(std::span<const uint8_t> bytes) {
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

}  // namespace kvcake
