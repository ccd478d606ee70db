// kvcake perplexity as a user runs it.
#include <fmt/format.h>

#include <cmath>
#include <fstream>

#include "model/tokenizer.h"
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kGolden = KVCAKE_SOURCE_DIR "/tests/golden/models/llama2_linear_new_f32";
constexpr const char* kDemo = KVCAKE_SOURCE_DIR "/models/demo";

class PerplexityTest : public ProgramTest {
 protected:
  PerplexityTest() {
    std::ifstream file(std::string(kGolden) + "/golden.json");
    test_ = json::parse(file)["cases"].back();
    ids_ = Write("ids", test_["ids"].dump());
  }

  Outcome Run(const std::string& model, const std::string& arguments) const {
    return ProgramTest::Run("perplexity --model " + model + " " + arguments);
  }
  json RunJson(const std::string& model, const std::string& arguments) const {
    return ProgramTest::RunJson("perplexity --model " + model + " " + arguments);
  }
  void ExpectFails(const std::string& arguments, const char* message,
                   const std::string& model = kGolden) const {
    const Outcome outcome = Run(model, arguments);
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }

  std::string ids_;
  json test_;
};

TEST_F(PerplexityTest, SaysWhatTransformersSays) {
  const json answer = RunJson(kGolden, "--tokens " + ids_);
  const auto nll = answer["nll"].get<std::vector<double>>();
  const auto losses = test_["losses"].get<std::vector<double>>();
  ASSERT_EQ(nll.size(), losses.size());
  double difference = 0, sum = 0;
  for (size_t i = 0; i < nll.size(); ++i) {
    difference += std::abs(nll[i] - losses[i]);
    sum += nll[i];
  }
  const double n = static_cast<double>(nll.size());
  EXPECT_LE(difference / n,
            answer["numeric_path"].get<std::string>().starts_with("bf16-") ? 0.03 : 0.01);
  EXPECT_NEAR(answer["mean_nll"].get<double>(), sum / n, 1e-9);
  EXPECT_NEAR(answer["perplexity"].get<double>(), std::exp(sum / n), 1e-6);
  for (const char* path : {"f32", "f32-fma"}) {
    const Outcome outcome =
        Run(kGolden, "--json --numeric-path " + std::string(path) + " --tokens " + ids_);
    if (outcome.exit_code != 0) {
      EXPECT_THAT(outcome.err, HasSubstr("cannot run the numeric path"));
    } else {
      EXPECT_EQ(json::parse(outcome.out)["numeric_path"], path);
    }
  }
}

TEST_F(PerplexityTest, EverySlicingThreadCountAndChunkSizeGivesTheSameNumbers) {
  const json whole = RunJson(kGolden, "--tokens " + ids_);
  for (const char* flags : {"--slice-tokens 1", "--slice-tokens 100", "--slice-tokens 65536",
                            "--threads 1", "--chunk-tokens 64", "--ram-capacity 1MiB"}) {
    EXPECT_EQ(RunJson(kGolden, "--tokens " + ids_ + " " + flags), whole) << flags;
  }
}

TEST_F(PerplexityTest, WeightsAreHeldAsTheyAreAskedFor) {
  const json plain = RunJson(kGolden, "--tokens " + ids_);
  const json rounded = RunJson(kGolden, "--tokens " + ids_ + " --weights int8");
  EXPECT_EQ(plain["weights"], "bf16");
  EXPECT_EQ(rounded["weights"], "int8");
  EXPECT_NE(rounded["nll"], plain["nll"]);
  EXPECT_NEAR(rounded["mean_nll"].get<double>(), plain["mean_nll"].get<double>(), 0.1);
}

TEST_F(PerplexityTest, TokensComeInEveryFormThatAPersonWouldTry) {
  const json first = RunJson(kGolden, "--tokens " + Write("array", "[5, 6, 7, 100]"));
  ASSERT_EQ(first["nll"].size(), 3u);
  for (const char* text : {"5 6 7 100", " 5\n6\t7\r\n100\n", "{\"tokens\": [5,6,7,100]}"}) {
    EXPECT_EQ(RunJson(kGolden, "--tokens " + Write("ids", text)), first) << text;
  }
  EXPECT_EQ(RunJson(kGolden, "--tokens - < " + Write("ids", "5 6 7 100")), first);
}

TEST_F(PerplexityTest, TextIsTokenizedAsAPromptIs) {
  const std::string text = "The licence of this program is free for every kind of use.\n";
  const std::string file = Write("text", text);
  const json answer = RunJson(kDemo, "--file " + file);
  const auto ids = Tokenizer::Load(kDemo).value().Encode(text).value();
  EXPECT_EQ(answer["nll"].size() + 1, ids.size());
  EXPECT_EQ(RunJson(kDemo, "--tokens " + Write("ids", json(ids).dump())), answer);
  const Outcome people = Run(kDemo, "--file " + file);
  EXPECT_EQ(people.exit_code, 0);
  EXPECT_THAT(people.out, HasSubstr("tokens      " + std::to_string(ids.size()) + "\n"));
  EXPECT_THAT(people.out, HasSubstr(fmt::format("mean nll    {:.5f}\nperplexity  {:.4f}\n",
                                                answer["mean_nll"].get<double>(),
                                                answer["perplexity"].get<double>())));
}

TEST_F(PerplexityTest, FailuresSayWhat) {
  ExpectFails("--tokens " + Write("one", "5"), "has 1 tokens; at least 2 are needed");
  ExpectFails("--tokens " + Write("none", ""), "has 0 tokens");
  ExpectFails("--tokens " + Write("far", "[5, 128]"), "token 1 is 128, outside the model's");
  ExpectFails("--tokens " + Write("words", "five six"), "JSON array of token ids");
  for (const char* text : {"5 -6", "[5, -6]", "[5, 6.5]", "5 6.5", "5,6", "[5, 99999999999]",
                           "{\"ids\": [5, 6]}", "{\"tokens\": 5}", "[5", "[\"5\"]"}) {
    ExpectFails("--tokens " + Write("bad", text), "JSON array of token ids");
  }
  std::string many;
  for (int i = 0; i < 2049; ++i) many += "5 ";  // the context is 1024, twice as long by its RoPE
  ExpectFails("--tokens " + Write("many", many), "2049 tokens are more than the model's context");
  ExpectFails("--tokens " + ids_ + " --ram-capacity 128KiB", "--ram-capacity");
  ExpectFails("--tokens " + dir_ + "/absent", "absent");
  ExpectFails("--file " + dir_, "directory");
  ExpectFails("--file " + ids_, "tokenizer.json");  // this model has none
  EXPECT_EQ(Run(kGolden, "--tokens " + ids_ + " --chunk-tokens 100").exit_code, 2);
  ExpectFails("--tokens " + ids_, "config.json", dir_);
  for (const char* usage : {"", "--tokens a --file b", "--tokens a --slice-tokens 0",
                            "--tokens a --slice-tokens x", "--tokens a --numeric-path f16"}) {
    EXPECT_EQ(Run(kGolden, usage).exit_code, 2) << usage;
  }
}

}  // namespace
}  // namespace kvcake
