// What a leader and a worker that it calls say to each other (comm/tcp_join.h), line by line.
//
// Lines of text, whose meaning never changes. In them a nonce, a proof and a digest are 64
// hexadecimal digits:
//
//   leader: kvcake-chain 2 NONCE
//   worker: kvcake-worker 2 NONCE     or: refused WHY
//   leader: call PROOF CHAIN FACTS RANK ADDRESS...
//   worker: ready PROOF FACTS         or: refused WHY, or: taken WHY, which will pass
//   leader: go PROOF                  when all are ready
//
// CHAIN is the leader's nonce for this chain, the same for all its workers; FACTS the digest of
// what a side says it runs; ADDRESSes those of every rank but the leader, the last. A proof is over
// all lines before it and the rest of its own. The leader proves first, so that nobody has a proof
// of a worker's who cannot make one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/cluster_key.h"

namespace kvcake {

inline constexpr size_t kGreetingBytesMax = 128;  // of a line of who has proved nothing yet
inline constexpr size_t kCallBytesMax = 16 << 10;
inline constexpr size_t kAnswerBytesMax = 512;
inline constexpr size_t kRanksMax = 256;

// What a chain is: every rank but the leader, in order, and a name that no other one has.
struct Roster {
  Nonce chain = {};
  std::vector<std::string> addresses;
  // Binds both; each connection of the chain proves that it is meant.
  Digest digest() const;
};

struct Call {
  Roster roster;
  Digest facts = {};
  int rank = 0;
};

// One side's view of the conversation: the lines so far, each with its end. Nothing is returned
// where a line is not what it is to be; `proved` tells the rest.
class LeaderTalk {
 public:
  explicit LeaderTalk(const ClusterKey& key) : key_(key) {}
  std::string Greeting();
  bool HearGreeting(std::string_view line);
  std::string CallOf(const Call& call);
  enum class Answer { kReady, kRefused, kTaken, kUnproved, kStranger };
  Answer HearAnswer(std::string_view line);
  // Why kRefused or kTaken, or instead of a greeting; printable.
  const std::string& why() const { return why_; }
  std::string Go() const;

 private:
  const ClusterKey& key_;
  std::string said_;
  std::string why_;
};

class WorkerTalk {
 public:
  explicit WorkerTalk(const ClusterKey& key) : key_(key) {}
  bool HearGreeting(std::string_view line);
  std::string Greeting();
  // `proved` is whether the call is of somebody with the key.
  std::optional<Call> HearCall(std::string_view line, bool* proved);
  std::string Ready(const Digest& facts);
  static std::string Refused(const std::string& why);
  static std::string Taken(const std::string& why);
  bool HearGo(std::string_view line) const;

 private:
  const ClusterKey& key_;
  std::string said_;
};

}  // namespace kvcake
