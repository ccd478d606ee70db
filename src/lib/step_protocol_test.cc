// A scheduler and its workers, as docs/vllm.md wants them, with everything that it says may happen.
#include <gtest/gtest.h>

#include <deque>
#include <fstream>
#include <memory>
#include <random>

#include "lib/library_testing.h"
#include "lib/step_protocol_testing.h"

namespace kvcake {
namespace {

using namespace testing_util;

struct Cluster {
  size_t ranks;
  size_t stale_steps;  // of reports
};

class StepProtocolTest : public testing::TestWithParam<Cluster> {
 protected:
  void TearDown() override { CloseAll(); }

  void OpenAll(double rate_bytes_per_s = 0) {
    for (size_t rank = 0; rank < GetParam().ranks; ++rank) {
      auto store = Sized<kvcake_store>();
      store.where = dir_.path().c_str();
      if (rank + 1 == GetParam().ranks) store.load_rate_bytes_per_s = rate_bytes_per_s;
      auto options = Sized<kvcake_options>();
      const std::string name = "rank " + std::to_string(rank);
      options.name_space = name.c_str();
      options.layers = kLibraryLayers;
      options.chunk_tokens = kLibraryChunkTokens;
      options.slab_bytes = kLibrarySlabBytes;
      options.stores = &store;
      options.store_count = 1;
      options.memory_bytes = 200 * kLibraryPageBytes;
      options.write_queue_share = 1;
      caches_.emplace_back();
      ASSERT_EQ(kvcake_open(&options, &caches_.back()), KVCAKE_OK) << kvcake_last_error();
      workers_.push_back(std::make_unique<FakeWorker>(static_cast<int>(rank), caches_.back()));
    }
    scheduler_ = std::make_unique<FakeScheduler>(GetParam().ranks);
    late_.clear();
  }
  // As when the workers' processes end.
  void CloseAll() {
    workers_.clear();
    for (const kvcake_cache cache : caches_) {
      EXPECT_EQ(kvcake_close(cache), KVCAKE_OK) << kvcake_last_error();
    }
    caches_.clear();
  }
  // Stores so many chunks of each document.
  void Store(int chunks) {
    OpenAll();
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      for (int document = 0; document < 3; ++document) {
        const auto keys = workers_[rank]->Keys(document, chunks);
        for (int i = 0; i < chunks; ++i) {
          const auto bytes = workers_[rank]->Bytes(document, i);
          auto write = Sized<kvcake_write>();
          write.parent = keys[i];
          write.key = keys[i + 1];
          write.position = i;
          write.data = bytes.data();
          ASSERT_EQ(kvcake_put(caches_[rank], &write), KVCAKE_OK);
        }
      }
      ASSERT_EQ(kvcake_flush(caches_[rank]), KVCAKE_OK);
    }
    CloseAll();
  }
  void Damage(std::mt19937& random) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path())) {
      const bool is_chunk =
          entry.is_regular_file() && entry.path().filename().string().size() == 64;
      if (!is_chunk || random() % 10 != 0) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(4096 + 17).put(static_cast<char>(random()));
    }
  }
  // One step of all; what is finished has the right bytes in its blocks, on each rank.
  void Step() {
    std::vector<int> finished;
    std::map<int, int> chunks;
    for (const auto& [request, running] : scheduler_->running()) chunks[request] = running.chunks;
    const StepMetadata step = scheduler_->Schedule(/*slice_chunks=*/3, &finished);
    late_.emplace_back();
    for (auto& worker : workers_) late_.back().push_back(worker->Step(step, 3));
    for (const int request : finished) {
      for (auto& worker : workers_) worker->ExpectBlocks(request, chunks[request]);
    }
    if (late_.size() <= GetParam().stale_steps) return;
    for (size_t rank = 0; rank < workers_.size(); ++rank) {
      scheduler_->Hear(rank, std::move(late_.front()[rank]));
    }
    late_.pop_front();
    // A step takes as long as it takes; where it computed nothing it waits for what comes.
    if (!step.fronts.empty()) return;
    EXPECT_EQ(kvcake_wait(caches_[0], 1e-3), KVCAKE_OK);
  }
  void Preempt(int request, int cached) {
    cached = std::min(cached, scheduler_->running().at(request).front);
    scheduler_->Preempt(request, cached);
    for (auto& worker : workers_) worker->ScrubBlocks(request, cached);
  }

  const TempDir dir_;
  std::vector<kvcake_cache> caches_;
  std::vector<std::unique_ptr<FakeWorker>> workers_;
  std::unique_ptr<FakeScheduler> scheduler_;
  std::deque<std::vector<StepReports>> late_;  // reports that are under way
};

TEST_P(StepProtocolTest, BlocksHoldWhatTheyShouldWhateverHappens) {
  int jumps = 0, computed = 0, preempted = 0, aborted = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    Store(/*chunks=*/20);
    if (seed % 3 == 2) Damage(random);
    // A chunk in some milliseconds, so that lanes meet; or as it is.
    OpenAll(seed % 2 == 0 ? 0 : 400.0 * kLibraryPageBytes);
    int submitted = 0;
    while (submitted < 12 || !scheduler_->running().empty()) {
      if (submitted < 12 && random() % 3 == 0) {
        scheduler_->Submit(submitted++, 12 + static_cast<int>(random() % 12));
      }
      if (!scheduler_->running().empty() && random() % 25 == 0) {
        const int request = scheduler_->running().begin()->first;
        if (random() % 2 == 0) {
          scheduler_->Abort(request);
          ++aborted;
        } else {
          Preempt(request, static_cast<int>(random() % 3));
          ++preempted;
        }
      }
      Step();
      if (HasFailure()) return;
    }
    Step();  // what ended is told
    jumps += scheduler_->met.jumps;
    computed += scheduler_->met.computed;
    for (const kvcake_cache cache : caches_) {
      auto stats = Sized<kvcake_stats_info>();
      ASSERT_EQ(kvcake_stats(cache, &stats), KVCAKE_OK);
      EXPECT_EQ(stats.restorations, 0u);
      EXPECT_EQ(stats.acquired, 0u);
    }
    CloseAll();
  }
  EXPECT_GT(jumps, 0);
  EXPECT_GT(computed, 0);
  EXPECT_GT(preempted, 0);
  EXPECT_GT(aborted, 0);
}

// The processes end in the middle; new ones begin with what was stored.
TEST_P(StepProtocolTest, ALostWorkerLeavesNothingBehind) {
  Store(/*chunks=*/20);
  for (int round = 0; round < 3; ++round) {
    OpenAll(400.0 * kLibraryPageBytes);
    for (int request = 0; request < 4; ++request) scheduler_->Submit(request, 20);
    for (int steps = 0; steps < 2 + round; ++steps) Step();
    CloseAll();
  }
  OpenAll();
  scheduler_->Submit(0, 20);
  while (!scheduler_->running().empty() && !HasFailure()) Step();
}

INSTANTIATE_TEST_SUITE_P(Clusters, StepProtocolTest,
                         testing::Values(Cluster{1, 0}, Cluster{1, 1}, Cluster{2, 0},
                                         Cluster{2, 2}));

}  // namespace
}  // namespace kvcake
