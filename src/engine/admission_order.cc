#include "engine/admission_order.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

namespace kvcake {
namespace {

bool OneTenant(const std::deque<std::unique_ptr<Sequence>>& waiting) {
  return std::all_of(waiting.begin(), waiting.end(), [&](const auto& sequence) {
    return sequence->request.tenant == waiting.front()->request.tenant;
  });
}

}  // namespace

std::vector<size_t> AdmissionOrder(const std::deque<std::unique_ptr<Sequence>>& waiting,
                                   std::span<const std::unique_ptr<Sequence>> running,
                                   size_t count) {
  std::vector<size_t> order(waiting.size());
  std::iota(order.begin(), order.end(), 0);
  if (!waiting.empty() && !OneTenant(waiting)) {
    std::unordered_map<std::string_view, int> next_turns;
    for (const auto& sequence : running) ++next_turns[sequence->request.tenant];
    std::vector<int> turns;
    for (const auto& sequence : waiting) {
      const bool preempted = sequence->completion.preemptions > 0;
      const int turn = next_turns[sequence->request.tenant]++;
      turns.push_back(preempted ? -1 : turn);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&turns](size_t a, size_t b) { return turns[a] < turns[b]; });
  }
  order.resize(std::min(order.size(), count));
  return order;
}

}  // namespace kvcake
