// Any bytes as a job: refused with a reason, or a job all of whose parts and routes lie within it.
// The first two bytes say of how many ranks, and for which.
#include <cstring>

#include "base/check.h"
#include "runahead/job_message.h"

using namespace kvcake;

namespace {

constexpr int kLayers = 4;

void CheckSound(const RankJob& job, const WorkerLimits& limits) {
  const int place = limits.rank - (limits.ranks - job.places());
  const int paged = PagedTokens(job, place);
  CHECK(place >= 0 && paged > 0 && paged <= static_cast<int>(job.tokens.size()));
  const std::vector<PageId> pages((paged - 1) / limits.chunk_tokens + 1);
  int tokens = 0;
  for (const Slice& slice : SlicesOf(job, place, pages, nullptr)) {
    CHECK(!slice.tokens.empty() && slice.start >= job.origin);
    CHECK(slice.start + static_cast<int>(slice.tokens.size()) <= paged);
    tokens += static_cast<int>(slice.tokens.size());
    for (const int32_t token : slice.tokens) CHECK(token >= 0 && token < limits.vocab_size);
  }
  CHECK(tokens <= limits.batch_tokens_max);
  for (const KvRoute& route :
       RoutesOf(job, place, limits.ranks - job.places(), limits.chunk_tokens)) {
    CHECK(route.piece.chunk >= 0 && route.piece.chunk < static_cast<int>(pages.size()));
    CHECK(route.from < limits.ranks && route.to < limits.ranks);
    CHECK(route.from != limits.rank && route.to != limits.rank);
    CHECK(route.number >= 0 && route.number < (kTagLimit - kKvTags) / kLayers);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  JobHeader header;
  if (size < 2 + sizeof(header)) return 0;
  WorkerLimits limits{
      .chunk_tokens = 16, .vocab_size = 300, .positions_max = 4096, .batch_tokens_max = 1024};
  limits.ranks = 2 + data[0] % 6;
  limits.rank = data[1] % (limits.ranks - 1);
  std::memcpy(&header, data + 2, sizeof(header));
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(2 + sizeof(header));
  if (const Status sound = CheckHeader(header, limits); !sound) {
    CHECK(sound.error().code == ErrorCode::kInvalidArgument && !sound.error().message.empty());
    return 0;
  }
  if (bytes.size() < BodyBytes(header)) return 0;
  const auto job = DecodeJob(header, bytes.first(BodyBytes(header)), limits);
  if (job) {
    CheckSound(*job, limits);
    CHECK(EncodeBody(*job).size() == BodyBytes(HeaderOf(*job)));
  } else {
    CHECK(job.error().code == ErrorCode::kInvalidArgument && !job.error().message.empty());
    CHECK(!JobAnswer::Refusal(job.error().message).Why().empty());
  }
  return 0;
}
