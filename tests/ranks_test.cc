// One prompt, several processes: kvcake run --ranks, and under mpirun, as a user starts it.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cli_testing.h"

namespace kvcake {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class RanksTest : public ProgramTest {
 protected:
  static constexpr const char* kDocument = "/usr/share/common-licenses/Artistic";

  static std::string Ask(const std::string& more = "") {
    return std::string("run --model " KVCAKE_SOURCE_DIR
                       "/models/demo --max-tokens 8 --threads 1 --prompt-file ") +
           kDocument + " " + more + " ";
  }
  // MPI by the loopback interface alone: those that other tests make are gone a little later.
  Outcome Shell(const std::string& command) const {
    const std::string whole =
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo; timeout 100 " +
        command + " > " + dir_ + "/out 2> " + dir_ + "/err";
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

// Its workers inherit their sockets: nothing of Open MPI's, whose ports others may call.
TEST_F(RanksTest, RanksOfThisMachineNeedNoMpirun) {
  const Outcome divided =
      Shell("env PATH=/nowhere " KVCAKE_PROGRAM " " + Ask("--ranks 2 --partition even --json"));
  ASSERT_EQ(divided.exit_code, 0) << divided.err;
  EXPECT_EQ(json::parse(divided.out)["chain"]["ranks"].size(), 2u);
  EXPECT_THAT(divided.err, Not(HasSubstr("worker"))) << "what goes well is nobody's concern";
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
  Outcome bad = Run(Ask("--ranks 2 --partition evn"));
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.err, HasSubstr("--partition 'evn' has 1 part for 2 ranks: say analytic, even"));
  bad = Run(Ask("--ranks 2 --partition .5,.6"));
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_THAT(bad.err, HasSubstr(".5,.6"));
  bad = Shell("mpirun -n 1 --oversubscribe " KVCAKE_PROGRAM " " + Ask() +
              ": -n 1 --oversubscribe " KVCAKE_PROGRAM " " + Ask("--weights int8"));
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_NE(bad.exit_code, 124) << "hangs";
  EXPECT_THAT(bad.err, HasSubstr("another weights than rank 0 (int8; rank 0: bf16)"));
}

TEST_F(RanksTest, SaysThatNobodySharesAPromptThatIsDivided) {
  const Outcome alone = Run(Ask("--partition even --link-rate 1GB"));
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_THAT(alone.err,
              HasSubstr("warning: --partition, --link-rate: one process computes all of a prompt"));
  EXPECT_THAT(Run(Ask("--ranks 2 --partition even --link-rate 1GB")).err,
              Not(HasSubstr("one process")));
}

TEST_F(RanksTest, PlanSaysHowManyPayAtEachLink) {
  const std::string plan =
      "runahead plan --profile " KVCAKE_SOURCE_DIR
      "/bench/profiles/kvr/a100-llama-7b.json --ranks 4 --context 4096 8192 --link-rate 1GB 10GB ";
  const json plans = RunJson(plan)["plans"];
  ASSERT_EQ(plans.size(), 4u);
  // The paper's table 3: 0.65, 0.84 and 0.93 s on 1, 2 and 4 GPUs, with partitions that know
  // nothing of links; 1.95, 0.99 and 0.72 s.
  const json slow = plans[0], fast = plans[3];
  EXPECT_EQ(slow["tokens"], 4096);
  EXPECT_EQ(slow["link_bytes_per_s"], 1e9);
  EXPECT_EQ(slow["ranks"], 2);
  EXPECT_EQ(fast["tokens"], 8192);
  EXPECT_EQ(fast["link_bytes_per_s"], 1e10);
  EXPECT_EQ(fast["ranks"], 4);
  ASSERT_EQ(fast["bounds"].size(), 5u);
  EXPECT_EQ(fast["bounds"][4], 8192);
  ASSERT_EQ(fast["ttft_by_ranks_s"].size(), 4u);
  EXPECT_EQ(fast["ttft_by_ranks_s"][3], fast["ttft_s"]);
  EXPECT_NEAR(fast["ttft_by_ranks_s"][0].get<double>() / 1.95, 1, 0.1);
  EXPECT_NEAR(fast["ttft_by_ranks_s"][1].get<double>() / 0.99, 1, 0.15);
  EXPECT_GT(fast["tsp_by_ranks_s"][3], fast["ttft_s"]);
  EXPECT_GT(fast["link_latency_s"], 0) << "the profile's";
  EXPECT_EQ(RunJson(plan + "--link-latency 0us")["plans"][0]["link_latency_s"], 0);

  const json file = json::parse(Read(KVCAKE_SOURCE_DIR "/bench/profiles/kvr/a100-llama-7b.json"));
  const json time = RunJson(plan)["time"];
  for (const char* const name : {"attention", "c0", "b", "a", "floor"}) {
    EXPECT_EQ(time[name], file[name]) << name;
  }
  EXPECT_EQ(time["g"], 0);

  const Outcome table = Run(plan + "--json " + dir_ + "/plan.json");
  EXPECT_THAT(table.out, HasSubstr("1 GB/s"));
  for (const json& row : plans) {  // what the best number of ranks gains, and tsp with as many
    const int best = row["ranks"];
    const double seconds = row["ttft_s"], alone = row["ttft_by_ranks_s"][0];
    EXPECT_THAT(table.out,
                HasSubstr(fmt::format(" {:>5} {:>5.2f}x {:>8.3f}  ", best, alone / seconds,
                                      row["tsp_by_ranks_s"][best - 1].get<double>())));
  }
  EXPECT_EQ(json::parse(Read(dir_ + "/plan.json"))["plans"], plans);
  EXPECT_EQ(Run("runahead plan").exit_code, 1) << "of what?";
  EXPECT_EQ(Run("runahead plan --link-rate 0").exit_code, 2);
}

TEST_F(RanksTest, PlanMeasuresThisMachine) {
  const std::string of_demo =
      "runahead plan --model " KVCAKE_SOURCE_DIR "/models/demo --threads 1 --ranks 2 ";
  const json plan = RunJson(of_demo);
  ASSERT_EQ(plan["plans"].size(), 3u) << "16384 is longer than its context";
  EXPECT_EQ(plan["plans"][2]["tokens"], 8192);
  const Outcome longer = Run(of_demo + "--context 4096 8449");
  EXPECT_EQ(longer.exit_code, 1);
  EXPECT_THAT(longer.err, HasSubstr("--context 8449 is longer than the model's 8448"));
  EXPECT_GT(plan["time"]["b"].get<double>() + plan["time"]["a"].get<double>(), 0);
  EXPECT_TRUE(plan["plans"][0]["link_bytes_per_s"].is_null());
  EXPECT_LE(plan["plans"][0]["ttft_s"], plan["plans"][0]["ttft_by_ranks_s"][0]);
}

TEST_F(RanksTest, ASearchMakesTheTableThatRunsUse) {
  const std::string table = " --partition-table " + dir_ + "/cache/table.json ";
  const std::string run = Ask("--ranks 2 --partition table" + table);
  Outcome missing = Run(run);
  EXPECT_NE(missing.exit_code, 0);
  // As it is told to.
  const size_t begin = missing.err.find("runahead search --ranks 2 ");
  const size_t end = missing.err.find(" --context");
  ASSERT_NE(begin, std::string::npos) << missing.err;
  ASSERT_NE(end, std::string::npos) << missing.err;
  const json found =
      RunJson(missing.err.substr(begin, end - begin) + " --repeats 1 --context 1024")["found"];
  ASSERT_EQ(found.size(), 1u);
  EXPECT_GT(found[0]["measurements"], 1);
  ASSERT_EQ(found[0]["bounds"].size(), 3u);
  const double share = found[0]["bounds"][1].get<double>() / 1024;
  const json divided = RunJson(run);
  ASSERT_TRUE(divided["chain"].is_object()) << divided;
  const int tokens = divided["prompt_tokens"], bound = divided["chain"]["bounds"][1];
  EXPECT_EQ(bound % 128, 0);
  EXPECT_NEAR(bound, share * tokens, 64.5);
  EXPECT_EQ(divided["tokens"], RunJson(Ask())["tokens"]);
  missing = Run(Ask("--ranks 3 --partition table" + table));
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.err, HasSubstr("kvcake runahead search --ranks 3"));
  std::string state;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ + "/cache")) {
    state += entry.path().filename().string() + " ";
  }
  EXPECT_EQ(state, "table.json ") << "what a stopped search has measured goes with its end";
  missing = Run("runahead search --model " KVCAKE_SOURCE_DIR
                "/models/demo --threads 1 --context 256 --partition-table " +
                dir_ + "/cache/table.json/here/other.json");
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.err, HasSubstr("cannot make directory " + dir_ + "/cache/table.json/here"));
}

