#include "server/server_metrics.h"

#include "server/openai_response.h"
#include "server/process_metrics.h"

namespace kvcake {
namespace {

std::vector<double> SecondsBounds() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500};
}

std::vector<double> TokenBounds() {
  std::vector<double> bounds;
  for (double b = 1; b <= 1 << 20; b *= 2) bounds.push_back(b);
  return bounds;
}

std::vector<double> ShareBounds() { return {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1}; }

}  // namespace

void AddWrites(const WriteBehindStats& writes, uint64_t late_reads,
               const std::vector<const Tier*>& stores, const Tier* ram, PrometheusText* text) {
  text->AddGauge("kvcake_pages_held",
                 "Pages beside those of requests: of chunks that wait to be written or are, and of "
                 "reads that nobody waits for any more.",
                 writes.queued, {{"by", "queued_writes"}});
  text->AddGauge("kvcake_pages_held", "", writes.writing, {{"by", "writes"}});
  text->AddGauge("kvcake_pages_held", "", late_reads, {{"by", "late_reads"}});
  text->AddGauge("kvcake_writes_in_flight", "Chunks that are being written or wait to be.",
                 writes.in_flight());
  const auto dropped = [text](const Tier* tier, const WriteCounts& counts) {
    constexpr std::string_view kName = "kvcake_writes_dropped_total";
    text->AddCounter(
        kName,
        "Writes of chunks given up: too many waited, or requests needed their pages. A "
        "chunk that was claimed has another chance at its prompt's end.",
        counts.dropped_full, {{"tier", tier->name()}, {"reason", "queue_full"}});
    text->AddCounter(kName, "", counts.dropped_wanted,
                     {{"tier", tier->name()}, {"reason", "page_wanted"}});
  };
  if (ram != nullptr) dropped(ram, writes.ram);
  for (size_t i = 0; i < stores.size(); ++i) dropped(stores[i], writes.stores[i]);
}

namespace {

// What stores have asked of their directories, and how long they waited for it.
void AddCalls(const std::vector<Tier*>& tiers, const std::vector<TierStats>& stats,
              PrometheusText* text) {
  struct Row {
    const char* calls_name;
    const char* seconds_name;
    const char* help;
    CallTotals TierStats::*calls;
  };
  static constexpr const char* kSecondsHelp = "Time that they took together.";
  static constexpr Row kRows[] = {
      {"kvcake_tier_opens_total", "kvcake_tier_open_seconds_total", "Files opened to be read.",
       &TierStats::opens},
      {"kvcake_tier_looks_total", "kvcake_tier_look_seconds_total",
       "Files of other processes looked for by name.", &TierStats::looks},
      {"kvcake_tier_scans_total", "kvcake_tier_scan_seconds_total",
       "Times that all files of the directory were listed.", &TierStats::scans},
      {"kvcake_tier_encodes_total", "kvcake_tier_encode_core_seconds_total",
       "Chunks that a codec encoded, and what it took of a core.", &TierStats::encodes},
      {"kvcake_tier_decodes_total", "kvcake_tier_decode_core_seconds_total",
       "Chunks that a codec decoded, and what it took of a core.", &TierStats::decodes},
  };
  for (const Row& row : kRows) {
    for (size_t i = 0; i < stats.size(); ++i) {
      text->AddCounter(row.calls_name, row.help, static_cast<double>((stats[i].*row.calls).calls),
                       {{"tier", tiers[i]->name()}});
    }
    for (size_t i = 0; i < stats.size(); ++i) {
      text->AddCounter(row.seconds_name, kSecondsHelp, (stats[i].*row.calls).seconds,
                       {{"tier", tiers[i]->name()}});
    }
  }
}

}  // namespace

