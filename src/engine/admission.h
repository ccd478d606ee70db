// Who runs and who waits, and the pages of the pool that those who run may count on.
//
// A sequence is promised the pages of its tokens and the next one when it is admitted, and one more
// at a time as it grows; chunks that several have in common are promised once. When none are left,
// the youngest goes back to the front of those that wait. While somebody who runs goes without a
// page nobody is admitted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/chunk_keeper.h"
#include "engine/page_promises.h"
#include "engine/sequence.h"

namespace kvcake {

struct AdmissionOptions {
  int max_sequences = 64;            // running at once; more wait
  int waiting_max = 1024;            // beyond max_sequences
  int tenant_running_max = 0;        // of one tenant at once; 0: no limit of its own
  uint64_t read_reserve_pages = 16;  // never promised: reads in flight draw them
  // A request that does not fit yet is passed over by those that do for so long at most.
  Seconds pass_over_max{2};
};

// Engine thread only.
class Admission {
 public:
  // Borrows both; `keeper` stores what is preempted.
  Admission(const PagePool& pool, ChunkKeeper& keeper, const AdmissionOptions& options)
      : pool_(pool), keeper_(keeper), options_(options) {}
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // So many pages are somebody else's from now on, beside the reserve.
  void SetAside(uint64_t pages);
  // So many are held by late reads and writes now: what exceeds the reserve cannot be promised.
  void SetHeld(uint64_t pages);
  uint64_t held() const { return held_; }
  // The most that sequences can be promised together: ever, and now.
  uint64_t pages_max() const { return PagesBeside(options_.read_reserve_pages); }
  uint64_t available() const { return PagesBeside(std::max(options_.read_reserve_pages, held_)); }
  uint64_t PagesFor(int tokens) const;
  // For all of its tokens so far and the next, nothing shared.
  uint64_t PagesToRun(const Sequence& sequence) const;
  // The most sequences that run and wait together.
  size_t sequences_max() const { return options_.max_sequences + options_.waiting_max; }
  bool full() const { return waiting_.size() + running_.size() >= sequences_max(); }

  // It waits from now on; not when full. Its keys are known.
  void Add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }
  // Admits those that wait and for which there are pages, tenants taking turns
  // (engine/admission_order.h), with one to spare for everybody who may
  // grow: nobody is preempted for the sake of a newcomer's first tokens. Whoever was preempted is
  // passed over by nobody, but for one that could not even run alone; it comes back when somebody
  // has given pages back since. Returns the new ones, whose restorations are the caller's to begin;
  // valid until the next call of any kind. At most so many, and those that `may`, where it is said;
  // others wait for their turn.
  std::vector<Sequence*> Admit(TimePoint now, size_t most = SIZE_MAX,
                               const std::function<bool(const Sequence&)>& may = {});
  // Takes out one that waits and that could not run even alone for longer than `limit`, as others
  // hold too many pages; null: there is none.
  std::unique_ptr<Sequence> TakeUnservable(TimePoint now, Seconds limit);
  // Promises the pages of all of a running sequence's tokens, preempting the youngest while there
  // are none. False when that was this one: it does not run any more. The oldest is never
  // preempted, and alone it always fits: so all come to their end.
  bool Grow(Sequence& sequence);
  // From chunk `first` on a running sequence writes into pages of its own from now on: `keys` end
  // there, and what it had in common with others is promised once more. False, and nothing has
  // changed, when there are no pages for that.
  bool OwnPagesFrom(Sequence& sequence, size_t first);
  // Since when somebody who runs goes without a page; none: all have what they asked for.
  std::optional<TimePoint> short_since() const;
  // The one that was submitted last goes back to the front of those that wait: it is restored from
  // what the page cache and the store have kept.
  void PreemptYoungest();
  // Gives back its pages, and what was promised.
  void Release(Sequence& sequence);
  // Takes it out; null when there is none of this id.
  std::unique_ptr<Sequence> Remove(SequenceId id);
  // Ends those that run and are finished.
  void EraseFinished();

  // In order of submission.
  std::span<const std::unique_ptr<Sequence>> running() const { return running_; }
  size_t waiting() const { return waiting_.size(); }
  bool idle() const { return running_.empty() && waiting_.empty(); }
  uint64_t preemptions() const { return preemptions_; }
  // Chunks that were looked up so far to find out what fits.
  uint64_t lookups() const { return lookups_; }

 private:
  bool MayRun(const std::string& tenant) const;
  bool MayGrow(const Sequence& sequence) const;
  // Pages that are kept for those who run and may grow, one each.
  uint64_t Spare() const;
  uint64_t PagesBeside(uint64_t kept) const;
  bool Promise(Sequence& sequence, uint64_t spare);
  void NoteRoom(uint64_t available_before);
  void Run(std::unique_ptr<Sequence> sequence);

  const PagePool& pool_;
  ChunkKeeper& keeper_;
  const AdmissionOptions options_;
  uint64_t set_aside_ = 0;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
  PagePromises promised_;  // to running_
  uint64_t held_ = 0;
  // Counts what may let somebody in who did not fit: promises that are given back, and pages that
  // others give back. Further promises never do, as what is shared is counted already.
  uint64_t room_ = 1;
  uint64_t preemptions_ = 0;
  uint64_t lookups_ = 0;
};

}  // namespace kvcake
