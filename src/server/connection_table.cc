#include "server/connection_table.h"

#include <utility>

namespace kvcake {

ConnectionTable::Id ConnectionTable::LongestWaiting(const std::string& client) const {
  for (const Id id : waiting_) {
    if (entries_.at(id).client == client) return id;
  }
  return 0;
}

ConnectionTable::Admission ConnectionTable::Admit(const std::string& client) {
  Admission admission;
  const auto counted = per_client_.find(client);
  const bool client_full = counted != per_client_.end() && counted->second >= limits_.per_client;
  if (client_full || entries_.size() >= limits_.total) {
    admission.evicted = client_full ? LongestWaiting(client) : LongestWaiting();
    if (admission.evicted == 0) {
      admission.refusal = client_full ? Refusal::kClientFull : Refusal::kFull;
      ++(client_full ? counts_.refused_client : counts_.refused_full);
      return admission;
    }
    Remove(admission.evicted);
    ++counts_.evicted;
  }
  admission.id = ++last_;
  ++per_client_[client];
  entries_.emplace(last_, Entry{client, waiting_.insert(waiting_.end(), last_)});
  return admission;
}

void ConnectionTable::SetWaiting(Id id, bool waiting) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (waiting == (entry.waits != waiting_.end())) return;
  if (waiting) {
    entry.waits = waiting_.insert(waiting_.end(), id);
  } else {
    waiting_.erase(std::exchange(entry.waits, waiting_.end()));
  }
}

void ConnectionTable::Remove(Id id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  SetWaiting(id, false);
  const auto counted = per_client_.find(found->second.client);
  if (--counted->second == 0) per_client_.erase(counted);
  entries_.erase(found);
}

ConnectionTable::Stats ConnectionTable::stats() const {
  Stats stats = counts_;
  stats.open = entries_.size();
  stats.waiting = waiting_.size();
  return stats;
}

}  // namespace kvcake
