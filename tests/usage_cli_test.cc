// What the program says to those who use it wrong, and how it may be told what to do.
#include <fmt/format.h>

#include <map>

#include "base/available_memory.h"
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

using testing::HasSubstr;
using testing::Not;

using UsageCliTest = ProgramTest;

TEST_F(UsageCliTest, FailuresSayWhatAndExitCodesKeepTheirMeaning) {
  EXPECT_EQ(Run("--version").exit_code, 0);
  EXPECT_THAT(Run("--version").out, HasSubstr("kvcake "));
  EXPECT_EQ(Run("run --help").exit_code, 0);
  EXPECT_EQ(Run("").exit_code, 2);
  EXPECT_EQ(Run("run --model x").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --policy sometimes").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --store y --load-rate 5parsec").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --store y --load-rate 5Mb").exit_code, 2)
      << "bits or bytes?";
  EXPECT_EQ(Run("run --model x --prompt a --temperature -1").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --top-p 2").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --threads 200000").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --compute-share nan").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt a --store y --disk-free-min nan").exit_code, 2);
  EXPECT_EQ(Run("run --model x --prompt-file /").exit_code, 1);
  for (const std::string flag : {"--config", "--chat-template", "--api-key-file",
                                 "--admin-key-file", "--ssl-keyfile {0} --ssl-certfile",
                                 "--cluster-key-file", "--tls-key {0} --tls-ca {0} --tls-cert"}) {
    const std::string none = dir_ + "/none";
    const Outcome outcome =
        Run("serve --model " KVCAKE_SOURCE_DIR "/models/demo --port 0 --workers 127.0.0.1:9 " +
            fmt::format(fmt::runtime(flag), none) + " " + none);
    EXPECT_EQ(outcome.exit_code, 1) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(flag.substr(flag.rfind("--")))) << flag;
    EXPECT_THAT(outcome.err, HasSubstr(none + ": No such file or directory")) << flag;
  }

  const std::string run = "run --prompt a --model ";
  Outcome outcome = Run(run + dir_ + "/none");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("model directory " + dir_ + "/none"));
  for (const std::string command : {"chat", "serve --port 0"}) {
    outcome = Run(command + " --model " + dir_ + "/none < /dev/null");
    EXPECT_EQ(outcome.exit_code, 1) << command;
    EXPECT_THAT(outcome.err, HasSubstr("model directory " + dir_ + "/none")) << command;
    EXPECT_THAT(outcome.err, Not(HasSubstr("chat template"))) << command;
  }
  outcome = Run(run + KVCAKE_SOURCE_DIR "/models/demo --ram-capacity 1KiB");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--ram-capacity"));
  const std::string small =
      run + KVCAKE_SOURCE_DIR "/models/demo --max-tokens 1 --ram-capacity 4MiB";
  EXPECT_EQ(Run(small).exit_code, 0);
  outcome = Run(small + " --store " + dir_ + "/store");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("--ram-capacity leaves 15 pages of 266240 bytes"));
  const uint64_t twice_mib = (AvailableMemoryBytes() >> 19) + 1024;  // of what there is
  outcome = Run(fmt::format("{}{}/models/demo --max-tokens 1 --ram-capacity {}MiB", run,
                            KVCAKE_SOURCE_DIR, twice_mib));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr(fmt::format("--ram-capacity is {} MiB, and this process may", twice_mib)));
  outcome = Run(run + KVCAKE_SOURCE_DIR "/models/demo --chunk-tokens 100");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("multiple of 16"));
  outcome = Run("run --model " KVCAKE_SOURCE_DIR "/models/demo --prompt-tokens /etc/hostname");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("JSON array of token ids"));
  outcome = Run(run + KVCAKE_SOURCE_DIR "/models/demo --store /dev/null");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("/dev/null"));
}

