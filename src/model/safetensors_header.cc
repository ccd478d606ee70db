#include "model/safetensors_header.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "base/json_file.h"

namespace kvcake {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100ull << 20;  // the format's own limit
// Room for 200,000 tensors a file; what is parsed takes at most some 200 bytes a value.
constexpr JsonLimits kHeaderLimits = {
    .max_bytes = kMaxHeaderBytes, .max_values = 2ull << 20, .unique_names = true};
constexpr size_t kMaxDimensions = 8;
constexpr const char* kUseOriginal = "use the bf16 original of the model";

// Names that only quantised weights have.
struct QuantisedName {
  std::string_view ending;
  const char* what;
};
constexpr QuantisedName kQuantisedNames[] = {
    {".qweight", "GPTQ or AWQ"},
    {".qzeros", "GPTQ or AWQ"},
    {".g_idx", "GPTQ"},
    {".weight_packed", "compressed-tensors"},
    {".weight_scale_inv", "FP8"},
    {".weight_scale", "FP8 or int8"},
    {".quant_map", "bitsandbytes 4-bit"},
    {".SCB", "bitsandbytes int8"},
};

// What people put under the name of a safetensors file.
struct ForeignFile {
  std::string_view start;
  const char* what;
};
constexpr ForeignFile kForeignFiles[] = {
    {"version https://git-lfs", "a Git LFS pointer, not the weights: run git lfs pull"},
    {"GGUF", "GGUF, which is not supported: use the Hugging Face safetensors original"},
    {"PK\x03\x04", "a PyTorch file, which is not supported: let transformers save safetensors"},
};

// A type that kvcake does not read, but files have beside the weights: of masks and positions.
struct OtherDType {
  std::string_view name;
  uint64_t bytes;
};
constexpr OtherDType kOtherDTypes[] = {{"BOOL", 1}, {"I8", 1},  {"U8", 1},  {"I16", 2}, {"U16", 2},
                                       {"I32", 4},  {"U32", 4}, {"I64", 8}, {"U64", 8}, {"F64", 8}};

bool IsWeight(const std::string& name) {
  return name.ends_with(".weight") || name.ends_with(".bias");
}

Error RefusedDType(const std::string& text, const std::string& where) {
  std::string why = "kvcake reads BF16, F16 and F32";
  if (text.starts_with("F8_")) why = fmt::format("FP8 weights are not supported; {}", kUseOriginal);
  if (text.starts_with("I") || text.starts_with("U")) {
    why = fmt::format("integer (quantised) weights are not supported; {}", kUseOriginal);
  }
  return {ErrorCode::kUnsupported, fmt::format("{}: dtype {}: {}", where, text.substr(0, 60), why)};
}

// A tensor as its entry describes it, and what one of its values takes.
struct Described {
  TensorView view;
  uint64_t value_bytes = 0;
  bool read = true;  // false: nothing that a model has
};

Result<Described> ReadShape(const json& value, const std::string& name, const std::string& where) {
  Described described;
  TensorView& view = described.view;
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) {
    return Fail(ErrorCode::kCorrupt, "{}: no dtype", where);
  }
  const auto text = dtype->get<std::string>();
  const std::optional<DType> known = DTypeNamed(text);
  if (known) {
    view.dtype = *known;
    described.value_bytes = DTypeBytes(*known);
  } else {
    const auto* other = std::find_if(std::begin(kOtherDTypes), std::end(kOtherDTypes),
                                     [&](const OtherDType& o) { return o.name == text; });
    if (IsWeight(name) || other == std::end(kOtherDTypes)) {
      return tl::unexpected(RefusedDType(text, where));
    }
    described.value_bytes = other->bytes;
    described.read = false;
  }
  const auto shape = value.find("shape");
  if (shape == value.end() || !shape->is_array() || shape->size() > kMaxDimensions) {
    return Fail(ErrorCode::kCorrupt, "{}: shape is no list of at most {} numbers", where,
                kMaxDimensions);
  }
  for (const json& dimension : *shape) {
    if (!dimension.is_number_unsigned() || dimension.get<uint64_t>() > INT64_MAX) {
      return Fail(ErrorCode::kCorrupt, "{}: a dimension of its shape is no size", where);
    }
    view.shape.push_back(dimension.get<int64_t>());
  }
  return described;
}

// The bytes that the shape needs; empty when that is no number.
std::optional<uint64_t> ShapeBytes(const Described& described) {
  uint64_t bytes = described.value_bytes;
  for (const int64_t dimension : described.view.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return {};
  }
  return bytes;
}

