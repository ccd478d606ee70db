// A job as the leader sends it to a worker, and what the worker checks before it believes one: the
// leader may be anybody who has the cluster's key, of a build with a mistake, too.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "runahead/job.h"

namespace kvcake {

// Stand for what is not a job in the place of JobHeader::parts.
inline constexpr int32_t kLetsGo = 0;      // there will be none any more
inline constexpr int32_t kAsksLinks = -1;  // every rank calls SurveyRanks
// What follows are `tokens` keys of a prompt's chunks; the answer is of how many, from the first
// on, the rank has the KV cache or can load it.
inline constexpr int32_t kAsksKept = -2;

// Before each job. Ranks are of one build (comm/handshake.h).
struct JobHeader {
  int32_t tokens = 0;
  int32_t origin = 0;
  int32_t parts = 0;
  int32_t method = 0;
  int32_t exchange = 1;
  int32_t dense = 0;
  int32_t salt_bytes = 0;
};
static_assert(sizeof(JobHeader) == 28);

// What a rank can be asked for.
struct WorkerLimits {
  int ranks = 2;  // of the Comm
  int rank = 0;
  int chunk_tokens = 1;
  int vocab_size = 1;
  int positions_max = 1;
  int batch_tokens_max = 1;  // of its part
};

// A worker's answer to a job, once it can begin.
struct JobAnswer {
  int32_t refused = 0;
  std::array<char, 508> why = {};  // zeros behind the text

  static JobAnswer Refusal(const std::string& why);
  // One line of printable ASCII, whatever the other rank has put there.
  std::string Why() const;
};
static_assert(sizeof(JobAnswer) == 512);

// ---- the leader
JobHeader HeaderOf(const RankJob& job);
// The salt, the bounds, the tokens.
std::vector<std::byte> EncodeBody(const RankJob& job);

// ---- a worker: kInvalidArgument names what is wrong
Status CheckHeader(const JobHeader& header, const WorkerLimits& limits);
// What follows a header that is sound.
size_t BodyBytes(const JobHeader& header);
// `header` is sound, and `body` of its size. The job has a part for this rank, which can compute
// it.
Result<RankJob> DecodeJob(const JobHeader& header, std::span<const std::byte> body,
                          const WorkerLimits& limits);

}  // namespace kvcake
