#include "server/prometheus.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/utf8.h"

namespace kvcake {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)) {
  CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
  snapshot_.counts.resize(bounds_.size() + 1);
}

void Histogram::Observe(double value) {
  const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  MutexLock lock(mutex_);
  ++snapshot_.counts[bucket];
  snapshot_.sum += value;
}

Histogram::Snapshot Histogram::Take() const {
  MutexLock lock(mutex_);
  return snapshot_;
}

void PrometheusText::Head(std::string_view name, std::string_view help, std::string_view type) {
  if (last_ == name) return;
  last_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void PrometheusText::Line(std::string_view name, std::string_view suffix, const Labels& labels,
                          double value) {
  text_ += name;
  text_ += suffix;
  std::string_view separator = "{";
  for (const Labels* group : {&common_, &labels}) {
    for (const auto& [label, of] : *group) {
      text_ += fmt::format("{}{}=\"{}\"", separator, label, Escaped(ReplaceInvalidUtf8(of)));
      separator = ",";
    }
  }
  if (separator == ",") text_ += '}';
  text_ += fmt::format(" {}\n", Number(value));
}

void PrometheusText::AddCounter(std::string_view name, std::string_view help, double value,
                                const Labels& labels) {
  Head(name, help, "counter");
  Line(name, "", labels, value);
}

void PrometheusText::AddGauge(std::string_view name, std::string_view help, double value,
                              const Labels& labels) {
  Head(name, help, "gauge");
  Line(name, "", labels, value);
}

void PrometheusText::AddHistogram(std::string_view name, std::string_view help,
                                  const Histogram& histogram) {
  Head(name, help, "histogram");
  const Histogram::Snapshot snapshot = histogram.Take();
  uint64_t count = 0;
  for (size_t i = 0; i < snapshot.counts.size(); ++i) {
    count += snapshot.counts[i];
    const std::string bound =
        i < histogram.bounds().size() ? Number(histogram.bounds()[i]) : "+Inf";
    Line(name, "_bucket", {{"le", bound}}, static_cast<double>(count));
  }
  Line(name, "_sum", {}, snapshot.sum);
  Line(name, "_count", {}, static_cast<double>(count));
}

}  // namespace kvcake
