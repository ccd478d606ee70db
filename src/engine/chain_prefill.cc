#include "engine/chain_prefill.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/check.h"
#include "base/peak_rss.h"

namespace kvcake {

namespace {

// Bounds what a prompt waits for stores, against what computing it takes.
constexpr double kLookShareMax = 0.2;
// Bounds the time that surveys of slow links take.
constexpr double kSurveyShareMax = 0.01;

// Tells of each layer that has come so far as to wait for others.
class ObservedGate : public LayerGate {
 public:
  ObservedGate(LayerGate& inner, const std::function<void()>& on_layer)
      : inner_(inner), on_layer_(on_layer) {}
  Status AfterKv(int layer) override {
    on_layer_();
    return inner_.AfterKv(layer);
  }
  Status BeforeAttention(int layer) override { return inner_.BeforeAttention(layer); }

 private:
  LayerGate& inner_;
  const std::function<void()>& on_layer_;
};

}  // namespace

Status ChainPrefill::Divide(Sequence& sequence) {
  const Request& request = sequence.request;
  const bool may = request.policy == Policy::kCake || request.policy == Policy::kCompute;
  if (!leader_.ok() || !may || sequence.scores_prompt() || request.forced_split) return {};
  const int chunk = model_.layout().chunk_tokens;
  if (sequence.prefill_tokens < leader_.ranks() * chunk) return {};
  if (!leader_.authenticated() && IsUnderWay(sequence)) return {};
  RETURN_IF_ERROR(SurveyLinks());
  const bool stored = request.policy != Policy::kCompute;
  const std::vector<bool> known = restorer_.Known(sequence.keys, stored);
  std::optional<int> origin = OriginOf(sequence, known);
  std::optional<RankJob> job = JobAfter(sequence, origin);
  if (job && stored) {
    const std::vector<bool> held = Look(sequence);
    if (held != known) {
      origin = OriginOf(sequence, held);
      job = JobAfter(sequence, origin);
    }
  }
  if (!origin) return {};
  const int has = *origin;
  if (job && has > 0) {
    ASSIGN_OR_RETURN(origin, LowerOrigin(sequence, &job));
  }
  const int left = sequence.prefill_tokens - *origin;
  planner_.ForgetSlowness(*origin, job ? job->partition : EvenPartition(left, 1), leader_.ranks(),
                          has);
  if (!job || !RanksMay(*job)) return {};
  if (admission_.OwnPagesFrom(sequence, job->origin / chunk)) sequence.chain = std::move(job);
  return {};
}

bool ChainPrefill::ShouldWait(const Sequence& sequence) const {
  return leader_.authenticated() && IsUnderWay(sequence);
}

bool ChainPrefill::IsUnderWay(const Sequence& sequence) const {
  const Request& request = sequence.request;
  const bool finds = request.policy == Policy::kCake && !request.forced_split;
  if (!finds || sequence.scores_prompt() || sequence.generated() > 0) return false;
  return std::ranges::any_of(admission_.running(), [&](const auto& other) {
    if (!other->chain || other->root != sequence.root) return false;
    const auto parted = std::ranges::mismatch(other->tokens, sequence.tokens);
    const int64_t origin = other->chain->origin, shared = parted.in2 - sequence.tokens.begin();
    return 2 * (shared - origin) >= std::ssize(sequence.tokens) - origin;
  });
}

// What only the leader has of the prompt the others would have to compute, each alone: the chain
// computes it, too, or the leader all that is left. A rank that has no part in it is not asked; one
// that has only as the chain begins sooner is asked, too.
Result<int> ChainPrefill::LowerOrigin(const Sequence& sequence, std::optional<RankJob>* job) {
  const int chunk = model_.layout().chunk_tokens;
  const int has = (*job)->origin;
  int origin = has;
  for (int asked = 1; *job && origin > 0 && (*job)->partition.ranks() > asked;) {
    asked = (*job)->partition.ranks();
    const auto keys = std::span(sequence.keys).first(origin / chunk);
    ASSIGN_OR_RETURN(const int kept, leader_.KeptByLast(asked, keys));
    if (kept * chunk == origin) break;
    origin = kept * chunk;
    *job = JobAfter(sequence, origin);
  }
  if (*job && origin < has && !planner_.Pays(origin, (*job)->partition, has)) job->reset();
  return origin;
}

// A link that was slow when ranks met need not stay so, nor a fast one, and prompts that are not
// divided for its sake would never tell.
Status ChainPrefill::SurveyLinks() {
  const TimePoint began = clock_.Now();
  if (!planner_.learns_links() || began < survey_at_) return {};
  ASSIGN_OR_RETURN(const Survey survey, leader_.SurveyLinks());
  planner_.LearnLinks(survey);
  const TimePoint ended = clock_.Now();
  survey_at_ = ended + std::max(kSurveyEvery, (ended - began) / kSurveyShareMax);
  return {};
}

std::vector<bool> ChainPrefill::Look(const Sequence& sequence) {
  const ComputeFit fit = cost_.fit();
  const Seconds share(kLookShareMax * fit.SecondsFor(0, sequence.prefill_tokens));
  constexpr Seconds kMost = PatientLook::kPatience;
  return look_.Held(sequence.keys, fit.known() ? std::min(share, kMost) : kMost);
}

std::optional<int> ChainPrefill::OriginOf(const Sequence& sequence,
                                          const std::vector<bool>& kept) const {
  const int chunk = model_.layout().chunk_tokens;
  const auto end = std::find(kept.begin(), kept.end(), false);
  // What is kept behind a hole is loaded, if this process does it all.
  if (std::find(end, kept.end(), true) != kept.end()) return std::nullopt;
  const int most = (sequence.prefill_tokens - 1) / chunk;
  return std::min(static_cast<int>(end - kept.begin()), most) * chunk;
}

std::optional<RankJob> ChainPrefill::JobAfter(const Sequence& sequence, std::optional<int> origin) {
  if (!origin) return std::nullopt;
  const int tokens = sequence.prefill_tokens;
  std::optional<Partition> partition = planner_.Plan(*origin, tokens - *origin, leader_.ranks());
  if (!partition || partition->ranks() < 2) return std::nullopt;
  return RankJob{.salt = sequence.request.salt,
                 .tokens = sequence.tokens,
                 .origin = *origin,
                 .partition = std::move(*partition)};
}

bool ChainPrefill::RanksMay(const RankJob& job) const {
  const int most = std::min(model_.max_batch_tokens(), leader_.tokens_max());
  for (int i = 0; i < job.partition.ranks(); ++i) {
    if (job.partition.size(i) <= most) continue;
    spdlog::warn(
        "a prompt of {} tokens is prefilled by this process alone: a rank would compute "
        "{}, more than --rank-tokens-max {}",
        job.tokens.size(), job.partition.size(i), most);
    return false;
  }
  return true;
}

Result<StepRun> ChainPrefill::Run(const StepPart& part) {
  Sequence& sequence = *part.sequence;
  const RankJob& job = *sequence.chain;
  CHECK(sequence.kv_tokens == job.origin);  // what follows is nobody's yet
  StepRun run{.began = clock_.Now()};
  ASSIGN_OR_RETURN(const auto gate, leader_.Start(job, part.pages));  // when all have restored
  const TimePoint started = clock_.Now();
  ObservedGate observed(*gate, on_layer_);
  const Slice slice{.tokens = std::span(sequence.tokens).subspan(part.start, part.count),
                    .start = part.start,
                    .pages = part.pages,
                    .logits = Slice::Logits::kLast,
                    .gate = &observed};
  const auto forward = model_.Forward(std::span(&slice, 1));
  const TimePoint ended = clock_.Now();
  run.took = ended - run.began;
  const Seconds waited = gate->waited();
  ASSIGN_OR_RETURN(auto reports, leader_.End(*gate, forward.map([](auto) {})));
  reports.push_back({.compute_s = (ended - started - waited).count(),
                     .wait_s = waited.count(),
                     .sent_bytes = gate->sent_bytes(),
                     .peak_rss_bytes = PeakRssBytes()});
  for (const RankReport& rank : reports) {
    if (rank.mixed_path > 0) sequence.MixPaths();
  }
  if (!leader_.authenticated()) sequence.unproven = true;
  planner_.Learn(job, reports);
  ChainReport& report = sequence.completion.chain.emplace();
  report.job.origin = job.origin;
  report.job.partition = job.partition;
  report.ranks = std::move(reports);
  sequence.chain.reset();
  run.logits = *forward;
  return run;
}

}  // namespace kvcake
