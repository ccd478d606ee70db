// The protocol of docs/vllm.md between a scheduler and its workers, with both played: what travels,
// and what each does with it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "lib/library_testing.h"

namespace kvcake::testing_util {

// Chunks [first, end) of a request's epoch.
struct ChunkSpan {
  int request = 0, epoch = 0, first = 0, end = 0;
};

// With a step, from the scheduler.
struct StepMetadata {
  std::vector<ChunkSpan> ends;    // restorations
  std::vector<ChunkSpan> begins;  // of end chunks; first: those that the prefix cache has
  std::vector<ChunkSpan> fronts;  // what the step computes
  std::vector<ChunkSpan> jumps;   // what is copied from staging to blocks before it
};

// After a step, from a worker, for each request.
struct StepReport {
  int epoch = 0, back = 0;
  int advice = 0;  // chunks; 0: wait
};
using StepReports = std::map<int, StepReport>;

// What a block of a request's chunk holds on a rank.
using Blocks = std::map<std::pair<int, int>, std::vector<std::byte>>;  // by request and chunk

// A worker: owns claims, loads and staging; writes blocks.
class FakeWorker {
 public:
  FakeWorker(int rank, kvcake_cache cache) : rank_(rank), cache_(cache) {}
  // Everything is given back, as when a process ends.
  ~FakeWorker() {
    for (auto& [request, open] : open_) EXPECT_EQ(kvcake_end(open.restoration), KVCAKE_OK);
  }

