// Who is connected to a listener, and who goes when somebody else wants the place.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <unordered_map>

namespace kvcake {

// Counts connections; owns none. One thread.
class ConnectionTable {
 public:
  using Id = uint64_t;  // 0: nobody
  struct Limits {
    size_t total = 1;
    size_t per_client = 1;
  };
  enum class Refusal { kNone, kFull, kClientFull };
  struct Admission {
    Id id = 0;  // of the new connection; 0: refused
    Refusal refusal = Refusal::kNone;
    Id evicted = 0;  // has lost its place to the new one, and is to be closed
  };
  struct Stats {
    uint64_t open = 0;     // now
    uint64_t waiting = 0;  // of them, those without a request
    uint64_t evicted = 0;
    uint64_t refused_full = 0;
    uint64_t refused_client = 0;
  };

  explicit ConnectionTable(Limits limits) : limits_(limits) {}

  // A connection that has sent no whole header for the longest time gives its place away: one of
  // the same client where it is the client that has too many, else anybody's. The new connection
  // waits.
  Admission Admit(const std::string& client);
  // From now on it waits for a request, or has one.
  void SetWaiting(Id id, bool waiting);
  void Remove(Id id);  // nothing happens if it is not there any more
  Stats stats() const;

 private:
  struct Entry {
    std::string client;
    std::list<Id>::iterator waits;  // in waiting_, or its end
  };
  Id LongestWaiting() const { return waiting_.empty() ? 0 : waiting_.front(); }
  Id LongestWaiting(const std::string& client) const;

  const Limits limits_;
  Id last_ = 0;
  std::unordered_map<Id, Entry> entries_;
  std::unordered_map<std::string, size_t> per_client_;
  std::list<Id> waiting_;  // since the longest time first
  Stats counts_;           // but open and waiting
};

}  // namespace kvcake
