#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/cpu.h"
#include "model/json_file.h"

namespace kvcake {

namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100ull << 20;  // the format's own limit
constexpr JsonLimits kHeaderLimits = {.max_bytes = kMaxHeaderBytes};
constexpr size_t kMaxDimensions = 8;

struct DTypeInfo {
  DType dtype;
  const char* name;
  uint64_t bytes;
};
constexpr DTypeInfo kDTypes[] = {
    {DType::kBf16, "BF16", 2}, {DType::kF16, "F16", 2}, {DType::kF32, "F32", 4}};

const DTypeInfo& Info(DType dtype) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.dtype == dtype) return info;
  }
  CHECK(false);
  return kDTypes[0];
}

struct Entry {
  std::string name;
  TensorView view;
  uint64_t begin = 0;
};

Result<TensorView> ReadShape(const json& value, const std::string& where) {
  TensorView view;
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) {
    return Fail(ErrorCode::kCorrupt, "{}: no dtype", where);
  }
  const auto text = dtype->get<std::string>();
  const auto* info = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [&](const DTypeInfo& known) { return text == known.name; });
  if (info == std::end(kDTypes)) {
    return Fail(ErrorCode::kUnsupported, "{}: dtype {}; kvcake reads BF16, F16 and F32", where,
                text.substr(0, 60));
  }
  view.dtype = info->dtype;
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
  return view;
}

// The bytes that the shape needs; empty when that is no number.
std::optional<uint64_t> ShapeBytes(const TensorView& view) {
  uint64_t bytes = Info(view.dtype).bytes;
  for (const int64_t dimension : view.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes)) return {};
  }
  return bytes;
}

Result<Entry> ReadEntry(const std::string& name, const json& value, std::span<const std::byte> data,
                        const std::string& path) {
  const std::string where = fmt::format("{}: tensor {}", path, name.substr(0, 200));
  const auto printable = [](unsigned char c) { return c >= 0x20; };
  if (name.empty() || !std::all_of(name.begin(), name.end(), printable)) {
    return Fail(ErrorCode::kCorrupt, "{}: a tensor's name is empty or has control characters",
                path);
  }
  if (!value.is_object()) return Fail(ErrorCode::kCorrupt, "{}: its entry is no object", where);
  Entry entry{.name = name, .view = {}};
  ASSIGN_OR_RETURN(entry.view, ReadShape(value, where));
  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return Fail(ErrorCode::kCorrupt, "{}: data_offsets are no two offsets", where);
  }
  entry.begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  if (entry.begin > end || end > data.size()) {
    return Fail(ErrorCode::kCorrupt,
                "{}: data_offsets [{}, {}) lie outside the {} bytes of data; the file may be "
                "truncated: download it again",
                where, entry.begin, end, data.size());
  }
  if (ShapeBytes(entry.view) != end - entry.begin) {
    return Fail(ErrorCode::kCorrupt, "{}: {} of shape {} does not take {} bytes", where,
                DTypeName(entry.view.dtype), entry.view.shape, end - entry.begin);
  }
  entry.view.bytes = data.subspan(entry.begin, end - entry.begin);
  return entry;
}

// All tensors of one mapped file.
Result<std::vector<Entry>> ReadEntries(std::span<const std::byte> file, const std::string& path) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return Fail(ErrorCode::kCorrupt, "{}: too short for a safetensors file", path);
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
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof(header_bytes);
  ASSIGN_OR_RETURN(const json header,
                   ParseJson({text, header_bytes}, path + ": header", kHeaderLimits));
  if (!header.is_object()) return Fail(ErrorCode::kCorrupt, "{}: header is no object", path);
  const auto data = file.subspan(sizeof(header_bytes) + header_bytes);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") continue;
    ASSIGN_OR_RETURN(Entry entry, ReadEntry(name, value, data, path));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.view.bytes.size()) < std::pair(b.begin, b.view.bytes.size());
  });
  uint64_t end = 0;  // the format allows neither overlaps nor holes
  for (const Entry& entry : entries) {
    if (entry.begin != end) {
      return Fail(ErrorCode::kCorrupt, "{}: tensor {} {} the one before it", path, entry.name,
                  entry.begin < end ? "overlaps" : "leaves a hole after");
    }
    end = entry.begin + entry.view.bytes.size();
  }
  if (end != data.size()) {
    return Fail(ErrorCode::kCorrupt, "{}: {} bytes of data, but its tensors have {}", path,
                data.size(), end);
  }
  return entries;
}

