// The kvcake program as a user runs it: flags, output, exit codes, and the store between runs.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/clock.h"
#include "base/seccomp_testing.h"
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class CliTest : public ProgramTest {
 protected:
  std::string Ask() const {
    return "run --model " KVCAKE_SOURCE_DIR
           "/models/demo --max-tokens 8 --threads 2 "
           "--prompt-file " +
           document_ + " ";
  }
  std::string WithStore() const { return Ask() + "--store " + dir_ + "/store "; }

  static int Loaded(const json& answer) {
    int tokens = 0;
    for (const auto& [tier, n] : answer["report"]["tokens_loaded"].items()) tokens += n.get<int>();
    return tokens;
  }
  static void ExpectAddsUp(const json& answer) {
    EXPECT_EQ(answer["report"]["tokens_computed"].get<int>() + Loaded(answer) +
                  answer["report"]["tokens_reused"].get<int>(),
              answer["prompt_tokens"].get<int>());
  }

  // -1: a signal has ended it.
  static int ExitCode(const std::string& command) {
    const int status = std::system(("exec " + command).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  const std::string document_ = "/usr/share/common-licenses/Artistic";
};

TEST_F(CliTest, SaysHowLongStartingTook) {
  const TimePoint began = Clock::Real().Now();
  const json startup = RunJson(Ask())["startup"];
  const double all_s = (Clock::Real().Now() - began).count();
  EXPECT_GT(startup["first_forward_s"].get<double>(), 0);
  EXPECT_GT(startup["ready_s"].get<double>(), startup["first_forward_s"].get<double>());
  EXPECT_LT(startup["ready_s"].get<double>(), all_s + 0.01)
      << "the kernel counts in ticks of 10 ms";
}

TEST_F(CliTest, SecondRunLoadsWhatTheFirstKeptAndAnswersTheSame) {
  const json plain = RunJson(Ask());
  EXPECT_EQ(plain["report"]["tokens_computed"], plain["prompt_tokens"]);
  EXPECT_EQ(plain["tokens"].size(), 8u);
  EXPECT_EQ(plain["finish_reason"], "length");
  EXPECT_GT(plain["ttft_s"].get<double>(), 0);

  const json first = RunJson(WithStore());
  EXPECT_EQ(first["report"]["tokens_computed"], first["prompt_tokens"]);
  const int full = first["prompt_tokens"].get<int>() / 128;
  EXPECT_EQ(static_cast<int>(ChunkFiles().size()), full) << "run ends only after flushing";

  for (const char* flags :
       {"--policy cake", "--policy load", "--policy compute", "--policy cake --load-rate 100Mbit",
        "--policy cake --load-rate 20Mbit --load-latency 1ms", "--policy load --load-rate 1Gbit"}) {
    SCOPED_TRACE(flags);
    const json again = RunJson(WithStore() + flags);
    EXPECT_EQ(again["tokens"], plain["tokens"]);
    EXPECT_EQ(again["text"], plain["text"]);
    ExpectAddsUp(again);
    const std::string policy = again["report"]["policy"];
    if (policy != "cake") {
      EXPECT_EQ(Loaded(again), policy == "load" ? full * 128 : 0);
    }
    for (const char* field : {"chunks_failed", "meeting_token", "bound_s", "efficiency"}) {
      EXPECT_TRUE(again["report"][field].is_number()) << field;
    }
    EXPECT_TRUE(again["report"]["reasons"].is_array());
  }
}

TEST_F(CliTest, StoresKeepChunksByTheCodecThatIsNamed) {
  const json plain = RunJson(Ask());
  const int full = plain["prompt_tokens"].get<int>() / 128 * 128;
  const std::string at = dir_ + "/store";
  for (const std::string codec : {"lossless", "int8"}) {
    SCOPED_TRACE(codec);
    const std::string named = Ask() + "--store '" + at + "?codec=" + codec + "' ";
    EXPECT_EQ(Loaded(RunJson(named + "--policy load")), 0) << "another's chunks";
    const json again = RunJson(Ask() + "--store " + at + " --policy load --kv-codec " + codec);
    EXPECT_EQ(Loaded(again), full);
    const bool lossy = codec == "int8";
    EXPECT_EQ(again["store"]["codec"], codec);
    EXPECT_EQ(again["store"]["lossy"], lossy);
    EXPECT_EQ(again["report"]["lossy"], lossy ? codec : "");
    EXPECT_GT(again["store"]["tiers"][0]["decode_core_s"].get<double>(), 0);
    EXPECT_EQ(again["store"]["tiers"][0]["encode_core_s"], 0);
    if (!lossy) {
      EXPECT_EQ(again["tokens"], plain["tokens"]);
    }
  }
  EXPECT_EQ(Loaded(RunJson(WithStore() + "--policy load")), 0) << "kept by a codec";
  const json list = json::parse(Run("store ls '" + at + "?codec=int8' --json").out);
  std::multiset<std::string> codecs;
  for (const json& root : list) codecs.insert(root["codec"]);
  EXPECT_EQ(codecs, (std::multiset<std::string>{"int8", "lossless", "raw"}));
  const json verified = json::parse(Run("store verify " + at + " --json").out);
  EXPECT_TRUE(verified["bad"].empty());
  EXPECT_EQ(verified["codecs"]["int8"], full / 128);
  EXPECT_EQ(verified["codecs"]["lossless"], full / 128);
  const json stat = json::parse(Run("store stat " + at + " --json").out)["codec_bytes"];
  EXPECT_LT(stat["lossless"].get<int>(), stat["raw"].get<int>() * 3 / 4);
  EXPECT_LT(stat["int8"].get<int>(), stat["lossless"].get<int>());
  // Without its tables a codec keeps and finds nothing, and says so.
  const Outcome missing = Run(Ask() + "--json --store '" + at + "?codec=cachegen'");
  EXPECT_EQ(missing.exit_code, 0);
  EXPECT_THAT(missing.err, HasSubstr("kvcake codec fit"));
  EXPECT_EQ(json::parse(missing.out)["tokens"], plain["tokens"]);

  EXPECT_THAT(Run("run --model x --prompt a --store 's?codec=zip'").err,
              HasSubstr("'zip', but raw, lossless, int8, cachegen, kvquant3"));
  EXPECT_THAT(Run("run --model x --prompt a --store 's?cdec=int8'").err,
              HasSubstr("no option 'cdec', but codec, tables, key-file and writes"));
  EXPECT_THAT(Run("run --model x --prompt a --kv-codec zip").err, HasSubstr("'zip', but raw"));
  for (const char* const of : {"--store s --codec-tables t", "--store 's?codec=lossless&tables=t'",
                               "--store 's?tables=t' --kv-codec int8"}) {
    const Outcome useless = Run(std::string("run --model x --prompt a ") + of);
    EXPECT_EQ(useless.exit_code, 2) << of;
    EXPECT_THAT(useless.err, HasSubstr("kvquant3")) << of;
  }
}

TEST_F(CliTest, AStoreWithAKeyIsOfUseToThoseWhoHaveIt) {
  const auto key_file = [&](char letter) {
    const std::string path = dir_ + "/key-" + letter;
    std::ofstream(path) << std::string(32, letter);
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return path;
  };
  const std::string at = dir_ + "/store", old_key = key_file('a'), new_key = key_file('b');
  const auto with = [&](const std::string& key) {
    return Ask() + "--policy load --store '" + at + "?key-file=" + key + "' ";
  };
  const json plain = RunJson(with(old_key));
  const int full = plain["prompt_tokens"].get<int>() / 128 * 128;
  const json again = RunJson(with(old_key));
  EXPECT_EQ(Loaded(again), full);
  EXPECT_EQ(again["tokens"], plain["tokens"]);
  EXPECT_EQ(Loaded(RunJson(with(new_key) + "--store-writes never")), 0);

  const json list = json::parse(Run("store ls " + at + " --json").out);
  ASSERT_GE(list.size(), 1u);
  EXPECT_EQ(list[0]["encryption"], "AES-256-GCM");
  EXPECT_FALSE(list[0]["model"].contains("model")) << "which one it is is nobody's business";
  EXPECT_THAT(Run("store rekey " + at + " --new-key-file " + new_key).err,
              HasSubstr(at + "?key-file=FILE"));
  const Outcome rekeyed =
      Run("store rekey '" + at + "?key-file=" + old_key + "' --json --new-key-file " + new_key);
  EXPECT_EQ(rekeyed.exit_code, 0) << rekeyed.err;
  EXPECT_EQ(json::parse(rekeyed.out)["chunks"], full / 128);
  EXPECT_EQ(Loaded(RunJson(with(new_key))), full);
  const json verified =
      json::parse(Run("store verify '" + at + "?key-file=" + new_key + "' --json").out);
  EXPECT_TRUE(verified["bad"].empty());
  EXPECT_EQ(verified["decrypted"], full / 128);
  // What was seen once is remembered beside stores without a key only.
  RunJson(with(old_key) + "--store-writes second-use");
  int kept = 0;
  for (const auto& entry : fs::recursive_directory_iterator(at)) {
    if (!entry.path().filename().string().starts_with("cost-")) continue;
    ++kept;
    EXPECT_FALSE(json::parse(Read(entry.path())).contains("seen")) << entry.path();
  }
  EXPECT_GT(kept, 0);
  const Outcome none = Run("run --model x --prompt a --store 's?key-file=" + dir_ + "/none'");
  EXPECT_THAT(none.err, HasSubstr(dir_ + "/none"));
  EXPECT_EQ(none.exit_code, 1) << "the flags alone do not tell";
}

TEST_F(CliTest, SeveralStoresEachWithALinkOfItsOwn) {
  const json plain = RunJson(WithStore());
  const int full = plain["prompt_tokens"].get<int>() / 128 * 128;
  fs::copy(dir_ + "/store", dir_ + "/slow", fs::copy_options::recursive);
  const std::string both = WithStore() + "--store " + dir_ + "/slow --policy load ";
  // The links are what takes time, also of a busy machine's.
  const json loaded = RunJson(both + "--load-rate 40Mbit --load-rate 20Mbit --load-latency 1ms");
  EXPECT_EQ(loaded["tokens"], plain["tokens"]);
  EXPECT_EQ(Loaded(loaded), full);
  EXPECT_GT(loaded["report"]["tokens_loaded"]["disk"].get<int>(), 0);
  EXPECT_GT(loaded["report"]["tokens_loaded"]["disk2"].get<int>(), 0);
  ASSERT_EQ(loaded["store"]["tiers"].size(), 2u);
  EXPECT_EQ(loaded["store"]["tiers"][1]["dir"], dir_ + "/slow");
  EXPECT_EQ(loaded["store"]["tiers"][1]["chunks"], full / 128);

  std::ofstream(dir_ + "/trace") << "0 50e6 0.001\n0.05 25e6 0\n";
  EXPECT_EQ(Loaded(RunJson(both + "--load-trace " + dir_ + "/trace")), full);
  const json late = RunJson(both + "--load-stall-share 1 --load-stall 300ms");
  EXPECT_EQ(late["tokens"], plain["tokens"]);
  EXPECT_EQ(Loaded(late), full);
  EXPECT_GE(late["ttft_s"].get<double>(), 0.3) << "every read was that late";
  const json slow =
      RunJson(Ask() + "--store " + dir_ + "/slow-writes --write-stall-share 1 --write-stall 200ms");
  EXPECT_EQ(slow["tokens"], plain["tokens"]);
  EXPECT_EQ(slow["store"]["tiers"][0]["chunks"], full / 128) << "late, and kept";
  std::ofstream(dir_ + "/trace") << "0 fast 0\n";
  Outcome bad = Run(both + "--load-trace " + dir_ + "/trace");
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_THAT(bad.err, HasSubstr("line 1"));
  bad = Run(both + "--load-rate 1Gbit --load-rate 1Gbit --load-rate 1Gbit");
  EXPECT_NE(bad.exit_code, 0);
  EXPECT_THAT(bad.err, HasSubstr("--load-rate"));
}

TEST_F(CliTest, WhatIsKeptFollowsTheFlags) {
  EXPECT_EQ(RunJson(WithStore() + "--no-store")["store"]["chunks"], 0);
  EXPECT_EQ(RunJson(WithStore() + "--store-writes never")["store"]["chunks"], 0);
  const auto space = fs::space(dir_);
  if (space.available < 0.98 * static_cast<double>(space.capacity)) {
    EXPECT_EQ(RunJson(WithStore() + "--disk-free-min 0.99")["store"]["chunks"], 0);
  }
  const json once = RunJson(WithStore() + "--store-writes second-use");
  EXPECT_EQ(once["store"]["chunks"], 0);
  EXPECT_GT(once["store"]["writes_not_admitted"].get<int>(), 0);
  const json twice = RunJson(WithStore() + "--store-writes second-use");
  EXPECT_EQ(twice["store"]["chunks"], twice["prompt_tokens"].get<int>() / 128)
      << "what one process has seen the next one knows";
  for (const std::string& file : ChunkFiles()) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(3));
  }
  EXPECT_GT(Loaded(RunJson(WithStore() + "--policy load --no-store --store-ttl 1d")), 0);
  for (const std::string& file : ChunkFiles()) {
    fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(3));
  }
  const json old = RunJson(WithStore() + "--policy load --no-store --store-ttl 2h");
  EXPECT_EQ(Loaded(old), 0);
  EXPECT_EQ(old["store"]["chunks"], 0);
}

