// Counters, histograms, and Prometheus' text format.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvcake {

// Any thread.
class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Any thread.
class Histogram {
 public:
  // Upper bounds of the buckets, ascending; one without a bound follows.
  explicit Histogram(std::vector<double> bounds);
  void Observe(double value);

  struct Snapshot {
    std::vector<uint64_t> counts = {};  // of each bucket by itself
    double sum = 0;
  };
  Snapshot Take() const;
  const std::vector<double>& bounds() const { return bounds_; }

 private:
  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  Snapshot snapshot_ GUARDED_BY(mutex_);
};

// The text of a scrape. Values of one name are given one after the other.
class PrometheusText {
 public:
  using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

  // `common` labels go to every value.
  explicit PrometheusText(Labels common = {}) : common_(std::move(common)) {}
  void AddCounter(std::string_view name, std::string_view help, double value,
                  const Labels& labels = {});
  void AddGauge(std::string_view name, std::string_view help, double value,
                const Labels& labels = {});
  void AddHistogram(std::string_view name, std::string_view help, const Histogram& histogram);
  const std::string& text() const { return text_; }

 private:
  void Head(std::string_view name, std::string_view help, std::string_view type);
  void Line(std::string_view name, std::string_view suffix, const Labels& labels, double value);

  const Labels common_;
  std::string text_;
  std::string last_;  // the name that has its head
};

}  // namespace kvcake