void AddTierStats(const std::vector<Tier*>& tiers, const std::vector<TierStats>& stats,
                  PrometheusText* text) {
  struct Row {
    const char* name;
    const char* help;
    uint64_t TierStats::*value;
    bool counter;
  };
  static constexpr Row kRows[] = {
      {"kvcake_tier_chunks", "Chunks kept.", &TierStats::chunks, false},
      {"kvcake_tier_bytes", "Bytes kept.", &TierStats::bytes, false},
      {"kvcake_tier_reads_total", "Chunks read and verified.", &TierStats::reads, true},
      {"kvcake_tier_read_bytes_total", "Bytes of them.", &TierStats::read_bytes, true},
      {"kvcake_tier_reads_failed_total", "Errors and corrupt chunks.", &TierStats::reads_failed,
       true},
      {"kvcake_tier_quarantined_total", "Corrupt chunks put aside.", &TierStats::quarantined, true},
      {"kvcake_tier_writes_total", "Chunks written.", &TierStats::writes, true},
      {"kvcake_tier_write_bytes_total", "Bytes of them.", &TierStats::write_bytes, true},
      {"kvcake_tier_writes_failed_total", "Writes that failed.", &TierStats::writes_failed, true},
      {"kvcake_tier_computed_twice_total",
       "Chunks to be written that another process had just written: both have computed them.",
       &TierStats::writes_found, true},
      {"kvcake_tier_evicted_total", "Chunks removed to make room.", &TierStats::evicted, true},
      {"kvcake_tier_evictions_failed_total",
       "Times that a chunk was to make room and could not be removed.",
       &TierStats::evictions_failed, true},
      {"kvcake_tier_reads_overdue",
       "Reads that the device has not answered for longer than is sane.", &TierStats::reads_overdue,
       false},
  };
  for (const Row& row : kRows) {
    for (size_t i = 0; i < stats.size(); ++i) {
      const PrometheusText::Labels labels = {{"tier", tiers[i]->name()}};
      const double value = static_cast<double>(stats[i].*row.value);
      if (row.counter) {
        text->AddCounter(row.name, row.help, value, labels);
      } else {
        text->AddGauge(row.name, row.help, value, labels);
      }
    }
  }
  for (size_t i = 0; i < stats.size(); ++i) {
    if (!stats[i].free_bytes) continue;
    text->AddGauge("kvcake_tier_free_bytes", "Free space of the file system.",
                   static_cast<double>(*stats[i].free_bytes), {{"tier", tiers[i]->name()}});
  }
  AddCalls(tiers, stats, text);
}

namespace {

constexpr FinishReason kReasons[] = {FinishReason::kStop, FinishReason::kLength,
                                     FinishReason::kCancelled, FinishReason::kError};

// As vLLM says it.
std::string ReasonLabel(FinishReason reason) {
  return reason == FinishReason::kCancelled ? "abort" : FinishReasonName(reason);
}

}  // namespace

ServerMetrics::ServerMetrics(std::string pages, const std::vector<Tier*>& tiers)
    : inter_token_s(SecondsBounds()),
      overhead_s(SecondsBounds()),
      pages_(std::move(pages)),
      ttft_s_(SecondsBounds()),
      queue_s_(SecondsBounds()),
      restore_s_(SecondsBounds()),
      suffix_s_(SecondsBounds()),
      tpot_s_(SecondsBounds()),
      decode_s_(SecondsBounds()),
      e2e_s_(SecondsBounds()),
      efficiency_(ShareBounds()),
      prompt_length_(TokenBounds()),
      answer_length_(TokenBounds()),
      step_tokens_(TokenBounds()) {
  // A counter whose first value is not 0 hides its first events from rate().
  for (const FinishReason reason : kReasons) finished_[ReasonLabel(reason)] = 0;
  hit_tokens_[pages_] = 0;
  for (const Tier* tier : tiers) hit_tokens_[std::string(tier->name())] = 0;
}

void ServerMetrics::Responded(int status) {
  MutexLock lock(mutex_);
  ++responses_[std::to_string(status)];
}