TEST_F(CliTest, DamagedForeignAndWrongModelFilesAreMisses) {
  const json plain = RunJson(WithStore());
  auto files = ChunkFiles();
  ASSERT_GE(files.size(), 8u);
  std::sort(files.begin(), files.end());
  const auto flip_byte = [](const fs::path& path, int offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset);
    const int byte = file.get();
    file.seekp(offset);
    file.put(static_cast<char>(byte ^ 1));
  };
  flip_byte(files[0], 5000);        // a slab
  flip_byte(files[1], 100);         // the header
  fs::resize_file(files[2], 4096);  // truncated
  std::ofstream(files[3], std::ios::trunc) << "somebody else's notes";
  fs::remove(files[4]);
  // A chunk of another model in this one's place: all in order, but for whose it is.
  ASSERT_EQ(Run("model synth --arch tiny --out " + dir_ + "/other").exit_code, 0);
  RunJson("run --model " + dir_ + "/other --max-tokens 1 --prompt-file " + document_ + " --store " +
          dir_ + "/other-store");
  fs::path other;
  for (const auto& entry : fs::recursive_directory_iterator(dir_ + "/other-store")) {
    if (entry.is_regular_file() && entry.path().filename().string().size() == 64) {
      other = entry.path();
    }
  }
  fs::copy_file(other, files[5], fs::copy_options::overwrite_existing);
  fs::copy_file(files[7], files[6], fs::copy_options::overwrite_existing);  // and a neighbour

  const Outcome outcome = Run(WithStore() + "--policy load --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["tokens"], plain["tokens"]);
  ExpectAddsUp(answer);
  for (int i : {0, 1, 2, 3, 5, 6}) {
    EXPECT_THAT(outcome.err, HasSubstr(fs::path(files[i]).filename().string())) << "case " << i;
  }
  EXPECT_EQ(answer["store"]["quarantined"], 6);
  EXPECT_EQ(Loaded(answer), (static_cast<int>(files.size()) - 7) * 128);

  // The lost chunks were computed and kept again.
  const json healed = RunJson(WithStore() + "--policy load");
  EXPECT_EQ(Loaded(healed), plain["prompt_tokens"].get<int>() / 128 * 128);
}

