// kvcake tokenize and detokenize as a user runs them.
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kGolden = KVCAKE_SOURCE_DIR "/tests/golden/tokenizers/";

class TokenizeCliTest : public ProgramTest {};

TEST_F(TokenizeCliTest, GivesTheReferencesIdsAndTextBack) {
  for (const char* name : {"llama3", "llama2", "falcon"}) {
    SCOPED_TRACE(name);
    const std::string model = kGolden + name;
    const json golden = json::parse(Read(model + "/cases.json"));
    for (size_t i = 0; i < 12; ++i) {
      const json& test = golden["cases"][i];
      const std::string text = Write("text", test["text"]);
      const std::string tokenize = "tokenize --model " + model + " --file " + text;
      EXPECT_EQ(RunJson(tokenize), json({{"tokens", test["with_special"]}}));
      EXPECT_EQ(RunJson(tokenize + " --no-special")["tokens"], test["ids"]);
      const std::string ids = Write("ids", test["with_special"].dump());
      const std::string detokenize = "detokenize --model " + model + " --file " + ids;
      EXPECT_EQ(RunJson(detokenize), json({{"text", test["decoded_skipping"]}}));
      EXPECT_EQ(RunJson(detokenize + " --keep-special")["text"], test["decoded"]);
    }
  }
}

TEST_F(TokenizeCliTest, PipesPlainTextThrough) {
  const std::string model = " --model " + kGolden + "llama2 ";
  const std::string text = Write("text", "  Tabs\tand ünïcode 👍🏽\n\n");
  const Outcome ids = Run("tokenize" + model + "< " + text);
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(ids.out.find_first_not_of("0123456789 \n"), std::string::npos) << ids.out;
  EXPECT_EQ(ids.out.find('\n'), ids.out.size() - 1);
  EXPECT_EQ(Run("detokenize" + model + "< " + Write("ids", ids.out)).out, Read(text));
  const json as_object = RunJson("tokenize" + model + "--file " + text);
  EXPECT_EQ(Run("detokenize" + model + "--file " + Write("ids", as_object.dump())).out, Read(text));
  EXPECT_EQ(RunJson("tokenize" + model + "--no-special < /dev/null")["tokens"], json::array());
  EXPECT_EQ(RunJson("detokenize" + model + "< /dev/null")["text"], "");
}

TEST_F(TokenizeCliTest, FailuresSayWhat) {
  const std::string model = " --model " + kGolden + "gpt2 ";
  const auto expect = [&](const std::string& arguments, int exit_code, const char* part) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(part));
    EXPECT_EQ(outcome.out, "");
  };
  expect("detokenize" + model + "--file " + Write("ids", "5 6 640"), 1, "id 640 (at place 2)");
  expect("detokenize" + model + "--file " + Write("ids", "5 -6"), 1, "token ids");
  expect("detokenize" + model + "< " + Write("ids", "5 99999999999"), 1, "stdin must hold a JSON");
  expect("detokenize" + model + "--file " + Write("ids", "[1, 2.5]"), 1, "token ids");
  expect("detokenize" + model + "--file " + Write("ids", "99999999999"), 1, "token ids");
  expect("detokenize" + model + "--file " + Write("ids", "[5, -6]"), 1, "token ids");
  expect("detokenize" + model + "--file " + Write("ids", "[4294967301]"), 1, "token ids");
  expect("tokenize" + model + "--file " + dir_ + "/none", 1, "none");
  expect("tokenize" + model + "--file /proc/self/mem", 1, "/proc/self/mem: Input/output error");
  expect("tokenize" + model + "< " + dir_, 1, "stdin: Is a directory");
  expect("tokenize --model " + dir_ + " < /dev/null", 1, "tokenizer.json");
  Write("tokenizer.json", R"({"model": {"type": "Unigram", "vocab": [["a", 0]]}})");
  expect("tokenize --model " + dir_ + " < /dev/null", 1, "Unigram");
  Write("tokenizer.json", "{");
  expect("tokenize --model " + dir_ + " < /dev/null", 1, "not JSON");
  expect("tokenize < /dev/null", 2, "--model");
}

}  // namespace
}  // namespace kvcake
