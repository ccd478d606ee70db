#include "runahead/kv_gate.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "comm/memory_comm.h"
#include "kv/page_copier_testing.h"
#include "model/transformer_testing.h"
#include "ops/cuda_page_copier.h"
#include "runahead/job.h"

namespace kvcake {
namespace {

constexpr int kChunkTokens = 32, kRanks = 3;
constexpr Seconds kPatience{60};

// The rank in the middle of a chain, on either device; its neighbours compute nothing, and have
// pages of the host.
class KvGateTest : public PathTest {
 protected:
  struct Neighbour {
    explicit Neighbour(const KvLayout& layout) : pool(*PagePool::Create(layout, 4 << 20)) {}
    void Draw(int tokens) {
      table.clear();
      for (int t = 0; t < tokens; t += kChunkTokens) table.push_back(*pool->Draw());
      ids = IdsOf(table);
    }

    std::unique_ptr<PagePool> pool;
    PageTable table = {};
    std::vector<PageId> ids = {};
  };

  void SetUp() override {
    PathTest::SetUp();
    if (IsSkipped()) return;
    rig_.emplace(TinyConfig(), GetParam(), 1, kChunkTokens);
    layout_ = rig_->pages->layout();
    staging_ = Buffer(5 * layout_.slab_payload_bytes(),
                      OnCuda(GetParam()) ? Memory::kPinned : Memory::kHost);
    if (OnCuda(GetParam())) {
      copier_ = NewCudaPageCopier();
    } else {
      auto fake = std::make_unique<testing_util::FakeCopier>();
      fake->Set({.delay_max = Seconds(1e-4)});
      copier_ = std::move(fake);
    }
  }

  // What a forward pass does between the gate's calls left out.
  static void Pass(Comm& comm, Neighbour& of, const RankJob& job, int place) {
    const auto gate =
        KvGate::Create(comm, *of.pool, of.ids, RoutesOf(job, place, 0, kChunkTokens), kPatience);
    ASSERT_TRUE(gate);
    for (int layer = 0; layer < of.pool->layout().layers; ++layer) {
      ASSERT_TRUE((*gate)->AfterKv(layer));
      ASSERT_TRUE((*gate)->BeforeAttention(layer));
    }
    ASSERT_TRUE((*gate)->Finish());
  }
  // In slices as the ranks have them, so that kernels are the same; to pages of the host.
  void ComputeAlone(const RankJob& job, int end, Neighbour* to) {
    const PageTable table = rig_->Draw(end);
    const std::vector<PageId> ids = IdsOf(table);
    for (int place = 0; place < 2; ++place) {
      ASSERT_TRUE(rig_->model->Forward(SlicesOf(job, place, ids, nullptr)));
    }
    to->Draw(end);
    for (size_t i = 0; i < ids.size(); ++i) {
      CopyFromPage(*copier_,
                   {reinterpret_cast<std::byte*>(to->pool->Data(to->ids[i])), layout_.page_bytes()},
                   {reinterpret_cast<std::byte*>(rig_->pages->Data(ids[i])), layout_.page_bytes()});
    }
  }

  std::optional<Rig> rig_;
  KvLayout layout_;
  Buffer staging_;
  std::unique_ptr<PageCopier> copier_;
};
INSTANTIATE_TEST_SUITE_P(Devices, KvGateTest,
                         testing::Values(NumericPath::kF32, NumericPath::kBf16Tensor),
                         DeviceTestName);

// Every layer's keys and values leave when the device has written them, and attention reads what
// came: to the bit.
TEST_P(KvGateTest, TheMiddleOfAChainIsAsOneProcess) {
  std::mt19937 rng(11);
  Neighbour first(layout_), last(layout_);
  for (int round = 0; round < 8; ++round) {
    const int begin = 1 + static_cast<int>(rng() % 150);
    const int end = begin + 1 + static_cast<int>(rng() % 150), all = end + 20;
    SCOPED_TRACE(fmt::format("tokens {} to {}", begin, end));
    const RankJob job{.tokens = Prompt(round, all), .partition = {.bounds = {0, begin, end, all}}};
    ComputeAlone(job, end, &first);
    const std::vector<uint16_t> want = KvOf(NumericPath::kF32, *first.pool, first.ids, end);
    last.Draw(all);

    auto comms = NewMemoryComms(kRanks);
    std::thread before([&] { Pass(*comms[0], first, job, 0); });
    std::thread behind([&] { Pass(*comms[2], last, job, 2); });
    const PageTable table = rig_->Draw(end);
    const std::vector<PageId> ids = IdsOf(table);
    const size_t pieces = 2 + rng() % 4;
    const auto gate =
        KvGate::Create(*comms[1], *rig_->pages, ids, RoutesOf(job, 1, 0, kChunkTokens), kPatience,
                       {.copier = copier_.get(),
                        .memory = {staging_.data(), pieces * layout_.slab_payload_bytes()}});
    ASSERT_TRUE(gate);
    EXPECT_TRUE(rig_->model->Forward(SlicesOf(job, 1, ids, gate->get())));
    EXPECT_TRUE((*gate)->Finish());
    before.join();
    behind.join();
    EXPECT_EQ(KvOf(*rig_, ids, end), want);
    EXPECT_EQ(KvOf(NumericPath::kF32, *last.pool, last.ids, end), want);
    EXPECT_EQ((*gate)->sent_bytes(), layout_.bytes_per_token() * end);
    for (const LayerExchange& layer : (*gate)->layers()) {
      EXPECT_GT(layer.kv, TimePoint{});
      EXPECT_GE(layer.sent, layer.kv);
      EXPECT_GT(layer.prefix, TimePoint{});
    }
  }
}

TEST_P(KvGateTest, AfterAFailedPassTheNextIsRight) {
  const RankJob job{.tokens = Prompt(1, 200), .partition = {.bounds = {0, 90, 170, 200}}};
  Neighbour first(layout_), again(layout_);
  ComputeAlone(job, 170, &first);
  {
    auto comms = NewMemoryComms(kRanks);
    const PageTable table = rig_->Draw(170);
    const std::vector<PageId> ids = IdsOf(table);
    const auto gate = KvGate::Create(
        *comms[1], *rig_->pages, ids, RoutesOf(job, 1, 0, kChunkTokens), Seconds(0.02),
        {.copier = copier_.get(), .memory = {staging_.data(), staging_.size()}});
    ASSERT_TRUE(gate);
    const auto forward = rig_->model->Forward(SlicesOf(job, 1, ids, gate->get()));
    ASSERT_FALSE(forward);
    EXPECT_EQ(forward.error().code, ErrorCode::kDeadline);
  }
  ComputeAlone(job, 170, &again);
  EXPECT_EQ(KvOf(NumericPath::kF32, *again.pool, again.ids, 170),
            KvOf(NumericPath::kF32, *first.pool, first.ids, 170));
}

}  // namespace
}  // namespace kvcake
