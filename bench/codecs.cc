// How small do codecs make a chunk, and how fast do they write and read it?
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/named_codecs.h"
#include "bench/text_source.h"
#include "bench/zstd.h"
#include "model/synth.h"

namespace kvcake::bench {
namespace {

using Slab = std::vector<uint16_t>;  // a layer's payload

// Chunks of one shape: `layers` slabs each.
struct Shape {
  std::string name;
  KvLayout layout;
  std::vector<Slab> slabs;
  std::vector<Slab> fit_slabs;  // of other text: codecs' tables are fitted to these
  std::vector<float> inverse_frequencies;

  SlabPlace PlaceOf(size_t slab) const {
    return {.layer = static_cast<int>(slab) % layout.layers,
            .position = static_cast<int64_t>(slab) / layout.layers * layout.chunk_tokens};
  }
};

KvSample FitSample(const Shape& shape) {
  KvSample sample{.layout = shape.layout,
                  .positions = {},
                  .inverse_frequencies = shape.inverse_frequencies,
                  .slab = {}};
  for (size_t slab = 0; slab < shape.fit_slabs.size(); slab += shape.layout.layers) {
    sample.positions.push_back(shape.PlaceOf(slab).position);
  }
  sample.slab = [&shape](size_t chunk, int layer) -> std::span<const uint16_t> {
    return shape.fit_slabs[chunk * shape.layout.layers + layer];
  };
  return sample;
}

// The slabs of every full chunk of a prompt, as the model computes them.
Result<std::vector<Slab>> SlabsOf(Runtime& runtime, const std::vector<int32_t>& tokens) {
  ASSIGN_OR_RETURN(const auto pages, ComputedPages(runtime, tokens));
  PagePool& pool = runtime.pool();
  const KvLayout& layout = pool.layout();
  std::vector<Slab> slabs;
  for (const std::optional<PageHandle>& page : pages) {
    if (!page) continue;
    for (int layer = 0; layer < layout.layers; ++layer) {
      const uint16_t* const slab = pool.Slab(page->id(), layer);
      slabs.emplace_back(slab, slab + 2 * layout.plane_elements());
    }
  }
  if (slabs.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "{} tokens make no chunk of {}: raise --tokens",
                tokens.size(), layout.chunk_tokens);
  }
  return slabs;
}

Result<Shape> ChunksOf(const CodecsOptions& options) {
  RuntimeOptions runtime_options{.model_dir = options.model_dir, .threads = options.threads};
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  ASSIGN_OR_RETURN(
      const TextSource source,
      TextSource::Read(options.text.empty() ? options.model_dir + "/held_out" : options.text));
  constexpr double kCharactersPerToken = 8;  // more than any tokenizer's: what is too much is cut
  ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model_dir));
  Shape shape{.name = options.model_dir,
              .layout = runtime->pool().layout(),
              .slabs = {},
              .fit_slabs = {},
              .inverse_frequencies = InverseFrequencies(config)};
  for (const bool fit : {false, true}) {
    ASSIGN_OR_RETURN(
        std::vector<int32_t> tokens,
        runtime->tokenizer().Encode(source.Cut(
            {.label = fit ? "fit" : "codecs", .tokens = options.tokens}, kCharactersPerToken, 1)));
    tokens.resize(std::min<size_t>(tokens.size(), options.tokens));
    ASSIGN_OR_RETURN((fit ? shape.fit_slabs : shape.slabs), SlabsOf(*runtime, tokens));
  }
  return shape;
}

// One chunk of another model's shape made of these slabs: as many heads beside each other as its
// heads are wide, of one slab after another from the given one on.
std::vector<Slab> Reshaped(const std::vector<Slab>& slabs, const KvLayout& small,
                           const KvLayout& layout, size_t first) {
  std::vector<Slab> chunk;
  const int beside = layout.head_dim / small.head_dim;
  size_t next = first * small.kv_heads;
  for (int layer = 0; layer < layout.layers; ++layer) {
    Slab& slab = chunk.emplace_back();
    slab.resize(2 * layout.plane_elements());
    for (int part = 0; part < layout.kv_heads * beside; ++part, ++next) {
      const Slab& source = slabs[next / small.kv_heads % slabs.size()];
      for (int plane = 0; plane < 2; ++plane) {
        for (int token = 0; token < layout.chunk_tokens; ++token) {
          const uint64_t row =
              plane * small.plane_elements() +
              (next % small.kv_heads * small.chunk_tokens + token) * small.head_dim;
          const uint64_t to = plane * layout.plane_elements() +
                              (static_cast<uint64_t>(part / beside) * layout.chunk_tokens + token) *
                                  layout.head_dim +
                              static_cast<uint64_t>(part % beside) * small.head_dim;
          std::copy_n(source.begin() + static_cast<int64_t>(row), small.head_dim,
                      slab.begin() + static_cast<int64_t>(to));
        }
      }
    }
  }
  return chunk;
}

