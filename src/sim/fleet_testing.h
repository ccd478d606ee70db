// Several processes that share a store and restore one document, in simulated time: each has a
// Restorer of its own, the real one, and all have one directory that tells them of claims.
#pragma once

#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "cake/restorer_testing.h"

namespace kvcake::testing_util {

// What happens when.
class Agenda {
 public:
  explicit Agenda(FakeClock& clock) : clock_(clock) {}
  void In(double s, std::function<void()> happens) {
    events_.emplace(std::pair(Seconds(clock_.Now().time_since_epoch()).count() + s, next_++),
                    std::move(happens));
  }
  bool RunNext() {
    if (events_.empty()) return false;
    const auto first = events_.begin();
    const auto at =
        TimePoint() + std::chrono::ceil<TimePoint::duration>(Seconds(first->first.first));
    clock_.AdvanceTo(at);
    const auto happens = std::move(first->second);
    events_.erase(first);
    happens();
    return true;
  }

 private:
  FakeClock& clock_;
  std::map<std::pair<double, uint64_t>, std::function<void()>> events_;
  uint64_t next_ = 0;
};

// What all of them see of the store.
struct FleetStore {
  std::unordered_set<ChunkKey> stored;
  std::unordered_map<ChunkKey, int> claims;    // and whose they are
  std::unordered_map<ChunkKey, int> computed;  // how often
};

struct ProcessOptions {
  double starts_s = 0;
  double chunk_s = 0.05;  // computing takes it, whatever the prefix
  double read_s = 1e-3;   // of a chunk, one after the other
  double write_s = 1e-3;
  double answer_s = 2e-4;  // of a claim
  double killed_s = std::numeric_limits<double>::infinity();
  double hangs_s = std::numeric_limits<double>::infinity();  // and keeps its claims
  bool claims = true;
};

inline constexpr KvLayout kFleetLayout{
    .layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 128};

// One process's way to the store.
class FleetTier : public Tier {
 public:
  FleetTier(FleetStore& store, Agenda& agenda, int process, const ProcessOptions& options)
      : store_(store), agenda_(agenda), process_(process), options_(options) {}

  std::string_view name() const override { return "disk"; }
  int max_reads_in_flight() const override { return 16; }
  uint64_t max_read_bytes_in_flight() const override {
    return std::numeric_limits<uint64_t>::max();
  }
  std::vector<bool> Residency(std::span<const ChunkKey> keys) override {
    std::vector<bool> held;
    for (const ChunkKey& key : keys) held.push_back(store_.stored.contains(key));
    return held;
  }
  ReadId Get(ReadRequest request) override {
    ++reading_;
    agenda_.In(options_.read_s * reading_, [this, request = std::move(request)] {
      --reading_;
      std::memcpy(request.landing.data(), &request.key, sizeof(ChunkKey));
      request.done({.status = {}, .bytes = request.landing.size()});
      on_event();
    });
    return next_++;
  }
  void Cancel(ReadId) override {}
  bool Claim(ClaimRequest request) override {
    if (!options_.claims) {
      agenda_.In(0, [this] { on_event(); });
      return false;
    }
    agenda_.In(options_.answer_s, [this, request = std::move(request)] {
      std::vector<ClaimState> states(request.keys.size(), ClaimState::kNone);
      for (size_t i = 0; i < states.size() && !dead; ++i) {
        states[i] = Take(request.keys[i]);
        if (states[i] == ClaimState::kTheirs) break;
      }
      request.done(states);
      on_event();
    });
    return true;
  }
  void Disclaim(std::span<const ChunkKey> keys) override {
    for (const ChunkKey& key : keys) End(key);
  }
  // Behind what is being written already.
  Status Put(const ChunkWrite& chunk) override {
    ++writing_;
    agenda_.In(options_.write_s * writing_, [this, key = chunk.key] {
      --writing_;
      if (dead) return;
      store_.stored.insert(key);
      End(key);
    });
    return {};
  }
  Status Evict(const ChunkKey&) override { return {}; }
  TierStats Stats() const override { return {}; }

  void Kill() {
    dead = true;
    std::erase_if(store_.claims, [&](const auto& claim) { return claim.second == process_; });
  }

  bool dead = false;
  std::function<void()> on_event;

 private:
  ClaimState Take(const ChunkKey& key) {
    if (store_.stored.contains(key)) return ClaimState::kStored;
    const auto [claim, mine] = store_.claims.try_emplace(key, process_);
    return mine || claim->second == process_ ? ClaimState::kMine : ClaimState::kTheirs;
  }
  void End(const ChunkKey& key) {
    const auto claim = store_.claims.find(key);
    if (claim != store_.claims.end() && claim->second == process_) store_.claims.erase(claim);
  }