Status CheckName(const std::string& name, const std::string& path) {
  const auto printable = [](unsigned char c) { return c >= 0x20; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), printable)) {
    return Fail(ErrorCode::kCorrupt, "{}: a tensor's name is empty or has control characters",
                path);
  }
  for (const QuantisedName& quantised : kQuantisedNames) {
    if (!name.ends_with(quantised.ending)) continue;
    return Fail(ErrorCode::kUnsupported, "{}: tensor {}: {} weights are not supported; {}", path,
                name.substr(0, 200), quantised.what, kUseOriginal);
  }
  return {};
}

Result<TensorEntry> ReadEntry(const std::string& name, const json& value,
                              std::span<const std::byte> data, const std::string& path) {
  RETURN_IF_ERROR(CheckName(name, path));
  const std::string where = fmt::format("{}: tensor {}", path, name.substr(0, 200));
  if (!value.is_object()) return Fail(ErrorCode::kCorrupt, "{}: its entry is no object", where);
  ASSIGN_OR_RETURN(Described described, ReadShape(value, name, where));
  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return Fail(ErrorCode::kCorrupt, "{}: data_offsets are no two offsets", where);
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > data.size()) {
    return Fail(ErrorCode::kCorrupt,
                "{}: data_offsets [{}, {}) lie outside the {} bytes of data; the file may be "
                "truncated: download it again",
                where, begin, end, data.size());
  }
  if (ShapeBytes(described) != end - begin) {
    return Fail(ErrorCode::kCorrupt, "{}: {} of shape {} does not take {} bytes", where,
                value["dtype"].get<std::string>(), described.view.shape, end - begin);
  }
  described.view.bytes = data.subspan(begin, end - begin);
  return TensorEntry{
      .name = name, .view = std::move(described.view), .begin = begin, .read = described.read};
}

// The format allows neither overlaps nor holes. Sorts the entries by where they lie.
Status CheckTiling(std::vector<TensorEntry>& entries, uint64_t data_bytes,
                   const std::string& path) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.begin, a.view.bytes.size()) < std::pair(b.begin, b.view.bytes.size());
  });
  uint64_t end = 0;
  for (const TensorEntry& entry : entries) {
    if (entry.begin != end) {
      return Fail(ErrorCode::kCorrupt, "{}: tensor {} {} the one before it", path, entry.name,
                  entry.begin < end ? "overlaps" : "leaves a hole after");
    }
    end = entry.begin + entry.view.bytes.size();
  }
  if (end != data_bytes) {
    return Fail(ErrorCode::kCorrupt, "{}: {} bytes of data, but its tensors have {}", path,
                data_bytes, end);
  }
  return {};
}

// The JSON text between the length and the data.
Result<std::string_view> HeaderText(std::span<const std::byte> file, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  for (const ForeignFile& foreign : kForeignFiles) {
    if (text.starts_with(foreign.start)) {
      return Fail(ErrorCode::kUnsupported, "{} is {}", path, foreign.what);
    }
  }
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return Fail(ErrorCode::kCorrupt, "{}: {} bytes are too short for a safetensors file", path,
                file.size());
  }
  for (size_t i = 0; i < sizeof(header_bytes); ++i) {
    header_bytes |= static_cast<uint64_t>(file[i]) << (8 * i);
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > file.size() - sizeof(header_bytes)) {
    return Fail(ErrorCode::kCorrupt,
                "{}: no safetensors file: its header would have {} bytes (the file has {}, the "
                "limit is {})",
                path, header_bytes, file.size(), kMaxHeaderBytes);
  }
  return text.substr(sizeof(header_bytes), header_bytes);
}

}  // namespace

Result<std::vector<TensorEntry>> ReadSafetensorsHeader(std::span<const std::byte> file,
                                                       const std::string& path) {
  ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, path));
  ASSIGN_OR_RETURN(const json header, ParseJson(text, path + ": header", kHeaderLimits));
  if (!header.is_object()) return Fail(ErrorCode::kCorrupt, "{}: header is no object", path);
  const auto data = file.subspan(sizeof(uint64_t) + text.size());
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(TensorEntry entry, ReadEntry(name, value, data, path));
    entries.push_back(std::move(entry));
  }
  RETURN_IF_ERROR(CheckTiling(entries, data.size(), path));
  return entries;
}

}  // namespace kvcake