TEST_F(CliTest, StoreListsAndClears) {
  RunJson(WithStore());
  json list = json::parse(Run("store ls " + dir_ + "/store --json").out);
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["chunks"].get<size_t>(), ChunkFiles().size());
  EXPECT_EQ(list[0]["model"]["model"], "demo");
  EXPECT_THAT(Run("store ls " + dir_ + "/store").out, HasSubstr("demo"));

  std::ofstream(dir_ + "/store/notes.txt") << "not kvcake's";
  EXPECT_EQ(Run("store clear " + dir_ + "/store").exit_code, 0);
  EXPECT_TRUE(ChunkFiles().empty());
  EXPECT_EQ(json::parse(Run("store ls " + dir_ + "/store --json").out).size(), 0u);
  EXPECT_TRUE(fs::exists(dir_ + "/store/notes.txt"));
  const Outcome missing = Run("store ls " + dir_ + "/nothing");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("nothing"));
}

TEST_F(CliTest, PromptsComeAsTextFileTokensOrStdin) {
  const std::string run = "run --model " KVCAKE_SOURCE_DIR "/models/demo --max-tokens 4 ";
  const json text = RunJson(run + "--prompt 'The licence of'");
  std::ofstream(dir_ + "/prompt") << "The licence of";
  EXPECT_EQ(RunJson(run + "--prompt-file " + dir_ + "/prompt")["tokens"], text["tokens"]);
  EXPECT_EQ(RunJson(run + "--prompt-file - < " + dir_ + "/prompt")["tokens"], text["tokens"]);
  std::ofstream(dir_ + "/ids") << "[5, 6, 7]";
  EXPECT_EQ(RunJson(run + "--prompt-tokens " + dir_ + "/ids")["prompt_tokens"], 3);
  EXPECT_EQ(Run(run + "--prompt 'The licence of'").out, text["text"].get<std::string>() + "\n");
}

