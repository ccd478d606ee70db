#include "bench/ttft_cell.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/check.h"

namespace kvcake::bench {
namespace {

constexpr int kCellProbeChunks = 4;
constexpr int kFillsMax = 4;
constexpr double kNoLink = 1e12;  // bytes a second

size_t Index(Policy policy) {
  return std::find(kTtftPolicies.begin(), kTtftPolicies.end(), policy) - kTtftPolicies.begin();
}

template <typename Of>
double MedianOf(size_t repeats, Of of) {
  std::vector<double> values;
  for (size_t i = 0; i < repeats; ++i) values.push_back(of(i));
  return Median(std::move(values));
}

// Compares slices as long as compute-only's, which the curve knows to the moment.
double ComputeSlowdown(const RestoreReport& cake, const LaneCurve& compute, int slice_tokens) {
  double took_s = 0, alone_s = 0;
  for (const TimelineEntry& entry : cake.timeline) {
    if (entry.lane != "compute" || entry.tokens != slice_tokens) continue;
    if (entry.first_token % slice_tokens != 0) continue;
    const int first = entry.first_token / cake.chunk_tokens;
    took_s += entry.end_s - entry.start_s;
    alone_s += compute[first + slice_tokens / cake.chunk_tokens] - compute[first];
  }
  return alone_s > 0 ? took_s / alone_s : 0;
}

CakeNotes NotesOf(const RestoreReport& cake, const LaneCurve& compute, int slice_tokens) {
  const bool predicted = cake.predicted_s > 0 && cake.restored_s > 0;
  return {.finish_error = predicted ? std::abs(cake.predicted_s / cake.restored_s - 1) : 0,
          .slice_error = cake.slice_error,
          .planning_us = 1e6 * cake.planning_s / std::max(1, cake.turns),
          .planning_share = cake.planning_s / std::max(cake.restored_s, 1e-9),
          .compute_slowdown = ComputeSlowdown(cake, compute, slice_tokens)};
}

}  // namespace

const std::vector<double>& TtftCell::of(Policy policy) const { return ttft_s[Index(policy)]; }

double TtftCell::bound_s() const {
  return MedianOf(bounds.size(), [&](size_t i) { return bounds[i].whole_s; });
}

double TtftCell::bound_fractional_s() const {
  return MedianOf(bounds.size(), [&](size_t i) { return bounds[i].fractional_s; });
}

double TtftCell::efficiency(Policy policy) const {
  return MedianOf(bounds.size(), [&](size_t i) { return bounds[i].whole_s / of(policy)[i]; });
}

double TtftCell::against_better() const {
  return MedianOf(bounds.size(), [&](size_t i) {
    return of(Policy::kCake)[i] / std::min(of(Policy::kCompute)[i], load_s[i]);
  });
}

double TtftCell::overlap() const {
  return MedianOf(bounds.size(), [&](size_t i) {
    return of(Policy::kCake)[i] / load_s[i] + of(Policy::kCake)[i] / of(Policy::kCompute)[i];
  });
}

double TtftCell::spread() const {
  const auto& cake = of(Policy::kCake);
  return *std::max_element(cake.begin(), cake.end()) / *std::min_element(cake.begin(), cake.end());
}

double TtftCell::note(double CakeNotes::*of) const {
  return MedianOf(notes.size(), [&](size_t i) { return notes[i].*of; });
}

TtftBench::TtftBench(Runtime& runtime, const Options& options)
    : runtime_(runtime),
      options_(options),
      prompt_(RandomPrompt(options.context, runtime.config().vocab_size, 1)),
      probe_prompt_(RandomPrompt(kCellProbeChunks * runtime.options().chunk_tokens,
                                 runtime.config().vocab_size, 2)),
      present_(options.context / runtime.options().chunk_tokens, true),
      leave_(present_.size()) {
  std::iota(leave_.begin(), leave_.end(), 0);
  std::shuffle(leave_.begin(), leave_.end(), std::mt19937_64(3));
}

Result<TtftBench> TtftBench::Create(Runtime& runtime, const Options& options) {
  TtftBench bench(runtime, options);
  if (bench.present_.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "--context {} is too short: at least {} tokens",
                options.context, runtime.options().chunk_tokens);
  }
  RETURN_IF_ERROR(RunCold(runtime, bench.probe_prompt_, Policy::kCompute, 1, /*store=*/true)
                      .map([](const auto&) {}));
  // The first run fills the store and warms up; where it computes faster than the disk writes, some
  // chunks are left to the next ones.
  for (int i = 0; i < 2 || (i < kFillsMax && !bench.Stored()); ++i) {
    ASSIGN_OR_RETURN(const Completion done, bench.Run(Policy::kCompute, /*store=*/true));
    bench.compute_s_ = done.ttft_s;
  }
  if (bench.Stored()) return bench;
  return Fail(ErrorCode::kIo, "the chunks of {} tokens could not be kept: is the disk full?",
              options.context);
}

std::vector<ChunkKey> TtftBench::Keys() const {
  return ChunkKeys(runtime_.model().identity().Root(), prompt_, runtime_.options().chunk_tokens);
}

bool TtftBench::Stored() {
  const std::vector<ChunkKey> keys = Keys();
  return std::ranges::count(runtime_.stores()[0]->Residency(keys), true) ==
         static_cast<int64_t>(keys.size());
}

