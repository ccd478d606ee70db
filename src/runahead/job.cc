#include "runahead/job.h"

#include "base/check.h"

namespace kvcake {
namespace {

int PlaceOf(const RankJob& job, int part) {
  if (job.method != RankMethod::kZigzag) return part;
  const int places = job.places();  // the last one has the first part and the last
  return part < places ? places - 1 - part : part - places;
}

TokenRange RangeOf(const RankJob& job, int part) {
  return {job.origin + job.partition.begin(part), job.origin + job.partition.bounds[part + 1]};
}

}  // namespace

std::vector<TokenRange> RangesOf(const RankJob& job, int place) {
  std::vector<TokenRange> ranges;
  for (int part = 0; part < job.partition.ranks(); ++part) {
    if (PlaceOf(job, part) == place) ranges.push_back(RangeOf(job, part));
  }
  return ranges;
}

std::vector<Slice> SlicesOf(const RankJob& job, int place, std::span<const PageId> pages,
                            LayerGate* gate) {
  std::vector<Slice> slices;
  for (const TokenRange& range : RangesOf(job, place)) {
    slices.push_back({.tokens = std::span(job.tokens).subspan(range.begin, range.size()),
                      .start = range.begin,
                      .pages = pages,
                      .gate = gate});
    if (job.dense) slices.back().dense_keys = PagedTokens(job, place);
  }
  if (place + 1 == job.places()) slices.back().logits = Slice::Logits::kLast;
  return slices;
}

std::vector<KvRoute> RoutesOf(const RankJob& job, int place, int first_rank, int chunk_tokens) {
  const bool chain = job.method == RankMethod::kChain;
  const int places = job.places();
  // A gather is a ring: each piece goes from neighbour to neighbour until it was everywhere.
  const int before = (place + places - 1) % places, after = (place + 1) % places;
  // A rank's own need wait for nobody, and go first; but not around a ring, where room for them is
  // room for what comes only once that has gone on: every rank would wait for the next.
  std::vector<std::vector<KvRoute>> by_distance(places);
  if (!job.exchange) return {};
  int number = 0;
  for (int part = 0; part < job.partition.ranks(); ++part) {
    const int owner = PlaceOf(job, part);
    const TokenRange range = RangeOf(job, part);
    for (const KvPiece& piece : PiecesOf(range.begin, range.end, chunk_tokens)) {
      KvRoute route{.piece = piece, .number = number++};
      if (chain && owner > place) continue;
      if (owner != place) route.from = first_rank + before;
      if (after != (chain ? 0 : owner)) route.to = first_rank + after;
      by_distance[chain ? place - owner : 0].push_back(route);
    }
  }
  std::vector<KvRoute> routes;
  for (const auto& some : by_distance) routes.insert(routes.end(), some.begin(), some.end());
  return routes;
}

int PagedTokens(const RankJob& job, int place) {
  if (job.method != RankMethod::kChain) return static_cast<int>(job.tokens.size());
  return RangeOf(job, place).end;
}

}  // namespace kvcake