TEST_F(CliTest, WhatCannotBePrintedIsAFailure) {
  const std::string run =
      KVCAKE_PROGRAM " run --model " KVCAKE_SOURCE_DIR "/models/demo --prompt a --max-tokens 4 ";
  for (const char* ask : {"", "--json "}) {
    EXPECT_EQ(ExitCode(run + ask + "> /dev/full 2> " + dir_ + "/err"), 1) << ask;
    EXPECT_THAT(Read(dir_ + "/err"), HasSubstr("stdout: No space left on device"));
  }
  EXPECT_EQ(ExitCode(KVCAKE_PROGRAM " --version > /dev/full 2> /dev/null"), 1);

  EXPECT_EQ(ExitCode(run + "> " + dir_ + "/out 2> /dev/full"), 1);
  EXPECT_EQ(Read(dir_ + "/out").size(), 5u);
  EXPECT_EQ(ExitCode(KVCAKE_PROGRAM " run --model x --prompt a 2> /dev/full"), 1);
}

TEST_F(CliTest, WhatIsPrintedToNobodyGoesIntoNoFile) {
  EXPECT_EQ(ExitCode(KVCAKE_PROGRAM " " + WithStore() + "<&- >&- 2>&-"), 0);
  EXPECT_EQ(Run("store verify " + dir_ + "/store").exit_code, 0);
}