  StepReports Step(const StepMetadata& metadata, int slice_chunks) {
    for (const ChunkSpan& end : metadata.ends) End(end);
    for (const ChunkSpan& begin : metadata.begins) Begin(begin);
    for (const ChunkSpan& front : metadata.fronts) ClaimAhead(front);
    for (const ChunkSpan& jump : metadata.jumps) Jump(jump);
    for (const ChunkSpan& front : metadata.fronts) Compute(front);
    StepReports reports;
    for (auto& [request, open] : open_) reports[request] = Advise(open, slice_chunks);
    return reports;
  }
  // Those of a request from a chunk on hold somebody else's KV by now: vLLM has taken them back.
  void ScrubBlocks(int request, int from) {
    for (auto& [place, bytes] : blocks_) {
      if (place.first == request && place.second >= from) {
        bytes.assign(bytes.size(), std::byte{0xdb});
      }
    }
  }
  void ExpectBlocks(int request, int chunks) const {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const auto block = blocks_.find({request, chunk});
      ASSERT_NE(block, blocks_.end());
      EXPECT_EQ(block->second, Bytes(request, chunk))
          << "request " << request << ", chunk " << chunk << ", rank " << rank_;
    }
  }
  std::vector<std::byte> Bytes(int request, int chunk) const {
    std::vector<std::byte> bytes(kLibraryLayers * kLibrarySlabBytes);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const int layer = static_cast<int>(i / kLibrarySlabBytes);
      bytes[i] = ByteOf(DocumentOf(request) * 2 + rank_, chunk, layer, i % kLibrarySlabBytes);
    }
    return bytes;
  }
  static int DocumentOf(int request) { return request % 3; }
  std::vector<kvcake_key> Keys(int request, int chunks) const {
    const std::vector<int32_t> tokens(chunks * kLibraryChunkTokens, DocumentOf(request));
    std::vector<kvcake_key> keys(chunks + 1);
    EXPECT_EQ(kvcake_root(cache_, nullptr, 0, &keys[0]), KVCAKE_OK);
    EXPECT_EQ(kvcake_keys(cache_, &keys[0], tokens.data(), tokens.size(), &keys[1], chunks),
              KVCAKE_OK);
    return keys;
  }

 private:
  struct Open {
    int epoch = 0, chunks = 0;
    kvcake_restoration restoration = 0;
  };

  // Null: it is of an epoch that is not open.
  Open* Find(const ChunkSpan& span) {
    const auto it = open_.find(span.request);
    return it == open_.end() || it->second.epoch != span.epoch ? nullptr : &it->second;
  }
  void End(const ChunkSpan& end) {
    const Open* const open = Find(end);
    if (open == nullptr) return;
    EXPECT_EQ(kvcake_end(open->restoration), KVCAKE_OK) << kvcake_last_error();
    open_.erase(end.request);
  }
  void Begin(const ChunkSpan& begin) {
    const auto keys = Keys(begin.request, begin.end);
    Open open{.epoch = begin.epoch, .chunks = begin.end};
    auto request = Sized<kvcake_request>();
    request.parent = &keys[0];
    request.keys = &keys[1];
    request.key_count = begin.end;
    // Computing takes no time here: some wait for what is stored, or nothing might ever be loaded.
    request.policy = begin.request % 4 == 3 ? KVCAKE_POLICY_LOAD : KVCAKE_POLICY_CAKE;
    ASSERT_EQ(kvcake_begin(cache_, &request, &open.restoration), KVCAKE_OK) << kvcake_last_error();
    ASSERT_TRUE(open_.emplace(begin.request, open).second) << "one epoch at a time";
    Confirm(open, begin.first);
  }
  static kvcake_progress_info Progress(const Open& open) {
    auto progress = Sized<kvcake_progress_info>();
    EXPECT_EQ(kvcake_progress(open.restoration, &progress), KVCAKE_OK) << kvcake_last_error();
    return progress;
  }
  // The step computes it whatever was advised: nothing of it should be loading any more.
  void ClaimAhead(const ChunkSpan& front) {
    const Open* const open = Find(front);
    ASSERT_NE(open, nullptr);
    const auto progress = Progress(*open);
    auto turn = Sized<kvcake_turn>();
    if (progress.claimed_count == 0 && progress.front < front.end) {
      EXPECT_EQ(kvcake_claim(open->restoration, front.end - progress.front, &turn), KVCAKE_OK)
          << kvcake_last_error();
    }
  }
  // All chunks before `end` were computed. Some may have been loaded as well.
  static void Confirm(const Open& open, int end) {
    for (auto progress = Progress(open); true; progress = Progress(open)) {
      if (progress.claimed_count == 0) {
        if (progress.front >= end) return;
        auto turn = Sized<kvcake_turn>();
        ASSERT_EQ(kvcake_claim(open.restoration, end - progress.front, &turn), KVCAKE_OK);
        continue;
      }
      const int last = progress.claimed_first + progress.claimed_count;
      const int computed =
          std::clamp(std::min(end, last) - progress.claimed_first, 0, progress.claimed_count);
      ASSERT_EQ(kvcake_computed(open.restoration, computed, 1e-4 * computed), KVCAKE_OK)
          << kvcake_last_error();
    }
  }
  void Compute(const ChunkSpan& front) {
    const Open* const open = Find(front);
    ASSERT_NE(open, nullptr);
    for (int i = front.first; i < front.end; ++i) {
      blocks_[{front.request, i}] = Bytes(front.request, i);
    }
    Confirm(*open, front.end);
  }
  // All are acquired before the first is copied.
  void Jump(const ChunkSpan& jump) {
    const Open* const open = Find(jump);
    ASSERT_NE(open, nullptr);
    std::vector<kvcake_slabs> held;
    for (int i = jump.first; i < jump.end; ++i) {
      held.push_back(Sized<kvcake_slabs>());
      ASSERT_EQ(kvcake_acquire(open->restoration, i, &held.back()), KVCAKE_OK)
          << kvcake_last_error();
    }
    for (int i = jump.first; i < jump.end; ++i) {
      const kvcake_slabs& slabs = held[i - jump.first];
      std::vector<std::byte>& block = blocks_[{jump.request, i}];
      block.resize(kLibraryLayers * kLibrarySlabBytes);
      for (int layer = 0; layer < kLibraryLayers; ++layer) {
        std::memcpy(&block[layer * kLibrarySlabBytes],
                    static_cast<const std::byte*>(slabs.data) + layer * slabs.stride,
                    kLibrarySlabBytes);
      }
    }
    End(jump);
    for (const kvcake_slabs& slabs : held) EXPECT_EQ(kvcake_release(slabs.chunk), KVCAKE_OK);
  }
  static StepReport Advise(const Open& open, int slice_chunks) {
    auto progress = Progress(open);
    if (progress.claimed_count > 0) {  // nothing was computed in this step
      EXPECT_EQ(kvcake_computed(open.restoration, 0, 0), KVCAKE_OK);
    }
    auto turn = Sized<kvcake_turn>();
    EXPECT_EQ(kvcake_claim_front(open.restoration, slice_chunks, 1, &turn), KVCAKE_OK)
        << kvcake_last_error();
    StepReport report{.epoch = open.epoch, .back = progress.back, .advice = slice_chunks};
    if (turn.kind == KVCAKE_TURN_WAIT) report.advice = 0;
    if (turn.kind == KVCAKE_TURN_SLICE) report.advice = turn.count;
    return report;
  }

  const int rank_;
  const kvcake_cache cache_;
  std::map<int, Open> open_;  // by request
  Blocks blocks_;
};

