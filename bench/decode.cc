// How fast is decoding, against what memory and arithmetic allow? What does it add to a slice?
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/matmul_peak.h"
#include "bench/read_bandwidth.h"
#include "bench/work.h"
#include "model/position.h"
#include "ops/attention.h"

namespace kvcake::bench {
namespace {

// Sequences of `context` tokens whose pages hold random keys and values: prefilling them would take
// minutes and change no time that is measured here.
class Batch {
 public:
  static Result<std::unique_ptr<Batch>> Create(const DecodeOptions& options, const std::string& dir,
                                               WeightFormat weights) {
    ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(dir));
    RuntimeOptions runtime_options{
        .model_dir = dir, .threads = options.threads, .path = options.path, .weights = weights};
    const KvLayout layout = TransformerModel::LayoutFor(config, runtime_options.chunk_tokens);
    const int most = std::max(*std::max_element(options.sequences.begin(), options.sequences.end()),
                              options.mixed_decodes);
    const int tokens = options.context + options.steps + 1;
    const int pages = (tokens + layout.chunk_tokens - 1) / layout.chunk_tokens;
    const int slice_pages = (options.slice_tokens + layout.chunk_tokens - 1) / layout.chunk_tokens;
    SetPageBytes(
        (static_cast<uint64_t>(most) * pages + slice_pages + kSparePages) * layout.page_bytes(),
        &runtime_options);
    runtime_options.slice_tokens = std::max(options.slice_tokens, layout.chunk_tokens);
    runtime_options.max_sequences = std::max(runtime_options.max_sequences, most);
    ASSIGN_OR_RETURN(auto runtime, Runtime::Create(runtime_options));
    auto batch = std::unique_ptr<Batch>(new Batch(options, std::move(runtime)));
    for (int i = 0; i < most; ++i) RETURN_IF_ERROR(batch->Draw(pages, &batch->sequences_));
    RETURN_IF_ERROR(batch->Draw(slice_pages, &batch->slice_));
    RETURN_IF_ERROR(batch->Check(most));
    return batch;
  }

  Runtime& runtime() { return *runtime_; }

  struct Rates {
    double tokens_per_s = 0;
    double bytes_per_s = 0;  // of memory that is read meanwhile
  };
  // `steps` tokens of each of n sequences, choosing the likeliest included. Memory is measured
  // between the steps: on a shared machine its speed changes from second to second.
  Result<Rates> Decode(int n, ReadBandwidth* memory) {
    double seconds = 0, seconds_per_byte = 0;
    for (int step = 0; step < options_.steps; ++step) {
      const TimePoint start = Clock::Real().Now();
      RETURN_IF_ERROR(Step(n, options_.context + step, /*with_slice=*/false));
      seconds += (Clock::Real().Now() - start).count();
      seconds_per_byte += 1 / memory->Measure(compute_);
    }
    return Rates{.tokens_per_s = n * options_.steps / seconds,
                 .bytes_per_s = options_.steps / seconds_per_byte};
  }

  // Seconds for one step: a slice from the start of a prompt and n sequences' next tokens.
  Result<double> Mixed(int n) {
    const TimePoint start = Clock::Real().Now();
    RETURN_IF_ERROR(Step(n, options_.context, /*with_slice=*/true));
    return (Clock::Real().Now() - start).count();
  }

  // Seconds for the attention of n sequences' next tokens, all layers.
  double AttentionAlone(int n) {
    const ModelConfig& c = runtime_->config();
    AttentionShape shape{.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = c.head_dim};
    if (c.position == PositionKind::kAlibi) shape.alibi_slopes = AlibiSlopes(c.heads);
    const auto attention = Attention::Create(compute_, shape, runtime_->pool(), {n, n});
    const int64_t q_size = int64_t{c.heads} * c.head_dim;
    const Buffer q = compute_.Put(std::vector<float>(n * q_size, 0.125f));
    const ActivationBuffer out(compute_.path(), n, q_size);
    std::vector<AttentionSlice> rows;
    for (int i = 0; i < n; ++i) {
      rows.push_back({.q = q.as<float>() + i * q_size,
                      .rows = 1,
                      .start = options_.context,
                      .pages = sequences_[i].ids,
                      .out_row = i});
    }
    const TimePoint start = Clock::Real().Now();
    const auto plan = attention->NewPlan();
    plan->Set(rows);
    for (int layer = 0; layer < c.layers; ++layer) {
      attention->Run(*plan, layer, q_size, out.Rows(n));
    }
    compute_.Wait();
    return (Clock::Real().Now() - start).count();
  }

 private:
  struct Pages {
    PageTable handles;
    std::vector<PageId> ids;
  };

  Batch(const DecodeOptions& options, std::unique_ptr<Runtime> runtime)
      : options_(options),
        runtime_(std::move(runtime)),
        compute_(runtime_->threads(), runtime_->model().numeric_path()),
        tokens_(RandomPrompt(options.slice_tokens, runtime_->config().vocab_size, 1)),
        random_(RandomPage(runtime_->pool().layout())) {}