TEST_F(CliTest, FilesMayNotBeLongerThanTheSystemLetsThem) {
  const std::string limit = "sh -c 'ulimit -f 8 && exec \"$@\"' sh ";  // 4 KiB: no chunk
  EXPECT_EQ(
      ExitCode(limit + KVCAKE_PROGRAM " " + WithStore() + "> " + dir_ + "/out 2> " + dir_ + "/err"),
      0);
  EXPECT_THAT(Read(dir_ + "/err"), HasSubstr("File too large"));
  EXPECT_THAT(ChunkFiles(), testing::IsEmpty());
  EXPECT_EQ(ExitCode(limit + KVCAKE_PROGRAM " run --help > " + dir_ + "/out 2> " + dir_ + "/err"),
            1);
  EXPECT_THAT(Read(dir_ + "/err"), HasSubstr("cannot write to stdout"));
}

TEST_F(CliTest, TooFewThreadsAreSaidSo) {
  const std::string command = KVCAKE_PROGRAM " " + Ask() + "> /dev/null 2> " + dir_ + "/err";
  const pid_t child = fork();
  if (child == 0) {
    if (!testing_util::ForbidThreads()) _exit(77);
    execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp here";
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(Read(dir_ + "/err"), HasSubstr("cannot start a thread: Resource temporarily"));
  EXPECT_THAT(Read(dir_ + "/err"), HasSubstr("ulimit -u"));
}

TEST_F(CliTest, SeedsAndStopStrings) {
  const std::string run =
      "run --model " KVCAKE_SOURCE_DIR "/models/demo --prompt 'This program is' --max-tokens 24 ";
  const json a = RunJson(run + "--temperature 1 --seed 1"),
             b = RunJson(run + "--temperature 1 --seed 1"),
             c = RunJson(run + "--temperature 1 --seed 2");
  EXPECT_EQ(a["tokens"], b["tokens"]);
  EXPECT_NE(a["tokens"], c["tokens"]);
  // A stop string is taken from the text itself: any piece of it that the shell can quote.
  const std::string text = a["text"];
  size_t at = text.size() / 2;
  while (at > 0 && text.substr(at, 2).find_first_of("'\n") != std::string::npos) --at;
  ASSERT_GT(at, 0u) << text;
  const std::string stop = text.substr(at, 2);
  const json stopped = RunJson(run + "--temperature 1 --seed 1 --stop '" + stop + "'");
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop");
  // What may begin a stop string is held, and is part of the text when nothing follows.
  const std::string begun = Write("stop", text.substr(text.size() - 1) + "never to be seen");
  EXPECT_EQ(RunJson(run + "--temperature 1 --seed 1 --stop \"$(cat " + begun + ")\"")["text"],
            text);
  const std::string brackets = "[" + stop + "]";  // as in [/INST]: they are part of the text
  EXPECT_EQ(RunJson(run + "--temperature 1 --seed 1 --stop '" + brackets + "'")["text"], text);
}

TEST_F(CliTest, TraceIsChromeTraceJson) {
  RunJson(WithStore());
  RunJson(WithStore() + "--policy load --trace " + dir_ + "/trace.json");
  const json trace = json::parse(Read(dir_ + "/trace.json"));
  const json& events = trace.is_array() ? trace : trace["traceEvents"];
  EXPECT_GE(events.size(), ChunkFiles().size());
}

TEST_F(CliTest, EmulatesAMachineThatIsNotHere) {
  std::ofstream(dir_ + "/p.json")
      << R"({"name": "p", "layers": 4, "kv_bytes_per_token": 65536, "max_positions": 8192,)"
      << R"( "attention": "dense", "c0": 1e-4, "b": 2e-6, "a": 1e-10})";
  const std::string ask = "run --emulate " + dir_ + "/p.json --threads 1 --max-tokens 4 --store " +
                          dir_ + "/emulated --compute-share 0.5 --prompt-file " + document_;
  const json first = RunJson(ask), again = RunJson(ask + " --policy load");
  EXPECT_EQ(first["tokens"].size(), 4u);
  EXPECT_EQ(first["tokens"], again["tokens"]);
  EXPECT_GT(again["report"]["tokens_loaded"]["disk"], 0);
  EXPECT_GE(first["report"]["planning_us_per_turn"], 0);
  // So much of each step of 512 tokens, in whole chunks, is the prompt's.
  const auto turns = [&](const std::string& share) -> int {
    return RunJson("run --emulate " + dir_ +
                   "/p.json --threads 1 --max-tokens 1 --policy compute " + "--prompt-file " +
                   document_ + share)["report"]["turns"];
  };
  const int tokens = first["prompt_tokens"];
  std::ofstream(dir_ + "/share") << "0 0.25\n";
  EXPECT_EQ(turns(""), (tokens + 511) / 512);
  EXPECT_EQ(turns(" --compute-share 0.25"), tokens / 128);
  EXPECT_EQ(turns(" --compute-trace " + dir_ + "/share"), tokens / 128);
  const Outcome neither = Run("run --prompt x");
  EXPECT_NE(neither.exit_code, 0);
  EXPECT_THAT(neither.err, HasSubstr("--model"));
  std::ofstream(dir_ + "/trace") << "0 2\n";
  const Outcome trace =
      Run("run --emulate " + dir_ + "/p.json --prompt x --compute-trace " + dir_ + "/trace");
  EXPECT_THAT(trace.err, HasSubstr("from 0 to 1"));
}

TEST_F(CliTest, SimulatesTheSameScenariosForTheSameSeed) {
  const std::string bench =
      "bench simulate --threads 2 --scenarios 20 --seed 7 --profiles " KVCAKE_SOURCE_DIR
      "/bench/profiles --json " +
      dir_;
  EXPECT_EQ(Run(bench + "/a.json").exit_code, 0);
  EXPECT_EQ(Run(bench + "/b.json").exit_code, 0);
  EXPECT_EQ(Read(dir_ + "/a.json"), Read(dir_ + "/b.json"));
  EXPECT_EQ(json::parse(Read(dir_ + "/a.json"))["scenarios"], 20);
}

TEST_F(CliTest, MeasuresWhatTheServerCosts) {
  if (IsEmulated()) GTEST_SKIP() << "behind an emulator it cannot start itself";
  const Outcome outcome =
      Run("bench serve --model " KVCAKE_SOURCE_DIR
          "/models/demo --threads 1 --streams 2 --requests 6 --answer-tokens 4 --step-ms 1 "
          "--idle 3 --sequence 20 --dir " +
          dir_ + " --json " + dir_ + "/serve.json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json result = json::parse(Read(dir_ + "/serve.json"));
  ASSERT_EQ(result["traffic"].size(), 4u);
  for (const json& traffic : result["traffic"]) {
    EXPECT_GT(traffic["prompt_tokens"], 100);
    // One request at least, of 4 tokens; the last step counts when all of it has been handed out.
    EXPECT_GE(traffic["steps"], 3);
    EXPECT_GT(traffic["overhead_ms_p50"], 0);
    EXPECT_GE(traffic["overhead_ms_p99"], traffic["overhead_ms_p50"]);
    EXPECT_GE(traffic["wall_over_steps"], 1);
  }
  EXPECT_EQ(result["idle"]["streams"], 3);
  EXPECT_EQ(result["sequence"].back()["requests"], 20);
  EXPECT_GT(result["sequence"].back()["rss_bytes"], 1 << 20);
}

TEST_F(CliTest, CudaIsRefusedWhereThereIsNone) {
  const std::string demo = "--model " KVCAKE_SOURCE_DIR "/models/demo ";
  const Outcome there = Run("run --prompt a --max-tokens 1 --backend cuda " + demo);
  if (there.exit_code == 0) GTEST_SKIP() << "there is a CUDA device";
  for (const std::string command :
       {"run --prompt a ", "perplexity --file /etc/hostname ", "bench prefill --tokens 512 "}) {
    const Outcome outcome = Run(command + "--backend cuda " + demo);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr("built without CUDA: ./dev build --cuda"),
                                            HasSubstr("no CUDA device can be used")));
  }
  EXPECT_EQ(Run("run --prompt a --backend tpu " + demo).exit_code, 2);
  EXPECT_EQ(Run("run --prompt a --backend cuda --numeric-path f32 " + demo).exit_code, 2);
  EXPECT_EQ(Run("run --prompt a --attention-backend cudnn " + demo).exit_code, 2);
}

TEST_F(CliTest, SynthWritesAModelThatRuns) {
  const std::string model = dir_ + "/tiny";
  ASSERT_EQ(Run("model synth --arch tiny --out " + model).exit_code, 0);
  const json info = json::parse(Run("model info " + model + " --json").out);
  EXPECT_EQ(info["layers"], 2);
  EXPECT_EQ(info["kv_bytes_per_token"], 2 * 2 * 2 * 2 * 16);
  EXPECT_EQ(
      RunJson("run --model " + model + " --prompt hello --max-tokens 3 --ignore-eos")["tokens"]
          .size(),
      3u);
  EXPECT_EQ(Run("model synth --arch tiny --out " + model).exit_code, 1) << "never overwrites";
}

}  // namespace
}  // namespace kvcake
