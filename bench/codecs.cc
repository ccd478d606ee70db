// How small do codecs make a chunk, and how fast do they write and read it?
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "bench/benches.h"
#include "bench/harness.h"
#include "bench/text_source.h"
#include "bench/zstd.h"
#include "codec/codec.h"
#include "model/synth.h"

namespace kvcake::bench {
namespace {

using Slab = std::vector<uint16_t>;  // a layer's payload

// Chunks of one shape: `layers` slabs each.
struct Shape {
  std::string name;
  KvLayout layout;
  std::vector<Slab> slabs;
};

// The slabs of every full chunk of a text, as the model computes them.
Result<Shape> ChunksOf(const CodecsOptions& options) {
  RuntimeOptions runtime_options{.model_dir = options.model_dir, .threads = options.threads};
  ASSIGN_OR_RETURN(const auto runtime, Runtime::Create(runtime_options));
  ASSIGN_OR_RETURN(
      const TextSource source,
      TextSource::Read(options.text.empty() ? options.model_dir + "/held_out" : options.text));
  constexpr double kCharactersPerToken = 8;  // more than any tokenizer's: what is too much is cut
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                   runtime->tokenizer().Encode(source.Cut(
                       {.label = "codecs", .tokens = options.tokens}, kCharactersPerToken, 1)));
  tokens.resize(std::min<size_t>(tokens.size(), options.tokens));
  RETURN_IF_ERROR(RunCold(*runtime, tokens, Policy::kCompute, 1, /*store=*/false));
  PagePool& pool = runtime->pool();
  Shape shape{.name = options.model_dir, .layout = pool.layout(), .slabs = {}};
  for (const ChunkKey& key :
       ChunkKeys(runtime->model().identity().Root(), tokens, shape.layout.chunk_tokens)) {
    const std::optional<PageHandle> page = pool.Lookup(key);
    if (!page) continue;
    for (int layer = 0; layer < shape.layout.layers; ++layer) {
      const uint16_t* const slab = pool.Slab(page->id(), layer);
      shape.slabs.emplace_back(slab, slab + 2 * shape.layout.plane_elements());
    }
  }
  if (shape.slabs.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "{} tokens make no chunk of {}: raise --tokens",
                tokens.size(), shape.layout.chunk_tokens);
  }
  return shape;
}

// One chunk of another model's shape made of these numbers: as many heads beside each other as its
// heads are wide, of one slab after another.
Result<Shape> Reshaped(const Shape& from, const std::string& arch) {
  ASSIGN_OR_RETURN(const ModelConfig config, SynthArch(arch));
  const KvLayout &small = from.layout,
                 layout = TransformerModel::LayoutFor(config, small.chunk_tokens);
  if (layout.head_dim % small.head_dim != 0) {
    return Fail(ErrorCode::kUnsupported, "heads of {} are not whole heads of {}", layout.head_dim,
                small.head_dim);
  }
  Shape shape{.name = arch, .layout = layout, .slabs = {}};
  const int beside = layout.head_dim / small.head_dim;
  size_t next = 0;
  for (int layer = 0; layer < layout.layers; ++layer) {
    Slab& slab = shape.slabs.emplace_back();
    slab.resize(2 * layout.plane_elements());
    for (int part = 0; part < layout.kv_heads * beside; ++part, ++next) {
      const Slab& source = from.slabs[next / small.kv_heads % from.slabs.size()];
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
  return shape;
}

// A way of writing and reading a slab.
struct Contender {
  std::string name;
  std::string isa;  // empty: none of ours
  bool exact = true;
  uint64_t bytes_max = 0;
  std::function<uint64_t(const Slab&, std::span<std::byte>)> encode;  // 0 where it fails
  std::function<bool(std::span<const std::byte>, Slab&)> decode;
};

std::vector<Contender> Contenders(const Shape& shape) {
  const uint64_t raw = 2 * shape.slabs[0].size();
  std::vector<Contender> all;
  all.push_back({.name = "memcpy",
                 .isa = "",
                 .bytes_max = raw,
                 .encode =
                     [raw](const Slab& slab, std::span<std::byte> part) {
                       std::memcpy(part.data(), slab.data(), raw);
                       return raw;
                     },
                 .decode =
                     [raw](std::span<const std::byte> part, Slab& slab) {
                       std::memcpy(slab.data(), part.data(), raw);
                       return true;
                     }});
  if (const Zstd* const zstd = Zstd::Load()) {
    for (const int level : {1, 3}) {
      all.push_back({.name = fmt::format("zstd -{}", level),
                     .isa = "",
                     .bytes_max = zstd->BytesMax(raw),
                     .encode =
                         [=](const Slab& slab, std::span<std::byte> part) {
                           return zstd->Compress(std::as_bytes(std::span(slab)), part, level);
                         },
                     .decode =
                         [=](std::span<const std::byte> part, Slab& slab) {
                           return zstd->Decompress(part, std::as_writable_bytes(std::span(slab))) ==
                                  raw;
                         }});
    }
  }
  for (const CodecRow& row : CodecRows()) {
    if (row.make == nullptr) continue;
    for (const CodecIsa isa : CodecIsas()) {
      const std::shared_ptr<LayerCodec> codec = row.make(shape.layout, isa);
      all.push_back(
          {.name = row.name,
           .isa = CodecIsaName(isa),
           .exact = !row.lossy,
           .bytes_max = codec->part_bytes_max(),
           .encode =
               [codec](const Slab& slab, std::span<std::byte> part) {
                 return codec->Encode(slab, part).value_or(0);
               },
           .decode = [codec](std::span<const std::byte> part,
                             Slab& slab) { return codec->Decode(part, slab).has_value(); }});
    }
  }
  return all;
}

// What one contender did with all slabs of a shape, on the calling thread.
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
      const TimePoint start = Clock::Real().Now();
      const uint64_t bytes = contender_.encode(shape_.slabs[i], part);
      encoding_s += (Clock::Real().Now() - start).count();
      if (bytes == 0) return Fail(ErrorCode::kUnsupported, "{} failed", contender_.name);
      parts_[i].assign(part.begin(), part.begin() + static_cast<int64_t>(bytes));
    }
    const TimePoint start = Clock::Real().Now();
    bool good = true;
    for (size_t i = 0; i < parts_.size(); ++i) good &= contender_.decode(parts_[i], decoded_[i]);
    decode_.push_back(bytes() / (Clock::Real().Now() - start).count());
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
  fmt::print("{}, one core\n{:<16} {:<10} {:<9} {:>7} {:>8} {:>22} {:>22}\n", CpuName(), "shape",
             "codec", "by", "bits", "smaller", "encode GB/s", "decode GB/s");
  auto json = nlohmann::ordered_json::array();
  for (const Shape& shape : shapes) {
    std::vector<CodecRun> runs;
    for (Contender& contender : Contenders(shape)) runs.emplace_back(shape, std::move(contender));
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      for (CodecRun& run : runs) RETURN_IF_ERROR(run.Measure());
    }
    for (const CodecRun& run : runs) json.push_back(run.Report());
  }
  return options.json.empty() ? Status() : WriteJson(options.json, json);
}

}  // namespace kvcake::bench
