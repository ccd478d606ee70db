#include "bench/codec_quality.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/bf16.h"
#include "base/cpu.h"
#include "bench/harness.h"
#include "bench/held_out.h"
#include "bench/lookup_documents.h"
#include "bench/named_codecs.h"
#include "model/score.h"
#include "ops/compute.h"

namespace kvcake::bench {
namespace {

// What was scored of one window: a row of logits for each position but the last.
struct Scores {
  std::vector<std::vector<float>> logits;
  std::vector<double> nll;  // of the token that follows
};

double LogSumExp(std::span<const float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  return most + std::log(sum);
}

// The divergence of q from p, in nats.
double Divergence(std::span<const float> p, std::span<const float> q) {
  const double p_sum = LogSumExp(p), q_sum = LogSumExp(q);
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = p[i] - p_sum;
    sum += std::exp(log_p) * (log_p - (q[i] - q_sum));
  }
  return sum;
}

// One way of having the cache, compared with the plain one over all windows.
struct Totals {
  std::string name;
  bool exact = false;  // must not differ in a bit
  uint64_t values = 0, part_bytes = 0;
  double squares[2] = {}, error_squares[2] = {};  // of K and V
  int64_t positions = 0;
  double plain_nll = 0, nll = 0, divergence = 0;
  int64_t same_top = 0, differing = 0;
  std::vector<int> right = {};  // answers, of each of lookup_tokens

  void Add(const Scores& plain, const Scores& scores) {
    for (size_t i = 0; i < plain.nll.size(); ++i) {
      const auto &p = plain.logits[i], &q = scores.logits[i];
      ++positions;
      plain_nll += plain.nll[i];
      nll += scores.nll[i];
      divergence += Divergence(p, q);
      differing += p != q;
      same_top += std::max_element(p.begin(), p.end()) - p.begin() ==
                  std::max_element(q.begin(), q.end()) - q.begin();
    }
  }
  double bits() const {
    return 8.0 * static_cast<double>(part_bytes) / static_cast<double>(values);
  }
  double change() const { return std::expm1((nll - plain_nll) / static_cast<double>(positions)); }
  double rms(int plane) const { return std::sqrt(error_squares[plane] / squares[plane]); }
};

class CodecQuality {
 public:
  static Result<std::unique_ptr<CodecQuality>> Create(const QualityOptions& options) {
    auto quality = std::unique_ptr<CodecQuality>(new CodecQuality(options));
    RETURN_IF_ERROR(quality->Open());
    return quality;
  }

  // As many of the text's tokens as make whole windows.
  Status ScoreText(const std::string& text) {
    ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, runtime_->tokenizer().Encode(text));
    const size_t window = static_cast<size_t>(options_.kv_context) + options_.kv_scored + 1;
    for (size_t at = 0; at + window <= tokens.size(); at += window) {
      RETURN_IF_ERROR(ScoreWindow({tokens.begin() + static_cast<int64_t>(at),
                                   tokens.begin() + static_cast<int64_t>(at + window)}));
      ++windows_;
    }
    return {};
  }

  // Questions about documents whose whole cache goes through a codec.
  Status AskAll(const std::vector<std::vector<Document>>& documents) {
    for (const auto& of_length : documents) {
      plain_right_.push_back(0);
      asked_.push_back(static_cast<int>(of_length.size()) * kFactsPerDocument);
      for (Totals& totals : totals_) totals.right.push_back(0);
      for (const Document& document : of_length) RETURN_IF_ERROR(AskAbout(document));
    }
    return {};
  }

  const Tokenizer& tokenizer() const { return runtime_->tokenizer(); }

