#include "runahead/job_message.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/printable.h"

namespace kvcake {
namespace {

constexpr int32_t kSaltBytesMax = 1 << 20;
constexpr int32_t kMethodMax = static_cast<int32_t>(RankMethod::kZigzag);

template <typename... Args>
tl::unexpected<Error> RefuseJob(fmt::format_string<Args...> format, Args&&... args) {
  return Fail(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

Status CheckTokens(const RankJob& job, int vocab_size) {
  for (size_t i = 0; i < job.tokens.size(); ++i) {
    if (job.tokens[i] >= 0 && job.tokens[i] < vocab_size) continue;
    return RefuseJob("token {} of the job is {}: the model's vocabulary goes from 0 to {}", i,
                     job.tokens[i], vocab_size - 1);
  }
  return {};
}

Status CheckPart(const RankJob& job, const WorkerLimits& limits) {
  const int place = limits.rank - (limits.ranks - job.places());
  if (place < 0) {
    return RefuseJob("the job is for {} of {} ranks, and rank {} has no part in it", job.places(),
                     limits.ranks, limits.rank);
  }
  int tokens = 0;
  for (const TokenRange& range : RangesOf(job, place)) tokens += range.size();
  if (tokens > limits.batch_tokens_max) {
    return RefuseJob(
        "the job's part of rank {} has {} tokens, and at most {} fit "
        "(--rank-tokens-max)",
        limits.rank, tokens, limits.batch_tokens_max);
  }
  return {};
}

}  // namespace

JobAnswer JobAnswer::Refusal(const std::string& why) {
  JobAnswer answer{.refused = 1};
  std::memcpy(answer.why.data(), why.data(), std::min(why.size(), answer.why.size()));
  return answer;
}

std::string JobAnswer::Why() const {
  return PrintableAscii({why.data(), strnlen(why.data(), why.size())});
}

JobHeader HeaderOf(const RankJob& job) {
  return {.tokens = static_cast<int32_t>(job.tokens.size()),
          .origin = job.origin,
          .parts = job.partition.ranks(),
          .method = static_cast<int32_t>(job.method),
          .exchange = job.exchange ? 1 : 0,
          .dense = job.dense ? 1 : 0,
          .salt_bytes = static_cast<int32_t>(job.salt.size())};
}

size_t BodyBytes(const JobHeader& header) {
  return header.salt_bytes +
         sizeof(int32_t) * (static_cast<size_t>(header.parts) + 1 + header.tokens);
}

std::vector<std::byte> EncodeBody(const RankJob& job) {
  std::vector<std::byte> body;
  const auto append = [&](std::span<const std::byte> bytes) {
    body.insert(body.end(), bytes.begin(), bytes.end());
  };
  append(std::as_bytes(std::span(job.salt)));
  append(std::as_bytes(std::span(job.partition.bounds)));
  append(std::as_bytes(std::span(job.tokens)));
  return body;
}

Status CheckHeader(const JobHeader& header, const WorkerLimits& limits) {
  if (header.method < 0 || header.method > kMethodMax) {
    return RefuseJob("the job's method is {}, and those known are 0 to {}", header.method,
                     kMethodMax);
  }
  if (header.tokens <= 0 || header.tokens > limits.positions_max) {
    return RefuseJob("the job has {} tokens, and the model has positions for 1 to {}",
                     header.tokens, limits.positions_max);
  }
  if (header.origin < 0 || header.origin >= header.tokens ||
      header.origin % limits.chunk_tokens != 0) {
    return RefuseJob(
        "the job's first {} of {} tokens are to be restored: that is no number of whole "
        "chunks of {} tokens before the last token",
        header.origin, header.tokens, limits.chunk_tokens);
  }
  const bool zigzag = header.method == static_cast<int32_t>(RankMethod::kZigzag);
  const int parts_max = zigzag ? 2 * limits.ranks : limits.ranks;
  if (header.parts < 2 || header.parts > parts_max || (zigzag && header.parts % 2 != 0)) {
    return RefuseJob("the job has {} parts, for {} ranks", header.parts, limits.ranks);
  }
  if (header.salt_bytes < 0 || header.salt_bytes > kSaltBytesMax) {
    return RefuseJob("the job's salt has {} bytes, and at most {} are taken", header.salt_bytes,
                     kSaltBytesMax);
  }
  return {};
}

Result<RankJob> DecodeJob(const JobHeader& header, std::span<const std::byte> body,
                          const WorkerLimits& limits) {
  CHECK(body.size() == BodyBytes(header));
  RankJob job;
  job.method = static_cast<RankMethod>(header.method);
  job.origin = header.origin;
  job.exchange = header.exchange != 0;
  job.dense = header.dense != 0;
  const auto take = [&](void* to, size_t bytes) {
    if (bytes > 0) std::memcpy(to, body.data(), bytes);
    body = body.subspan(bytes);
  };
  job.salt.resize(header.salt_bytes);
  take(job.salt.data(), job.salt.size());
  job.partition.bounds.resize(header.parts + 1);
  take(job.partition.bounds.data(), sizeof(int32_t) * job.partition.bounds.size());
  job.tokens.resize(header.tokens);
  take(job.tokens.data(), sizeof(int32_t) * job.tokens.size());
  RETURN_IF_ERROR(CheckPartition(job.partition, header.tokens - header.origin, header.parts));
  RETURN_IF_ERROR(CheckTokens(job, limits.vocab_size));
  RETURN_IF_ERROR(CheckPart(job, limits));
  return job;
}

}  // namespace kvcake
