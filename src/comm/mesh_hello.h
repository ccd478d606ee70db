// What both ends of a new connection of a chain over TCP say first; bytes never change meaning.
//
// The caller says hello, and who is called answers with its own; then the caller proves that it has
// the cluster's key, and then the other. Proofs are over both hellos and the chain's roster: who
// calls, who is called, what each runs, with a nonce of each, in this chain and no other.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "comm/cluster_key.h"

namespace kvcake {

struct MeshHello {
  std::array<char, 8> magic = {'k', 'v', 'c', 'h', 'a', 'i', 'n', '2'};
  uint32_t size = 0, from = 0, to = 0;
  uint32_t reserved = 0;
  Nonce nonce = {};
  Digest facts = {};

  bool HasMagic() const { return magic == MeshHello{}.magic; }
};
static_assert(sizeof(MeshHello) == 88 && std::endian::native == std::endian::little);

// Both sides' view of a connection whose hellos have been said.
class MeshProof {
 public:
  // Borrows all.
  MeshProof(const ClusterKey& key, const Digest& roster, const MeshHello& caller,
            const MeshHello& called)
      : key_(key), roster_(roster), caller_(caller), called_(called) {}

  Digest OfCaller() const { return Of("kvcake 2: a rank calls another"); }
  Digest OfCalled() const { return Of("kvcake 2: a rank that is called answers"); }

 private:
  Digest Of(std::string_view purpose) const {
    return key_.Prove(purpose, {PartOf(roster_), PartOf(caller_), PartOf(called_)});
  }

  const ClusterKey& key_;
  const Digest& roster_;
  const MeshHello& caller_;
  const MeshHello& called_;
};

}  // namespace kvcake
