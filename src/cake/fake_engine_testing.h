// An engine for tests of the Restorer: pages whose contents are their keys.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "cake/restorer.h"

namespace kvcake::testing_util {

inline constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 1, .chunk_tokens = 128};

inline RestoreRequest Request(int document, int chunks, Policy policy) {
  const std::vector<int32_t> tokens(chunks, document);
  RestoreRequest request;
  request.keys = ChunkKeys(ChunkKey{}, tokens, 1);
  request.prompt_tokens = chunks * 128 + 5;
  request.policy = policy;
  return request;
}

// What an engine does with the turns of its restorations.
struct FakeEngine {
  PagePool& pool;
  ComputeCost& cost;
  std::mt19937 rng{1};
  TimePoint wake = TimePoint::max();  // the first time that a turn named

  // False when the restoration is done.
  bool Step(const RestoreRequest& request, Restoration& restoration) {
    const ComputeTurn turn = restoration.NextTurn({.chunks = 4});
    if (turn.kind == ComputeTurn::Kind::kDone) return false;
    if (turn.kind == ComputeTurn::Kind::kWait) {
      wake = std::min(wake, turn.wait_until);
      return true;
    }
    const auto pages = restoration.PageIds(turn.claim.end());
    for (int i = 0; i < turn.claim.first; ++i) {
      EXPECT_EQ(std::memcmp(pool.Data(pages[i]), &request.keys[i], sizeof(ChunkKey)), 0);
    }
    for (int i = turn.claim.first; i < turn.claim.end(); ++i) {
      std::memcpy(pool.Data(pages[i]), &request.keys[i], sizeof(ChunkKey));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(rng() % 300));
    cost.Add(turn.claim.first * 128, turn.claim.count * 128, Seconds(1e-6 * (50 + rng() % 300)));
    restoration.Computed(turn.claim);
    wake = TimePoint{};
    return true;
  }
};

}  // namespace kvcake::testing_util
