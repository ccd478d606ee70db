// Restorer as it is: one mutex guards the parts; what they want of tiers is collected under it and
// asked for without it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/timed_mutex_lock.h"
#include "cake/compute_lane.h"
#include "cake/in_flight_table.h"
#include "cake/load_lane.h"
#include "cake/load_scheduler.h"
#include "cake/peer_lane.h"
#include "cake/restore_planner.h"
#include "cake/restorer.h"
#include "cake/tier_calls.h"

namespace kvcake {

class RestorerImpl : public Restorer {
 public:
  RestorerImpl(PagePool& pool, std::vector<Tier*> tiers, ComputeCost& cost, const Clock& clock,
               const Options& options);
  ~RestorerImpl() override;
  RestorerImpl(const RestorerImpl&) = delete;
  RestorerImpl& operator=(const RestorerImpl&) = delete;

  std::shared_ptr<Restoration> Open(RestoreRequest request) override;
  std::vector<bool> Known(std::span<const ChunkKey> keys, bool stored) const override;
  StoreLook Look(std::span<const ChunkKey> keys, Seconds patience) const override;
  void WaitForEvent(TimePoint deadline) override {
    engine_seen_ = EventsAfter(engine_seen_, deadline);
  }
  uint64_t EventsAfter(uint64_t seen, TimePoint deadline) override;
  void Wake() override;
  RestorerStats Stats() const override;
  nlohmann::json TierCostToJson(int tier) const override;
  Status TierCostFromJson(int tier, const nlohmann::json& json) override;

  // ---- for its restorations, which work under its mutex, and for tests
  Mutex& mutex() const RETURN_CAPABILITY(mutex_) { return mutex_; }
  const Options& options() const { return context_.options; }
  const std::vector<LoadLane>& lanes() const REQUIRES(mutex_) { return lanes_; }
  const InFlightTable& table() const REQUIRES(mutex_) { return table_; }
  const RestorePlanner& planner() const REQUIRES(mutex_) { return planner_; }
  LoadScheduler& loads() REQUIRES(mutex_) { return loads_; }
  ComputeLane& compute() REQUIRES(mutex_) { return compute_; }
  // Memory ran out in the midst of a change, as its caller has heard: it cannot go on, nor end.
  bool& broken() REQUIRES(mutex_) { return broken_; }
  bool IsBroken() const EXCLUDES(mutex_);
  // What its mutex has cost: all who waited for it, and what those held it for who plan under it.
  MutexTimes& times() { return times_; }
  // Something has changed that the engine thread may wait for.
  void Event() REQUIRES(mutex_);
  // Ends a prompt: nobody's claims, reads and pins are left.
  void Close(Board& board) REQUIRES(mutex_);
  // Keeps the board of a prompt, which a broken one may still know.
  void Keep(std::unique_ptr<Board> board) EXCLUDES(mutex_);
  // What has been collected, to be made as soon as the mutex is released.
  [[nodiscard]] TierCalls TakeCalls() REQUIRES(mutex_);
  // Calls that are not empty keep the Restorer until they have been made.
  void Make(TierCalls calls) EXCLUDES(mutex_);

 private:
  void LookFor(Board& board) REQUIRES(mutex_);
  void EndLook(uint64_t serial, int tier) REQUIRES(mutex_);
  void StartLook(LookCall look) EXCLUDES(mutex_);
  bool OnFound(const LookCall& look, size_t first, const std::vector<bool>& held) EXCLUDES(mutex_);
  void StartClaim(ClaimCall call) EXCLUDES(mutex_);
  void OnClaimed(const ClaimCall& call, const std::vector<ClaimState>& states) EXCLUDES(mutex_);
  void EndClaim(const ClaimCall& call, const std::vector<ClaimState>& states) REQUIRES(mutex_);
  void OnRead(int tier, uint64_t number, ReadResult result) EXCLUDES(mutex_);
  void NoteIdle() REQUIRES(mutex_);
  bool Idle() const REQUIRES(mutex_);

  // Constant after construction.
  const RestoreContext context_;
  const std::vector<Tier*> tiers_;

  mutable Mutex mutex_;
  mutable MutexTimes times_;                        // guarded by mutex_, through TimedMutexLock
  CondVar event_;                                   // for the engine thread, or libkvcake's callers
  CondVar idle_;                                    // for the destructor
  std::vector<LoadLane> lanes_ GUARDED_BY(mutex_);  // one for each of tiers_
  InFlightTable table_ GUARDED_BY(mutex_);
  TierCalls calls_ GUARDED_BY(mutex_);
  RestorePlanner planner_ GUARDED_BY(mutex_);
  LoadScheduler loads_ GUARDED_BY(mutex_);
  PeerLane peers_ GUARDED_BY(mutex_);
  ComputeLane compute_ GUARDED_BY(mutex_);
  bool broken_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<Board> kept_ GUARDED_BY(mutex_);  // a list
  uint64_t next_serial_ GUARDED_BY(mutex_) = 1;
  int looks_ GUARDED_BY(mutex_) = 0;     // under way, those of prompts that have ended included
  int claiming_ GUARDED_BY(mutex_) = 0;  // likewise, of ClaimCalls
  int calling_ GUARDED_BY(mutex_) = 0;   // threads between the mutex and a tier
  uint64_t events_ GUARDED_BY(mutex_) = 0;
  uint64_t engine_seen_ = 0;  // of events_; the engine thread's
};

// One prompt's handle: its board lives as long as it does.
class RestorationImpl : public Restoration {
 public:
  RestorationImpl(RestorerImpl& restorer, std::unique_ptr<Board> board)
      : restorer_(restorer), board_(std::move(board)) {}
  ~RestorationImpl() override;
  RestorationImpl(const RestorationImpl&) = delete;
  RestorationImpl& operator=(const RestorationImpl&) = delete;

  ComputeTurn NextTurn(const ComputeBudget& budget) override;
  ComputeTurn ClaimFront(int chunks) override;
  std::vector<PageId> PageIds(int chunks) const override;
  ComputeNeed Need() const override;
  void Computed(const Claim& claim) override;
  bool IsClaimed(int chunk) const override;
  PageHandle PageOf(int chunk) const override;
  void Abandon() override;
  RestoreProgress Progress() const override;
  bool done() const override;
  PageTable TakePages() override;
  RestoreReport Report(std::optional<Seconds> tail) const override;

 private:
  // Makes the calls, and counts the time since `began` as planning.
  void MakeAndCount(TierCalls calls, TimePoint began);

  RestorerImpl& restorer_;
  std::unique_ptr<Board> board_ PT_GUARDED_BY(restorer_.mutex());
};

}  // namespace kvcake
