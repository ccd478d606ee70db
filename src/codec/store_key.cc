#include "codec/store_key.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/rand.h>

#include <algorithm>
#include <memory>

#include "base/check.h"
#include "base/secret_file.h"

namespace kvcake {
namespace {

constexpr std::string_view kRemedy = "make one: openssl rand -hex 32 > FILE; chmod 600 FILE";

// libcrypto's lengths are ints.
constexpr size_t kStepBytes = 1u << 30;

using Kdf = std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)>;
using KdfContext = std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)>;
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

std::string_view TextOf(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

OSSL_PARAM Octets(const char* name, std::string_view bytes) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(bytes.data()), bytes.size());
}

// HKDF-SHA256 (RFC 5869).
Digest Derive(std::string_view secret, std::string_view salt, std::string_view info) {
  const Kdf kdf(EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr), EVP_KDF_free);
  CHECK(kdf != nullptr);
  const KdfContext context(EVP_KDF_CTX_new(kdf.get()), EVP_KDF_CTX_free);
  CHECK(context != nullptr);
  char hash[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, hash, 0),
                               Octets(OSSL_KDF_PARAM_KEY, secret),
                               Octets(OSSL_KDF_PARAM_SALT, salt), Octets(OSSL_KDF_PARAM_INFO, info),
                               OSSL_PARAM_construct_end()};
  Digest derived;
  CHECK(EVP_KDF_derive(context.get(), derived.data(), derived.size(), params) == 1);
  return derived;
}

enum class Direction { kOpen, kSeal };

// Runs AES-256-GCM over the header and all bytes; the tag is still to be got, or set and compared.
Result<CipherContext> Run(Direction direction, const Digest& key, uint32_t part,
                          std::span<const std::byte> header, std::span<const std::byte> from,
                          std::span<std::byte> to) {
  CHECK(from.size() == to.size());
  std::array<uint8_t, 12> nonce = {};
  for (int i = 0; i < 4; ++i) nonce[i] = static_cast<uint8_t>(part >> (8 * i));
  CipherContext context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  bool fine = context != nullptr &&
              EVP_CipherInit_ex2(context.get(), EVP_aes_256_gcm(), key.data(), nonce.data(),
                                 direction == Direction::kSeal, nullptr) == 1;
  const auto update = [&](uint8_t* out, std::span<const std::byte> in) {
    int written = 0;
    return EVP_CipherUpdate(context.get(), out, &written,
                            reinterpret_cast<const uint8_t*>(in.data()),
                            static_cast<int>(in.size())) == 1;
  };
  CHECK(header.size() <= kStepBytes);
  if (!header.empty()) fine = fine && update(nullptr, header);
  for (size_t at = 0; fine && at < from.size(); at += kStepBytes) {
    const size_t bytes = std::min(kStepBytes, from.size() - at);
    fine = update(reinterpret_cast<uint8_t*>(to.data() + at), from.subspan(at, bytes));
  }
  if (!fine) return Fail(ErrorCode::kResourceExhausted, "libcrypto cannot run AES-256-GCM");
  return context;
}

// Ends a run: false where the tag that was set is not that of what was opened.
bool Finish(const CipherContext& context) {
  std::array<uint8_t, 16> nothing;  // GCM has no last block
  int written = 0;
  return EVP_CipherFinal_ex(context.get(), nothing.data(), &written) == 1;
}

}  // namespace

FileSalt NewFileSalt() {
  FileSalt salt;
  CHECK(RAND_bytes(salt.data(), static_cast<int>(salt.size())) == 1);
  return salt;
}

FileCipher::~FileCipher() { OPENSSL_cleanse(key_.data(), key_.size()); }

StoreKey::~StoreKey() {
  OPENSSL_cleanse(names_.data(), names_.size());
  OPENSSL_cleanse(files_.data(), files_.size());
}

Status FileCipher::Seal(uint32_t part, std::span<const std::byte> header,
                        std::span<const std::byte> plain, std::span<std::byte> sealed,
                        PartTag* tag) const {
  ASSIGN_OR_RETURN(const CipherContext context,
                   Run(Direction::kSeal, key_, part, header, plain, sealed));
  CHECK(Finish(context) && EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG,
                                               static_cast<int>(tag->size()), tag->data()) == 1);
  return {};
}

Status FileCipher::Open(uint32_t part, std::span<const std::byte> header,
                        std::span<const std::byte> sealed, const PartTag& tag,
                        std::span<std::byte> plain) const {
  ASSIGN_OR_RETURN(const CipherContext context,
                   Run(Direction::kOpen, key_, part, header, sealed, plain));
  PartTag expected = tag;
  CHECK(EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_SET_TAG, static_cast<int>(expected.size()),
                            expected.data()) == 1);
  if (!Finish(context)) {
    return Fail(ErrorCode::kCorrupt, "part {} was not encrypted by this key, or was changed", part);
  }
  return {};
}

Result<StoreKey> StoreKey::Of(std::string_view secret, const std::string& name) {
  if (secret.size() < kBytesMin || secret.size() > kBytesMax) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: a store's key has {} to {} bytes, and this one {}: {}", name, kBytesMin,
                kBytesMax, secret.size(), kRemedy);
  }
  StoreKey key;
  key.names_ = Derive(secret, "", "kvcake store names v1");
  key.files_ = Derive(secret, "", "kvcake store files v1");
  return key;
}

Result<StoreKey> StoreKey::Load(const std::string& file, std::string_view option) {
  ASSIGN_OR_RETURN(std::string secret, ReadSecretFile(file, option, kBytesMax));
  auto key = Of(secret, fmt::format("{} {}", option, file));
  OPENSSL_cleanse(secret.data(), secret.size());
  return key;
}

Digest StoreKey::NameOf(const Digest& digest) const {
  return HmacSha256(TextOf(names_), TextOf(digest));
}

FileCipher StoreKey::HeaderCipher(const FileSalt& salt) const {
  return FileCipher(Derive(TextOf(files_), TextOf(salt), "kvcake header v1"));
}

FileCipher StoreKey::ChunkCipher(const FileSalt& salt, const Digest& chunk_key) const {
  std::string info = "kvcake chunk v1";
  info += TextOf(chunk_key);
  return FileCipher(Derive(TextOf(files_), TextOf(salt), info));
}

}  // namespace kvcake
