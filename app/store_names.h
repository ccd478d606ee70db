// The models of a store by the names that people use. Whoever may write into the store has said
// what they are: a terminal gets them Printable().
#pragma once

#include <span>
#include <string>
#include <vector>

#include "store/store_dir.h"

namespace kvcake {

// "unknown" where the store does not say.
std::string ModelName(const StoreRoot& root);
// How the root's chunks are encoded: "raw" where the store says nothing.
std::string CodecOf(const StoreRoot& root);
// By what they are encrypted: empty where they are not.
std::string EncryptionOf(const StoreRoot& root);
// Those of `roots` of a model's name, or of the beginning (8 digits or more) of a root; kNotFound
// names what there is.
Result<std::vector<ChunkKey>> RootsOf(std::span<const StoreRoot> roots, const std::string& store,
                                      const std::string& model);

}  // namespace kvcake
