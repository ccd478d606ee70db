#include "server/tenant_metrics.h"

#include <utility>

namespace kvcake {
namespace {

constexpr char kNoName[] = "-";  // an empty label would be none
constexpr char kOthers[] = "other";

}  // namespace

std::string TenantMetrics::LabelOf(const std::string& tenant) const {
  std::string label = tenant.empty() ? kNoName : tenant;
  if (!counts_.contains(label) && counts_.size() >= labels_max_) label = kOthers;
  counts_.try_emplace(label);
  return label;
}

TenantMetrics::Counts& TenantMetrics::Of(const std::string& tenant) {
  return counts_[LabelOf(tenant)];
}

void TenantMetrics::Answered(const std::string& tenant, const Answers& answers) {
  MutexLock lock(mutex_);
  Answers& had = Of(tenant).had;
  had.answers += answers.answers;
  had.prompt_tokens += answers.prompt_tokens;
  had.cached_tokens += answers.cached_tokens;
  had.answer_tokens += answers.answer_tokens;
}

void TenantMetrics::Refused(const std::string& tenant) {
  MutexLock lock(mutex_);
  ++Of(tenant).refused;
}

void TenantMetrics::SetNames(const std::set<std::string>& tenants) {
  std::unordered_map<OwnerId, std::string> names;
  for (const std::string& tenant : tenants) names.emplace(OwnerOf(tenant), tenant);
  MutexLock lock(mutex_);
  names_ = std::move(names);
  if (tenants.size() > labels_max_) return;  // those have one that come first
  for (const std::string& tenant : tenants) LabelOf(tenant);
}

void TenantMetrics::AddTo(const std::map<std::string, size_t>& open, PrometheusText* text) const {
  MutexLock lock(mutex_);
  std::map<std::string, size_t> open_by_label;
  for (const auto& [tenant, n] : open) open_by_label[LabelOf(tenant)] += n;
  for (const auto& [label, counts] : counts_) {
    text->AddGauge("kvcake_tenant_requests_open", "Requests of a tenant that run or wait.",
                   static_cast<double>(open_by_label[label]), {{"tenant", label}});
  }
  const auto counter = [&](const char* name, const char* help, auto value) {
    mutex_.AssertHeld();
    for (const auto& [label, counts] : counts_) {
      text->AddCounter(name, help, static_cast<double>(value(counts)), {{"tenant", label}});
    }
  };
  counter("kvcake_tenant_answers_total", "Answers that a tenant's requests have had.",
          [](const Counts& c) { return c.had.answers; });
  counter("kvcake_tenant_refused_total",
          "Requests refused as a queue, or the tenant's share, was full.",
          [](const Counts& c) { return c.refused; });
  counter("kvcake_tenant_prompt_tokens_total",
          "Prompt tokens of a tenant's answered requests, once for all answers to one.",
          [](const Counts& c) { return c.had.prompt_tokens; });
  counter("kvcake_tenant_cached_tokens_total", "Of these, tokens that were loaded or in memory.",
          [](const Counts& c) { return c.had.cached_tokens; });
  counter("kvcake_tenant_generation_tokens_total", "Tokens generated for a tenant.",
          [](const Counts& c) { return c.had.answer_tokens; });
}

void TenantMetrics::AddStored(std::span<const TierOwners> tiers, PrometheusText* text) const {
  MutexLock lock(mutex_);
  for (const TierOwners& tier : tiers) {
    std::map<std::string, uint64_t> bytes;  // by label
    for (const OwnedBytes& owned : tier.owners) {
      const auto name = names_.find(owned.owner);
      bytes[name == names_.end() ? kOthers : LabelOf(name->second)] += owned.bytes;
    }
    for (const auto& [label, n] : bytes) {
      text->AddGauge("kvcake_tenant_store_bytes", "Bytes that a tenant's chunks take in a tier.",
                     static_cast<double>(n), {{"tenant", label}, {"tier", tier.tier}});
    }
  }
}

}  // namespace kvcake