// Fails when the answer is another than before; by a lossy codec, and on CUDA, where a row's bits
// may depend on the rows beside it and random weights leave two tokens close, it is counted.
Result<Completion> TtftBench::Run(Policy policy, bool store) {
  ASSIGN_OR_RETURN(Completion done, RunCold(runtime_, prompt_, policy, kAnswerTokens, store));
  if (answer_.empty()) answer_ = done.tokens;
  if (done.tokens == answer_) return done;
  ++other_answers_;
  if (OnCuda(runtime_.model().numeric_path()) || !runtime_.lossy_lineage().empty()) return done;
  return Fail(ErrorCode::kCorrupt, "policy {} gave another answer than computing",
              PolicyName(policy));
}

Status TtftBench::KeepOnly(double share) {
  const auto chunks = static_cast<int>(present_.size());
  const int absent = chunks - static_cast<int>(std::lround(share * chunks));
  if (std::count(present_.begin(), present_.end(), false) > absent) {
    RETURN_IF_ERROR(Run(Policy::kCompute, /*store=*/true).map([](const auto&) {}));
    present_.assign(chunks, true);
  }
  const std::vector<ChunkKey> keys = Keys();
  for (int i = 0; i < absent; ++i) {
    if (!present_[leave_[i]]) continue;
    RETURN_IF_ERROR(runtime_.stores()[0]->Evict(keys[leave_[i]]));
    present_[leave_[i]] = false;
  }
  return {};
}

Result<TtftBench::Probe> TtftBench::ProbeLink() {
  ASSIGN_OR_RETURN(const Completion run,
                   RunCold(runtime_, probe_prompt_, Policy::kLoad, 1, /*store=*/false));
  const auto chunks = std::max<int>(kCellProbeChunks, static_cast<int>(present_.size()));
  ASSIGN_OR_RETURN(LaneCurve curve, LoadCurve(run.report, chunks));
  const double tail_s = std::max(run.ttft_s - curve[kCellProbeChunks], 0.0);
  return Probe{.curve = std::move(curve), .tail_s = tail_s};
}

void TtftBench::SetLink(TtftCell* cell) {
  const TtftSpec& spec = cell->spec;
  const double bytes = static_cast<double>(present_.size() * runtime_.pool().layout().page_bytes());
  cell->rate_bytes_per_s = bytes / (spec.ratio * compute_s_);
  if (spec.link_gbit) cell->rate_bytes_per_s = std::min(*spec.link_gbit * 1e9 / 8, kNoLink);
  runtime_.link()->SetRate(cell->rate_bytes_per_s);
  runtime_.link()->SetLatency(Seconds(spec.latency_s));
}

Result<TtftCell> TtftBench::Measure(const TtftSpec& spec) {
  TtftCell cell{.spec = spec, .ttft_s = {}, .load_s = {}, .bounds = {}, .notes = {}};
  other_answers_ = 0;
  SetLink(&cell);
  RETURN_IF_ERROR(KeepOnly(spec.present));
  for (int repeat = 0; repeat < options_.repeats; ++repeat) {
    // The planner still believes in the last link; a user's does not change under him.
    ASSIGN_OR_RETURN(const Probe probe, ProbeLink());
    if (spec.link_gbit && repeat == 0) {  // about: says whether loading alone is to be run
      cell.spec.ratio = probe.curve[present_.size()] / compute_s_;
    }
    RETURN_IF_ERROR(Repeat(probe, &cell));
  }
  if (spec.link_gbit) cell.spec.ratio = Median(cell.load_s) / cell.ttft(Policy::kCompute);
  cell.other_answers = other_answers_;
  return cell;
}

bool TtftBench::Runs(Policy policy, const TtftSpec& spec) const {
  if (policy == Policy::kPublished) return options_.published;
  return policy != Policy::kLoad || spec.ratio <= kLoadOnlyRatioMax || spec.present < 1;
}

Status TtftBench::Repeat(const Probe& probe, TtftCell* cell) {
  const auto chunks = static_cast<int>(present_.size());
  LaneCurve compute, load = probe.curve;
  double tail_s = probe.tail_s;
  double load_s = load[chunks] + tail_s;
  for (size_t i = 0; i < kTtftPolicies.size(); ++i) {
    const Policy policy = kTtftPolicies[i];
    if (!Runs(policy, cell->spec)) continue;
    ASSIGN_OR_RETURN(const Completion done, Run(policy, /*store=*/false));
    cell->ttft_s[i].push_back(done.ttft_s);
    if (policy == Policy::kCompute) {
      compute = ComputeCurve(done.report, runtime_.compute_cost().fit());
    } else if (policy == Policy::kLoad) {
      load_s = done.ttft_s;
      if (cell->spec.present == 1 && chunks >= 2) {
        ASSIGN_OR_RETURN(load, LoadCurve(done.report, chunks));
        tail_s = std::max(done.ttft_s - load[chunks], 0.0);
      }
    } else if (policy == Policy::kCake) {
      cell->meeting_token = done.report.meeting_token;
      cell->notes.push_back(NotesOf(done.report, compute, runtime_.options().slice_tokens));
    }
  }
  cell->load_s.push_back(load_s);
  Bound bound = LeastTime(compute, load, present_, tail_s);
  // Compute-only had the last part in its last slice, maybe.
  const double compute_s = cell->of(Policy::kCompute).back();
  bound.whole_s = std::min(bound.whole_s, compute_s);
  bound.fractional_s = std::min(bound.fractional_s, compute_s);
  cell->bounds.push_back(bound);
  return {};
}

}  // namespace kvcake::bench
