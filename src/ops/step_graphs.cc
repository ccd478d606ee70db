#include "ops/step_graphs.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "ops/cuda_kernels.h"

namespace kvcake {
namespace {

StepGraphs::Capture CaptureOf(const Compute& compute) {
  CudaDevice* const device = compute.cuda();
  if (device == nullptr) return nullptr;
  return [device](const StepGraphs::Enqueue& enqueue) { return cuda::Capture(*device, enqueue); };
}

}  // namespace

StepGraphs::StepGraphs(const Compute& compute, size_t max) : StepGraphs(CaptureOf(compute), max) {}

StepGraphs::StepGraphs(Capture capture, size_t max)
    : capture_(max > 0 ? std::move(capture) : nullptr), max_(max) {}

void StepGraphs::Run(const Key& key, const Enqueue& enqueue) {
  if (!capture_) return enqueue();
  const auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) {
    entries_.push_front({.key = key});
    Trim();
    return enqueue();
  }
  entries_.splice(entries_.begin(), entries_, found);
  if (found->graph == nullptr) {
    auto graph = capture_(enqueue);
    if (!graph) {
      spdlog::warn("steps are not replayed from here on: {}", graph.error().message);
      capture_ = nullptr;
      entries_.clear();
      return enqueue();
    }
    found->graph = std::move(*graph);
    Trim();
  }
  found->graph->Launch();
  ++launches_;
}

void StepGraphs::Trim() {
  size_t graphs = 0, keys = 0;
  std::erase_if(entries_, [&](const Entry& entry) {
    return ++(entry.graph != nullptr ? graphs : keys) > max_;
  });
}

}  // namespace kvcake