void ServerMetrics::Begun(const Completion& completion) {
  const RestoreReport& report = completion.report;
  const int cached = report.tokens_reused + report.loaded();
  prompt_tokens_.Add(report.prompt_tokens);
  computed_tokens_.Add(report.tokens_computed);
  cached_tokens_.Add(cached);
  {
    MutexLock lock(mutex_);
    for (const auto& [tier, tokens] : report.tokens_loaded) hit_tokens_[tier] += tokens;
    if (report.tokens_reused > 0) hit_tokens_[pages_] += report.tokens_reused;
  }
  if (const int chunk = report.chunk_tokens; chunk > 0) {  // the prompt has been restored
    chunks_loaded_.Add(report.loaded() / chunk);
    chunks_computed_.Add(report.prompt_tokens / chunk - cached / chunk);
  }
  if (completion.chain) chain_prompts_.Add();
  chunks_failed_.Add(report.chunks_failed);
  chunks_mixed_path_.Add(report.chunks_mixed_path);
  ttft_s_.Observe(completion.ttft_s);
  queue_s_.Observe(completion.queue_s);
  restore_s_.Observe(completion.restore_s);
  suffix_s_.Observe(completion.ttft_s - completion.queue_s - completion.restore_s);
  if (report.efficiency > 0) efficiency_.Observe(report.efficiency);
  prompt_length_.Observe(report.prompt_tokens);
}

void ServerMetrics::Finished(const Completion& completion) {
  {
    MutexLock lock(mutex_);
    ++finished_[ReasonLabel(completion.finish_reason)];
  }
  if (!HasAnswer(completion)) return;
  decode_s_.Observe(completion.decode_s);
  e2e_s_.Observe(completion.ttft_s + completion.decode_s);
  if (completion.tokens.size() > 1) {
    tpot_s_.Observe(completion.decode_s / static_cast<double>(completion.tokens.size() - 1));
  }
  answer_length_.Observe(static_cast<double>(completion.tokens.size()));
}

void ServerMetrics::Stepped(const StepRecord& step) {
  decoded_tokens_.Add(step.decoded);
  fresh_tokens_.Add(step.fresh);
  restored_tokens_.Add(step.restored);
  step_tokens_.Observe(step.decoded + step.fresh + step.restored);
}

