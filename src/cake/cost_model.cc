#include "cake/cost_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace kvcake {
namespace {

constexpr int kTerms = 4;  // c0, g, b, a
using Terms = std::array<double, kTerms>;

Terms TermsOf(double prefix, double tokens) {
  return {1, prefix, tokens, tokens * (2 * prefix + tokens)};
}

double Dot(const Terms& a, const Terms& b) {
  double sum = 0;
  for (int i = 0; i < kTerms; ++i) sum += a[i] * b[i];
  return sum;
}

// What the last two of something say together of its change, as a factor: one alone may have been
// disturbed, and what noise can do is none.
double Agreed(double last, double before, double noise) {
  const double a = std::log(last), b = std::log(before);
  if (a * b <= 0) return 1;
  const double both = std::min(std::abs(a), std::abs(b)) - noise;
  return std::exp(std::copysign(std::max(both, 0.0), a));
}

// Minimises x'Ax - 2r'x over x >= 0, A positive definite: with four unknowns every set of positive
// ones can be tried.
Terms SolveNonNegative(const std::array<Terms, kTerms>& a, const Terms& r) {
  Terms best{};
  double best_value = 0;
  for (int set = 1; set < 1 << kTerms; ++set) {
    std::array<int, kTerms> index{};
    int n = 0;
    for (int i = 0; i < kTerms; ++i) {
      if (set >> i & 1) index[n++] = i;
    }
    std::array<std::array<double, kTerms + 1>, kTerms> m{};
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) m[i][j] = a[index[i]][index[j]];
      m[i][n] = r[index[i]];
    }
    for (int i = 0; i < n; ++i) {  // positive definite: no pivoting needed
      for (int k = i + 1; k < n; ++k) {
        const double f = m[k][i] / m[i][i];
        for (int j = i; j <= n; ++j) m[k][j] -= f * m[i][j];
      }
    }
    Terms x{};
    bool feasible = true;
    for (int i = n - 1; i >= 0 && feasible; --i) {
      double sum = m[i][n];
      for (int j = i + 1; j < n; ++j) sum -= m[i][j] * x[index[j]];
      x[index[i]] = sum / m[i][i];
      feasible = x[index[i]] >= 0 && std::isfinite(x[index[i]]);
    }
    if (!feasible) continue;
    const double value = -Dot(r, x);  // at a stationary point x'Ax = r'x
    if (value < best_value) {
      best_value = value;
      best = x;
    }
  }
  return best;
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + values.size() / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr size_t kGapsMax = 64, kFirstsMax = 16;
constexpr int kTogetherMax = 32;       // reads that one gap stands for
constexpr double kBesideMax_s = 1e-3;  // more is not the lanes' doing

// What a slice can take; a number beyond would spoil the arithmetic.
bool SaneSeconds(double s) { return s >= 1e-7 && s <= 1e5; }

}  // namespace

ComputeFit ComputeFit::InSteps(double steps, double step_tokens) const {
  ComputeFit fit = *this;
  fit.c0 = steps * SecondsFor(0, step_tokens);
  fit.g = steps * (g + 2 * a * step_tokens);
  fit.b = fit.a = 0;
  return fit;
}

ComputeFit ComputeFit::Scaled(double by) const {
  ComputeFit fit = *this;
  fit.c0 *= by, fit.g *= by, fit.b *= by, fit.a *= by;
  return fit;
}

void ComputeCost::Add(int prefix, int tokens, Seconds took) {
  if (prefix < 0 || tokens <= 0 || !SaneSeconds(took.count())) return;
  // Where little is known one disturbed or cold slice explains itself by a term of its own, and
  // what is thought to be that slow is not computed again.
  constexpr double kFar = 3;
  const Sample sample{static_cast<double>(prefix), static_cast<double>(tokens), took.count()};
  MutexLock lock(mutex_);
  const bool far = fit_.known() && sample.seconds > kFar * fit_.SecondsFor(prefix, tokens);
  if (far && !doubted_) {
    doubted_ = sample;
    return;
  }
  if (far) Push(*doubted_);
  doubted_.reset();
  Push(sample);
  fit_ = FitSamples();
  fit_ = fit_.Scaled(Drift(fit_));
}

void ComputeCost::Push(const Sample& sample) {
  samples_.push_back(sample);
  if (samples_.size() <= static_cast<size_t>(std::max(options_.window, 1))) return;
  samples_.pop_front();
  first_is_cold_ = false;
}

