// What a server counts. Names are vLLM's where it has one, else begin with kvcake_.
#pragma once

#include <map>
#include <string>

#include "base/mutex.h"
#include "engine/runtime.h"
#include "server/engine_loop.h"
#include "server/http_stats.h"
#include "server/prepare_pool.h"
#include "server/prometheus.h"
#include "server/tenant_metrics.h"

namespace kvcake {

// Describes the processes that prefill long prompts together (runahead/chain.h).
struct ChainStats {
  int ranks = 1;  // this one included; 1: it is alone
  uint64_t lost = 0;
};

// What a scrape reads of the server's parts.
struct ServerState {
  EngineLoopStats loop = {};
  ChainStats chain = {};
  PreparePool::Load preparing = {};
  HttpStats http = {};
  std::string version = {};
};

// What holds pages beside requests, and what was not kept of all that was to be. `ram` may be null.
void AddWrites(const WriteBehindStats& writes, uint64_t late_reads,
               const std::vector<const Tier*>& stores, const Tier* ram, PrometheusText* text);

// What each tier keeps, has done and has asked of its directory.
void AddTierStats(const std::vector<Tier*>& tiers, const std::vector<TierStats>& stats,
                  PrometheusText* text);

// Any thread.
class ServerMetrics {
 public:
  // `pages`: what hits in pages are counted as, by where these are: "ram" or "gpu". `tiers`: by
  // name, what else is hit.
  ServerMetrics(std::string pages, const std::vector<Tier*>& tiers);
  // A request has its first token, and what it says of the prompt is known.
  void Begun(const Completion& completion);
  // A request that the engine took has ended.
  void Finished(const Completion& completion);
  void Stepped(const StepRecord& step);
  void Responded(int status);
  // The text of a scrape.
  std::string Text(const std::string& model_name, Runtime& runtime, const ServerState& state) const;

  TenantMetrics tenants;
  Counter generation_tokens;
  Histogram inter_token_s;
  Histogram overhead_s;

 private:
  // A counter for each of a few labels.
  using Counters = std::map<std::string, uint64_t>;
  void AddChain(const ChainStats& chain, PrometheusText* text) const;
  void AddConnections(const HttpStats& http, PrometheusText* text) const;
  void AddTiers(Runtime& runtime, PrometheusText* text) const;
  void AddGauges(Runtime& runtime, const EngineLoopStats& loop, PrometheusText* text) const;

  const std::string pages_;
  Counter prompt_tokens_, computed_tokens_, cached_tokens_;
  Counter decoded_tokens_, fresh_tokens_, restored_tokens_;  // of steps
  Counter chain_prompts_;
  Counter chunks_computed_, chunks_loaded_, chunks_failed_, chunks_mixed_path_;
  Histogram ttft_s_, queue_s_, restore_s_, suffix_s_, tpot_s_, decode_s_, e2e_s_;
  Histogram efficiency_, prompt_length_, answer_length_, step_tokens_;

  mutable Mutex mutex_;
  Counters finished_ GUARDED_BY(mutex_);    // by reason
  Counters hit_tokens_ GUARDED_BY(mutex_);  // by tier
  Counters responses_ GUARDED_BY(mutex_);   // by HTTP status
};

}  // namespace kvcake
