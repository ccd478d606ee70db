// Byte-pair encoding of one word into token ids, by ranked merges.
#pragma once

#include <array>
#include <bitset>
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

struct BpeRules {
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t merged;
  };

  bool byte_level = true;     // merging starts from bytes; else from the characters of valid UTF-8
  StringMap<int32_t> ids;     // token -> id
  std::vector<Merge> merges;  // in the order of their rank
  bool whole_words = false;   // a word that is a token is taken whole, whatever merges would make
  // For a byte or character that is no token: the tokens of its bytes, if all of them have one (-1:
  // none); else the unknown token, once for several in a row if fused; else it is dropped.
  std::array<int32_t, 256> fallback = NoFallback();
  int32_t unknown = -1;
  bool fuse_unknown = false;

  static constexpr std::array<int32_t, 256> NoFallback() {
    std::array<int32_t, 256> none = {};
    for (int32_t& id : none) id = -1;
    return none;
  }
};

// Thread-safe once it is built.
class Bpe {
 public:
  // `cache_words`: words whose tokens are remembered, twice.
  Bpe(BpeRules rules, size_t cache_words);
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;
  ~Bpe();

  // Appends the word's tokens. O(n log n) in its bytes, of which there are fewer than 2^31.
  void Encode(std::string_view word, std::vector<int32_t>* tokens) const;

 private:
  struct Ranked {
    uint64_t pair;  // left << 32 | right
    int32_t rank;
    int32_t merged;
  };
  struct Unit;  // a byte or character of a word
  struct Cache;

  void AddMerges(const std::vector<BpeRules::Merge>& merges);
  const Ranked* FindMerge(int32_t left, int32_t right) const;
  Unit FirstUnit(std::string_view word) const;
  static size_t JointHash(char32_t left, char32_t right);

  void EncodeCached(std::string_view word, std::vector<int32_t>* tokens) const;
  void EncodeUncached(std::string_view word, std::vector<int32_t>* tokens) const;
  void AppendInitial(std::string_view word, std::vector<int32_t>* ids) const;
  bool AppendFallback(std::string_view bytes, std::vector<int32_t>* ids) const;

  BpeRules rules_;                                               // but for the merges
  std::array<int32_t, 256> low_units_ = BpeRules::NoFallback();  // the tokens of one unit, by code
  std::unordered_map<char32_t, int32_t> units_;                  // those of higher codes
  std::vector<Ranked> merges_;                                   // open addressing, a power of two
  // Set for the hash of every (last unit of left, first unit of right) of a merge: where it is not
  // set for two neighbours in a word, no merge ever spans them.
  static constexpr size_t kJoints = 1 << 18;
  std::bitset<kJoints> joints_;
  size_t cache_words_;
  std::unique_ptr<Cache> cache_;
};

}  // namespace kvcake
