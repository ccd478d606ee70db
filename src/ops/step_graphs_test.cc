#include "ops/step_graphs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/paths_testing.h"
#include "ops/step_array.h"

namespace kvcake {
namespace {

// Says what is done with steps: "+a" is a call of step a, "(+a)" one that is captured, "a" a replay
// and "-a" the end of its graph.
class StepGraphsTest : public testing::Test {
 protected:
  class LoggedGraph : public StepGraph {
   public:
    LoggedGraph(std::string name, std::string* log) : name_(std::move(name)), log_(log) {}
    ~LoggedGraph() override { *log_ += "-" + name_; }
    void Launch() override { *log_ += name_; }

   private:
    const std::string name_;
    std::string* const log_;
  };

  Result<std::unique_ptr<StepGraph>> Capture(const StepGraphs::Enqueue& enqueue) {
    log_ += "(";
    enqueue();
    log_ += ")";
    if (fail_) return Fail(ErrorCode::kUnsupported, "refused");
    return std::make_unique<LoggedGraph>(step_, &log_);
  }
  StepGraphs Graphs(size_t max) {
    return {[this](const StepGraphs::Enqueue& enqueue) { return Capture(enqueue); }, max};
  }
  // One step for each letter; what was done.
  std::string Run(StepGraphs& graphs, const std::string& steps) {
    log_.clear();
    for (const char c : steps) {
      step_ = c;
      graphs.Run({1, static_cast<uint64_t>(c)}, [this] { log_ += "+" + step_; });
      log_ += " ";
    }
    return log_;
  }

