#include "model/synth.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/bf16.h"
#include "base/check.h"
#include "base/cpu.h"
#include "base/mutex.h"
#include "base/thread_pool.h"
#include "model/byte_level.h"
#include "model/tensor_list.h"

namespace kvcake {

namespace {

using nlohmann::json;

struct Tensor {
  TensorSpec spec;
  double deviation = 0;  // of a normal distribution about 0; 0: all ones
  uint64_t offset = 0;   // of its data in its shard

  uint64_t elements() const { return static_cast<uint64_t>(spec.elements()); }
  uint64_t bytes() const { return 2 * elements(); }
};

// Deviations keep activations near 1 and let attention look around: 1/sqrt(inputs), and less into
// the residual stream, which every layer adds to.
double Deviation(const TensorSpec& tensor, int layers) {
  switch (tensor.role) {
    case TensorSpec::Role::kNorm:
      return 0;
    case TensorSpec::Role::kEmbedding:
    case TensorSpec::Role::kBias:
      return 0.02;
    case TensorSpec::Role::kWeight:
      return 1 / std::sqrt(tensor.shape[1]);
    case TensorSpec::Role::kResidual:
      return 1 / std::sqrt(2.0 * layers) / std::sqrt(tensor.shape[1]);
  }
  return 0;
}

std::vector<Tensor> Tensors(const ModelConfig& config) {
  std::vector<Tensor> tensors;
  for (TensorSpec& spec : ListTensors(config)) {
    const double deviation = Deviation(spec, config.layers);
    tensors.push_back({.spec = std::move(spec), .deviation = deviation});
  }
  return tensors;
}

// The standard normal distribution's inverse (Acklam's approximation, error below 1.2e-9).
double InverseNormal(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                          1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02,
                          6.680131188771972e+01, -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                          -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                          3.754408661907416e+00};
  if (p > 0.5) return -InverseNormal(1 - p);
  if (p < 0.02425) {
    const double q = std::sqrt(-2 * std::log(p));
    return (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) /
           ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  }
  const double q = p - 0.5;
  const double r = q * q;
  return (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q /
         (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
}

uint16_t ToBf16(double value) { return NumberToBf16(static_cast<float>(value)); }

// 2^16 equally likely values of a normal distribution: a draw is one lookup with 16 random bits.
using NormalTable = std::array<uint16_t, 1 << 16>;

std::unique_ptr<NormalTable> MakeNormalTable(double deviation) {
  auto table = std::make_unique<NormalTable>();
  for (size_t i = 0; i < table->size(); ++i) {
    (*table)[i] = ToBf16(deviation * InverseNormal((static_cast<double>(i) + 0.5) / table->size()));
  }
  return table;
}

uint64_t SplitMix(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

constexpr uint64_t kBlockElements = 1 << 20;  // what one thread makes and writes at a time

void FillBlock(const NormalTable* table, uint64_t seed, std::span<uint16_t> out) {
  if (!table) {
    std::fill(out.begin(), out.end(), ToBf16(1));
    return;
  }
  size_t i = 0;
  while (i < out.size()) {
    uint64_t random = SplitMix(&seed);
    for (int lane = 0; lane < 4 && i < out.size(); ++lane, random >>= 16) {
      out[i++] = (*table)[random & 0xffff];
    }
  }
}

Status WriteAll(int fd, const void* data, size_t bytes, uint64_t offset, const std::string& path) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = pwrite(fd, from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
    from += n;
    offset += static_cast<uint64_t>(n);
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << '\n';
  file.close();  // some file systems say only then that they are full
  if (!file) return Fail(ErrorCode::kIo, "cannot write {}", path);
  return {};
}

struct File {
  explicit File(int fd) : fd(fd) {}
  File(const File&) = delete;
  ~File() {
    if (fd >= 0) close(fd);
  }
  bool Close() { return close(std::exchange(fd, -1)) == 0; }
  int fd;
};

class ShardWriter {
 public:
  ShardWriter(const std::vector<Tensor>& all, const SynthOptions& options)
      : seed_(options.seed), pool_(options.threads > 0 ? options.threads : UsableCores()) {
    for (const Tensor& tensor : all) {
      auto& table = tables_[tensor.deviation];
      if (!table && tensor.deviation > 0) table = MakeNormalTable(tensor.deviation);
    }
    buffers_.resize(pool_.size());
    for (auto& buffer : buffers_) buffer.resize(kBlockElements);
  }

  // `first` is the place of the first tensor in the model: it seeds the numbers, so that they do
  // not depend on the sharding.
  Status Write(const std::string& path, std::span<const Tensor> tensors, size_t first) {
    File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (file.fd < 0) {
      return Fail(ErrorCode::kIo, "cannot create {}: {}", path, std::strerror(errno));
    }
    const std::string header = Header(tensors);
    RETURN_IF_ERROR(WriteAll(file.fd, header.data(), header.size(), 0, path));
    std::vector<Block> blocks;
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (uint64_t at = 0; at < tensors[i].elements(); at += kBlockElements) {
        blocks.push_back({.tensor = i, .begin = at});
      }
    }
    struct {
      Mutex mutex;
      Status status GUARDED_BY(mutex);
    } wrote_all;
    pool_.ParallelFor(static_cast<int64_t>(blocks.size()), [&](int64_t index, int worker) {
      const Block& block = blocks[index];
      const Tensor& tensor = tensors[block.tensor];
      const auto size = std::min(kBlockElements, tensor.elements() - block.begin);
      const std::span<uint16_t> out(buffers_[worker].data(), size);
      uint64_t seed = seed_;
      seed = SplitMix(&seed) + first + block.tensor;
      seed = SplitMix(&seed) + block.begin;
      FillBlock(tables_.at(tensor.deviation).get(), SplitMix(&seed), out);
      const Status wrote = WriteAll(file.fd, out.data(), out.size_bytes(),
                                    header.size() + tensor.offset + 2 * block.begin, path);
      if (!wrote) {
        MutexLock lock(wrote_all.mutex);
        wrote_all.status = wrote;
      }
    });
    MutexLock lock(wrote_all.mutex);
    RETURN_IF_ERROR(wrote_all.status);
    if (file.Close()) return {};
    return Fail(ErrorCode::kIo, "cannot write {}: {}", path, std::strerror(errno));
  }

 private:
  struct Block {
    size_t tensor;
    uint64_t begin;
  };

  static std::string Header(std::span<const Tensor> tensors) {
    json header = {{"__metadata__", {{"format", "pt"}}}};
    for (const Tensor& tensor : tensors) {
      header[tensor.spec.name] = {
          {"dtype", "BF16"},
          {"shape", tensor.spec.shape},
          {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes()}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data aligned
    const uint64_t size = text.size();
    std::string bytes(sizeof(size), '\0');
    for (size_t i = 0; i < sizeof(size); ++i) bytes[i] = static_cast<char>(size >> (8 * i));
    return bytes + text;
  }

  const uint64_t seed_;
  ThreadPool pool_;
  std::map<double, std::unique_ptr<NormalTable>> tables_;  // by deviation; none for ones
  std::vector<std::vector<uint16_t>> buffers_;             // one per worker
};

// Splits the tensors into runs of at most max_bytes (or of one tensor), and places each.
std::vector<std::span<Tensor>> MakeShards(std::vector<Tensor>* tensors, uint64_t max_bytes) {
  std::vector<std::span<Tensor>> shards;
  size_t begin = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < tensors->size(); ++i) {
    Tensor& tensor = (*tensors)[i];
    if (i > begin && bytes + tensor.bytes() > max_bytes) {
      shards.emplace_back(tensors->data() + begin, i - begin);
      begin = i;
      bytes = 0;
    }
    tensor.offset = bytes;
    bytes += tensor.bytes();
  }
  shards.emplace_back(tensors->data() + begin, tensors->size() - begin);
  return shards;
}

Status WriteWeights(const ModelConfig& config, const std::string& dir,
                    const SynthOptions& options) {
  std::vector<Tensor> tensors = Tensors(config);
  const auto shards = MakeShards(&tensors, options.max_shard_bytes);
  ShardWriter writer(tensors, options);
  if (shards.size() == 1) return writer.Write(dir + "/model.safetensors", shards[0], 0);
  json weight_map = json::object();
  uint64_t total = 0;
  size_t first = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    RETURN_IF_ERROR(writer.Write(dir + "/" + name, shards[i], first));
    first += shards[i].size();
    for (const Tensor& tensor : shards[i]) {
      weight_map[tensor.spec.name] = name;
      total += tensor.bytes();
    }
  }
  const json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  return WriteText(dir + "/model.safetensors.index.json", index.dump(2));
}

json TokenizerJson() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[ByteAsText(byte)] = byte;
  json added = json::array();
  for (const auto& [id, text] :
       {std::pair(kSynthBos, "<|bos|>"), std::pair(kSynthEos, "<|eos|>")}) {
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  const json bos = {{"SpecialToken", {{"id", "<|bos|>"}, {"type_id", 0}}}};
  const json a = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json b = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  const json known = {{"id", "<|bos|>"}, {"ids", {kSynthBos}}, {"tokens", {"<|bos|>"}}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", json::array({bos, a})},
            {"pair", json::array({bos, a, b})},
            {"special_tokens", {{"<|bos|>", known}}}}},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", json::array()}}}};
}

// On the disk that `there` lies on, for what is to become `dir`.
Status CheckSpace(const std::string& dir, const std::filesystem::path& there, uint64_t bytes) {
  struct statvfs space;
  if (statvfs(there.c_str(), &space) != 0) {
    return Fail(ErrorCode::kIo, "cannot ask for the free space of {}: {}", dir,
                std::strerror(errno));
  }
  const uint64_t free = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
  if (free < bytes) {
    const auto gib = [](uint64_t n) { return static_cast<double>(n) / (1 << 30); };
    return Fail(ErrorCode::kResourceExhausted,
                "{}: the model takes {:.2f} GiB ({} bytes), but the disk has {:.2f} GiB free ({} "
                "bytes): choose another disk or fewer layers",
                dir, gib(bytes), bytes, gib(free), free);
  }
  return {};
}

Status PrepareDirectory(const std::string& dir, uint64_t bytes) {
  std::error_code error;
  // Nothing is made on a disk that is too small.
  auto there = std::filesystem::absolute(dir);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) {
    there = there.parent_path();
  }
  RETURN_IF_ERROR(CheckSpace(dir, there, bytes));
  std::filesystem::create_directories(dir, error);
  if (error) return Fail(ErrorCode::kIo, "cannot create {}: {}", dir, error.message());
  const bool empty = std::filesystem::is_empty(dir, error);
  if (error) return Fail(ErrorCode::kIo, "cannot read {}: {}", dir, error.message());
  if (!empty) {
    return Fail(ErrorCode::kInvalidArgument,
                "{} is not empty: name a new directory, nothing is overwritten", dir);
  }
  return {};
}

}  // namespace