// How much slower than the fit the last two slices were both. What noise can do is none.
double ComputeCost::Drift(const ComputeFit& fit) const {
  constexpr size_t kEnough = 8;  // fewer follow every change by themselves
  if (samples_.size() < kEnough) return 1;
  const auto slower = [&fit](const Sample& s) {
    const double expected = fit.SecondsFor(s.prefix, s.tokens);
    return expected > 0 ? s.seconds / expected : 1;  // 0: the fit says nothing of such a slice
  };
  return Agreed(slower(samples_.back()), slower(*std::prev(samples_.end(), 2)),
                std::max(0.05, fit.noise));
}

ComputeFit ComputeCost::fit() const {
  MutexLock lock(mutex_);
  return fit_;
}

ComputeFit ComputeCost::FitSamples() const {
  const int n = static_cast<int>(samples_.size());
  if (n == 0) return {};
  std::vector<double> scales, weights(n);
  Terms mean{};
  for (int i = 0; i < n; ++i) {
    const Sample& s = samples_[i];
    const Terms terms = TermsOf(s.prefix, s.tokens);
    scales.push_back(s.seconds / (terms[2] + options_.attention_ratio * terms[3]));
    for (int j = 0; j < kTerms; ++j) mean[j] += terms[j] / n;
    weights[i] = std::pow(0.98, n - 1 - i);
  }
  // The first slice of a process pays for page faults and cold caches.
  if (first_is_cold_ && n > 1) weights[0] *= 0.1;
  // The fastest of two, the median of more: what disturbs a measurement makes it longer.
  const double scale = n < 3 ? *std::min_element(scales.begin(), scales.end()) : Median(scales);
  const Terms prior = {0, 0, scale, scale * options_.attention_ratio};
  double mean_seconds = 0;
  for (const Sample& s : samples_) mean_seconds += s.seconds / n;

  Terms fit = prior;
  double noise = 0;
  for (int round = 0; round < 4; ++round) {
    std::array<Terms, kTerms> a{};
    Terms r{};
    double total_weight = 0;
    noise = 0;
    for (int i = 0; i < n; ++i) {
      const Sample& s = samples_[i];
      const Terms terms = TermsOf(s.prefix, s.tokens);
      const double error = std::abs(Dot(terms, fit) / s.seconds - 1);
      // Huber: beyond 15% an error counts linearly. Relative: every sample is as important.
      const double robust = round == 0 ? 1 : 0.15 / std::max(error, 0.15);
      const double w = weights[i] * robust;
      for (int j = 0; j < kTerms; ++j) {
        for (int k = 0; k < kTerms; ++k)
          a[j][k] += w * terms[j] * terms[k] / (s.seconds * s.seconds);
        r[j] += w * terms[j] / s.seconds;
      }
      total_weight += w;
      noise += w * error;
    }
    noise /= total_weight;
    // Ridge towards the prior: decides where the samples do not, costs nothing where they do.
    for (int j = 0; j < kTerms; ++j) {
      const double ridge = 1e-4 * std::pow(std::max(mean[j], 1e-6) / mean_seconds, 2);
      a[j][j] += ridge;
      r[j] += ridge * prior[j];
    }
    fit = SolveNonNegative(a, r);
  }
  return {.c0 = fit[0], .g = fit[1], .b = fit[2], .a = fit[3], .samples = n, .noise = noise};
}

nlohmann::json ComputeCost::ToJson() const {
  MutexLock lock(mutex_);
  auto samples = nlohmann::json::array();
  for (const Sample& s : samples_) samples.push_back({s.prefix, s.tokens, s.seconds});
  return {{"version", 1}, {"samples", std::move(samples)}};
}

Status ComputeCost::FromJson(const nlohmann::json& json) {
  const auto bad = [] {
    return Fail(ErrorCode::kInvalidArgument,
                "not a compute cost model of version 1: delete it to have it learnt again");
  };
  if (!json.is_object() || json.value("version", nlohmann::json()) != 1) return bad();
  const auto list = json.find("samples");
  if (list == json.end() || !list->is_array()) return bad();
  std::deque<Sample> samples;
  for (const auto& item : *list) {
    if (!item.is_array() || item.size() != 3) return bad();
    for (const auto& number : item) {
      if (!number.is_number()) return bad();
    }
    const Sample s{item[0], item[1], item[2]};
    const bool sane = s.prefix >= 0 && s.prefix <= 1e9 && s.tokens >= 1 && s.tokens <= 1e9;
    if (!sane || !SaneSeconds(s.seconds)) return bad();
    samples.push_back(s);
    if (samples.size() > static_cast<size_t>(std::max(options_.window, 1))) samples.pop_front();
  }
  MutexLock lock(mutex_);
  samples_ = std::move(samples);
  first_is_cold_ = samples_.empty();
  fit_ = FitSamples();
  return {};
}

