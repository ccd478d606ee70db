#include "model/bpe.h"

#include <bit>
#include <queue>
#include <tuple>
#include <utility>

#include "base/mutex.h"
#include "base/utf8.h"

namespace kvcake {

namespace {

constexpr size_t kMaxCachedWord = 128;  // bytes; longer ones hardly return
constexpr uint64_t kNoPair = ~0ull;     // ids are not negative

uint64_t Mix(uint64_t value) {
  value *= 0x9e3779b97f4a7c15ull;
  return value ^ value >> 32;
}

// The character that ends non-empty, valid text.
std::string_view LastCharacter(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (text[at] & 0xc0) == 0x80) --at;
  return text.substr(at);
}

}  // namespace

struct Bpe::Unit {
  char32_t code;
  size_t size;  // bytes
  int32_t id;   // -1: no token
};

// Words seen lately. When `fresh` is full it becomes `old`, and what was old is forgotten.
struct Bpe::Cache {
  Mutex mutex;
  StringMap<std::vector<int32_t>> fresh GUARDED_BY(mutex);
  StringMap<std::vector<int32_t>> old GUARDED_BY(mutex);
};

Bpe::Bpe(BpeRules rules, size_t cache_words)
    : rules_(std::move(rules)), cache_words_(cache_words), cache_(std::make_unique<Cache>()) {
  for (const auto& [text, id] : rules_.ids) {
    if (text.empty()) continue;
    const Unit unit = FirstUnit(text);
    if (unit.size != text.size()) continue;
    if (unit.code < low_units_.size()) {
      low_units_[unit.code] = id;
    } else {
      units_.emplace(unit.code, id);
    }
  }
  AddMerges(std::exchange(rules_.merges, {}));
}

Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;
Bpe::~Bpe() = default;

void Bpe::AddMerges(const std::vector<BpeRules::Merge>& merges) {
  std::unordered_map<int32_t, std::string_view> texts;
  texts.reserve(rules_.ids.size());
  for (const auto& [text, id] : rules_.ids) texts.emplace(id, text);
  merges_.assign(std::bit_ceil(2 * merges.size() + 1), {kNoPair, 0, 0});
  int32_t rank = 0;
  for (const BpeRules::Merge& merge : merges) {
    const uint64_t pair =
        static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right);
    size_t at = Mix(pair) & (merges_.size() - 1);
    while (merges_[at].pair != kNoPair && merges_[at].pair != pair) {
      at = (at + 1) & (merges_.size() - 1);
    }
    // A pair listed twice counts by its last rank, as in Hugging Face.
    merges_[at] = {pair, rank++, merge.merged};
    const std::string_view left = texts[merge.left];
    const std::string_view right = texts[merge.right];
    if (left.empty() || right.empty()) continue;
    const std::string_view end =
        rules_.byte_level ? left.substr(left.size() - 1) : LastCharacter(left);
    joints_.set(JointHash(FirstUnit(end).code, FirstUnit(right).code));
  }
}

const Bpe::Ranked* Bpe::FindMerge(int32_t left, int32_t right) const {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  for (size_t at = Mix(pair);; ++at) {
    const Ranked& merge = merges_[at & (merges_.size() - 1)];
    if (merge.pair == pair) return &merge;
    if (merge.pair == kNoPair) return nullptr;
  }
}

// The word is not empty.
Bpe::Unit Bpe::FirstUnit(std::string_view word) const {
  Unit unit = {static_cast<unsigned char>(word[0]), 1, -1};
  if (!rules_.byte_level) unit.code = DecodeUtf8(word, &unit.size);
  if (unit.code < low_units_.size()) {
    unit.id = low_units_[unit.code];
  } else if (const auto it = units_.find(unit.code); it != units_.end()) {
    unit.id = it->second;
  }
  return unit;
}

size_t Bpe::JointHash(char32_t left, char32_t right) {
  return Mix(static_cast<uint64_t>(left) << 32 | right) % kJoints;
}

// A long word (SentencePiece models do not cut text into words at all) is encoded in parts, cut
// where two tokens meet that no merge can span: the result is the same, and the parts, mostly words
// of the language, return.
void Bpe::Encode(std::string_view word, std::vector<int32_t>* tokens) const {
  if (rules_.whole_words) {
    if (const auto it = rules_.ids.find(word); it != rules_.ids.end()) {
      tokens->push_back(it->second);
      return;
    }
  }
  if (word.size() <= kMaxCachedWord) return EncodeCached(word, tokens);
  size_t begin = 0;
  Unit left = {0, 0, -1};
  for (size_t at = 0; at < word.size();) {
    const Unit unit = FirstUnit(word.substr(at));
    if (left.id >= 0 && unit.id >= 0 && !joints_.test(JointHash(left.code, unit.code))) {
      EncodeCached(word.substr(begin, at - begin), tokens);
      begin = at;
    }
    left = unit;
    at += unit.size;
  }
  EncodeCached(word.substr(begin), tokens);
}

