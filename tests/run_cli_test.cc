// What kvcake run and model info say: of the stores, of how a prompt's cache was made, of a model.
#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/cli_testing.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class RunCliTest : public ProgramTest {
 protected:
  std::string Ask(const std::string& flags) const {
    return "run --model " KVCAKE_SOURCE_DIR
           "/models/demo --max-tokens 2 --threads 1 --prompt-file "
           "/usr/share/common-licenses/Artistic " +
           flags;
  }
  std::string WithStore() const { return Ask("--store " + dir_ + "/store "); }
  static void Damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('!');
  }
};

TEST_F(RunCliTest, SaysWhatEachStoreDid) {
  const json first = RunJson(WithStore());
  const std::vector<std::string> files = ChunkFiles();
  const uint64_t chunks = files.size(), bytes = fs::file_size(files[0]);
  const auto expect = [](const json& of, const std::map<std::string, uint64_t>& numbers) {
    for (const auto& [name, number] : numbers) EXPECT_EQ(of[name], number) << name;
  };
  expect(first["store"], {{"chunks", chunks}, {"bytes", chunks * bytes}, {"written", chunks}});

  Damage(files[0]);
  Damage(files[1]);
  const json again = RunJson(WithStore() + "--policy load --no-store");
  expect(again["store"], {{"chunks", chunks - 2},
                          {"bytes", (chunks - 2) * bytes},
                          {"reads_failed", 2},
                          {"quarantined", 2}});
  expect(again["store"]["tiers"][0], {{"reads", chunks - 2},
                                      {"read_bytes", (chunks - 2) * bytes},
                                      {"reads_failed", 2},
                                      {"quarantined", 2},
                                      {"written", 0}});

  const json full = RunJson(WithStore() + "--policy compute --disk-capacity 1MiB")["store"];
  EXPECT_EQ(full["tiers"][0]["evicted"],
            chunks - 2 + full["written"].get<uint64_t>() - ChunkFiles().size());
  expect(RunJson(Ask("--store redis://127.0.0.1:1"))["store"],
         {{"written", 0}, {"writes_failed", chunks}, {"writes_dropped", 0}});
}

TEST_F(RunCliTest, SaysInWordsHowThePromptsCacheWasMade) {
  const int tokens = RunJson(WithStore())["prompt_tokens"];
  const int full = tokens / 128 * 128;
  const std::string prompt = std::to_string(tokens) + " prompt tokens: ";
  Outcome told = Run(WithStore() + "--policy load");
  EXPECT_THAT(told.err, HasSubstr(fmt::format("{}{} computed, {} loaded from disk\n", prompt,
                                              tokens - full, full)));
  EXPECT_THAT(told.err, Not(HasSubstr("failed")));
  EXPECT_THAT(Run(WithStore() + "--policy compute").err,
              HasSubstr(fmt::format("{}{} computed\n", prompt, tokens)));
  Damage(ChunkFiles()[0]);
  told = Run(WithStore() + "--policy load");
  EXPECT_THAT(told.err,
              HasSubstr(fmt::format("{}{} computed, {} loaded from disk, 1 chunks failed to load\n",
                                    prompt, tokens - full + 128, full - 128)));
}

TEST_F(RunCliTest, PlannerOffIsOfCakeAlone) {
  EXPECT_EQ(RunJson(Ask("--planner off"))["report"]["policy"], "cake-published");
  const Outcome refused = Run(Ask("--planner off --policy load"));
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--planner off belongs to --policy cake: load has one lane"));
}

TEST_F(RunCliTest, ModelInfoSaysWhatAModelIs) {
  const auto info = [&](const std::string& model) {
    return json::parse(Run("model info " + model + " --json").out);
  };
  const std::string golden = KVCAKE_SOURCE_DIR "/tests/golden/models/";
  EXPECT_EQ(info(golden + "falcon_rw_bf16")["positions"], "alibi");
  EXPECT_EQ(info(golden + "llama2_linear_new_f32")["positions"],
            "rope, theta 10000, linear factor 2");
  EXPECT_EQ(info(golden + "llama31_f32_sharded")["positions"],
            "rope, theta 500000, llama3 factor 8 (1 to 4, original context 64)");
  const json overridden = json::parse(
      Run("model info --json " KVCAKE_SOURCE_DIR
          "/models/demo --hf-overrides '{\"max_position_embeddings\": 16384, \"rope_scaling\": "
          "{\"rope_type\": \"yarn\", \"factor\": 2, \"original_max_position_embeddings\": "
          "8192}}'")
          .out);
  EXPECT_THAT(overridden["positions"],
              StartsWith("rope, theta 10000000, yarn factor 2 (32 to 1, original context 8192"));
  EXPECT_EQ(overridden["context"], 16384);
  const json demo = info(KVCAKE_SOURCE_DIR "/models/demo");
  EXPECT_EQ(demo["bos_token"], 0);
  EXPECT_EQ(demo["eos_tokens"], json::array({0}));
  EXPECT_EQ(demo["tie_embeddings"], true);
  const std::string weights = Read(KVCAKE_SOURCE_DIR "/models/demo/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, weights.data(), sizeof(header));
  EXPECT_EQ(demo["parameters"], (weights.size() - sizeof(header) - header) / 2);  // of BF16
  const json half =
      json::parse(Run("model info " KVCAKE_SOURCE_DIR "/models/demo --chunk-tokens 64 --json").out);
  EXPECT_EQ(demo["chunk_bytes"].get<int>() - half["chunk_bytes"].get<int>(),
            64 * demo["kv_bytes_per_token"].get<int>());
  RunJson(WithStore());
  EXPECT_EQ(demo["chunk_bytes"], fs::file_size(ChunkFiles()[0]));
}

TEST_F(RunCliTest, SynthIsOfTheSeedAndTheShapeThatAreAskedFor) {
  const auto weights = [&](const std::string& name, const std::string& flags) {
    const std::string model = dir_ + "/" + name;
    EXPECT_EQ(Run("model synth --arch tiny --out " + model + " " + flags).exit_code, 0);
    std::string bytes;
    for (const auto& entry : fs::directory_iterator(model)) {
      if (entry.path().extension() == ".safetensors") bytes += Read(entry.path());
    }
    return bytes;
  };
  const std::string one = weights("one", "");
  EXPECT_EQ(weights("again", "--seed 1"), one);
  EXPECT_NE(weights("two", "--seed 2"), one);
  weights("wide",
          "--layers 3 --hidden-size 96 --intermediate-size 112 --heads 6 --kv-heads 3 "
          "--head-dim 16 --vocab-size 320 --context 1024");
  const json info = json::parse(Run("model info " + dir_ + "/wide --json").out);
  for (const auto& [name, number] : std::map<std::string, int>{{"layers", 3},
                                                               {"hidden_size", 96},
                                                               {"intermediate_size", 112},
                                                               {"heads", 6},
                                                               {"kv_heads", 3},
                                                               {"head_dim", 16},
                                                               {"vocab_size", 320},
                                                               {"context", 1024}}) {
    EXPECT_EQ(info[name], number) << name;
  }
}

}  // namespace
}  // namespace kvcake
