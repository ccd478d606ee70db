// What each tenant asked for and got, and what it has in stores. The number of tenants that have a
// label of their own is bounded; those who come later share one.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "server/prometheus.h"
#include "store/owner.h"

namespace kvcake {

// What the owners of chunks have in one tier.
struct TierOwners {
  std::string_view tier;
  std::vector<OwnedBytes> owners;
};

// Any thread.
class TenantMetrics {
 public:
  explicit TenantMetrics(size_t labels_max = 128) : labels_max_(labels_max) {}

  // What the answers of one request come to, together.
  struct Answers {
    uint64_t answers = 0;
    uint64_t prompt_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t answer_tokens = 0;
  };
  // By the tenant's name in the key file; "" is everybody without one.
  void Answered(const std::string& tenant, const Answers& answers) EXCLUDES(mutex_);
  // Its share, or all there is, was taken.
  void Refused(const std::string& tenant) EXCLUDES(mutex_);
  // Who there is, by name: the owners of chunks are told by these. All of them have labels now,
  // unless they are more than these.
  void SetNames(const std::set<std::string>& tenants) EXCLUDES(mutex_);
  // `open`: its requests that run or wait now.
  void AddTo(const std::map<std::string, size_t>& open, PrometheusText* text) const
      EXCLUDES(mutex_);
  // What each tenant has in stores; an owner that is no tenant now is among the others.
  void AddStored(std::span<const TierOwners> tiers, PrometheusText* text) const EXCLUDES(mutex_);

 private:
  struct Counts {
    uint64_t refused = 0;
    Answers had = {};
  };
  Counts& Of(const std::string& tenant) REQUIRES(mutex_);
  // A label is kept once it is given, and told of from then on.
  std::string LabelOf(const std::string& tenant) const REQUIRES(mutex_);

  const size_t labels_max_;
  mutable Mutex mutex_;
  mutable std::map<std::string, Counts> counts_ GUARDED_BY(mutex_);  // by label
  std::unordered_map<OwnerId, std::string> names_ GUARDED_BY(mutex_);
};

}  // namespace kvcake
