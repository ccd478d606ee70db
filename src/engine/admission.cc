#include "engine/admission.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "engine/admission_order.h"

namespace kvcake {

uint64_t Admission::PagesBeside(uint64_t kept) const {
  return pool_.pages() - std::min(pool_.pages(), kept + set_aside_);
}

uint64_t Admission::PagesFor(int tokens) const {
  const int chunk = pool_.layout().chunk_tokens;
  return (tokens + chunk - 1) / chunk;
}

uint64_t Admission::PagesToRun(const Sequence& sequence) const {
  const int next = std::min(sequence.request.max_tokens, 1);
  return PagesFor(static_cast<int>(sequence.tokens.size()) + next);
}

void Admission::NoteRoom(uint64_t available_before) {
  if (available() > available_before) ++room_;
}

void Admission::SetAside(uint64_t pages) {
  const uint64_t before = available();
  set_aside_ = pages;
  NoteRoom(before);
}

void Admission::SetHeld(uint64_t pages) {
  const uint64_t before = available();
  held_ = pages;
  NoteRoom(before);
}

std::optional<TimePoint> Admission::short_since() const {
  std::optional<TimePoint> since;
  for (const auto& sequence : running_) {
    if (!sequence->short_since) continue;
    since = since ? std::min(*since, *sequence->short_since) : *sequence->short_since;
  }
  return since;
}

std::vector<Sequence*> Admission::Admit(TimePoint now, size_t most,
                                        const std::function<bool(const Sequence&)>& may) {
  constexpr size_t kLookedAt = 64;  // of those that wait: a step is not to take long for their sake
  std::vector<Sequence*> admitted;
  if (short_since()) return admitted;
  uint64_t spare = Spare();
  if (running_.size() >= static_cast<size_t>(options_.max_sequences)) return admitted;
  for (const size_t place : AdmissionOrder(waiting_, running_, kLookedAt)) {
    if (running_.size() >= static_cast<size_t>(options_.max_sequences)) break;
    if (admitted.size() == most) break;
    Sequence& next = *waiting_[place];
    if (!MayRun(next.request.tenant) || (may && !may(next))) continue;
    if (next.refused_at == room_ || !Promise(next, spare)) {
      next.refused_at = room_;
      if (!next.passed_over) next.passed_over = now;
      const bool first =
          next.completion.preemptions > 0 || now - *next.passed_over > options_.pass_over_max;
      if (first && !next.unservable) break;
      continue;
    }
    spare += MayGrow(next) ? 1 : 0;
    admitted.push_back(&next);
    Run(std::move(waiting_[place]));
  }
  std::erase(waiting_, nullptr);
  return admitted;
}

bool Admission::MayRun(const std::string& tenant) const {
  if (options_.tenant_running_max == 0) return true;
  return std::count_if(running_.begin(), running_.end(), [&](const auto& sequence) {
           return sequence->request.tenant == tenant;
         }) < options_.tenant_running_max;
}

bool Admission::Promise(Sequence& sequence, uint64_t spare) {
  const std::span<const ChunkKey> chunks = sequence.keys;
  const uint64_t own = PagesToRun(sequence) - chunks.size();
  lookups_ += chunks.size();
  const uint64_t pages = promised_.NewOf(chunks) + own;
  // One alone has been found to fit; whether it does now, it will see.
  const bool fits = promised_.pages() + pages + spare <= available();
  if (!fits && (!running_.empty() || held_ > options_.read_reserve_pages)) return false;
  promised_.Add(chunks, own);
  sequence.keys_promised = chunks.size();
  sequence.pages_promised = own;
  sequence.unservable.reset();
  return true;
}

// In order of submission, which those that were passed over keep.
void Admission::Run(std::unique_ptr<Sequence> sequence) {
  const auto at = std::upper_bound(running_.begin(), running_.end(), sequence,
                                   [](const auto& a, const auto& b) { return a->id < b->id; });
  running_.insert(at, std::move(sequence));
}

std::unique_ptr<Sequence> Admission::TakeUnservable(TimePoint now, Seconds limit) {
  for (const auto& sequence : waiting_) {
    if (PagesToRun(*sequence) <= available()) {
      sequence->unservable.reset();
    } else if (!sequence->unservable) {
      sequence->unservable = now;
    } else if (now - *sequence->unservable > limit) {
      return Remove(sequence->id);
    }
  }
  return nullptr;
}

uint64_t Admission::Spare() const {
  return std::ranges::count_if(running_, [this](const auto& one) { return MayGrow(*one); });
}

bool Admission::MayGrow(const Sequence& sequence) const {
  return sequence.promised() < PagesFor(sequence.prompt_tokens() + sequence.request.max_tokens);
}

bool Admission::Grow(Sequence& sequence) {
  const uint64_t needed = PagesFor(static_cast<int>(sequence.tokens.size()));
  while (sequence.promised() < needed) {
    if (promised_.pages() < available() || running_.size() == 1) {
      ++sequence.pages_promised;
      promised_.Add({}, 1);
      continue;
    }
    const bool itself = running_.back().get() == &sequence;
    PreemptYoungest();
    if (itself) return false;
  }
  return true;
}

bool Admission::OwnPagesFrom(Sequence& sequence, size_t first) {
  CHECK(first <= sequence.keys_promised && sequence.keys_promised == sequence.keys.size());
  const std::span<const ChunkKey> chunks = std::span(sequence.keys).subspan(first);
  promised_.Remove(chunks, 0);
  const uint64_t shared = chunks.size() - promised_.NewOf(chunks);
  const bool fits = shared == 0 || promised_.pages() + chunks.size() + Spare() <= available();
  if (!fits) {
    promised_.Add(chunks, 0);
    return false;
  }
  promised_.Add({}, chunks.size());
  sequence.pages_promised += chunks.size();
  sequence.keys_promised = first;
  sequence.keys.resize(first);
  return true;
}

void Admission::PreemptYoungest() {
  Sequence& sequence = *running_.back();
  if (sequence.state == Sequence::State::kPrefilling) keeper_.Store(sequence);
  Release(sequence);
  sequence.Preempt(pool_.layout().chunk_tokens);
  sequence.refused_at = room_;  // what it has just given back is for others
  ++preemptions_;
  waiting_.push_front(std::move(running_.back()));
  running_.pop_back();
}

void Admission::Release(Sequence& sequence) {
  sequence.ReleasePages();
  if (sequence.promised() > 0) ++room_;
  promised_.Remove(std::span(sequence.keys).first(std::exchange(sequence.keys_promised, 0)),
                   std::exchange(sequence.pages_promised, 0));
}

std::unique_ptr<Sequence> Admission::Remove(SequenceId id) {
  const auto take = [id](auto& sequences) -> std::unique_ptr<Sequence> {
    const auto it = std::find_if(sequences.begin(), sequences.end(),
                                 [id](const auto& sequence) { return sequence->id == id; });
    if (it == sequences.end()) return nullptr;
    auto taken = std::move(*it);
    sequences.erase(it);
    return taken;
  };
  auto taken = take(waiting_);
  return taken ? std::move(taken) : take(running_);
}

void Admission::EraseFinished() {
  std::erase_if(running_, [](const auto& s) { return s->state == Sequence::State::kFinished; });
}

}  // namespace kvcake
