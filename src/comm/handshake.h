// Before a chain starts: whether its ranks can compute together.
#pragma once

#include <span>
#include <string>

#include "base/clock.h"
#include "base/hash.h"
#include "comm/comm.h"

namespace kvcake {

// What must be the same on every rank.
struct Fact {
  std::string name;  // as an error tells it: "version", "model", "numeric path"
  std::string value;
};

// All names and values of a rank together, with two bytes for each.
inline constexpr size_t kFactsBytesMax = 4094;

// Hashes names and values, in their order: what proofs bind (tcp_join.h) before facts can be
// compared.
Digest FactsDigest(std::span<const Fact> facts);

// Every rank tells its facts to every other one, and all of them return the same: kInvalidArgument
// with the first fact, in the order given, in which a rank differs from the lowest one, and the
// values of both; kDeadline with the ranks that have not answered in time, or the error of the
// transfers. Every rank calls it once before it uses `comm` otherwise.
[[nodiscard]] Status Handshake(Comm& comm, std::span<const Fact> facts, Seconds timeout);

}  // namespace kvcake