void TierCost::OnStart(TimePoint now) {
  if (in_flight_++ == 0) {
    first_of_burst_ = true;
    last_progress_ = now;
  }
  if (!silent_since_) silent_since_ = now;
}

void TierCost::OnDone(TimePoint now, uint64_t bytes) {
  --in_flight_;
  if (bytes > 0) {
    const Sample sample{.seconds = (now - last_progress_).count(),
                        .bytes = static_cast<double>(bytes)};
    if (first_of_burst_) {
      if (std::exchange(kept_, false)) DropKeptIfSlower(sample);
      firsts_.push_back(sample);
      if (firsts_.size() > kFirstsMax) firsts_.pop_front();
      gaps_between_ = std::exchange(gaps_since_, {0, 0});
    } else {
      gaps_since_.seconds += sample.seconds;
      gaps_since_.bytes += sample.bytes;
      AddGap(sample);
    }
    last_sample_ = now;
    Update();
    silent_since_.reset();
    if (in_flight_ > 0) silent_since_ = now;
  }
  first_of_burst_ = false;
  last_progress_ = now;
}

// What another process has left may be one bad moment's, and a process that loads nothing because
// of it measures no more than this.
void TierCost::DropKeptIfSlower(const Sample& first) {
  const double least_bytes_per_s = first.bytes / std::max(first.seconds, 1e-9);
  if (first.seconds < estimate_.fixed_s + first.bytes / estimate_.bytes_per_s) firsts_.clear();
  if (estimate_.bytes_per_s < least_bytes_per_s) gaps_.clear();
}

void TierCost::OnLate(TimePoint now, uint64_t bytes) {
  if (bytes == 0) return;
  silent_since_.reset();
  if (in_flight_ == 0) return;
  // It had the link until now; what comes next began here.
  silent_since_ = now;
  first_of_burst_ = false;
  last_progress_ = now;
}

void TierCost::AddCore(double core_s) {
  constexpr double kShare = 0.2;  // of what it was off by
  constexpr double kMax_s = 10;   // no chunk takes as long
  if (core_s < 0 || core_s > kMax_s) return;
  estimate_.core_s += (estimate_.core_s > 0 ? kShare : 1) * (core_s - estimate_.core_s);
}

// Reads that complete together are one sample: the first of them has waited for all, and the others
// alone would look like a link without limit.
void TierCost::AddGap(const Sample& gap) {
  constexpr double kTogether = 0.25;  // of the time that is expected between two
  if (!gaps_.empty() && gaps_.back().reads < kTogetherMax &&
      gap.seconds < kTogether * estimate_.IntervalFor(gap.bytes)) {
    Sample& last = gaps_.back();
    last.seconds += gap.seconds;
    last.bytes += gap.bytes;
    ++last.reads;
    return;
  }
  gaps_.push_back(gap);
  if (gaps_.size() > kGapsMax) gaps_.pop_front();
}

void TierCost::AddBeside(double late_s, uint64_t chunks) {
  constexpr double kShare = 0.4;  // of what it was off by
  constexpr double kFew = 8;      // chunks, which tell little
  constexpr double kFar = 10;     // times the most: not the lanes' doing at all
  if (chunks == 0) return;
  const double off_s = late_s / (static_cast<double>(chunks) + kFew);
  if (off_s > kFar * kBesideMax_s) return;
  estimate_.beside_s = std::clamp(estimate_.beside_s + kShare * off_s, 0.0, kBesideMax_s);
}

void TierCost::ForgetBeside() { estimate_.beside_s *= 0.93; }

// How much slower than this the last two gaps were both; 1 if they were faster: reads that complete
// together leave gaps of nothing.
double TierCost::Slowdown(double bytes_per_s) const {
  constexpr size_t kEnough = 4;
  constexpr double kNoise = 0.3;
  if (gaps_.size() < kEnough) return 1;
  const auto slower = [&](size_t i) {
    const Sample& s = gaps_[gaps_.size() - 1 - i];
    return std::max(s.seconds, 1e-9) * bytes_per_s / s.bytes;
  };
  return std::max(1.0, Agreed(slower(0), slower(1), kNoise));
}

