// What the ranks of a chain know and strangers do not: a shared secret, by which each proves to the
// other end of a new connection that it belongs to the cluster.
//
// A proof is HMAC-SHA256, keyed with the secret, over a purpose and a transcript: what both sides
// have said so far, with a fresh nonce of each. Every step of a conversation has a purpose of its
// own, so that no proof can be played back as another, to the same side or the other one.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/status.h"

namespace kvcake {

inline constexpr size_t kClusterKeyBytesMin = 16, kClusterKeyBytesMax = 4096;

using Nonce = std::array<uint8_t, 32>;
// From libcrypto's generator.
Nonce NewNonce();

class ClusterKey {
 public:
  // None: proofs are made and checked all the same, but anybody can make them.
  ClusterKey() = default;
  // kInvalidArgument unless it has kClusterKeyBytesMin to kClusterKeyBytesMax bytes; `name` says
  // where it is from.
  static Result<ClusterKey> Of(std::string_view secret, const std::string& name);
  // From the file, without white space at its end; or, where its name is empty, KVCAKE_CLUSTER_KEY
  // of the environment; or none. A file that others than its owner may read is refused.
  static Result<ClusterKey> Load(const std::string& file);

  bool empty() const { return secret_.empty(); }
  // Parts are bound with their lengths: no two transcripts of different parts are alike.
  Digest Prove(std::string_view purpose, std::initializer_list<std::string_view> transcript) const;

 private:
  std::string secret_;
};

// In a time that does not depend on where they differ: the only way to compare proofs.
bool SameProof(const Digest& one, const Digest& other);

// The bytes of a value as a part of a transcript.
template <typename T>
std::string_view PartOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// How to have a key, for error messages.
inline constexpr std::string_view kClusterKeyRemedy =
    "make one (openssl rand -hex 32 > FILE; chmod 600 FILE) and give the server and every worker "
    "the same with --cluster-key-file FILE, or KVCAKE_CLUSTER_KEY in their environment";

}  // namespace kvcake