  Status Report() const {
    if (windows_ == 0) {
      return Fail(ErrorCode::kInvalidArgument,
                  "no text has {} tokens: lower --kv-context, or give --text",
                  options_.kv_context + options_.kv_scored + 1);
    }
    fmt::print("{}. {}: the cache of {} tokens encoded, {} tokens scored on it, {} windows;\n",
               CpuName(), options_.model_dir, options_.kv_context, options_.kv_scored, windows_);
    fmt::print("lookups in encoded documents, of which the cache as it is answers {:.1f}%.\n\n",
               Percent(plain_right_));
    fmt::print("{:<10} {:>7} {:>10} {:>9} {:>10} {:>9} {:>9} {:>9} {:>8}\n", "cache", "bits",
               "perplexity", "change", "KLD", "top-1", "RMS of K", "RMS of V", "lookups");
    auto rows = nlohmann::ordered_json::array();
    Status status;
    for (const Totals& totals : totals_) {
      rows.push_back(Row(totals));
      if (status && totals.exact && totals.differing > 0) {
        status = Fail(ErrorCode::kCorrupt, "{}: {} of {} positions have other logits", totals.name,
                      totals.differing, totals.positions);
      }
    }
    if (!options_.json.empty()) RETURN_IF_ERROR(WriteJson(options_.json, rows));
    return status;
  }

 private:
  explicit CodecQuality(const QualityOptions& options) : options_(options) {}

  Status Open() {
    ASSIGN_OR_RETURN(const std::vector<NamedCodec> named,
                     CodecsNamed(options_.kv_codecs, options_.codec_tables));
    ASSIGN_OR_RETURN(
        runtime_, Runtime::Create({.model_dir = options_.model_dir, .threads = options_.threads}));
    const int chunk = layout().chunk_tokens;
    if (options_.kv_context % chunk != 0) {
      return Fail(ErrorCode::kInvalidArgument, "--kv-context {} is not a multiple of a chunk's {}",
                  options_.kv_context, chunk);
    }
    for (const NamedCodec& codec : named) {
      const CodecSpec spec = codec.Spec(layout(), TablesModel(runtime_->model().identity()));
      ASSIGN_OR_RETURN(codecs_.emplace_back(), MakeCodec(codec.row->codec, spec));
      totals_.push_back({.name = codec.name(), .exact = !codec.row->lossy});
    }
    // The noise floor: the same model by other arithmetic.
    const NumericPath other = NumericPath::kF32Fma;
    if (runtime_->model().numeric_path() != other && PathAvailable(other)) {
      ASSIGN_OR_RETURN(other_, Runtime::Create({.model_dir = options_.model_dir,
                                                .threads = options_.threads,
                                                .path = other}));
      totals_.push_back({.name = NumericPathName(other)});
    }
    return {};
  }

  const KvLayout& layout() const { return runtime_->pool().layout(); }

  Status ScoreWindow(const std::vector<int32_t>& window) {
    ASSIGN_OR_RETURN(const PageTable pages, PrefillContext(*runtime_, window));
    ASSIGN_OR_RETURN(const Scores plain, Score(*runtime_, window, pages));
    for (size_t i = 0; i < codecs_.size(); ++i) {
      ASSIGN_OR_RETURN(const PageTable decoded, ThroughCodec(*codecs_[i], pages, &totals_[i]));
      ASSIGN_OR_RETURN(const Scores scores, Score(*runtime_, window, decoded));
      totals_[i].Add(plain, scores);
    }
    if (other_ == nullptr) return {};
    ASSIGN_OR_RETURN(const PageTable others, PrefillContext(*other_, window));
    ASSIGN_OR_RETURN(const Scores scores, Score(*other_, window, others));
    totals_.back().Add(plain, scores);
    return {};
  }

  Result<PageTable> PrefillContext(Runtime& runtime, const std::vector<int32_t>& window) const {
    return Prefill(runtime, {window.begin(), window.begin() + options_.kv_context + 1});
  }