// Decides what steps compute, by what workers reported some steps ago.
class FakeScheduler {
 public:
  explicit FakeScheduler(size_t ranks) : reports_(ranks) {}

  struct Met {
    int jumps = 0, computed = 0;
  };

  void Submit(int request, int chunks) { Restart(request, chunks, /*cached=*/0); }
  // vLLM has taken its blocks, but for those that its prefix cache still has.
  void Preempt(int request, int cached) {
    EndEpoch(request);
    Restart(request, running_.at(request).chunks, cached);
  }
  void Abort(int request) {
    EndEpoch(request);
    running_.erase(request);
  }

  // The next step; finished requests are named in `finished`.
  StepMetadata Schedule(int slice_chunks, std::vector<int>* finished) {
    StepMetadata step = std::exchange(next_, {});
    for (auto& [request, running] : running_) {
      const StepReport worst = Worst(request, running);
      if (running.front >= worst.back && running.front < running.chunks) {
        step.jumps.push_back({request, running.epoch, running.front, running.chunks});
        running.front = running.chunks;
        ++met.jumps;
      } else {
        const int first = running.front;
        running.front = std::min(first + std::min(worst.advice, slice_chunks), running.chunks);
        met.computed += running.front - first;
        if (running.front > first) {
          step.fronts.push_back({request, running.epoch, first, running.front});
        }
      }
      if (running.front == running.chunks) finished->push_back(request);
    }
    for (const int request : *finished) Abort(request);
    return step;
  }
  void Hear(size_t rank, StepReports reports) {
    for (const auto& [request, report] : reports) {
      const auto it = running_.find(request);
      if (it == running_.end() || it->second.epoch != report.epoch) continue;
      reports_[rank][request] = report;
    }
  }
  const auto& running() const { return running_; }

  Met met;

 private:
  struct Running {
    int epoch = 0, chunks = 0, front = 0;
  };
  // A begin that was not sent yet and its end cancel out.
  void EndEpoch(int request) {
    const int epoch = running_.at(request).epoch;
    const auto is_it = [&](const ChunkSpan& begin) { return begin.epoch == epoch; };
    if (std::erase_if(next_.begins, is_it) == 0) next_.ends.push_back({request, epoch, 0, 0});
  }
  void Restart(int request, int chunks, int cached) {
    running_[request] = {.epoch = ++epochs_, .chunks = chunks, .front = cached};
    next_.begins.push_back({request, epochs_, cached, chunks});
  }
  // The worst of all ranks; one that has not reported the epoch has nothing, and its first chunk
  // may be computed.
  StepReport Worst(int request, const Running& running) const {
    StepReport worst{.epoch = running.epoch, .back = 0, .advice = running.chunks};
    for (const StepReports& reports : reports_) {
      const auto it = reports.find(request);
      const bool reported = it != reports.end() && it->second.epoch == running.epoch;
      worst.back = std::max(worst.back, reported ? it->second.back : running.chunks);
      worst.advice = std::min(worst.advice, reported ? it->second.advice : 1);
    }
    return worst;
  }

  std::vector<StepReports> reports_;  // the last of each rank
  StepMetadata next_;
  std::map<int, Running> running_;
  int epochs_ = 0;
};

}  // namespace kvcake::testing_util
