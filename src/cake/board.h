// One prompt being restored: who owns each chunk, the pages that are here, and the report. Knows of
// no other prompt and calls no tier.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cake/claims.h"
#include "cake/held_plan.h"
#include "cake/peer_claims.h"
#include "cake/planner.h"
#include "cake/report.h"
#include "cake/restore_context.h"
#include "kv/page_pool.h"

namespace kvcake {

// The slice that the engine computes now.
struct RunningSlice {
  Claim claim;
  TimePoint start{};
  double predicted_s = 0;  // 0: unknown
  uint64_t delivered = 0;  // by all lanes, as it began
  bool plans = false;      // it is the first whose plan knew the costs
};

// Unsynchronised: its Restorer's mutex guards it.
class Board {
 public:
  // serial: in the order of opening.
  Board(const RestoreContext& context, RestoreRequest request, uint64_t serial, size_t tiers);
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  // ---- what is asked for
  const RestoreRequest& request() const { return request_; }
  const ChunkKey& key(int chunk) const { return request_.keys[chunk]; }
  uint64_t serial() const { return serial_; }
  TimePoint opened() const { return opened_; }
  bool WantsLoads() const { return request_.policy != Policy::kCompute; }
  bool MayLoad() const { return WantsLoads() && !claims_.done(); }
  // The first chunk that is to be loaded, where the planner has no say.
  std::optional<int> FixedSplit() const;
  // One prompt is the beginning of the other, or the same: keys are hashes of all before them.
  bool SameDocument(const Board& other) const;
  // The key is its `chunk`, which is neither resident nor being computed for it.
  bool Wants(int chunk, const ChunkKey& key) const;

  // ---- chunks and pages
  Claims& claims() { return claims_; }
  const Claims& claims() const { return claims_; }
  const PageTable& pages() const { return pages_; }
  // The chunk is in memory: others made it, or it was found there.
  void Adopt(int chunk, PageHandle page);
  // The chunk was read for this prompt; its claim is published.
  void Loaded(int chunk, std::string_view tier, PageHandle page);
  // The pages of chunks [0, chunks), resident or in the running slice.
  std::vector<PageId> PageIds(int chunks) const;
  // Another numeric path made some of its chunks: what is computed after them is not kept.
  bool mixes_paths() const { return report_.chunks_mixed_path > 0; }
  // A reference to a chunk's page; empty where there is none.
  PageHandle PageOf(int chunk) const;
  // All of its pages, once all chunks are resident.
  PageTable TakePages();
  // Drops the pages. Nothing but the report and the progress may be asked for afterwards.
  void Close();
  bool closed() const { return closed_; }

  // ---- tiers
  // What a tier is known to hold as the restoration begins, then what it said later.
  void SetLoadable(int tier, const std::vector<bool>& held);
  void AddLoadable(int chunk, int tier);
  // Keys that are pinned at a tier until the restoration ends; who closes it unpins them.
  void AddPins(int tier, std::vector<ChunkKey> keys);
  std::vector<std::vector<ChunkKey>> TakePins() { return std::exchange(pinned_, {}); }
  // A tier is being asked what it holds, or has answered.
  void BeginLook(int tier) { looking_ |= 1u << tier; }
  void EndLook(int tier) { looking_ &= ~(1u << tier); }
  uint32_t looking() const { return looking_; }         // bit t: tier t has not said all it holds
  TimePoint look_until() const { return look_until_; }  // then it is not waited for any more
  void AwaitLooksFor(Seconds wait) { look_until_ = opened_ + wait; }
  // A read of this number, over all restorations, was begun.
  void BeginRead(int tier, uint64_t number);
  uint64_t last_read() const { return last_read_; }  // 0: none
  void NoteFailure(int tier) { ++failures_[tier]; }
  void ForgetFailures(int tier) { failures_[tier] = 0; }
  bool Trusts(int tier) const { return failures_[tier] < context_.options.failures_max; }
  // The last plan; nothing before the first.
  const std::optional<HeldPlan>& plan() const { return plan_; }
  void set_plan(HeldPlan plan);
  // The first chunk that it leaves to the tier and that is still absent.
  std::optional<int> NextLoad(int tier) { return plan_->loads.Next(claims_, tier); }
  // Chunks that it leaves to a tier.
  int loads_left(int tier) const { return loads_left_[tier]; }
  double rank() const { return rank_; }         // among restorations that load: the lowest first
  void set_rank(double rank) { rank_ = rank; }  // by its InFlightTable, which orders by it