  // The pages of the prompt's full chunks.
  Result<PageTable> Prefill(Runtime& runtime, const std::vector<int32_t>& prompt) const {
    ASSIGN_OR_RETURN(auto computed, ComputedPages(runtime, prompt));
    PageTable pages;
    for (std::optional<PageHandle>& page : computed) {
      if (page) pages.push_back(std::move(*page));
    }
    if (pages.size() == computed.size()) return pages;
    return Fail(ErrorCode::kResourceExhausted, "of {} tokens {} chunks stayed in memory",
                prompt.size(), pages.size());
  }

  Status AskAbout(const Document& document) {
    ASSIGN_OR_RETURN(PageTable pages, Prefill(*runtime_, document.tokens));
    std::vector<PageTable> decoded;
    for (size_t i = 0; i < codecs_.size(); ++i) {
      ASSIGN_OR_RETURN(decoded.emplace_back(), ThroughCodec(*codecs_[i], pages, &totals_[i]));
    }
    ASSIGN_OR_RETURN(const int plain_right, Right(*runtime_, document));
    plain_right_.back() += plain_right;
    pages.clear();
    for (size_t i = 0; i < codecs_.size(); ++i) {
      runtime_->pool().DropCached();
      const std::vector<ChunkKey> keys =
          ChunkKeys(runtime_->model().identity().Root(), document.tokens, layout().chunk_tokens);
      PageTable published;
      for (size_t chunk = 0; chunk < keys.size(); ++chunk) {
        published.push_back(runtime_->pool().Publish(std::move(decoded[i][chunk]), keys[chunk],
                                                     runtime_->model().numeric_path()));
      }
      ASSIGN_OR_RETURN(const int right, Right(*runtime_, document));
      totals_[i].right.back() += right;
    }
    if (other_ == nullptr) return {};
    ASSIGN_OR_RETURN(pages, Prefill(*other_, document.tokens));
    ASSIGN_OR_RETURN(const int right, Right(*other_, document));
    totals_.back().right.back() += right;
    return {};
  }

  // How many of the document's facts it finds in the pages that are in memory.
  Result<int> Right(Runtime& runtime, const Document& document) const {
    int right = 0;
    for (const Fact& fact : document.facts) {
      ASSIGN_OR_RETURN(const Completion done, AskFor(runtime, document, fact));
      if (done.report.tokens_reused == 0) {
        return Fail(ErrorCode::kResourceExhausted, "the cache of {} tokens left the memory",
                    document.tokens.size());
      }
      right += AnswerIn(runtime.tokenizer().Decode(done.tokens)) == fact.code;
    }
    return right;
  }

  Result<Scores> Score(Runtime& runtime, const std::vector<int32_t>& window,
                       const PageTable& pages) const {
    const std::vector<PageId> kept = IdsOf(pages);
    Scores scores;
    RETURN_IF_ERROR(VisitLogits(runtime.model(), runtime.pool(), window,
                                {.slice_tokens = runtime.options().slice_tokens, .kept = kept},
                                [&](int position, std::span<const float> logits) {
                                  const size_t next = static_cast<size_t>(position) + 1;
                                  if (next >= window.size()) return;
                                  scores.logits.emplace_back(logits.begin(), logits.end());
                                  scores.nll.push_back(NegativeLogLikelihood(logits, window[next]));
                                }));
    return scores;
  }

  // The same pages as they come out of the codec.
  Result<PageTable> ThroughCodec(const LayerCodec& codec, const PageTable& pages,
                                 Totals* totals) const {
    PagePool& pool = runtime_->pool();
    const uint64_t plane = layout().plane_elements();
    std::vector<std::byte> part(codec.part_bytes_max());
    ASSIGN_OR_RETURN(PageTable decoded, DrawPages(*runtime_, static_cast<int>(pages.size())));
    for (size_t i = 0; i < pages.size(); ++i) {
      for (int layer = 0; layer < layout().layers; ++layer) {
        const std::span<const uint16_t> from(pool.Slab(pages[i].id(), layer), 2 * plane);
        const std::span<uint16_t> to(pool.Slab(decoded[i].id(), layer), 2 * plane);
        const SlabPlace place{.layer = layer,
                              .position = static_cast<int64_t>(i) * layout().chunk_tokens};
        ASSIGN_OR_RETURN(const uint64_t bytes, codec.Encode(place, from, part));
        RETURN_IF_ERROR(codec.Decode(place, std::span(part).first(bytes), to));
        totals->part_bytes += bytes;
        totals->values += 2 * plane;
        for (uint64_t at = 0; at < 2 * plane; ++at) {
          const double was = Bf16ToF32(from[at]), error = Bf16ToF32(to[at]) - was;
          totals->squares[at / plane] += was * was;
          totals->error_squares[at / plane] += error * error;
        }
      }
    }
    return decoded;
  }