std::string ServerMetrics::Text(const std::string& model_name, Runtime& runtime,
                                const ServerState& state) const {
  PrometheusText text({{"model_name", model_name}});
  text.AddGauge("kvcake_build_info", "The version that runs.", 1, {{"version", state.version}});
  AddGauges(runtime, state.loop, &text);
  const auto preparing = [&](const char* size, size_t n) {
    text.AddGauge(
        "kvcake_requests_preparing",
        "Requests that are parsed and tokenized or wait for it, by the size of their body.",
        static_cast<double>(n), {{"size", size}});
  };
  preparing("small", state.preparing.small);
  preparing("large", state.preparing.large);
  text.AddCounter("vllm:prompt_tokens_total", "Prompt tokens of requests that have got a token.",
                  prompt_tokens_.value());
  text.AddCounter("vllm:generation_tokens_total", "Tokens generated.", generation_tokens.value());
  text.AddCounter("vllm:prefix_cache_queries_total", "Prompt tokens looked up.",
                  prompt_tokens_.value());
  text.AddCounter("vllm:prefix_cache_hits_total", "Prompt tokens that were loaded or in memory.",
                  cached_tokens_.value());
  text.AddCounter("kvcake_computed_tokens_total", "Prompt tokens computed.",
                  computed_tokens_.value());
  text.AddCounter("kvcake_chunks_computed_total", "Full chunks of prompts that were computed.",
                  chunks_computed_.value());
  text.AddCounter("kvcake_chunks_loaded_total", "Full chunks of prompts that were loaded.",
                  chunks_loaded_.value());
  text.AddCounter("kvcake_chunks_failed_total", "Loads that ended without a chunk.",
                  chunks_failed_.value());
  text.AddCounter("kvcake_chunks_mixed_path_total",
                  "Chunks loaded that another numeric path has computed.",
                  chunks_mixed_path_.value());
  {
    MutexLock lock(mutex_);
    for (const auto& [reason, n] : finished_) {
      text.AddCounter("vllm:request_success_total", "Requests ended, by the reason.", n,
                      {{"finished_reason", reason}});
    }
    for (const auto& [tier, n] : hit_tokens_) {
      text.AddCounter("kvcake_hit_tokens_total", "Prompt tokens not computed, by where they were.",
                      n, {{"tier", tier}});
    }
    for (const auto& [status, n] : responses_) {
      text.AddCounter("kvcake_http_responses_total", "HTTP responses, by status.", n,
                      {{"status", status}});
    }
  }
  const auto seconds = [&](const char* name, const char* help, const Histogram& histogram) {
    text.AddHistogram(name, help, histogram);
  };
  seconds("vllm:time_to_first_token_seconds", "From submission to the first token.", ttft_s_);
  seconds("vllm:request_queue_time_seconds", "From submission to admission.", queue_s_);
  seconds("kvcake_restore_seconds", "From admission until the prompt's full chunks are resident.",
          restore_s_);
  seconds("kvcake_suffix_seconds", "From then to the first token.", suffix_s_);
  seconds("vllm:inter_token_latency_seconds", "Between two tokens of an answer.", inter_token_s);
  seconds("vllm:request_time_per_output_token_seconds", "The mean of that for each request.",
          tpot_s_);
  seconds("vllm:request_decode_time_seconds", "From the first token to the last.", decode_s_);
  seconds("vllm:e2e_request_latency_seconds", "From submission to the last token.", e2e_s_);
  seconds("kvcake_overhead_seconds", "From a request to its last byte, without the engine's steps.",
          overhead_s);
  text.AddHistogram("kvcake_restore_efficiency",
                    "The bound of the best split over the time to the first token.", efficiency_);
  text.AddHistogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", prompt_length_);
  text.AddHistogram("vllm:request_generation_tokens", "Tokens generated for a request.",
                    answer_length_);
  text.AddHistogram("vllm:iteration_tokens_total", "Tokens of a step.", step_tokens_);
  const auto step_tokens = [&](const char* kind, const Counter& counter) {
    text.AddCounter("kvcake_step_tokens_total",
                    "Tokens that steps have computed: of answers, of prompts where nothing is "
                    "stored, of prompts that could have been loaded.",
                    counter.value(), {{"kind", kind}});
  };
  step_tokens("decode", decoded_tokens_);
  step_tokens("fresh", fresh_tokens_);
  step_tokens("restore", restored_tokens_);
  tenants.AddTo(state.loop.open, &text);
  AddChain(state.chain, &text);
  AddTiers(runtime, &text);
  AddConnections(state.http, &text);
  text.AddCounter("kvcake_tls_handshakes_failed_total",
                  "Connections that ended before TLS was agreed on.", state.http.handshakes_failed);
  PrometheusText process;  // has no labels, as with Prometheus' own clients
  AddProcess(&process);
  return text.text() + process.text();
}

void ServerMetrics::AddGauges(Runtime& runtime, const EngineLoopStats& loop,
                              PrometheusText* text) const {
  const PagePoolStats pages = runtime.pool().Stats();
  text->AddGauge("vllm:num_requests_running", "Requests being answered.", loop.running);
  text->AddGauge("vllm:num_requests_waiting", "Requests that wait for their turn.", loop.waiting);
  text->AddCounter("vllm:num_preemptions_total", "Times that a request gave its pages to others.",
                   loop.preemptions);
  text->AddGauge("vllm:kv_cache_usage_perc", "Share of pages in use, from 0 to 1.",
                 static_cast<double>(pages.referenced) / static_cast<double>(pages.pages));
  text->AddGauge("kvcake_pages", "Pages, by state.", pages.referenced, {{"state", "referenced"}});
  text->AddGauge("kvcake_pages", "", pages.cached, {{"state", "cached"}});
  text->AddGauge("kvcake_pages", "", pages.pages - pages.referenced - pages.cached,
                 {{"state", "free"}});
  text->AddCounter("kvcake_pages_evicted_total", "Cached pages that were needed for others.",
                   pages.evicted);
  const RestorerStats restorer = runtime.restorer().Stats();
  text->AddGauge("kvcake_reads_in_flight", "Reads of chunks that have not come back.",
                 restorer.reads_in_flight);
  text->AddCounter("kvcake_planning_seconds_total",
                   "Time spent on deciding what is loaded and what computed.",
                   restorer.planning.count());
  text->AddCounter("kvcake_planning_wait_seconds_total",
                   "Time that threads have waited for each other to decide it.",
                   restorer.mutex_wait.count());
  const std::vector<Tier*> tiers = runtime.tiers();
  std::vector<const Tier*> stores;
  for (const auto& store : runtime.stores()) stores.push_back(store.get());
  AddWrites(runtime.engine().write_stats(), restorer.late_reads, stores,
            tiers.size() > runtime.stores().size() ? tiers[0] : nullptr, text);
  text->AddCounter("kvcake_steps_total", "Steps of the engine.", loop.steps);
  text->AddCounter("kvcake_step_seconds_total", "Time spent in them.", loop.step_s);
  text->AddCounter("kvcake_delivery_seconds_total", "Time spent on handing tokens out.",
                   loop.delivery_s);
}