void Bpe::EncodeCached(std::string_view word, std::vector<int32_t>* tokens) const {
  if (word.size() > kMaxCachedWord || cache_words_ == 0) return EncodeUncached(word, tokens);
  {
    MutexLock lock(cache_->mutex);
    for (const auto* words : {&cache_->fresh, &cache_->old}) {
      if (const auto it = words->find(word); it != words->end()) {
        tokens->insert(tokens->end(), it->second.begin(), it->second.end());
        return;
      }
    }
  }
  const size_t before = tokens->size();
  EncodeUncached(word, tokens);
  MutexLock lock(cache_->mutex);
  if (cache_->fresh.size() >= cache_words_) {
    cache_->old = std::move(cache_->fresh);
    cache_->fresh = {};
  }
  cache_->fresh.try_emplace(std::string(word), tokens->begin() + static_cast<int64_t>(before),
                            tokens->end());
}

// The tokens before any merge. An unknown token is put down when the next known character comes,
// after the byte tokens that may stand between: so does Hugging Face.
void Bpe::AppendInitial(std::string_view word, std::vector<int32_t>* ids) const {
  bool unknown = false;
  while (!word.empty()) {
    const Unit unit = FirstUnit(word);
    if (unit.id >= 0) {
      if (std::exchange(unknown, false)) ids->push_back(rules_.unknown);
      ids->push_back(unit.id);
    } else if (!AppendFallback(word.substr(0, unit.size), ids) && rules_.unknown >= 0) {
      if (unknown && !rules_.fuse_unknown) ids->push_back(rules_.unknown);
      unknown = true;
    }
    word.remove_prefix(unit.size);
  }
  if (unknown) ids->push_back(rules_.unknown);
}

bool Bpe::AppendFallback(std::string_view bytes, std::vector<int32_t>* ids) const {
  const size_t before = ids->size();
  for (const char c : bytes) {
    const int32_t id = rules_.fallback[static_cast<unsigned char>(c)];
    if (id < 0) {
      ids->resize(before);
      return false;
    }
    ids->push_back(id);
  }
  return true;
}

// The symbols are a linked list; the queue holds every pair of neighbours that can merge, and pairs
// that are neighbours no more are skipped when they come up.
void Bpe::EncodeUncached(std::string_view word, std::vector<int32_t>* tokens) const {
  struct Symbol {
    int32_t id;
    int32_t previous;  // places in `symbols`; -1: none
    int32_t next;
  };
  struct Candidate {
    int32_t rank;
    int32_t at;
    int32_t left;  // the ids it would merge: by them it is known to be current
    int32_t right;
    int32_t merged;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  std::vector<int32_t> ids;
  ids.reserve(word.size());
  AppendInitial(word, &ids);
  if (ids.empty()) return;
  std::vector<Symbol> symbols;
  symbols.reserve(ids.size());
  for (int32_t at = 0; const int32_t id : ids) {
    symbols.push_back({id, at - 1, at + 1});
    ++at;
  }
  symbols.back().next = -1;

  std::vector<Candidate> candidates;
  const auto consider = [&](int32_t at, auto&& add) {
    if (at < 0 || symbols[at].next < 0) return;
    const int32_t left = symbols[at].id;
    const int32_t right = symbols[symbols[at].next].id;
    if (const Ranked* merge = FindMerge(left, right)) {
      add(Candidate{merge->rank, at, left, right, merge->merged});
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) {
    consider(static_cast<int32_t>(i), [&](const Candidate& c) { candidates.push_back(c); });
  }
  std::priority_queue queue(std::greater<>(), std::move(candidates));
  const auto push = [&](const Candidate& c) { queue.push(c); };
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.id != best.left || left.next < 0 || symbols[left.next].id != best.right) continue;
    Symbol& right = symbols[left.next];
    left.id = best.merged;
    left.next = right.next;
    right.id = -1;  // merged away
    if (left.next >= 0) symbols[left.next].previous = best.at;
    consider(left.previous, push);
    consider(best.at, push);
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) tokens->push_back(symbols[at].id);
}

}  // namespace kvcake