// A first read takes the fixed part and its own bytes: two that were faster than both tell that
// they have become less. How much less the gaps since tell, too: where a link lets a burst pass,
// first reads are faster than it.
void TierCost::HoldToFirsts() {
  if (firsts_.size() < 2) return;
  const Sample& last = firsts_.back();
  const double most_s = std::max(last.seconds, firsts_[firsts_.size() - 2].seconds);
  const double interval_s = last.bytes / estimate_.bytes_per_s;
  if (most_s <= 0 || estimate_.fixed_s + interval_s <= most_s) return;
  const double bytes = 2 * last.bytes + gaps_between_.bytes + gaps_since_.bytes;
  const double seconds = 2 * most_s + gaps_between_.seconds + gaps_since_.seconds;
  estimate_.bytes_per_s = std::max(estimate_.bytes_per_s, bytes / seconds);
  const double rest_s = std::max(0.0, most_s - last.bytes / estimate_.bytes_per_s);  // rounding
  estimate_.fixed_s = std::min(estimate_.fixed_s, rest_s);
}

void TierCost::Update() {
  // Rates change: the newest gaps count most.
  constexpr double kOlder = 0.8;
  Sample gaps{0, 0}, firsts{0, 0};
  for (const Sample& s : gaps_) {
    gaps.seconds = kOlder * gaps.seconds + s.seconds;
    gaps.bytes = kOlder * gaps.bytes + s.bytes;
  }
  for (const Sample& s : firsts_) firsts.seconds += s.seconds, firsts.bytes += s.bytes;
  // Few gaps may lie: reads that share the link complete together. Until there are enough, the
  // whole busy time counts, which can only make the tier look slower.
  const double w = firsts_.empty() ? 0 : std::max(0.0, 1 - static_cast<double>(gaps_.size()) / 12);
  const double seconds = gaps.seconds + w * firsts.seconds;
  const double bytes = gaps.bytes + w * firsts.bytes;
  estimate_.bytes_per_s = bytes / std::max(seconds, 1e-9);
  estimate_.bytes_per_s /= Slowdown(estimate_.bytes_per_s);
  std::vector<double> fixed;
  for (const Sample& s : firsts_) {
    fixed.push_back(std::max(0.0, s.seconds - s.bytes / estimate_.bytes_per_s));
  }
  if (!fixed.empty()) estimate_.fixed_s = Median(std::move(fixed));
  HoldToFirsts();
  estimate_.known = true;
}

nlohmann::json TierCost::ToJson() const {
  if (!estimate_.known) return {{"version", 1}};
  double bytes = 0;
  for (const Sample& s : gaps_) bytes = std::max(bytes, s.bytes / s.reads);
  for (const Sample& s : firsts_) bytes = std::max(bytes, s.bytes);
  return {{"version", 1},
          {"fixed_s", estimate_.fixed_s},
          {"bytes_per_s", estimate_.bytes_per_s},
          {"beside_s", estimate_.beside_s},
          {"core_s", estimate_.core_s},
          {"read_bytes", bytes}};
}

Status TierCost::FromJson(const nlohmann::json& json) {
  const auto number = [&](const char* name) {
    const auto it = json.find(name);
    return it != json.end() && it->is_number() ? it->get<double>() : -1.0;
  };
  if (!json.is_object() || json.value("version", nlohmann::json()) != 1) {
    return Fail(ErrorCode::kInvalidArgument,
                "not a tier cost model of version 1: delete it to have it learnt again");
  }
  if (!json.contains("bytes_per_s")) return {};
  const double fixed = number("fixed_s"), rate = number("bytes_per_s"),
               bytes = number("read_bytes");
  const double beside = json.contains("beside_s") ? number("beside_s") : 0;
  const double core = json.contains("core_s") ? number("core_s") : 0;
  const bool sane = fixed >= 0 && fixed <= 1e5 && rate > 0 && rate <= 1e20 && bytes >= 1 &&
                    bytes <= 1e15 && bytes / rate <= 1e5 && beside >= 0 && beside <= kBesideMax_s &&
                    core >= 0 && core <= 1e5;
  if (!sane) {
    return Fail(ErrorCode::kInvalidArgument,
                "a tier cost model needs fixed_s, bytes_per_s and read_bytes that can be: delete "
                "it to have it learnt again");
  }
  // As samples, so that new ones outweigh them soon.
  firsts_.assign(1, {fixed + bytes / rate, bytes});
  gaps_since_ = gaps_between_ = {0, 0};
  gaps_.assign(12, {bytes / rate, bytes});
  kept_ = true;
  estimate_.beside_s = beside;
  estimate_.core_s = core;
  Update();
  return {};
}

}  // namespace kvcake
