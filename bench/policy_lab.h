// Workloads on `kvcake serve`s of the bench's own, each with an empty store behind a link: what the
// benches of policies under traffic share.
#pragma once

#include <string>
#include <vector>

#include "bench/scratch_dir.h"
#include "bench/serve_child.h"
#include "bench/traffic.h"
#include "cake/restorer.h"

namespace kvcake::bench {

struct PolicyLabOptions {
  std::string model_dir = "models/demo";
  std::string emulate = {};  // a profile: waits as that machine would; empty: the real engine
  int document_tokens = 4096;
  int documents = 8;     // and users who chat
  int repeat_count = 4;  // questions on each document, rounds of each chat
  std::string trace = "bench/traces/mooncake_synthetic_200.jsonl";
  double length_scale = 0.1;  // of the trace's prompts
  int trace_requests = 40;
  std::string ram = "40MiB";  // of pages: what was used a while ago is in the store alone
  int threads = 0;
  uint64_t seed = 0;
  std::string program = {};  // empty: this one
};

class PolicyLab {
 public:
  // Measures what computing a document takes, and prints it. Borrows the options.
  static Result<PolicyLab> Open(const PolicyLabOptions& options);

  double compute_s() const { return compute_s_; }  // of a document
  // The rate of a link on which loading takes so many times as long as computing.
  double RateFor(double ratio) const;

  // Requests arrive so fast that computing everything would keep the server busy for the share
  // `load` of the time.
  Result<Workload> Make(const std::string& name, double load) const;

  // On a new server with an empty store behind a link of this rate; `flags` are more for it. An
  // error when a request fails.
  Result<TrafficResult> Run(const Workload& workload, double bytes_per_s, Policy policy,
                            const std::vector<std::string>& flags = {}) const;

  const std::string& dir() const { return dir_.path(); }

 private:
  explicit PolicyLab(const PolicyLabOptions& options) : options_(options) {}
  Status Calibrate();
  Result<std::unique_ptr<ServeChild>> Start(const std::vector<std::string>& more) const;
  static TrafficOptions Ask(const ServeChild& server, Policy policy);

  const PolicyLabOptions& options_;
  ScratchDir dir_;
  double compute_s_ = 0, bytes_per_token_ = 0, characters_per_token_ = 0;
};

// kCorrupt when an answer is not the one that was given before; `texts` keeps the first of each.
Status CompareAnswers(const TrafficResult& result, std::vector<std::string>* texts);

}  // namespace kvcake::bench