void ServerMetrics::AddChain(const ChainStats& chain, PrometheusText* text) const {
  text->AddGauge("kvcake_chain_ranks",
                 "Connected processes that prefill long prompts, this one included.", chain.ranks);
  text->AddCounter("kvcake_chain_prompts_total", "Prompts that several of them have prefilled.",
                   chain_prompts_.value());
  text->AddCounter("kvcake_chain_lost_total", "Times that the chain of them was lost.", chain.lost);
}

void ServerMetrics::AddConnections(const HttpStats& http, PrometheusText* text) const {
  struct Row {
    const char* name;
    const char* help;
    uint64_t (*value)(const ConnectionTable::Stats& stats);
    bool counter;
    const char* reason = nullptr;
  };
  using Stats = ConnectionTable::Stats;
  static constexpr const char* kRefused = "kvcake_http_connections_refused_total";
  static constexpr Row kRows[] = {
      {"kvcake_http_connections", "Open connections.", [](const Stats& s) { return s.open; },
       false},
      {"kvcake_http_connections_waiting", "Of them, those without a request.",
       [](const Stats& s) { return s.waiting; }, false},
      {"kvcake_http_connections_evicted_total",
       "Connections without a request that were closed because another one needed the place.",
       [](const Stats& s) { return s.evicted; }, true},
      {kRefused, "Connections refused, as all others had requests.",
       [](const Stats& s) { return s.refused_full; }, true, "connections_max"},
      {kRefused, "", [](const Stats& s) { return s.refused_client; }, true, "per_client"},
  };
  for (const Row& row : kRows) {
    for (const auto& [listener, stats] :
         {std::pair("clients", &http.clients), std::pair("admin", &http.admin)}) {
      PrometheusText::Labels labels = {{"listener", listener}};
      if (row.reason != nullptr) labels.emplace_back("reason", row.reason);
      const auto value = static_cast<double>(row.value(*stats));
      if (row.counter) {
        text->AddCounter(row.name, row.help, value, labels);
      } else {
        text->AddGauge(row.name, row.help, value, labels);
      }
    }
  }
}

void ServerMetrics::AddTiers(Runtime& runtime, PrometheusText* text) const {
  const std::vector<Tier*> tiers = runtime.tiers();
  std::vector<TierStats> stats;
  std::vector<TierOwners> owners;
  for (const Tier* tier : tiers) {
    stats.push_back(tier->Stats());
    owners.push_back({tier->name(), tier->Owners()});
  }
  tenants.AddStored(owners, text);
  AddTierStats(tiers, stats, text);
  for (size_t i = 0; i < runtime.stores().size(); ++i) {
    const CodecRow& codec = *runtime.options().stores[i].loaded->row;
    text->AddGauge("kvcake_store_codec_info", "How the store keeps chunks.", 1,
                   {{"tier", runtime.stores()[i]->name()},
                    {"codec", codec.name},
                    {"lossy", codec.lossy ? "true" : "false"}});
  }
}

}  // namespace kvcake
