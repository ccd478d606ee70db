// Byte-pair encoding of one word into token ids, by ranked merges.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvcake {

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <typename T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

// Thread-safe once it is built.
class Bpe {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t merged;
  };

  // `ids`: token bytes -> id. `merges` in the order of their rank. With `whole_words`, a word that
  // is a token is taken whole, whatever the merges would make of it. Bytes that are no token are
  // dropped.
  Bpe(StringMap<int32_t> ids, const std::vector<Merge>& merges, bool whole_words,
      size_t cache_words);
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;
  ~Bpe();

  // Appends the word's tokens. O(n log n) in the word's bytes.
  void Encode(std::string_view word, std::vector<int32_t>* tokens) const;
  // The id of the token with these bytes.
  std::optional<int32_t> Find(std::string_view bytes) const;

 private:
  struct Ranked {
    int32_t rank;
    int32_t merged;
  };
  // Words seen lately. When `fresh` is full it becomes `old`, and what was old is forgotten.
  struct Cache {
    std::mutex mutex;
    StringMap<std::vector<int32_t>> fresh;
    StringMap<std::vector<int32_t>> old;
  };

  const Ranked* FindMerge(int32_t left, int32_t right) const;
  void EncodeUncached(std::string_view word, std::vector<int32_t>* tokens) const;

  StringMap<int32_t> ids_;
  std::array<int32_t, 256> bytes_;               // -1: no token
  std::unordered_map<uint64_t, Ranked> merges_;  // by left << 32 | right
  bool whole_words_;
  size_t cache_words_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace kvcake
