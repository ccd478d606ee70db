#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/json_file.h"
#include "model/model_dir.h"
#include "model/safetensors_header.h"

namespace kvcake {

namespace {

using nlohmann::json;

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

// The index's tensors and their shards, file names in the same directory.
Result<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  ASSIGN_OR_RETURN(json index, ReadJsonFile(path, {.unique_names = true}));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Fail(ErrorCode::kCorrupt, "{}: no weight_map", path);
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    if (file.empty() || file.find('/') != std::string::npos || file == "." || file == ".." ||
        file.find('\0') != std::string::npos) {
      return Fail(ErrorCode::kCorrupt,
                  "{}: tensor {} is said to be in {}, which is no file name in this directory",
                  path, name.substr(0, 200), shard.dump().substr(0, 200));
    }
    shard_of.emplace(name, file);
  }
  return shard_of;
}

// Whether something has this name, be it a dangling link or not ours to read: opening it will say.
bool Present(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

// Only advice: without it everything is as right, and slower.
void Advise(std::span<const std::byte> bytes, int advice) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(bytes.data() + bytes.size());
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

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
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // never waits on a FIFO
    if (fd < 0) {
      return Fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "cannot open {}: {}",
                  path, std::strerror(errno));
    }
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd);
      return Fail(ErrorCode::kIo, "{} is not a regular file", path);
    }
    if (info.st_size == 0) {
      close(fd);
      return Fail(ErrorCode::kCorrupt, "{} is empty: download it again", path);
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

uint64_t DTypeBytes(DType dtype) { return Info(dtype).bytes; }

std::optional<DType> DTypeNamed(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return {};
}

int64_t TensorView::elements() const {
  return static_cast<int64_t>(bytes.size() / Info(dtype).bytes);
}

TensorFiles::TensorFiles(TensorFiles&&) noexcept = default;
TensorFiles& TensorFiles::operator=(TensorFiles&&) noexcept = default;
TensorFiles::~TensorFiles() = default;

Result<TensorFiles> TensorFiles::Open(const std::string& dir) {
  TensorFiles files;
  std::map<std::string, std::string> shard_of;  // by tensor, as an index says
  std::set<std::string> shards = {"model.safetensors"};
  files.source_ = dir + "/model.safetensors";
  if (!Present(files.source_)) {
    files.source_ += ".index.json";
    if (!Present(files.source_)) {
      RETURN_IF_ERROR(CheckModelDir(dir));
      return Fail(ErrorCode::kNotFound,
                  "{} has neither model.safetensors nor model.safetensors.index.json", dir);
    }
    ASSIGN_OR_RETURN(shard_of, ReadIndex(files.source_));
    shards.clear();
    for (const auto& [name, shard] : shard_of) shards.insert(shard);
  }
  for (const std::string& shard : shards) {
    const std::string path = dir + "/" + shard;
    auto mapping = Mapping::Map(path);
    if (!mapping) {
      if (shard_of.empty()) return tl::unexpected(mapping.error());
      return Fail(mapping.error().code, "{} names a shard that cannot be read: {}", files.source_,
                  mapping.error().message);
    }
    ASSIGN_OR_RETURN(std::vector<TensorEntry> entries, ReadSafetensorsHeader(mapping->bytes, path));
    files.mappings_.push_back(std::move(*mapping));
    for (TensorEntry& entry : entries) {
      // What an index places must be found there; what it leaves out is a tensor all the same.
      if (const auto it = shard_of.find(entry.name); it != shard_of.end() && it->second == shard) {
        shard_of.erase(it);
      }
      if (!entry.read) continue;
      if (!files.tensors_.emplace(entry.name, std::move(entry.view)).second) {
        return Fail(ErrorCode::kCorrupt, "{}: tensor {} is in another shard too", path, entry.name);
      }
    }
  }
  if (!shard_of.empty()) {
    const auto& [name, shard] = *shard_of.begin();
    return Fail(ErrorCode::kCorrupt, "{}: tensor {} is not in {}", files.source_,
                name.substr(0, 200), shard);
  }
  return files;
}

Result<TensorView> TensorFiles::Get(const std::string& name, std::span<const int64_t> shape) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    return Fail(ErrorCode::kNotFound,
                "{}: no tensor {}, which a model of this config.json has; are all files of the "
                "model there?",
                source_, name);
  }
  const TensorView& view = it->second;
  if (!std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.end())) {
    return Fail(ErrorCode::kInvalidArgument,
                "{}: tensor {} has shape {}, but config.json asks for {}", source_, name,
                view.shape, shape);
  }
  return view;
}

void TensorFiles::ReadAhead(std::span<const std::byte> bytes) { Advise(bytes, MADV_WILLNEED); }

void TensorFiles::Release() const {
  for (const Mapping& mapping : mappings_) Release(mapping.bytes);
}

void TensorFiles::Release(std::span<const std::byte> bytes) { Advise(bytes, MADV_DONTNEED); }

}  // namespace kvcake
