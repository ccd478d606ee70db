#include "bench/fleet_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvcake::bench {
namespace {

using nlohmann::ordered_json;

// Compares with what can be cached at all: the rest of a prompt behind its last whole chunk of the
// document is new.
bool IsCached(double share, double possible) { return share >= kFoundGoal * possible; }

// The share of the chunks computed again that was stored meanwhile: all at most. More may have been
// found stored, as chunks that a request which is counted nowhere computed first are among those,
// and are missing from `computed`.
double StoredMeanwhile(const FleetRow& row) {
  const double again = row.computed - row.distinct;
  return again > 0 ? std::min(1.0, row.written_twice / again) : 0;
}

}  // namespace

double ComputedTwice(double computed, double distinct, double shared) {
  return shared > 0 ? std::max(0.0, computed - distinct) / shared : 0;
}

Status JoinRow::Check() const {
  if (requests == 0) return Fail(ErrorCode::kIo, "the server that joined was asked for nothing");
  if (chunks_loaded > 0 && IsCached(cached_share, possible_share)) return {};
  return Fail(ErrorCode::kIo,
              "the server that joined found {:.3f} of its prompts' tokens in the store, {} chunks: "
              "{:.3f} were there, of which it is to find {}",
              cached_share, chunks_loaded, possible_share, kFoundGoal);
}

Status KillRow::Check() const {
  if (running == 0) return Fail(ErrorCode::kIo, "no request ran on the server that was killed");
  if (lost_elsewhere > 0 || lost > running) {
    return Fail(
        ErrorCode::kIo,
        "a server that was killed had {} requests, but {} were lost, {} of which it did not have",
        running, lost, lost_elsewhere);
  }
  if (answered < lost) {
    return Fail(ErrorCode::kIo, "{} of {} lost requests were not answered when asked again",
                lost - answered, lost);
  }
  if (lost > 0 && (chunks_loaded == 0 || !IsCached(cached_share, possible_share))) {
    return Fail(ErrorCode::kIo,
                "of the lost requests' prompts {:.3f} were cached when asked again, {} chunks were "
                "loaded: {:.3f} were there, of which they are to find {}",
                cached_share, chunks_loaded, possible_share, kFoundGoal);
  }
  return {};
}

std::string FleetHeader() {
  return fmt::format("{:>7} {:<6} {:<10} {:>9} {:>14} {:>10} {:>10} {:>10}\n", "servers", "store",
                     "balance", "hit share", "computed twice", "TTFT p50 s", "p95 s", "requests/s");
}

std::string FleetLine(const FleetRow& row) {
  return fmt::format("{:>7} {:<6} {:<10} {:>9.3f} {:>13.1f}% {:>10.3f} {:>10.3f} {:>10.2f}\n",
                     row.servers, row.store, row.balance, row.hit_share, 100 * row.computed_twice,
                     row.ttft_p50_s, row.ttft_p95_s, row.requests_per_s);
}

std::string JoinLine(const JoinRow& row) {
  return fmt::format(
      "a server joins {}: {} requests, {:.3f} of their {} prompt tokens cached (there: {:.3f}), {} "
      "chunks loaded\n",
      row.servers, row.requests, row.cached_share, row.prompt_tokens, row.possible_share,
      row.chunks_loaded);
}

std::string KillLine(const KillRow& row) {
  return fmt::format(
      "kill -9 of one of {}, which had {} of {} requests: {} lost ({} elsewhere), {} answered when "
      "asked again, {:.3f} of their prompts cached (there: {:.3f}), {} chunks loaded\n",
      row.servers, row.running, row.requests, row.lost, row.lost_elsewhere, row.answered,
      row.cached_share, row.possible_share, row.chunks_loaded);
}

std::string FleetGoals(const std::vector<FleetRow>& rows) {
  const auto one =
      std::find_if(rows.begin(), rows.end(), [](const FleetRow& row) { return row.servers == 1; });
  if (one == rows.end()) return {};
  std::string lines;
  const auto missed = [](bool reached) { return reached ? "" : ", missed"; };
  for (const FleetRow& row : rows) {
    if (!row.shares()) continue;
    const double hits = one->hit_share > 0 ? row.hit_share / one->hit_share : 0;
    lines += fmt::format(
        "{} servers, {}, {}: {:.3f} of one server's hit share (goal {}{}), {:.1f}% computed twice "
        "(goal {:.0f}%{}), {:.0f}% of that stored by another meanwhile\n",
        row.servers, row.store, row.balance, hits, kHitShareGoal, missed(hits >= kHitShareGoal),
        100 * row.computed_twice, 100 * kComputedTwiceGoal,
        missed(row.computed_twice <= kComputedTwiceGoal), 100 * StoredMeanwhile(row));
  }
  return lines;
}

ordered_json ToJson(const FleetRow& row) {
  return {{"servers", row.servers},
          {"store", row.store},
          {"balance", row.balance},
          {"hit_share", row.hit_share},
          {"computed_twice", row.computed_twice},
          {"ttft_p50_s", row.ttft_p50_s},
          {"ttft_p95_s", row.ttft_p95_s},
          {"requests_per_s", row.requests_per_s},
          {"chunks_computed", row.computed},
          {"chunks_distinct", row.distinct},
          {"chunks_written_twice", row.written_twice}};
}

ordered_json ToJson(const JoinRow& row) {
  return {{"servers", row.servers},
          {"requests", row.requests},
          {"prompt_tokens", row.prompt_tokens},
          {"cached_share", row.cached_share},
          {"possible_share", row.possible_share},
          {"chunks_loaded", row.chunks_loaded}};
}

ordered_json ToJson(const KillRow& row) {
  return {{"servers", row.servers},
          {"requests", row.requests},
          {"running", row.running},
          {"lost", row.lost},
          {"lost_elsewhere", row.lost_elsewhere},
          {"answered", row.answered},
          {"cached_share", row.cached_share},
          {"possible_share", row.possible_share},
          {"chunks_loaded", row.chunks_loaded}};
}

}  // namespace kvcake::bench