  Status Draw(int count, std::vector<Pages>* to) {
    Pages pages;
    ASSIGN_OR_RETURN(pages.handles, DrawPages(*runtime_, count, random_));
    pages.ids = IdsOf(pages.handles);
    to->push_back(std::move(pages));
    return {};
  }

  std::vector<Slice> NextTokens(int n, int position) const {
    std::vector<Slice> slices;
    for (int i = 0; i < n; ++i) {
      slices.push_back({.tokens = std::span(tokens_).subspan(i % tokens_.size(), 1),
                        .start = position,
                        .pages = sequences_[i].ids,
                        .logits = Slice::Logits::kLast});
    }
    return slices;
  }

  // That what is measured makes logits.
  Status Check(int n) {
    ASSIGN_OR_RETURN(const auto logits, runtime_->model().Forward(NextTokens(n, options_.context)));
    if (std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) return {};
    return Fail(ErrorCode::kCorrupt, "not all logits are finite");
  }

  // Runs one step as the engine does: tokens are chosen where the logits are.
  Status Step(int n, int position, bool with_slice) {
    std::vector<Slice> slices = NextTokens(n, position);
    for (Slice& slice : slices) slice.sampling = RowSampling();
    if (with_slice) slices.push_back({.tokens = tokens_, .pages = slice_[0].ids});
    return runtime_->model().Forward(slices).map([](const auto&) {});
  }

  const DecodeOptions& options_;
  const std::unique_ptr<Runtime> runtime_;
  const Compute compute_;               // beside the model's
  const std::vector<int32_t> tokens_;   // [slice_tokens]
  const std::vector<uint16_t> random_;  // a page's
  std::vector<Pages> sequences_, slice_;
};

// The limits of the machine, measured between everything else.
struct Limits {
  explicit Limits(NumericPath path) : memory(path) {}

  MatmulPeak products;
  ReadBandwidth memory;
};

// One model's part of the bench, its weights held in one way.
class ModelDecode {
 public:
  ModelDecode(const DecodeOptions& options, std::string name, WeightFormat weights,
              std::unique_ptr<Batch> batch)
      : options_(options),
        name_(std::move(name)),
        weights_(weights),
        batch_(std::move(batch)),
        work_(batch_->runtime().config()) {
    for (int sequences : options.sequences) cells_.push_back({.sequences = sequences});
  }

  // One repeat of everything.
  Status Measure(Limits* limits) {
    limits->products.Measure(batch_->runtime().threads(), batch_->runtime().model().numeric_path());
    for (Cell& cell : cells_) {
      ASSIGN_OR_RETURN(const Batch::Rates rates, batch_->Decode(cell.sequences, &limits->memory));
      cell.tokens_per_s.push_back(rates.tokens_per_s);
      cell.bytes_per_s.push_back(rates.bytes_per_s);
    }
    return options_.mixed_decodes > 0 ? MeasureMixed() : Status();
  }

  void Report(const MatmulPeak& products, nlohmann::ordered_json* json) const {
    const NumericPath path = batch_->runtime().model().numeric_path();
    const double flops_per_s = products.Best(MatmulTypeOf(path, weights_));
    for (const Cell& cell : cells_) json->push_back(ReportCell(cell, flops_per_s));
    if (options_.mixed_decodes > 0) json->push_back(ReportMixed());
  }

 private:
  struct Cell {
    int sequences = 0;
    std::vector<double> tokens_per_s = {}, bytes_per_s = {};  // a value each repeat
  };

  Status MeasureMixed() {
    // The slice before and after what is judged by it, so that a drift of the machine cancels.
    ASSIGN_OR_RETURN(const double before, batch_->Mixed(0));
    const double attention = batch_->AttentionAlone(options_.mixed_decodes);
    ASSIGN_OR_RETURN(const double mixed, batch_->Mixed(options_.mixed_decodes));
    ASSIGN_OR_RETURN(const double after, batch_->Mixed(0));
    const double slice = (before + after) / 2;
    // What the step may cost, before any allowance: the decoding rows' products as fast as the
    // slice goes, and their attention.
    const double rate = work_.SliceWithoutLogits(options_.slice_tokens) / slice;
    const double bound = slice + options_.mixed_decodes * work_.TokenProducts() / rate + attention;
    mixed_s_.push_back(mixed);
    slice_s_.push_back(slice);
    attention_s_.push_back(attention);
    over_bound_.push_back(mixed / bound);
    return {};
  }

  // What memory and products allow, in tokens a second.
  struct Roofline {
    double memory = 0;
    double products = 0;
  };
  Roofline RooflineOf(int sequences, double bytes_per_s, double flops_per_s) const {
    const double context = options_.context + options_.steps / 2.0;  // half-way through a repeat
    const double kv = static_cast<double>(batch_->runtime().pool().layout().bytes_per_token());
    const double bytes =
        work_.DecodeWeights(sequences) * static_cast<double>(WeightBytes(weights_)) +
        sequences * kv * context;
    const double attention = static_cast<double>(work_.layers) * work_.pair_flops * context;
    return {.memory = sequences * bytes_per_s / bytes,
            .products = flops_per_s / (work_.TokenProducts() + attention)};
  }