  FleetStore& store_;
  Agenda& agenda_;
  const int process_;
  const ProcessOptions options_;
  int reading_ = 0, writing_ = 0;
  ReadId next_ = 1;
};

// One process that restores the document and keeps what it computes, as the engine does.
class FleetProcess {
 public:
  FleetProcess(FleetStore& store, FakeClock& clock, Agenda& agenda, int process, int chunks,
               const ProcessOptions& options)
      : store_(store),
        clock_(clock),
        agenda_(agenda),
        options_(options),
        tier_(store, agenda, process, options),
        pool_(std::move(
            PagePool::Create(kFleetLayout, (chunks + 40) * kFleetLayout.page_bytes()).value())) {
    for (int n = 1; n <= 4; ++n) cost_.Add(0, 128 * n, Seconds(n * options.chunk_s));
    for (int n = 1; n <= 4; ++n) cost_.Add(2048, 128 * n, Seconds(n * options.chunk_s));
    Restorer::Options restorer;
    restorer.claims.tier = 0;
    restorer_ = NewRestorer(*pool_, {&tier_}, cost_, clock_, restorer);
    request_.keys = ChunkKeys(ChunkKey{}, std::vector<int32_t>(chunks, 1), 1);
    request_.prompt_tokens = chunks * 128 + 1;
    request_.keeps_chunks = true;
    tier_.on_event = [this] { Go(); };
    agenda_.In(options.starts_s, [this] {
      if (stopped_) return;
      opened_ = clock_.Now();
      restoration_ = restorer_->Open(request_);
      Go();
    });
    const double ends_s = std::min(options.killed_s, options.hangs_s);
    if (ends_s < 1e9) {
      agenda_.In(ends_s, [this] {
        stopped_ = true;
        if (options_.killed_s <= options_.hangs_s) tier_.Kill();
      });
    }
  }
  ~FleetProcess() {
    tier_.on_event = [] {};
  }

  // Nothing where it was stopped before its end.
  std::optional<double> seconds() const { return seconds_; }
  bool stopped() const { return stopped_; }
  RestoreReport report() const { return restoration_->Report(Seconds(0)); }
  // Ends what is left, while there still is an agenda for its reads.
  void End() { restoration_.reset(); }

 private:
  void Go() {
    if (stopped_ || computing_ || !restoration_ || seconds_) return;
    CheckInvariants(*restorer_);
    const ComputeTurn turn = restoration_->NextTurn({.chunks = 4});
    if (turn.kind == ComputeTurn::Kind::kDone) {
      seconds_ = (clock_.Now() - opened_).count();
      for (const ChunkKey& key : request_.keys) Keep(key);
      return;
    }
    if (turn.kind == ComputeTurn::Kind::kSlice) {
      computing_ = true;
      agenda_.In(turn.claim.count * options_.chunk_s, [this, turn] { Computed(turn.claim); });
      return;
    }
    const uint64_t wait = ++waits_;
    const double wait_s = std::max(1e-6, (turn.wait_until - clock_.Now()).count());
    agenda_.In(wait_s, [this, wait] {
      if (wait == waits_) Go();
    });
  }
  void Computed(const Claim& claim) {
    if (stopped_) return;
    computing_ = false;
    const auto pages = restoration_->PageIds(claim.end());
    for (int i = 0; i < claim.first; ++i) {
      CHECK(std::memcmp(pool_->Data(pages[i]), &request_.keys[i], sizeof(ChunkKey)) == 0);
    }
    for (int i = claim.first; i < claim.end(); ++i) {
      std::memcpy(pool_->Data(pages[i]), &request_.keys[i], sizeof(ChunkKey));
      ++store_.computed[request_.keys[i]];
    }
    restoration_->Computed(claim);
    for (int i = claim.first; i < claim.end(); ++i) {
      if (restoration_->IsClaimed(i)) Keep(request_.keys[i]);
    }
    Go();
  }
  void Keep(const ChunkKey& key) {
    if (kept_.insert(key).second && !store_.stored.contains(key))
      (void)tier_.Put({.key = key, .parent = {}, .page = {}});
  }

  FleetStore& store_;
  FakeClock& clock_;
  Agenda& agenda_;
  const ProcessOptions options_;
  FleetTier tier_;
  std::unique_ptr<PagePool> pool_;
  ComputeCost cost_;
  std::unique_ptr<Restorer> restorer_;
  RestoreRequest request_;
  std::shared_ptr<Restoration> restoration_;
  std::unordered_set<ChunkKey> kept_;
  TimePoint opened_{};
  std::optional<double> seconds_;
  bool stopped_ = false, computing_ = false;
  uint64_t waits_ = 0;
};

struct FleetOutcome {
  std::vector<std::optional<double>> seconds;  // of each process, from its start
  std::vector<RestoreReport> reports;          // of those that came to their end
  int computed_twice = 0;                      // chunks, each as often as it was once too many
  size_t claims_left = 0;
};

inline FleetOutcome RunFleet(int chunks, const std::vector<ProcessOptions>& processes) {
  FakeClock clock;
  Agenda agenda(clock);
  FleetStore store;
  std::vector<std::unique_ptr<FleetProcess>> fleet;
  for (size_t i = 0; i < processes.size(); ++i) {
    fleet.push_back(std::make_unique<FleetProcess>(store, clock, agenda, static_cast<int>(i),
                                                   chunks, processes[i]));
  }
  while (agenda.RunNext()) continue;
  FleetOutcome outcome;
  for (auto& process : fleet) {
    CHECK(process->seconds() || process->stopped());
    outcome.seconds.push_back(process->seconds());
    if (process->seconds()) outcome.reports.push_back(process->report());
    process->End();
  }
  while (agenda.RunNext()) continue;
  for (const auto& [key, times] : store.computed) outcome.computed_twice += times - 1;
  outcome.claims_left = store.claims.size();
  return outcome;
}

}  // namespace kvcake::testing_util
