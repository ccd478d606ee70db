#include "ops/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "ops/for_each_row.h"

namespace kvcake {
namespace {

// The likeliest experts of one row, the first of equal ones, and their weights.
void Choose(const ExpertRoutes::Shape& shape, const float* logits, int32_t* chosen,
            float* weights) {
  const std::span<const float> all(logits, shape.experts);
  const float most = *std::ranges::max_element(all);
  float sum = 0;
  for (const float logit : all) sum += std::exp(logit - most);
  if (std::isnan(sum)) {  // garbage, which nothing is greater or less than
    std::iota(chosen, chosen + shape.per_row, 0);
    std::fill_n(weights, shape.per_row, sum);
    return;
  }
  float chosen_sum = 0;
  int32_t last = -1;
  for (int n = 0; n < shape.per_row; ++n) {
    int32_t best = -1;
    for (int32_t i = 0; i < shape.experts; ++i) {
      const bool taken = last >= 0 && (all[i] > all[last] || (all[i] == all[last] && i <= last));
      if (!taken && (best < 0 || all[i] > all[best])) best = i;
    }
    chosen[n] = last = best;
    chosen_sum += weights[n] = std::exp(all[best] - most);
  }
  for (int n = 0; n < shape.per_row; ++n) weights[n] /= shape.normalized ? chosen_sum : sum;
}

}  // namespace

ExpertRoutes::ExpertRoutes(const Shape& shape, int64_t max_rows) : shape_(shape) {
  CHECK(shape.per_row > 0 && shape.per_row <= shape.experts);
  const size_t places = max_rows * shape.per_row;
  chosen_.resize(places);
  chosen_weights_.resize(places);
  rows_.resize(places);
  weights_.resize(places);
  begins_.resize(shape.experts + 1);
}

void ExpertRoutes::Set(const Compute& compute, const float* logits, int64_t rows) {
  const int64_t per_row = shape_.per_row, places = rows * per_row;
  CHECK(places <= std::ssize(rows_));
  ForEachRow(compute, rows, [&](int64_t row) {
    Choose(shape_, logits + row * shape_.experts, &chosen_[row * per_row],
           &chosen_weights_[row * per_row]);
  });
  // Counted, then each place behind those of the experts before.
  std::ranges::fill(begins_, 0);
  for (int64_t i = 0; i < places; ++i) ++begins_[chosen_[i] + 1];
  for (int expert = 0; expert < shape_.experts; ++expert) begins_[expert + 1] += begins_[expert];
  for (int64_t i = 0; i < places; ++i) {
    const int64_t place = begins_[chosen_[i]]++;
    rows_[place] = static_cast<int32_t>(i / per_row);
    weights_[place] = chosen_weights_[i];
  }
  std::shift_right(begins_.begin(), begins_.end(), 1);  // as they were
  begins_[0] = 0;
}

void TakeRows(const Compute& compute, const Activations& x, std::span<const int32_t> rows,
              const Activations& out) {
  CHECK(out.rows == std::ssize(rows) && out.k == x.k && x.unnormalized == nullptr);
  const int64_t element = ActivationBytes(compute.path());
  ForEachRow(compute, out.rows, [&](int64_t i) {
    std::memcpy(out.data + i * out.stride * element, x.data + rows[i] * x.stride * element,
                x.k * element);
  });
}

void AddRows(const Compute& compute, const float* x, std::span<const int32_t> rows,
             std::span<const float> weights, int64_t k, float* out) {
  ForEachRow(compute, std::ssize(rows), [&](int64_t i) {
    const float* from = x + i * k;
    float* to = out + rows[i] * k;
    for (int64_t j = 0; j < k; ++j) to[j] += weights[i] * from[j];
  });
}

}  // namespace kvcake
