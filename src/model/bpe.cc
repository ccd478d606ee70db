#include "model/bpe.h"

#include <queue>
#include <tuple>
#include <utility>

namespace kvcake {

namespace {

constexpr size_t kMaxCachedWord = 128;  // bytes; longer ones hardly return

}  // namespace

Bpe::Bpe(StringMap<int32_t> ids, const std::vector<Merge>& merges, bool whole_words,
         size_t cache_words)
    : ids_(std::move(ids)),
      whole_words_(whole_words),
      cache_words_(cache_words),
      cache_(std::make_unique<Cache>()) {
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto it = ids_.find(std::string_view(&c, 1));
    bytes_[byte] = it == ids_.end() ? -1 : it->second;
  }
  merges_.reserve(merges.size());
  int32_t rank = 0;
  for (const Merge& merge : merges) {
    // A pair listed twice counts by its last rank, as in Hugging Face.
    merges_[static_cast<uint64_t>(merge.left) << 32 | static_cast<uint32_t>(merge.right)] = {
        rank++, merge.merged};
  }
}

Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;
Bpe::~Bpe() = default;

const Bpe::Ranked* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::optional<int32_t> Bpe::Find(std::string_view bytes) const {
  const auto it = ids_.find(bytes);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

void Bpe::Encode(std::string_view word, std::vector<int32_t>* tokens) const {
  if (whole_words_) {
    if (const auto it = ids_.find(word); it != ids_.end()) {
      tokens->push_back(it->second);
      return;
    }
  }
  const bool cached = word.size() <= kMaxCachedWord && cache_words_ > 0;
  if (cached) {
    const std::lock_guard lock(cache_->mutex);
    for (const auto* words : {&cache_->fresh, &cache_->old}) {
      if (const auto it = words->find(word); it != words->end()) {
        tokens->insert(tokens->end(), it->second.begin(), it->second.end());
        return;
      }
    }
  }
  const size_t before = tokens->size();
  EncodeUncached(word, tokens);
  if (!cached) return;
  const std::lock_guard lock(cache_->mutex);
  if (cache_->fresh.size() >= cache_words_) {
    cache_->old = std::move(cache_->fresh);
    cache_->fresh = {};
  }
  cache_->fresh.try_emplace(std::string(word), tokens->begin() + static_cast<int64_t>(before),
                            tokens->end());
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
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const int32_t id = bytes_[static_cast<unsigned char>(c)];
    if (id < 0) continue;
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t at) {
    if (at < 0 || symbols[at].next < 0) return;
    const int32_t left = symbols[at].id;
    const int32_t right = symbols[symbols[at].next].id;
    if (const Ranked* merge = FindMerge(left, right)) {
      queue.push({merge->rank, at, left, right, merge->merged});
    }
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
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
    consider(left.previous);
    consider(best.at);
  }
  for (int32_t at = 0; at >= 0; at = symbols[at].next) tokens->push_back(symbols[at].id);
}

}  // namespace kvcake
