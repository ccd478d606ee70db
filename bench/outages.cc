#include <fmt/core.h>

#include <array>
#include <nlohmann/json.hpp>

#include "bench/harness.h"
#include "bench/policies.h"
#include "bench/traffic_report.h"

namespace kvcake::bench {
namespace {

struct Outage {
  std::string name;
  std::vector<std::string> flags;
};

class OutagesBench {
 public:
  OutagesBench(const OutagesOptions& options, const PolicyLab& lab)
      : options_(options), lab_(lab), rate_(lab.RateFor(options.ratio)) {}

  Status Run() {
    ASSIGN_OR_RETURN(const Workload workload, lab_.Make(options_.workload, options_.load));
    ASSIGN_OR_RETURN(const std::vector<Outage> outages, Outages(workload));
    fmt::print("{} on {} documents of {} tokens, load / compute {}; {} runs of {} requests each\n",
               options_.workload, options_.documents, options_.document_tokens, options_.ratio,
               options_.repeats, workload.requests.size());
    fmt::print("{:<24} {:>8} | {:>8} {:>8} {:>8} | {:>12} {:>12}\n", "link", "policy", "p50 s",
               "p95 s", "p99 s", "p99 / without", "most s");
    std::vector<std::string> texts;
    // Collects all runs, by outage and policy.
    std::vector<std::array<std::vector<double>, kPolicies.size()>> ttfts(outages.size());
    for (int repeat = 0; repeat < options_.repeats; ++repeat) {
      for (size_t o = 0; o < outages.size(); ++o) {
        for (size_t p = 0; p < kPolicies.size(); ++p) {
          ASSIGN_OR_RETURN(const TrafficResult result,
                           lab_.Run(workload, rate_, kPolicies[p], outages[o].flags));
          RETURN_IF_ERROR(CompareAnswers(result, &texts));
          for (const TrafficAnswer& a : result.answers) ttfts[o][p].push_back(a.ttft_s());
        }
      }
    }
    for (size_t o = 0; o < outages.size(); ++o) {
      for (size_t p = 0; p < kPolicies.size(); ++p) {
        Report(outages[o].name, kPolicies[p], ttfts[o][p], ttfts[0][p]);
      }
    }
    return options_.json.empty() ? Status() : WriteJson(options_.json, json_);
  }

 private:
  // The first is none.
  Result<std::vector<Outage>> Outages(const Workload& workload) const {
    // After the first read, which comes when a document is asked about that has left the memory.
    const double reads_s = workload.requests.back().at_s / 4;
    const std::string trace = lab_.dir() + "/dies";
    // A byte a second: reads hang, as on a network file system whose server is gone.
    RETURN_IF_ERROR(WriteFile(trace, fmt::format("{:.3f} 1 0\n", reads_s)));
    return std::vector<Outage>{
        {"as it should be", {}},
        {fmt::format("{:g}% of reads {:g} s late", 100 * options_.stall_share, options_.stall_s),
         {"--load-stall-share", fmt::format("{}", options_.stall_share), "--load-stall",
          fmt::format("{}s", options_.stall_s)}},
        {fmt::format("silent {:.0f} s after a read", reads_s), {"--load-trace", trace}}};
  }

  void Report(const std::string& name, Policy policy, const std::vector<double>& ttfts,
              const std::vector<double>& without) {
    const double p50 = Quantile(ttfts, 0.5), p95 = Quantile(ttfts, 0.95);
    const double p99 = Quantile(ttfts, 0.99), most = Quantile(ttfts, 1);
    const double times = p99 / Quantile(without, 0.99);
    fmt::print("{:<24} {:>8} | {:>8.3f} {:>8.3f} {:>8.3f} | {:>11.2f}x {:>12.3f}\n", name,
               PolicyName(policy), p50, p95, p99, times, most);
    json_.push_back({{"link", name},
                     {"policy", PolicyName(policy)},
                     {"bytes_per_s", rate_},
                     {"requests", ttfts.size()},
                     {"ttft_s_p50", p50},
                     {"ttft_s_p95", p95},
                     {"ttft_s_p99", p99},
                     {"p99_to_without", times}});
  }

  const OutagesOptions& options_;
  const PolicyLab& lab_;
  const double rate_;
  nlohmann::ordered_json json_ = nlohmann::ordered_json::array();
};

}  // namespace

Status RunOutages(const OutagesOptions& options) {
  ASSIGN_OR_RETURN(const PolicyLab lab, PolicyLab::Open(options));
  return OutagesBench(options, lab).Run();
}

}  // namespace kvcake::bench
