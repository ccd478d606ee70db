// What a bench of fleets has found: its rows, what they are to be, and how they are shown.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvcake::bench {

// Chunks that were computed oftener than once, as a share of the documents' chunks.
//
// A server counts a prompt's chunk as computed when it neither loaded it nor had it in memory, nor
// took it from another prompt that was computing it. So `computed`, summed over the servers, has
// each chunk as often as it was computed, and at least once: somebody must be the first. What is
// above `distinct`, the chunks that the prompts have when equal beginnings count once, was computed
// again. That includes the chunks which a server computes from the front of a prompt although they
// are stored, as that is sooner than to load them: the share is the most that sharing may have
// missed. The rest of a prompt behind its document is asked for once, and adds nothing to the
// difference; so only `shared` chunks, those of two prompts or more, are what it is a share of.
double ComputedTwice(double computed, double distinct, double shared);

struct FleetRow {
  int servers = 0;
  std::string store = {};    // "redis", "none"
  std::string balance = {};  // "roundrobin", "prefix"; one server: "none"
  double hit_share = 0;      // prompt tokens that were loaded or in memory, as the answers say
  double computed_twice = 0;
  double ttft_p50_s = 0, ttft_p95_s = 0;
  double requests_per_s = 0;
  // Chunks: computed in all, those that are different, and those that a server found stored when it
  // came to write them, as it had not known that another computed them.
  double computed = 0, distinct = 0, written_twice = 0;

  bool shares() const { return servers > 1 && store != "none"; }
};

// A server that comes to a fleet that has stored all documents, and one question about each.
struct JoinRow {
  int servers = 0;  // before
  double requests = 0, prompt_tokens = 0;
  double cached_share = 0;    // of the new server's prompt tokens
  double possible_share = 0;  // what whole chunks of documents are of all prompts
  double chunks_loaded = 0;   // by the new server, whose memory was empty

  Status Check() const;
};

// A server that is killed while requests run.
struct KillRow {
  int servers = 0;  // before
  int requests = 0;
  int running = 0;         // requests that the server had when it was killed
  int lost = 0;            // requests whose answers broke off or failed
  int lost_elsewhere = 0;  // of these, those that did not run there
  int answered = 0;        // of these, those that were answered when they were asked again
  double cached_share = 0, possible_share = 0;  // of the prompts that were asked again
  double chunks_loaded = 0;                     // by the others, since then

  Status Check() const;
};

// The least that sharing may be of one server's hits, and the most that may be computed twice.
constexpr double kHitShareGoal = 0.95, kComputedTwiceGoal = 0.05;
// The least that a server is to find of what is stored, where it has nothing in memory. A new one
// computes a few chunks of its first prompt, as it does not know yet how fast the store is.
constexpr double kFoundGoal = 0.9;

std::string FleetHeader();
std::string FleetLine(const FleetRow& row);
std::string JoinLine(const JoinRow& row);
std::string KillLine(const KillRow& row);
// A line for each fleet that shares, beside the goals. `rows` has one server's row.
std::string FleetGoals(const std::vector<FleetRow>& rows);

nlohmann::ordered_json ToJson(const FleetRow& row);
nlohmann::ordered_json ToJson(const JoinRow& row);
nlohmann::ordered_json ToJson(const KillRow& row);

}  // namespace kvcake::bench
