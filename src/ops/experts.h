// Mixtures of experts: which experts a row goes to, and the way there and back. Each row's result
// depends on that row alone. Of the CPU.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/compute.h"

namespace kvcake {

// The experts of a layer that each row of a step goes to. Memory for max_rows is taken at once.
class ExpertRoutes {
 public:
  struct Shape {
    int experts = 0;
    int per_row = 0;          // at most `experts`
    bool normalized = false;  // a row's weights add up to 1
  };
  ExpertRoutes() = default;
  ExpertRoutes(const Shape& shape, int64_t max_rows);

  // From logits [rows][experts]: each row goes to the per_row likeliest, of equal ones the first,
  // by weights that are their shares of the softmax over all.
  void Set(const Compute& compute, const float* logits, int64_t rows);

  // The rows that go to an expert, ascending, and with what weights.
  std::span<const int32_t> rows(int expert) const { return OfExpert<int32_t>(rows_, expert); }
  std::span<const float> weights(int expert) const { return OfExpert<float>(weights_, expert); }

 private:
  template <typename T>
  std::span<const T> OfExpert(const std::vector<T>& all, int expert) const {
    return std::span(all).subspan(begins_[expert], begins_[expert + 1] - begins_[expert]);
  }

  Shape shape_;
  std::vector<int32_t> chosen_;        // [rows][per_row], the likeliest first
  std::vector<float> chosen_weights_;  // [rows][per_row]
  std::vector<int64_t> begins_;        // [experts + 1], in what follows
  std::vector<int32_t> rows_;          // [rows x per_row], of one expert after the other
  std::vector<float> weights_;         // [rows x per_row]
};

// out[i] = x[rows[i]], of as many elements; out.rows is rows.size().
void TakeRows(const Compute& compute, const Activations& x, std::span<const int32_t> rows,
              const Activations& out);

// out[rows[i]] += weights[i] * x[i], rows of `k` f32 without gaps; no row is named twice.
void AddRows(const Compute& compute, const float* x, std::span<const int32_t> rows,
             std::span<const float> weights, int64_t k, float* out);

}  // namespace kvcake