  // ---- other processes
  PeerClaims& peers() { return peers_; }
  const PeerClaims& peers() const { return peers_; }

  // ---- compute
  const std::optional<RunningSlice>& slice() const { return slice_; }
  // Claims what the plan says, as many chunks as pages were drawn; `taken` lists those that loads
  // owned.
  Claim ClaimSlice(PageTable drawn, std::vector<int>* taken);
  // It runs from now on.
  void BeginSlice(RunningSlice slice);
  // While it ran, so many chunks came.
  void CountBeside(uint64_t chunks) { beside_ += chunks; }
  uint64_t beside() const { return beside_; }
  // When all was to be resident, by the first plan that knew the costs and began a slice; 0: none.
  double planned_s() const { return planned_s_; }
  double Lateness() const;  // of all being resident, or by now, against that
  // The KV of so many of its chunks is written: publishes the pages, if there are any. The rest is
  // absent again.
  void PublishSlice(int chunks);
  // Without a result.
  Claim DropSlice();
  double share() const { return share_; }  // of a step, as the engine said last
  void set_share(double share) { share_ = share; }
  // Whether it has had all steps since it was opened to itself.
  bool alone() const { return alone_; }
  void NoteOthers() { alone_ = false; }
  bool waiting() const { return waiting_; }  // the last turn was a wait
  void set_waiting() { waiting_ = true; }
  // When a chunk became resident or a slice began.
  TimePoint progressed() const { return progressed_; }

  // ---- report
  void NoteTurn(const Plan& plan);
  void NoteRead(int chunk, std::string_view tier, TimePoint start, Outcome outcome);
  void CountTurn() { ++report_.turns; }
  void CountFailedLoad() { ++report_.chunks_failed; }
  void AddReason(std::string reason) { report_.AddReason(std::move(reason)); }
  void AddPlanning(Seconds took) { report_.planning_s += took.count(); }
  // As it was when the restoration began, without what others made since: for the bound.
  const std::vector<ChunkView>& initial() const { return initial_; }
  RestoreProgress Progress() const;
  RestoreReport Report() const;  // bound_s is the planner's to add
  // The one that was kept before it, of those that are kept.
  void set_next_kept(std::unique_ptr<Board> next) { next_kept_ = std::move(next); }

 private:
  double At(TimePoint t) const { return (t - opened_).count(); }
  TimePoint Now() const { return context_.clock.Now(); }
  void NotePath(int chunk);
  void NoteResident();

  // Constant after construction.
  const RestoreContext& context_;
  const RestoreRequest request_;
  const uint64_t serial_;
  const TimePoint opened_;

  Claims claims_;
  PeerClaims peers_;
  PageTable pages_;  // of resident chunks and of the running slice
  std::vector<ChunkView> initial_;
  std::vector<std::vector<ChunkKey>> pinned_;  // at each tier
  uint32_t looking_ = 0;
  TimePoint look_until_{};
  uint64_t last_read_ = 0;
  std::vector<int> failures_;  // of each tier, in a row
  std::optional<HeldPlan> plan_;
  std::vector<int> loads_left_;
  double rank_ = 0;
  std::optional<RunningSlice> slice_;
  double planned_s_ = 0;
  uint64_t beside_ = 0;
  double share_ = 1;
  bool alone_ = true;
  bool waiting_ = false;
  bool closed_ = false;
  TimePoint progressed_;
  std::optional<TimePoint> resident_;  // when all became so: callers may end it much later
  int first_loaded_ = -1;
  int first_mixed_;  // chunk whose path is not ours; claims_.size() if there is none
  RestoreReport report_;
  std::unique_ptr<Board> next_kept_;
};

}  // namespace kvcake
