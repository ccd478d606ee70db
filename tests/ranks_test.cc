// One prompt, several processes: kvcake run --ranks, and under mpirun, as a user starts it.
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class RanksTest : public ProgramTest {
 protected:
  static constexpr const char* kDocument = "/usr/share/common-licenses/Artistic";

  static std::string Ask(const std::string& more = "") {
    return std::string("run --model " KVCAKE_SOURCE_DIR
                       "/models/demo --max-tokens 8 --threads 1 --prompt-file ") +
           kDocument + " " + more + " ";
  }
  Outcome Shell(const std::string& command) const {
    const std::string whole =
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; timeout 100 " + command +
        " > " + dir_ + "/out 2> " + dir_ + "/err";
    const int status = std::system(whole.c_str());
    return {WEXITSTATUS(status), Read(dir_ + "/out"), Read(dir_ + "/err")};
  }
};

TEST_F(RanksTest, AnswerAsOneProcess) {
  const json alone = RunJson(Ask());
  EXPECT_TRUE(alone["chain"].is_null());
  const int tokens = alone["prompt_tokens"];
  for (const auto& [flags, ranks] :
       {std::pair("--ranks 2 --partition even", 2), std::pair("--ranks 3 --partition .5,.3,.2", 3),
        std::pair("--ranks 2 --partition .61,.39", 2)}) {
    SCOPED_TRACE(flags);
    const json divided = RunJson(Ask(flags));
    EXPECT_EQ(divided["tokens"], alone["tokens"]);
    EXPECT_EQ(divided["text"], alone["text"]);
    const json chain = divided["chain"];
    ASSERT_TRUE(chain.is_object()) << divided;
    EXPECT_EQ(chain["bounds"].size(), ranks + 1u);
    EXPECT_EQ(chain["bounds"].back(), tokens);
    EXPECT_EQ(chain["ranks"].size(), static_cast<size_t>(ranks));
    EXPECT_GT(chain["ranks"][0]["compute_s"].get<double>(), 0);
    EXPECT_GT(chain["ranks"][0]["sent_bytes"].get<int64_t>(), 0);
  }
}

TEST_F(RanksTest, TheLeaderReadsStandardInput) {
  const std::string ask =
      "run --model " KVCAKE_SOURCE_DIR
      "/models/demo --max-tokens 8 --threads 1 --ranks 2 --partition even --prompt-file - < ";
  EXPECT_EQ(RunJson(Ask())["tokens"], RunJson(ask + kDocument)["tokens"]);
}

TEST_F(RanksTest, AStoredPrefixIsReadByEveryRank) {
  const std::string store = "--store " + dir_ + "/store ";
  const std::string text = Read(kDocument);
  const std::string prefix = Write("prefix", text.substr(0, text.size() / 3));
  RunJson("run --model " KVCAKE_SOURCE_DIR "/models/demo --max-tokens 1 --prompt-file " + prefix +
          " " + store);
  ASSERT_FALSE(ChunkFiles().empty());
  const json alone = RunJson(Ask()), divided = RunJson(Ask(store + "--ranks 2 --partition even"));
  EXPECT_EQ(divided["tokens"], alone["tokens"]);
  EXPECT_GT(divided["chain"]["origin"].get<int>(), 0);
  EXPECT_EQ(divided["chain"]["origin"].get<int>() + divided["chain"]["bounds"].back().get<int>(),
            alone["prompt_tokens"].get<int>());
}

TEST_F(RanksTest, SaysWhatIsWrong) {
  Outcome bad = Run(Ask("--ranks 2 --partition .5,.6"));
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_THAT(bad.err, HasSubstr(".5,.6"));
  bad = Shell("mpirun -n 1 --oversubscribe " KVCAKE_PROGRAM " " + Ask() +
              ": -n 1 --oversubscribe " KVCAKE_PROGRAM " " + Ask("--weights int8"));
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_NE(bad.exit_code, 124) << "hangs";
  EXPECT_THAT(bad.err, HasSubstr("another model"));
}

// All end, soon, when one is killed.
TEST_F(RanksTest, ALostRankEndsTheRun) {
  const std::string rank = std::string(KVCAKE_PROGRAM) +
                           " run --model " KVCAKE_SOURCE_DIR
                           "/models/demo --ignore-eos --max-tokens 100000 --threads 1 "
                           "--prompt-file " +
                           kDocument + " ";
  const Outcome lost = Shell("mpirun -n 1 --oversubscribe timeout --signal=KILL 2 " + rank +
                             ": -n 1 --oversubscribe " + rank);
  EXPECT_NE(lost.exit_code, 0);
  EXPECT_NE(lost.exit_code, 124) << "hangs";
  EXPECT_THAT(lost.out + lost.err, HasSubstr("signal 9"));
}

}  // namespace
}  // namespace kvcake