Result<Shape> Reshaped(const Shape& from, const std::string& arch) {
  ASSIGN_OR_RETURN(const ModelConfig config, SynthArch(arch));
  const KvLayout layout = TransformerModel::LayoutFor(config, from.layout.chunk_tokens);
  if (layout.head_dim % from.layout.head_dim != 0) {
    return Fail(ErrorCode::kUnsupported, "heads of {} are not whole heads of {}", layout.head_dim,
                from.layout.head_dim);
  }
  Shape shape{.name = arch,
              .layout = layout,
              .slabs = Reshaped(from.slabs, from.layout, layout, 0),
              .fit_slabs = {},
              .inverse_frequencies = InverseFrequencies(config)};
  // Each chunk of the small layers that follow, so that a layer's place sees the same layers.
  for (size_t first = 0; first < from.fit_slabs.size(); first += from.layout.layers) {
    std::vector<Slab> chunk = Reshaped(from.fit_slabs, from.layout, layout, first);
    std::move(chunk.begin(), chunk.end(), std::back_inserter(shape.fit_slabs));
  }
  return shape;
}

// A way of writing and reading a slab.
struct Contender {
  std::string name;
  std::string isa;  // empty: none of ours
  bool exact = true;
  uint64_t bytes_max = 0;
  // 0 where it fails.
  std::function<uint64_t(const SlabPlace&, const Slab&, std::span<std::byte>)> encode;
  std::function<bool(const SlabPlace&, std::span<const std::byte>, Slab&)> decode;
};

Result<std::vector<Contender>> Contenders(const Shape& shape) {
  const uint64_t raw = 2 * shape.slabs[0].size();
  std::vector<Contender> all;
  all.push_back({.name = "memcpy",
                 .isa = "",
                 .bytes_max = raw,
                 .encode =
                     [raw](const SlabPlace&, const Slab& slab, std::span<std::byte> part) {
                       std::memcpy(part.data(), slab.data(), raw);
                       return raw;
                     },
                 .decode =
                     [raw](const SlabPlace&, std::span<const std::byte> part, Slab& slab) {
                       std::memcpy(slab.data(), part.data(), raw);
                       return true;
                     }});
  if (const Zstd* const zstd = Zstd::Load()) {
    for (const int level : {1, 3}) {
      all.push_back({.name = fmt::format("zstd -{}", level),
                     .isa = "",
                     .bytes_max = zstd->BytesMax(raw),
                     .encode =
                         [=](const SlabPlace&, const Slab& slab, std::span<std::byte> part) {
                           return zstd->Compress(std::as_bytes(std::span(slab)), part, level);
                         },
                     .decode =
                         [=](const SlabPlace&, std::span<const std::byte> part, Slab& slab) {
                           return zstd->Decompress(part, std::as_writable_bytes(std::span(slab))) ==
                                  raw;
                         }});
    }
  }
  for (const CodecRow& row : CodecRows()) {
    if (row.codec == Codec::kRaw) continue;  // memcpy is measured
    std::vector<NamedCodec> codecs(1, {.row = &row, .tables = {}});
    if (row.fit != nullptr) {
      codecs.clear();
      for (CodecTables& tables : row.fit(FitSample(shape))) {
        codecs.push_back({.row = &row, .tables = std::move(tables)});
      }
    }
    for (const NamedCodec& named : codecs) {
      for (const CodecIsa isa : CodecIsas()) {
        ASSIGN_OR_RETURN(std::unique_ptr<LayerCodec> made, row.make(named.Spec(shape.layout), isa));
        const std::shared_ptr<LayerCodec> codec = std::move(made);
        all.push_back(
            {.name = named.name(),
             .isa = CodecIsaName(isa),
             .exact = !row.lossy,
             .bytes_max = codec->part_bytes_max(),
             .encode =
                 [codec](const SlabPlace& place, const Slab& slab, std::span<std::byte> part) {
                   return codec->Encode(place, slab, part).value_or(0);
                 },
             .decode = [codec](
                           const SlabPlace& place, std::span<const std::byte> part,
                           Slab& slab) { return codec->Decode(place, part, slab).has_value(); }});
      }
    }
  }
  return all;
}

