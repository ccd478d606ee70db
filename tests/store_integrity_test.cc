// Every way in which a chunk file can be bad, and an engine that restores a prompt from it: the
// answer is right, the file is counted and moved away, and the log names it and the reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <sstream>

#include "base/hash.h"
#include "base/temp_dir_testing.h"
#include "bench/harness.h"
#include "engine/engine.h"
#include "io/faulty_file_system_testing.h"
#include "model/safetensors.h"
#include "model/transformer.h"
#include "store/disk_tier.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

constexpr int kChunk = 16, kChunks = 8;
constexpr int kDamaged = 3;

struct Damage {
  std::string name;
  std::string reason;  // in the log
  std::function<void(const std::string& path)> apply;
};

std::string Slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Spill(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

Damage Flip(const std::string& what, uint64_t at,
            const std::string& reason = "the header's checksum does not match") {
  return {fmt::format("{} (byte {})", what, at), reason, [at](const std::string& path) {
            std::string bytes = Slurp(path);
            bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
            Spill(path, bytes);
          }};
}

Damage Resize(const std::string& what, uint64_t size) {
  return {fmt::format("{} ({} bytes)", what, size), fmt::format("it has {} bytes, must", size),
          [size](const std::string& path) { fs::resize_file(path, size); }};
}

// A header that says something else and has the right checksum.
Damage Reseal(const std::string& what, size_t at, char value, const std::string& reason) {
  return {what, reason, [at, value](const std::string& path) {
            std::string bytes = Slurp(path);
            bytes[at] = value;
            const uint64_t sum = Xxh3_64(std::as_bytes(std::span(bytes)).first(4088));
            for (int i = 0; i < 8; ++i) bytes[4088 + i] = static_cast<char>(sum >> (8 * i));
            Spill(path, bytes);
          }};
}

class StoreIntegrityTest : public testing::Test {
 protected:
  StoreIntegrityTest() {
    const std::string model_dir = KVCAKE_SOURCE_DIR "/tests/golden/models/llama2_linear_new_f32";
    config_ = LoadModelConfig(model_dir).value();
    pool_ = PagePool::Create(TransformerModel::LayoutFor(config_, kChunk), 4 << 20).value();
    const TensorFiles files = TensorFiles::Open(model_dir).value();
    model_ = TransformerModel::Create(config_, WeightSource::FromFiles(files), *pool_, threads_,
                                      {.max_batch_tokens = 128})
                 .value();
    prompt_ = bench::RandomPrompt(kChunk * kChunks + 3, config_.vocab_size, 1);
    keys_ = ChunkKeys(model_->identity().Root(), prompt_, kChunk);
    logger_ = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
  }
  ~StoreIntegrityTest() override { spdlog::set_default_logger(logger_); }

  // With empty memory, over the store as it is.
  Completion Answer(Policy policy) {
    pool_->DropCached();
    DiskTierOptions disk;
    disk.dir = dir_;
    disk.layout = pool_->layout();
    disk.root = model_->identity().Root();
    disk.quarantine_files_max = 1000;
    disk.missing_ttl = Seconds(0);
    disk.overdue_after = overdue_after_;
    DiskTier& tier = *(tier_ = DiskTier::Open(disk, *files_).value());
    if (apply_) apply_();  // after the catalogue has been made: only the read can find out
    ComputeCost cost;
    Restorer::Options restore;
    restore.numeric_path = model_->numeric_path();  // or nothing is kept on top of what is loaded
    const auto restorer = NewRestorer(*pool_, {&tier}, cost, Clock::Real(), restore);
    WriteBehind writes({&tier}, *pool_);
    Engine engine(
        {.model = *model_, .pool = *pool_, .restorer = *restorer, .cost = cost, .writes = &writes},
        {.slice_tokens = 64});
    Request request;
    request.prompt = prompt_;
    request.max_tokens = 4;
    request.logprobs = true;
    request.policy = policy;
    Completion completion = engine.Answer(std::move(request)).value();
    engine.FlushStore();
    stats_ = tier.Stats();
    return completion;
  }
  std::string PathOf(int chunk) const {
    return StoreDir(dir_).ChunkPath({model_->identity().Root(), keys_[chunk]});
  }

  // One line names the file, the reason and what was done.
  void ExpectLogged(const std::string& reason) const {
    std::istringstream lines(log_.str());
    std::string line;
    while (std::getline(lines, line) && line.find(PathOf(kDamaged)) == std::string::npos) {
    }
    EXPECT_THAT(line, AllOf(HasSubstr(PathOf(kDamaged) + " "), HasSubstr(reason),
                            HasSubstr("moved to quarantine")));
  }

  std::vector<Damage> Damages() const {
    std::vector<Damage> all;
    all.push_back(Flip("magic", 0, "the magic is not"));
    all.push_back(Flip("version", 8, "version is"));
    const std::pair<const char*, uint64_t> fields[] = {{"header bytes", 12},
                                                       {"flags", 16},
                                                       {"layers", 24},
                                                       {"kv_heads", 28},
                                                       {"head_dim", 32},
                                                       {"chunk_tokens", 36},
                                                       {"dtype", 40},
                                                       {"codec", 42},
                                                       {"numeric path", 44},
                                                       {"reserved", 46},
                                                       {"file bytes", 48},
                                                       {"slab bytes", 56},
                                                       {"slab payload bytes", 64},
                                                       {"reserved", 72},
                                                       {"key", 96},
                                                       {"parent", 128},
                                                       {"root", 160},
                                                       {"slab checksums", 192},
                                                       {"reserved", 4080},
                                                       {"header checksum", 4088}};
    for (const auto& [name, at] : fields) all.push_back(Flip(name, at));
    const KvLayout& layout = pool_->layout();
    for (int layer = 0; layer < layout.layers; ++layer) {
      const uint64_t slab = layout.slab_offset(layer);
      const std::string reason = fmt::format("the checksum of layer {} does not match", layer);
      all.push_back(Flip("slab", slab, reason));
      all.push_back(Flip("slab", slab + layout.slab_payload_bytes() - 1, reason));
      if (layout.slab_payload_bytes() < layout.slab_bytes()) {
        all.push_back(Flip("padding", slab + layout.slab_bytes() - 1, reason));
      }
    }
    const uint64_t bytes = layout.page_bytes();
    for (uint64_t at = 0; at < bytes; at += 4096) all.push_back(Resize("truncated", at));
    std::mt19937_64 random(1);
    for (int i = 0; i < 10; ++i) all.push_back(Resize("truncated", random() % bytes));
    all.push_back(Resize("too long", bytes + 1));
    all.push_back(Resize("too long", bytes + 4096));
    all.push_back(Reseal("another version", 8, 3, "version is 3"));
    all.push_back(Reseal("another form", 8, 2, "codec is 0"));
    all.push_back(Reseal("another codec", 42, 7, "codec is 7"));
    all.push_back(Reseal("another dtype", 40, 9, "dtype is 9"));
    all.push_back(Reseal("another model", 160, 0, "its root key differs"));
    all.push_back(Reseal("another prompt", 128, 0, "its parent key differs"));
    all.push_back({"someone else's file", "it has 5 bytes",
                   [](const std::string& path) { Spill(path, "notes"); }});
    all.push_back({"someone else's file of the right size", "the magic is not",
                   [bytes](const std::string& path) { Spill(path, std::string(bytes, 'x')); }});
    const std::string neighbour = PathOf(kDamaged + 1);
    all.push_back({"another chunk's file", "its key differs", [neighbour](const std::string& path) {
                     fs::copy_file(neighbour, path, fs::copy_options::overwrite_existing);
                   }});
    all.push_back({"a symbolic link", "symbolic link", [neighbour](const std::string& path) {
                     fs::remove(path);
                     fs::create_symlink(neighbour, path);
                   }});
    all.push_back({"a directory", "is not a regular file", [](const std::string& path) {
                     fs::remove(path);
                     fs::create_directory(path);
                   }});
    return all;
  }

  const TempDir temp_;
  const std::string dir_ = temp_.path();
  ThreadPool threads_{1};
  FaultyFileSystem faulty_{FileSystem::Real(), 1};
  FileSystem* files_ = &FileSystem::Real();
  ModelConfig config_;
  std::unique_ptr<PagePool> pool_;
  std::unique_ptr<TransformerModel> model_;
  std::unique_ptr<DiskTier> tier_;
  std::vector<int32_t> prompt_;
  std::vector<ChunkKey> keys_;
  std::function<void()> apply_;
  Seconds overdue_after_ = DiskTierOptions().overdue_after;
  TierStats stats_;
  std::ostringstream log_;
  std::shared_ptr<spdlog::logger> logger_;
};

TEST_F(StoreIntegrityTest, EveryBadFileIsAMissAndTheAnswerIsRight) {
  const Completion first = Answer(Policy::kCompute);
  ASSERT_EQ(first.report.tokens_computed, static_cast<int>(prompt_.size()));
  const std::string good = Slurp(PathOf(kDamaged));
  int tried = 0;
  for (const Damage& damage : Damages()) {
    SCOPED_TRACE(damage.name);
    log_.str("");
    apply_ = [&] { damage.apply(PathOf(kDamaged)); };
    const Completion again = Answer(Policy::kLoad);
    EXPECT_EQ(again.tokens, first.tokens);
    EXPECT_EQ(again.logprobs, first.logprobs);
    EXPECT_EQ(again.report.loaded(), kChunk * (kChunks - 1));
    EXPECT_EQ(again.report.chunks_failed, 1);
    EXPECT_EQ(stats_.reads_failed, 1u);
    EXPECT_EQ(stats_.quarantined, 1u);
    ExpectLogged(damage.reason);
    EXPECT_TRUE(Slurp(PathOf(kDamaged)) == good) << "not computed, and kept again";
    ++tried;
  }
  EXPECT_GT(tried, 50);
  if (!HasFailure()) std::printf("| a bad file | %d | 0 | 0 | at once |\n", tried);
}

TEST_F(StoreIntegrityTest, ADirectoryThatHangsCostsOneWaitAndTheAnswerIsRight) {
  const Completion first = Answer(Policy::kCompute);
  files_ = &faulty_;
  apply_ = [&] { faulty_.Set({.open_stall = 1}); };
  overdue_after_ = Seconds(0.5);
  const Completion again = Answer(Policy::kLoad);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_EQ(again.logprobs, first.logprobs);
  EXPECT_EQ(again.report.loaded(), 0);
  EXPECT_GE(faulty_.faults(), 1u);
  EXPECT_LE(faulty_.faults(), static_cast<uint64_t>(DiskTierOptions().call_threads));
  faulty_.Set({});
  faulty_.ReleaseStalled();
  apply_ = {};
  overdue_after_ = DiskTierOptions().overdue_after;
  EXPECT_EQ(Answer(Policy::kLoad).report.loaded(), kChunk * kChunks);
}

TEST_F(StoreIntegrityTest, AFileOfAnotherSizeIsFoundAtTheStart) {
  const Completion first = Answer(Policy::kCompute);
  fs::resize_file(PathOf(kDamaged), 4096);
  log_.str("");
  const Completion again = Answer(Policy::kLoad);
  EXPECT_EQ(again.logprobs, first.logprobs);
  EXPECT_EQ(again.report.loaded(), kChunk * (kChunks - 1));
  EXPECT_EQ(again.report.chunks_failed, 0) << "it is not tried";
  EXPECT_EQ(stats_.quarantined, 1u);
  ExpectLogged("it has 4096 bytes, must have");
}

}  // namespace
}  // namespace kvcake