// All end, soon, when one is killed: here the leader (the last rank), once the first of its answer
// is there. It cannot end before: what takes its answer has room for a page and is not read on.
TEST_F(RanksTest, ALostRankEndsTheRun) {
  const std::string answer = dir_ + "/answer";
  ASSERT_EQ(mkfifo(answer.c_str(), 0600), 0);
  const int held = open(answer.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(held, 0);
  ASSERT_EQ(fcntl(held, F_SETPIPE_SZ, 4096), 4096);
  const std::string rank = std::string(KVCAKE_PROGRAM) +
                           " run --model " KVCAKE_SOURCE_DIR
                           "/models/demo --ignore-eos --max-tokens 100000 --threads 1 "
                           "--prompt-file " +
                           kDocument;
  const std::string leader = "sh -c '{ test -n \"$(head -c 1 " + answer +
                             ")\" && kill -9 $$; } & exec " + rank + " > " + answer + "'";
  const Outcome lost =
      Shell("mpirun -n 1 --oversubscribe " + rank + " : -n 1 --oversubscribe " + leader);
  close(held);
  EXPECT_NE(lost.exit_code, 0);
  EXPECT_NE(lost.exit_code, 124) << "hangs";
  EXPECT_THAT(lost.out + lost.err, HasSubstr("signal 9"));
}

}  // namespace
}  // namespace kvcake