  bool fail_ = false;
  std::string step_, log_;
};

TEST_F(StepGraphsTest, AStepIsCalledThenCapturedThenReplayed) {
  StepGraphs graphs = Graphs(4);
  EXPECT_EQ(Run(graphs, "aaaa"), "+a (+a)a a a ");
  EXPECT_EQ(Run(graphs, "bababb"), "+b a (+b)b a b b ");
}

TEST_F(StepGraphsTest, TheGraphUsedLongestAgoGoes) {
  StepGraphs graphs = Graphs(2);
  EXPECT_EQ(Run(graphs, "aabba"), "+a (+a)a +b (+b)b a ");
  EXPECT_EQ(Run(graphs, "cc"), "+c (+c)-bc ");
  EXPECT_EQ(Run(graphs, "acbb"), "a c +b (+b)-ab ");
  StepGraphs one = Graphs(1);
  EXPECT_EQ(Run(one, "aaabbab"), "+a (+a)a a +b (+b)-ab +a b ");
}

TEST_F(StepGraphsTest, KeysThatCameOnceAreForgottenButNoGraphForThem) {
  StepGraphs graphs = Graphs(2);
  EXPECT_EQ(Run(graphs, "aa"), "+a (+a)a ");
  EXPECT_EQ(Run(graphs, "xyz"), "+x +y +z ");
  EXPECT_EQ(Run(graphs, "xz"), "+x (+z)z ");
  EXPECT_EQ(Run(graphs, "a"), "a ");
}

TEST_F(StepGraphsTest, AfterACaptureThatFailsEveryStepIsCalled) {
  StepGraphs graphs = Graphs(2);
  EXPECT_EQ(Run(graphs, "aab"), "+a (+a)a +b ");
  fail_ = true;
  EXPECT_EQ(Run(graphs, "b"), "(+b)-a+b ");
  fail_ = false;
  EXPECT_EQ(Run(graphs, "aabb"), "+a +a +b +b ");
}

TEST_F(StepGraphsTest, WithoutGraphsAndOnTheCpuEveryStepIsCalled) {
  StepGraphs none = Graphs(0);
  EXPECT_EQ(Run(none, "aaa"), "+a +a +a ");
  ThreadPool pool(1);
  StepGraphs cpu(Compute(pool, NumericPath::kF32), 4);
  EXPECT_EQ(Run(cpu, "aaa"), "+a +a +a ");
}

using StepGraphsPathTest = PathTest;

// What a replay reads is what the device's memory holds then.
TEST_P(StepGraphsPathTest, AReplayDoesWhatTheCallDid) {
  ThreadPool pool(1);
  const Compute compute(pool, GetParam());
  std::mt19937 rng(1);
  const int64_t rows = 5, k = 48;
  const Buffer x = ToKernels(GetParam(), RandomFloats(rng, 40 * k));
  const StepArray<int32_t> taken(compute, rows);
  const Buffer called(rows * k * sizeof(float), MemoryOf(GetParam()));
  const Buffer replayed(rows * k * sizeof(float), MemoryOf(GetParam()));
  StepGraphs graphs(compute, 2);
  int calls = 0;
  for (int step = 0; step < 6; ++step) {
    for (int32_t& row : taken.host()) row = static_cast<int32_t>(rng() % 40);
    const int64_t count = step == 4 ? 3 : rows;  // another key
    const auto on_device = taken.Commit(compute, count);
    TakeRows(compute, x.as<float>(), on_device, k, called.as<float>());
    graphs.Run({static_cast<uint64_t>(count)}, [&] {
      ++calls;
      TakeRows(compute, x.as<float>(), on_device, k, replayed.as<float>());
    });
    compute.Wait();
    ASSERT_EQ(FromKernels(GetParam(), replayed.as<float>(), count * k),
              FromKernels(GetParam(), called.as<float>(), count * k));
  }
  EXPECT_EQ(calls, OnCuda(GetParam()) ? 3 : 6);
}

#ifdef KVCAKE_CUDA_EMULATED
// What CUDA refuses to capture, or to make a graph of, is done all the same, now and later.
TEST(StepGraphsCudaTest, AStepThatCudaDoesNotCaptureIsCalled) {
  ThreadPool pool(1);
  const Compute compute(pool, NumericPath::kBf16Tensor);
  const int64_t k = 16;
  const std::vector<float> values(k, 3.0f);
  const Buffer x = ToKernels(compute.path(), values);
  const Buffer rows = ToKernels(compute.path(), std::vector<int32_t>{0});
  for (const char* call : {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                           "cudaGraphUpload"}) {
    SCOPED_TRACE(call);
    StepGraphs graphs(compute, 2);
    for (int step = 0; step < 4; ++step) {
      const Buffer out(k * sizeof(float), Memory::kDevice);
      if (step == 1) setenv("CUDA_EMULATOR_FAULT", call, 1);
      graphs.Run({1}, [&] {
        TakeRows(compute, x.as<float>(), {rows.as<int32_t>(), 1}, k, out.as<float>());
      });
      unsetenv("CUDA_EMULATOR_FAULT");
      EXPECT_EQ(FromKernels(compute.path(), out.as<float>(), k), values) << step;
    }
    EXPECT_EQ(graphs.launches(), 0u);
  }
}
#endif

// Contexts of sequences that decode grow within a partial, and past its end. There are tasks and
// merges that fill up their numbers.
TEST_P(StepGraphsPathTest, AttentionIsReplayedWhereItsPlansLaunchesAreTheSame) {
  ThreadPool threads(1);
  const Compute compute(threads, GetParam());
  std::mt19937 rng(2);
  const AttentionShape shape{.heads = 6, .kv_heads = 2, .head_dim = 32};
  const KvLayout layout{.layers = 1, .kv_heads = 2, .head_dim = 32, .chunk_tokens = 64};
  const int64_t row = 6 * 32, rows = 10, pages = 36;
  const auto pool =
      PagePool::Create(layout, pages * layout.page_bytes(), PageMemoryOf(GetParam()).value())
          .value();
  std::vector<PageHandle> table;
  std::vector<PageId> ids;
  for (int64_t i = 0; i < pages; ++i) {
    ids.push_back(table.emplace_back(*pool->Draw()).id());
    const auto values = RandomBf16(rng, layout.page_bytes() / 2);
    WritePage(GetParam(), *pool, ids.back(), std::as_bytes(std::span(values)));
  }
  const Buffer q = ToKernels(GetParam(), RandomFloats(rng, rows * row, 0.2f));
  const auto attention = Attention::Create(compute, shape, *pool, {16, 16});
  const auto plan = attention->NewPlan();
  const ActivationBuffer called(GetParam(), rows, row), replayed(GetParam(), rows, row);
  StepGraphs graphs(compute, 4);
  int calls = 0;
  for (const int64_t step : {0, 1, 2, 120, 121, 122, 123}) {
    std::vector<AttentionSlice> slices;
    for (const int64_t context : {40, 920, 2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007}) {
      slices.push_back({.q = q.as<float>() + std::ssize(slices) * row,
                        .rows = 1,
                        .start = context + step,
                        .old_keys = context + step,
                        .pages = ids,
                        .out_row = std::ssize(slices)});
    }
    plan->Set(slices);
    graphs.Run(plan->launches(), [&] {
      ++calls;
      attention->Run(*plan, 0, row, replayed.Rows(rows));
    });
    RunAttention(compute, shape, *pool, 0, slices, row, called.Rows(rows));
    ASSERT_EQ(RowsOf(GetParam(), replayed.Rows(rows)), RowsOf(GetParam(), called.Rows(rows)))
        << step;
  }
  EXPECT_EQ(calls, OnCuda(GetParam()) ? 4 : 7);
}

KVCAKE_EVERY_PATH_AND_CUDA(StepGraphsPathTest);

}  // namespace
}  // namespace kvcake