TEST_F(UsageCliTest, WrongUsageIsNamed) {
  for (const auto& [arguments, named] : std::vector<std::pair<std::string, std::string>>{
           {"serv --model x", "there is no command serv: "},
           {"serv --model x", "run, chat, serve"},
           {"store lst x", "there is no command store lst: "},
           {"bench", "A subcommand is required"},
           {"run --model x --prompt a --temperature -1", "-1 is not 0 or above"},
           {"run --model x --prompt a --load-rate 0", "0 is not above 0"},
           {"run --model x --prompt a --disk-capacity 1GiB", "--disk-capacity requires --store"},
           {"serve --model x --kv-codec int8", "--kv-codec requires --store"},
           {"serve --model x --store-ttl 7d", "--store-ttl requires --store"},
           {"chat --model x --durable", "--durable requires --store"},
           {"serve --model x --promote", "--promote requires --store"},
           {"run --model x --prompt a --temperature nan", "nan is not 0 or above"},
           {"run --model x --prompt a --temperature inf", "inf is not 0 or above"},
           {"run --model x --prompt a --top-p nan", "nan is no number"},
           {"run --model x --prompt a --seed -1", "--seed: -1 is not a whole number from 0"},
           {"chat --model x --seed 99999999999999999999", "99999999999999999999 is not a whole"},
           {"bench simulate --seed -1", "--seed: -1 is not a whole number from 0"},
           {"bench planner --ratios 1e-320", "--ratios: Value 1e-320 not in range"},
           {"bench planner --ratios nan", "--ratios: nan is no number"},
           {"bench planner --ratios 1 2 1.0", "--ratios: 1 is given twice"},
           {"bench ttft --variant-ratios 1 1", "--variant-ratios: 1 is given twice"},
           {"bench fleet --seed -1", "--seed: -1 is not a whole number from 0"},
           {"bench policies --seed -1", "--seed: -1 is not a whole number from 0"},
           {"bench serve --url http://x --seed -1", "--seed: -1 is not a whole number from 0"},
           {"model synth --arch tiny --out x --seed -1", "--seed: -1 is not a whole number from 0"},
           {"run --model x --stor /tmp/x --prompt a", "run has no flag --stor"},
           {"bench ttft --contxt=3", "ttft has no flag --contxt"},
           {"run --model x --promt a", "run has no flag --promt"},
           {"tokenize --modle x", "tokenize has no flag --modle"},
           {"run --model x --stop '' --max-tokens 1", "--prompt"},
           {"run --model x --stop '' --promt a", "run has no flag --promt"},
           {"--modle x", "kvcake has no flag --modle"},
           {"run --model x --prompt a --top-p 0", "--top-p: Value 0 not in range 1e-09 to 1"},
           {"run --model x --prompt a --ram-capacity 1.5GiB", "as 1536MiB: 1.5GiB"},
           {"serve --model x --admin-host ::1", "--admin-host requires --admin-port"},
           {"serve --model x --trace-files-max 3", "--trace-files-max requires --trace-dir"},
           {"serve --model x --allowed-hosts a.example,b:80", "--allowed-hosts: 'b:80' is no name"},
           {"serve --model x --allowed-origin '[\"https://x/\"]'",
            "--allowed-origins: 'https://x/' is no origin"},
           {"serve --model x --served-model-name ''", "a model's name is not empty"},
           {"model info x --chunk-tokens 17", "--chunk-tokens: must be a multiple of 16"},
           {"serve --model x --port 99999", "99999 not in range 0 to 65535"}}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(named));
  }
}

TEST_F(UsageCliTest, AnEmptyArgumentIsAValueOrRefused) {
  const std::string demo = KVCAKE_SOURCE_DIR "/models/demo ", run = "run " + demo;
  for (const std::string& arguments : std::vector<std::string>{
           run + "'' --max-tokens 1 --prompt x", run + "--prompt x '' --json", run + "--prompt= ''",
           "perplexity " + demo + "'' --json --file x", "serve ''", "store ls ''"}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr("an argument is empty")) << arguments;
  }
  const std::string config = Write("flags.toml", "ignore-eos =\nmax-tokens = 1\n");
  for (const std::string& flag :
       {std::string("--ignore-eos ''"), std::string("--ignore-eos="), "--config " + config}) {
    const Outcome outcome = Run(run + "--prompt x " + flag + " --json");
    EXPECT_EQ(outcome.exit_code, 2) << flag;
    EXPECT_THAT(outcome.err, HasSubstr("--ignore-eos takes no value")) << flag;
  }
  EXPECT_THAT(Run(run + "--prompt ''").err, HasSubstr("the prompt has no tokens"));
  EXPECT_EQ(Run(run + "--prompt x --max-tokens 1 --stop '' --stop=").exit_code, 0);
}

