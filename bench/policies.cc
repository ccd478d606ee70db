#include "bench/policies.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "bench/harness.h"
#include "bench/traffic_report.h"

namespace kvcake::bench {
namespace {

// Seconds and tokens a second of one run.
struct Seen {
  double p50_s = 0, mean_s = 0, p95_s = 0, tokens_per_s = 0, hit_rate = 0;
};

class PoliciesBench {
 public:
  PoliciesBench(const PoliciesOptions& options, const PolicyLab& lab)
      : options_(options), lab_(lab) {}

  Status Run() {
    fmt::print("{} repeats, medians\n", options_.repeats);
    fmt::print("{:<17} {:>8} | {:^26} | {:^26} | {:^26} | {:^20}\n", "", "load /", "TTFT p50, s",
               "TTFT p95, s", "tokens/s", "cake / best");
    fmt::print("{:<17} {:>8} |", "workload", "compute");
    for (int i = 0; i < 3; ++i) fmt::print(" {:>8} {:>8} {:>8} |", "compute", "load", "cake");
    fmt::print(" {:>6} {:>6} {:>6}\n", "p50", "mean", "p95");
    for (const std::string& name : options_.workloads) {
      ASSIGN_OR_RETURN(const Workload workload, lab_.Make(name, options_.load));
      for (const double ratio : options_.ratios) RETURN_IF_ERROR(Measure(workload, ratio));
    }
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  Status Measure(const Workload& workload, double ratio) {
    const double rate = lab_.RateFor(ratio);
    std::array<std::vector<Seen>, kPolicies.size()> seen;
    std::vector<std::string> texts;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (size_t p = 0; p < kPolicies.size(); ++p) {
        ASSIGN_OR_RETURN(const TrafficResult result, lab_.Run(workload, rate, kPolicies[p]));
        RETURN_IF_ERROR(CompareAnswers(result, &texts));
        const TrafficSummary summary = Summarize(result);
        seen[p].push_back({.p50_s = summary.ttft.p50 / 1e3,
                           .mean_s = summary.ttft.mean / 1e3,
                           .p95_s = summary.ttft.p95 / 1e3,
                           .tokens_per_s = summary.tokens_per_s(),
                           .hit_rate = summary.hit_rate.value_or(0)});
      }
    }
    Report(workload.name, ratio, rate, seen);
    return {};
  }

  void Report(const std::string& name, double ratio, double rate,
              const std::array<std::vector<Seen>, kPolicies.size()>& seen) {
    const auto median = [&](size_t policy, double Seen::*of) {
      std::vector<double> values;
      for (const Seen& s : seen[policy]) values.push_back(s.*of);
      return Median(std::move(values));
    };
    fmt::print("{:<17} {:>8} |", name, ratio);
    for (double Seen::*of : {&Seen::p50_s, &Seen::p95_s}) {
      fmt::print(" {:>8.3f} {:>8.3f} {:>8.3f} |", median(0, of), median(1, of), median(2, of));
    }
    fmt::print(" {:>8.0f} {:>8.0f} {:>8.0f} |", median(0, &Seen::tokens_per_s),
               median(1, &Seen::tokens_per_s), median(2, &Seen::tokens_per_s));
    const auto of_best = [&](double Seen::*of) {
      return median(2, of) / std::min(median(0, of), median(1, of));
    };
    fmt::print(" {:>5.2f}x {:>5.2f}x {:>5.2f}x\n", of_best(&Seen::p50_s), of_best(&Seen::mean_s),
               of_best(&Seen::p95_s));
    for (size_t p = 0; p < kPolicies.size(); ++p) {
      json_.push_back({{"workload", name},
                       {"ratio", ratio},
                       {"bytes_per_s", rate},
                       {"policy", PolicyName(kPolicies[p])},
                       {"ttft_s_p50", median(p, &Seen::p50_s)},
                       {"ttft_s_mean", median(p, &Seen::mean_s)},
                       {"ttft_s_p95", median(p, &Seen::p95_s)},
                       {"tokens_per_s", median(p, &Seen::tokens_per_s)},
                       {"hit_rate", median(p, &Seen::hit_rate)}});
      for (const Seen& s : seen[p]) {
        json_.back()["repeats"].push_back({{"ttft_s_p50", s.p50_s}, {"ttft_s_p95", s.p95_s}});
      }
    }
  }

  const PoliciesOptions& options_;
  const PolicyLab& lab_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

}  // namespace

Status RunPolicies(const PoliciesOptions& options) {
  ASSIGN_OR_RETURN(const PolicyLab lab, PolicyLab::Open(options));
  return PoliciesBench(options, lab).Run();
}

}  // namespace kvcake::bench