Status WriteSynthModel(const ModelConfig& config, const std::string& dir,
                       const SynthOptions& options) {
  if (config.vocab_size <= kSynthEos) {
    return Fail(ErrorCode::kInvalidArgument,
                "a vocabulary of {}: must be at least {} to hold the bytes, BOS and EOS",
                config.vocab_size, kSynthEos + 1);
  }
  ModelConfig model = config;
  model.bos_token = kSynthBos;
  model.eos_tokens = {kSynthEos};
  ASSIGN_OR_RETURN(const std::string text, ModelConfigJson(model));
  RETURN_IF_ERROR(CheckRunnable(model, "the shape"));
  constexpr uint64_t kRoomForJson = 1 << 20;
  RETURN_IF_ERROR(
      PrepareDirectory(dir, 2 * static_cast<uint64_t>(model.parameters()) + kRoomForJson));
  RETURN_IF_ERROR(WriteWeights(model, dir, options));
  RETURN_IF_ERROR(WriteText(dir + "/tokenizer.json", TokenizerJson().dump()));
  const json generation = {{"bos_token_id", kSynthBos}, {"eos_token_id", kSynthEos}};
  RETURN_IF_ERROR(WriteText(dir + "/generation_config.json", generation.dump(2)));
  return WriteText(dir + "/config.json", text);
}

Status WriteSynthModel(std::string_view arch, const std::string& dir, const SynthOptions& options) {
  ASSIGN_OR_RETURN(const ModelConfig config, SynthArch(arch, options.shape));
  return WriteSynthModel(config, dir, options);
}

}  // namespace kvcake