TEST_F(UsageCliTest, UnitsAreWhatTheirNamesSay) {
  const std::string plan = "runahead plan --ranks 1 --context 128 --profile " KVCAKE_SOURCE_DIR
                           "/bench/profiles/kvr/a100-llama-7b.json ";
  for (const auto& [rate, bytes_per_s] : std::map<std::string, double>{{"24bit", 3},
                                                                       {"24kbit", 3e3},
                                                                       {"24Mbit", 3e6},
                                                                       {"24Gbit", 3e9},
                                                                       {"24kbps", 3e3},
                                                                       {"24Mbps", 3e6},
                                                                       {"24Gbps", 3e9},
                                                                       {"3KB", 3e3},
                                                                       {"3MB", 3e6},
                                                                       {"3GB", 3e9},
                                                                       {"3KiB", 3 << 10},
                                                                       {"3MiB", 3 << 20},
                                                                       {"3GiB", 3ll << 30},
                                                                       {"3", 3}}) {
    const double got = RunJson(plan + "--link-rate " + rate)["plans"][0]["link_bytes_per_s"];
    EXPECT_NEAR(got / bytes_per_s, 1, 1e-5) << rate;  // CLI11 keeps six digits
  }
  for (const auto& [time, seconds] : std::map<std::string, double>{{"4us", 4e-6},
                                                                   {"4ms", 4e-3},
                                                                   {"4s", 4},
                                                                   {"4min", 240},
                                                                   {"4h", 14400},
                                                                   {"4d", 345600},
                                                                   {"4", 4}}) {
    EXPECT_DOUBLE_EQ(RunJson(plan + "--link-latency " + time)["plans"][0]["link_latency_s"],
                     seconds)
        << time;
  }
  const std::string serve = "serve --model " KVCAKE_SOURCE_DIR "/models/demo --port 0 ";
  for (const char* const sizes :
       {"--body-max 3MB --bodies-max 2KB", "--body-max 3MiB --bodies-max 2KiB",
        "--body-max 3145728 --bodies-max 2048", "--body-max 3m --bodies-max 2k"}) {
    EXPECT_THAT(Run(serve + sizes).err,
                HasSubstr("--body-max of 3145728 bytes is above --bodies-max of 2048,"))
        << sizes;
  }
}

TEST_F(UsageCliTest, EachStoreHasItsOwn) {
  const std::string run = "run --json --max-tokens 1 --prompt 'the code' --model " KVCAKE_SOURCE_DIR
                          "/models/demo --store '" +
                          dir_ + "/a";
  const std::string good = Write("good", "0 50e6 0\n"), bad = Write("bad", "0 fast 0\n");
  const Outcome second =
      Run(run + "' --store " + dir_ + "/b --load-trace " + good + " --load-trace " + bad);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr(bad));
  // What its URL says goes before what is said of all.
  const Outcome codec = Run(run + "?codec=int8' --kv-codec lossless");
  EXPECT_EQ(codec.exit_code, 0) << codec.err;
  EXPECT_EQ(nlohmann::json::parse(codec.out)["store"]["codec"], "int8");
  const Outcome tables =
      Run(run + "?codec=cachegen&tables=" + dir_ + "/own' --codec-tables " + dir_ + "/of-all");
  EXPECT_EQ(tables.exit_code, 0) << tables.err;
  EXPECT_THAT(tables.err, HasSubstr(dir_ + "/own"));
  EXPECT_THAT(tables.err, testing::Not(HasSubstr(dir_ + "/of-all")));
}

