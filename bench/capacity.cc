#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>

#include "bench/harness.h"
#include "bench/load_ladder.h"
#include "bench/policies.h"
#include "bench/traffic_report.h"

namespace kvcake::bench {
namespace {

// Where the ladder begins, in PolicyLab::Make's units, and how often what lies between two rungs is
// halved.
constexpr double kFirstLoad = 0.35;
constexpr int kHalvings = 2;

class CapacityBench {
 public:
  CapacityBench(const CapacityOptions& options, const PolicyLab& lab)
      : options_(options),
        lab_(lab),
        limit_s_(options.ttft_max_s > 0 ? options.ttft_max_s : 2 * lab.compute_s()) {}

  Status Run() {
    fmt::print("{}: most requests/s with 95% of first tokens within {:.2f} s\n", options_.workload,
               limit_s_);
    fmt::print("{:>8} |", "load /");
    for (const Policy policy : kPolicies) fmt::print(" {:>17} |", PolicyName(policy));
    fmt::print(" {:>11}\n{:>8} |", "cake / best", "compute");
    for (size_t p = 0; p < kPolicies.size(); ++p)
      fmt::print(" {:>9} {:>7} |", "request/s", "p95 s");
    fmt::print("\n");
    for (const double ratio : options_.ratios) RETURN_IF_ERROR(Measure(ratio));
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  struct Rung {
    double load = 0, requests_per_s = 0, p95_s = 0;
    bool is_top = false;  // nothing more was tried: the limit may allow more
  };

  Result<Rung> Try(double load, double rate, Policy policy) {
    ASSIGN_OR_RETURN(const Workload workload, lab_.Make(options_.workload, load));
    // As they were asked, whatever the server made of it.
    const double span_s = workload.requests.back().at_s;
    if (span_s <= 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  "all {} requests of {} arrive at once, at no rate: ask more often",
                  workload.requests.size(), options_.workload);
    }
    std::vector<double> p95_s;
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      ASSIGN_OR_RETURN(const TrafficResult result, lab_.Run(workload, rate, policy));
      RETURN_IF_ERROR(CompareAnswers(result, &texts_));
      p95_s.push_back(Summarize(result).ttft.p95 / 1e3);
    }
    return Rung{.load = load,
                .requests_per_s = static_cast<double>(workload.requests.size() - 1) / span_s,
                .p95_s = Median(std::move(p95_s))};
  }

  // The highest that keeps the limit; 0 requests/s: none does.
  Result<Rung> ClimbTo(double rate, Policy policy, nlohmann::ordered_json* tried) {
    Rung best;
    const auto keeps = [&](double load) -> Result<bool> {
      ASSIGN_OR_RETURN(const Rung rung, Try(load, rate, policy));
      tried->push_back({{"load", rung.load},
                        {"requests_per_s", rung.requests_per_s},
                        {"ttft_s_p95", rung.p95_s}});
      if (rung.p95_s > limit_s_) return false;
      best = rung;
      return true;
    };
    ASSIGN_OR_RETURN(const LadderEnd end, Climb({.first = kFirstLoad,
                                                 .least = options_.load_min,
                                                 .most = options_.load_max,
                                                 .halvings = kHalvings},
                                                keeps));
    best.is_top = end.is_top;
    return best;
  }

  static const char* AtLeast(const Rung& rung) { return rung.is_top ? ">=" : ""; }

  Status Measure(double ratio) {
    const double rate = lab_.RateFor(ratio);
    std::array<Rung, kPolicies.size()> best;
    for (size_t p = 0; p < kPolicies.size(); ++p) {
      auto tried = nlohmann::ordered_json::array();
      ASSIGN_OR_RETURN(best[p], ClimbTo(rate, kPolicies[p], &tried));
      json_.push_back({{"ratio", ratio},
                       {"bytes_per_s", rate},
                       {"policy", PolicyName(kPolicies[p])},
                       {"ttft_s_max", limit_s_},
                       {"requests_per_s", best[p].requests_per_s},
                       {"at_least", best[p].is_top},
                       {"tried", tried}});
    }
    fmt::print("{:>8} |", ratio);
    for (const Rung& rung : best) {
      fmt::print(" {:>9} {:>7.3f} |", fmt::format("{}{:.3f}", AtLeast(rung), rung.requests_per_s),
                 rung.p95_s);
    }
    const Rung& other = best[0].requests_per_s > best[1].requests_per_s ? best[0] : best[1];
    fmt::print(" {:>11}\n", other.requests_per_s == 0 || other.is_top
                                ? "-"  // of how much nobody knows
                                : fmt::format("{}{:.2f}x", AtLeast(best[2]),
                                              best[2].requests_per_s / other.requests_per_s));
    return {};
  }

  const CapacityOptions& options_;
  const PolicyLab& lab_;
  const double limit_s_;
  std::vector<std::string> texts_;  // of every policy, ratio and rate
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

}  // namespace

Status RunCapacity(const CapacityOptions& options) {
  ASSIGN_OR_RETURN(const PolicyLab lab, PolicyLab::Open(options));
  return CapacityBench(options, lab).Run();
}

}  // namespace kvcake::bench