  nlohmann::ordered_json ReportCell(const Cell& cell, double flops_per_s) const {
    std::vector<double> rooflines, shares;
    for (size_t i = 0; i < cell.tokens_per_s.size(); ++i) {
      const Roofline roofline = RooflineOf(cell.sequences, cell.bytes_per_s[i], flops_per_s);
      rooflines.push_back(std::min(roofline.memory, roofline.products));
      shares.push_back(100 * cell.tokens_per_s[i] / rooflines.back());
    }
    const double bytes_per_s = Median(cell.bytes_per_s), median = Median(cell.tokens_per_s);
    const Roofline roofline = RooflineOf(cell.sequences, bytes_per_s, flops_per_s);
    const char* limit = roofline.memory < roofline.products ? "memory" : "products";
    fmt::print("{:<14} {:>7} {:>9} {:>7} {:>26} {:>6.1f} {:>10.1f} {:>9} {:>23}%\n", name_,
               WeightFormatName(weights_), cell.sequences, options_.context,
               Spread(cell.tokens_per_s, 1), bytes_per_s / 1e9, Median(rooflines), limit,
               Spread(shares, 1));
    return {{"model", name_},
            {"measure", "decode"},
            {"weights", WeightFormatName(weights_)},
            {"sequences", cell.sequences},
            {"context", options_.context},
            {"tok_per_s", median},
            {"roofline_tok_per_s", Median(rooflines)},
            {"share_of_roofline", Median(shares) / 100},
            {"limit", limit},
            {"bandwidth_bytes_per_s", bytes_per_s},
            {"peak_gflops", flops_per_s / 1e9},
            {"cpu", CpuName()},
            {"device", DeviceName(batch_->runtime().model().numeric_path())},
            {"repeats", cell.tokens_per_s}};
  }

  nlohmann::ordered_json ReportMixed() const {
    fmt::print(
        "{:<14} {:>7} {} decodes with a slice of {} tokens: {} s; the slice alone {} s, their "
        "attention "
        "{} s; {} x the bound\n",
        name_, WeightFormatName(weights_), options_.mixed_decodes, options_.slice_tokens,
        Spread(mixed_s_, 3), Spread(slice_s_, 3), Spread(attention_s_, 4), Spread(over_bound_, 3));
    return {{"model", name_},
            {"measure", "mixed"},
            {"weights", WeightFormatName(weights_)},
            {"decodes", options_.mixed_decodes},
            {"context", options_.context},
            {"slice_tokens", options_.slice_tokens},
            {"mixed_s", Median(mixed_s_)},
            {"slice_s", Median(slice_s_)},
            {"attention_s", Median(attention_s_)},
            {"over_bound", Median(over_bound_)},
            {"cpu", CpuName()},
            {"device", DeviceName(batch_->runtime().model().numeric_path())},
            {"repeats", over_bound_}};
  }

  const DecodeOptions& options_;
  const std::string name_;
  const WeightFormat weights_;
  std::unique_ptr<Batch> batch_;
  const ModelWork work_;
  std::vector<Cell> cells_;
  std::vector<double> mixed_s_, slice_s_, attention_s_, over_bound_;  // a value each repeat
};

}  // namespace

Status RunDecode(const DecodeOptions& options) {
  RETURN_IF_ERROR(CheckDevice(options.path));
  std::vector<WeightFormat> formats = options.weights;
  if (formats.empty()) {
    formats = {WeightFormat::kBf16};
    if (!OnCuda(options.path)) formats.push_back(WeightFormat::kInt8);
  }
  auto json = nlohmann::ordered_json::array();
  Limits limits(options.path);
  fmt::print("{}\n{:<14} {:>7} {:>9} {:>7} {:>26} {:>6} {:>10} {:>9} {:>24}\n",
             DeviceName(options.path), "model", "weights", "sequences", "context",
             "tokens/s (min - max)", "GB/s", "roofline", "limit", "share (min - max)");
  for (const std::string& name : ModelNames(options.model_dir, options.archs)) {
    ASSIGN_OR_RETURN(const std::string dir, ModelDirOf(options.model_dir, name));
    std::deque<ModelDecode> decodes;
    for (WeightFormat weights : formats) {
      ASSIGN_OR_RETURN(auto batch, Batch::Create(options, dir, weights));
      decodes.emplace_back(options, name, weights, std::move(batch));
    }
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (ModelDecode& decode : decodes) RETURN_IF_ERROR(decode.Measure(&limits));
    }
    for (const ModelDecode& decode : decodes) decode.Report(limits.products, &json);
  }
  limits.products.Print();
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