  nlohmann::ordered_json Row(const Totals& totals) const {
    const auto positions = static_cast<double>(totals.positions);
    const double perplexity = std::exp(totals.nll / positions);
    const double top1 = static_cast<double>(totals.same_top) / positions;
    nlohmann::ordered_json row = {{"name", totals.name},
                                  {"model", options_.model_dir},
                                  {"context", options_.kv_context},
                                  {"positions", totals.positions},
                                  {"plain_perplexity", std::exp(totals.plain_nll / positions)},
                                  {"perplexity", perplexity},
                                  {"perplexity_change", totals.change()},
                                  {"kld", totals.divergence / positions},
                                  {"top1_agreement", top1},
                                  {"cpu", CpuName()}};
    for (size_t i = 0; i < asked_.size(); ++i) {
      row["lookups"].push_back({{"tokens", options_.lookup_tokens[i]},
                                {"asked", asked_[i]},
                                {"right", totals.right[i]},
                                {"plain_right", plain_right_[i]}});
    }
    std::string bits, rms_k, rms_v;
    if (totals.values > 0) {
      row["payload_bits_per_value"] = totals.bits();
      row["relative_rms_k"] = totals.rms(0);
      row["relative_rms_v"] = totals.rms(1);
      bits = fmt::format("{:.3f}", totals.bits());
      rms_k = fmt::format("{:.5f}", totals.rms(0));
      rms_v = fmt::format("{:.5f}", totals.rms(1));
    }
    fmt::print("{:<10} {:>7} {:>10.4f} {:>+8.3f}% {:>10.6f} {:>8.2f}% {:>9} {:>9} {:>7.1f}%\n",
               totals.name, bits, perplexity, 100 * totals.change(), totals.divergence / positions,
               100 * top1, rms_k, rms_v, Percent(totals.right));
    return row;
  }

  // Right answers as a share of all that was asked.
  double Percent(const std::vector<int>& right) const {
    return 100.0 * std::accumulate(right.begin(), right.end(), 0) /
           std::max(1, std::accumulate(asked_.begin(), asked_.end(), 0));
  }

  const QualityOptions& options_;
  std::unique_ptr<Runtime> runtime_, other_;
  std::vector<std::unique_ptr<LayerCodec>> codecs_;
  std::vector<Totals> totals_;  // of the codecs, then of the other arithmetic
  int windows_ = 0;
  std::vector<int> asked_, plain_right_;  // of each of lookup_tokens
};

}  // namespace

Status RunCodecQuality(const QualityOptions& options) {
  const std::string dir =
      options.text_dir.empty() ? options.model_dir + "/held_out" : options.text_dir;
  ASSIGN_OR_RETURN(const auto texts, ReadHeldOut(dir));
  ASSIGN_OR_RETURN(const auto quality, CodecQuality::Create(options));
  std::string all;
  for (const std::string& text : texts) {
    RETURN_IF_ERROR(quality->ScoreText(text));
    all += text;
  }
  ASSIGN_OR_RETURN(const auto documents, LookupDocuments(quality->tokenizer(), dir, all,
                                                         options.lookup_tokens, options.lookups));
  RETURN_IF_ERROR(quality->AskAll(documents));
  return quality->Report();
}

}  // namespace kvcake::bench