TEST_F(UsageCliTest, TheModelMayBeNamedByItself) {
  const std::string rest = " --prompt 'the code of' --max-tokens 2";
  const Outcome flag = Run("run --model " KVCAKE_SOURCE_DIR "/models/demo" + rest);
  const Outcome plain = Run("run " KVCAKE_SOURCE_DIR "/models/demo" + rest);
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.out, flag.out);
}

TEST_F(UsageCliTest, AFileOfFlags) {
  const auto run = [&](const std::string& text) {
    return Run("run --config " + Write("flags.toml", text));
  };
  const std::string demo = "model = \"" KVCAKE_SOURCE_DIR "/models/demo\"\n";
  Outcome outcome = run("\xef\xbb\xbf" + demo +
                        "prompt = \"the code\"\nmax-tokens = 1\n"
                        "store = [  # two\n  \"" +
                        dir_ + "/a\",\n\n  \"" + dir_ + "/b, [c\",\n]\nstop = []\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/a"));
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/b, [c"));
  Write("flags.toml", "model = \"x\"\nprompt = \"the code\"\nmax-tokens = 1\n");
  outcome = Run("run " KVCAKE_SOURCE_DIR "/models/demo --config " + dir_ + "/flags.toml");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string codec = "prompt = \"the code\"\nmax-tokens = 1\nkv-codec = \"lossless\"\n";
  outcome = run(demo + codec + "[serve]\nstore = \"" + dir_ + "/c\"\n");
  EXPECT_EQ(outcome.exit_code, 0) << "its own need no codec: " << outcome.err;
  outcome = run(demo + codec + "store = \"" + dir_ + "/c\"\n");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(dir_ + "/c"));
  outcome = run(demo + codec + "[run]\nkv-codec = \"lossless\"\n");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("--kv-codec requires --store"));
  const std::string place = "--threads stands in the file of --config";
  EXPECT_THAT(run(demo + "threads = 0\n").err, HasSubstr(place));
  EXPECT_THAT(Run("run --threads 0 --config " + dir_ + "/flags.toml").err, Not(HasSubstr(place)))
      << "nor does the file's count then";
  outcome = Run("run --config " + Write("flags.toml", "model = \"x\"\n" + codec) + " " +
                KVCAKE_SOURCE_DIR "/models/demo");
  EXPECT_EQ(outcome.exit_code, 0) << "the model comes after a flag with a value: " << outcome.err;
  const std::string pem = dir_ + "/flags.toml";  // it is not opened
  outcome = Run("serve --config " + Write("flags.toml", demo + "ssl-certfile = \"" + pem + "\"\n"));
  EXPECT_EQ(outcome.exit_code, 2) << "or it would serve in the clear";
  EXPECT_THAT(outcome.err, HasSubstr("--ssl-certfile requires --ssl-keyfile"));
  outcome = Run("store warm --store x --model x --prompt-file x --config " + pem);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("warm has no flag --config"));
  for (const std::string& flags : {"--tls-cert " + pem, std::string("--cluster-key-file ") + pem}) {
    outcome = Run("serve --model " KVCAKE_SOURCE_DIR "/models/demo " + flags);
    EXPECT_EQ(outcome.exit_code, 2) << flags;
    EXPECT_THAT(outcome.err, HasSubstr("requires --workers")) << flags;
  }
  outcome = run("modle = \"x\"\n");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("run has no flag --modle"));
  for (const char* list : {"store = [\n", "store = [\"a\",\nthreads = 2\n", "store = [a\n[run]\n",
                           "store = [a\nstop = [b]\n"}) {
    outcome = run(std::string("prompt = \"x\"\n") + list);
    EXPECT_EQ(outcome.exit_code, 2) << list;
    EXPECT_THAT(outcome.err, HasSubstr("the [ in line 2 does not end")) << list;
  }
  for (const char* text : {"store = \"a\n", "store = \"a", "store = [\"a, \n\"b\"]\n"}) {
    EXPECT_THAT(run(std::string("# \"[\n") + text).err, HasSubstr("the \" in line 2 does not end"))
        << text;
  }
  outcome = run("model: x\n");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("model:"));
}

}  // namespace
}  // namespace kvcake