// What one contender did with all slabs of a shape, on the calling thread: rates are by processor
// time, which others on the machine take nothing of.
class CodecRun {
 public:
  CodecRun(const Shape& shape, Contender contender)
      : shape_(shape),
        contender_(std::move(contender)),
        parts_(shape.slabs.size()),
        decoded_(shape.slabs.size(), Slab(shape.slabs[0].size())) {}

  Status Measure() {
    std::vector<std::byte> part(contender_.bytes_max);
    double encoding_s = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const double start = CpuSeconds();
      const uint64_t bytes = contender_.encode(shape_.PlaceOf(i), shape_.slabs[i], part);
      encoding_s += CpuSeconds() - start;
      if (bytes == 0) return Fail(ErrorCode::kUnsupported, "{} failed", contender_.name);
      parts_[i].assign(part.begin(), part.begin() + static_cast<int64_t>(bytes));
    }
    const double start = CpuSeconds();
    bool good = true;
    for (size_t i = 0; i < parts_.size(); ++i) {
      good &= contender_.decode(shape_.PlaceOf(i), parts_[i], decoded_[i]);
    }
    decode_.push_back(bytes() / (CpuSeconds() - start));
    encode_.push_back(bytes() / encoding_s);
    if (good && (!contender_.exact || decoded_ == shape_.slabs)) return {};
    return Fail(ErrorCode::kCorrupt, "{} {}: what it read is not what it wrote", contender_.name,
                contender_.isa);
  }

  nlohmann::ordered_json Report() const {
    uint64_t encoded = 0;
    for (const auto& part : parts_) encoded += part.size();
    const double bits = 16.0 * static_cast<double>(encoded) / bytes();
    fmt::print("{:<16} {:<10} {:<9} {:>7.3f} {:>7.3f}x {:>22} {:>22}\n", shape_.name,
               contender_.name, contender_.isa, bits, 16 / bits, InGb(encode_), InGb(decode_));
    return {{"shape", shape_.name},
            {"codec", contender_.name},
            {"isa", contender_.isa},
            {"chunk_bytes", shape_.layout.layers * shape_.layout.slab_payload_bytes()},
            {"bits_per_value", bits},
            {"encode_bytes_per_s", Median(encode_)},
            {"decode_bytes_per_s", Median(decode_)},
            {"cpu", CpuName()}};
  }

 private:
  double bytes() const {  // of bf16
    return 2.0 * static_cast<double>(shape_.slabs.size() * shape_.slabs[0].size());
  }
  static std::string InGb(std::vector<double> rates) {
    for (double& rate : rates) rate /= 1e9;
    return Spread(rates, 2);
  }

  const Shape& shape_;
  const Contender contender_;
  std::vector<std::vector<std::byte>> parts_;
  std::vector<Slab> decoded_;
  std::vector<double> encode_, decode_;  // bytes of bf16 a second, of each repeat
};

}  // namespace

Status RunCodecs(const CodecsOptions& options) {
  std::vector<Shape> shapes(1);
  ASSIGN_OR_RETURN(shapes[0], ChunksOf(options));
  for (const std::string& arch : options.archs) {
    ASSIGN_OR_RETURN(shapes.emplace_back(), Reshaped(shapes[0], arch));
  }
  fmt::print("{}, one core, by its processor time\n{:<16} {:<10} {:<9} {:>7} {:>8} {:>22} {:>22}\n",
             CpuName(), "shape", "codec", "by", "bits", "smaller", "encode GB/s", "decode GB/s");
  auto json = nlohmann::ordered_json::array();
  for (const Shape& shape : shapes) {
    std::vector<CodecRun> runs;
    ASSIGN_OR_RETURN(std::vector<Contender> contenders, Contenders(shape));
    for (Contender& contender : contenders) runs.emplace_back(shape, std::move(contender));
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (CodecRun& run : runs) RETURN_IF_ERROR(run.Measure());
    }
    for (const CodecRun& run : runs) json.push_back(run.Report());
  }
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