// The shards that the index names, each once.
Result<std::set<std::string>> ReadIndex(const std::string& path, json* weight_map) {
  ASSIGN_OR_RETURN(json index, ReadJsonFile(path));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Fail(ErrorCode::kCorrupt, "{}: no weight_map", path);
  }
  *weight_map = std::move(index["weight_map"]);
  std::set<std::string> shards;
  for (const auto& [name, shard] : weight_map->items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == ".." ||
        file.find('\0') != std::string::npos) {
      return Fail(ErrorCode::kCorrupt,
                  "{}: tensor {} is said to be in {}, which is no file name in this directory",
                  path, name.substr(0, 200), shard.dump().substr(0, 200));
    }
    shards.insert(file);
  }
  return shards;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

}  // namespace

struct TensorFiles::Mapping {
  explicit Mapping(std::span<const std::byte> bytes) : bytes(bytes) {}
  Mapping(Mapping&& other) noexcept : bytes(std::exchange(other.bytes, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes, other.bytes);
    return *this;
  }
  ~Mapping() {
    if (!bytes.empty()) munmap(const_cast<std::byte*>(bytes.data()), bytes.size());
  }

  static Result<Mapping> Map(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      return Fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot open {}: {}",
                  path, std::strerror(errno));
    }
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) {
      close(fd);
      return Fail(ErrorCode::kCorrupt, "{} is empty or no regular file", path);
    }
    const auto size = static_cast<size_t>(info.st_size);
    void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    const int error = errno;
    close(fd);
    if (data == MAP_FAILED) {
      return Fail(ErrorCode::kIo, "cannot map {}: {}", path, std::strerror(error));
    }
    return Mapping({static_cast<const std::byte*>(data), size});
  }

  std::span<const std::byte> bytes;
};

const char* DTypeName(DType dtype) { return Info(dtype).name; }

int64_t TensorView::elements() const {
  return static_cast<int64_t>(bytes.size() / Info(dtype).bytes);
}

TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;
TensorFiles& TensorFiles::operator=(TensorFiles&&) noexcept = default;
TensorFiles::~TensorFiles() = default;

Result<TensorFiles> TensorFiles::Open(const std::string& dir) {
  TensorFiles files;
  files.dir_ = dir;
  std::set<std::string> shards = {"model.safetensors"};
  json weight_map = json::object();
  const std::string index_path = dir + "/model.safetensors.index.json";
  if (!Exists(dir + "/model.safetensors")) {
    if (!Exists(index_path)) {
      return Fail(ErrorCode::kNotFound,
                  "{} has neither model.safetensors nor model.safetensors.index.json; kvcake reads "
                  "Hugging Face safetensors only",
                  dir);
    }
    ASSIGN_OR_RETURN(shards, ReadIndex(index_path, &weight_map));
  }
  for (const std::string& shard : shards) {
    const std::string path = dir + "/" + shard;
    ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(path));
    ASSIGN_OR_RETURN(std::vector<Entry> entries, ReadEntries(mapping.bytes, path));
    files.mappings_.push_back(std::move(mapping));
    for (Entry& entry : entries) {
      if (!files.tensors_.emplace(entry.name, std::move(entry.view)).second) {
        return Fail(ErrorCode::kCorrupt, "{}: tensor {} is in another shard too", path, entry.name);
      }
    }
  }
  for (const auto& [name, shard] : weight_map.items()) {
    if (!files.Has(name)) {
      return Fail(ErrorCode::kCorrupt, "{}: tensor {} is not in {}", index_path, name,
                  shard.get<std::string>());
    }
  }
  return files;
}

Result<TensorView> TensorFiles::Get(const std::string& name, std::span<const int64_t> shape) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return Fail(ErrorCode::kNotFound, "{}: no tensor {}", dir_, name);
  }
  if (!std::equal(shape.begin(), shape.end(), it->second.shape.begin(), it->second.shape.end())) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: tensor {} has shape {}, but config.json asks for {}", dir_, name,
                it->second.shape, shape);
  }
  return it->second;
}

Digest WeightsDigest(const TensorFiles& files) {
  struct Row {
    const std::string* name;
    const TensorView* view;
    std::array<uint8_t, 16> hash{};
  };
  std::vector<Row> rows;
  for (const auto& [name, view] : files.tensors()) rows.push_back({.name = &name, .view = &view});
  std::vector<Row*> by_size;  // largest first, so that threads finish together
  for (Row& row : rows) by_size.push_back(&row);
  std::stable_sort(by_size.begin(), by_size.end(), [](const Row* a, const Row* b) {
    return a->view->bytes.size() > b->view->bytes.size();
  });
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < by_size.size();) {
      by_size[i]->hash = Xxh3_128(by_size[i]->view->bytes);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < UsableCores(); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins

  Sha256 sha;
  for (const Row& row : rows) {
    sha.Update(fmt::format("{}\t{}\t{}\t{}\n", *row.name, DTypeName(row.view->dtype),
                           fmt::join(row.view->shape, ","), ToHex(row.hash)));
  }
  return sha.Finish();
}

}  // namespace kvcake
