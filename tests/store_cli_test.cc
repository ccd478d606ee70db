// kvcake store as a user runs it.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "io/file_system.h"
#include "store/store_dir.h"
#include "tests/cli_testing.h"

namespace kvcake {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class StoreCliTest : public ProgramTest {
 protected:
  StoreCliTest() {
    Write("prompt", Text("once upon a time "));
    Write("other", Text("a different tale "));
  }

  static std::string Text(const std::string& piece) {
    std::string text;
    while (text.size() < 4000) text += piece + std::to_string(text.size()) + " ";
    return text;
  }
  json Json(const std::string& arguments, int exit_code = 0) {
    return RunJson("store " + arguments, exit_code);
  }
  json Warm(const std::string& prompt) {
    return Json("warm --ram-capacity 256MiB --model " KVCAKE_SOURCE_DIR
                "/models/demo --prompt-file " +
                dir_ + "/" + prompt + " --store " + Store());
  }
  std::string Store() const { return dir_ + "/store"; }

  static void Damage(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('!');
  }
};

TEST_F(StoreCliTest, WarmFillsAndRunLoads) {
  const json first = Warm("prompt");
  const auto chunks = first["written"].get<size_t>();
  EXPECT_GT(chunks, 2u);
  EXPECT_EQ(first["tokens_computed"], first["prompt_tokens"]);
  EXPECT_EQ(ChunkFiles().size(), chunks);
  Warm("prompt");
  EXPECT_EQ(Json("ls " + Store())[0]["writes"].get<size_t>(), chunks) << "it was there";
  EXPECT_EQ(ChunkFiles().size(), chunks);

  const Outcome run =
      Run("run --ram-capacity 256MiB --policy load --max-tokens 1 --json --model " KVCAKE_SOURCE_DIR
          "/models/demo --prompt-file " +
          dir_ + "/prompt --durable --store " + Store());
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_LT(json::parse(run.out)["report"]["tokens_computed"].get<int>(), 129);

  const json list = Json("ls " + Store());
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0]["chunks"].get<size_t>(), chunks);
  EXPECT_GE(list[0]["hits"].get<size_t>(), chunks) << "what the run loaded";
  EXPECT_EQ(list[0]["writes"].get<size_t>(), chunks);
  EXPECT_THAT(Run("store ls " + Store()).out, HasSubstr("demo"));
  const json stat = Json("stat " + Store());
  EXPECT_EQ(stat["chunks"].get<size_t>(), chunks);
  EXPECT_EQ(stat["quarantined"], 0);
  EXPECT_EQ(stat["being_written"], 0);
  EXPECT_GT(stat["free_bytes"].get<uint64_t>(), 0u);
  EXPECT_THAT(Run("store stat " + Store()).out, HasSubstr("hits"));

  // To warm is to say that the chunks are to be kept, whatever waits for a second use.
  const std::string warm = "warm --ram-capacity 256MiB --model " KVCAKE_SOURCE_DIR
                           "/models/demo --prompt-file " +
                           dir_ + "/prompt --store ";
  EXPECT_EQ(Json(warm + "'" + dir_ + "/second?writes=second-use'")["written"], chunks);
  EXPECT_EQ(Json(warm + dir_ + "/third --store-writes second-use")["written"], chunks);
  const std::string both =
      warm + "'" + dir_ + "/a?writes=always' --store '" + dir_ + "/b?writes=always'";
  EXPECT_THAT(Run("store " + both).out,
              HasSubstr(fmt::format("chunks written: {0} to {1}/a, {0} to "
                                    "{1}/b\n",
                                    chunks, dir_)));
  const Outcome never = Run("store " + warm + dir_ + "/never --store-writes never");
  EXPECT_EQ(never.exit_code, 1);
  EXPECT_THAT(never.err, HasSubstr("nothing would be kept in " + dir_ + "/never"));

  const Outcome tight = Run("store " + warm + dir_ + "/tight --json --disk-capacity 1MiB");
  EXPECT_EQ(tight.exit_code, 1);
  EXPECT_THAT(tight.err, HasSubstr(fmt::format("the prompt's {} chunks take", chunks)));
  EXPECT_THAT(tight.err, HasSubstr("(--disk-capacity)"));

  const Outcome missing = Run("store warm --model " KVCAKE_SOURCE_DIR "/models/demo --store " +
                              Store() + " --prompt-file /nothing");
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("/nothing"));
}

TEST_F(StoreCliTest, WarmFailsWhereAFileSystemHasNoRoomForThePrompt) {
  const std::string small = dir_ + "/small";
  std::filesystem::create_directory(small);
  if (mount("tmpfs", small.c_str(), "tmpfs", 0, "size=2m") != 0) GTEST_SKIP() << "may not mount";
  const Outcome tight = Run("store warm --json --ram-capacity 256MiB --model " KVCAKE_SOURCE_DIR
                            "/models/demo --prompt-file " +
                            dir_ + "/prompt --store " + small);
  umount2(small.c_str(), MNT_DETACH);
  EXPECT_EQ(tight.exit_code, 1);
  EXPECT_THAT(tight.err, testing::ContainsRegex("[1-9][0-9]* of the prompt's [0-9]+ chunks had to "
                                                "make room for others in " +
                                                small));
  EXPECT_EQ(json::parse(tight.out)["writes_failed"], 0);
}

TEST_F(StoreCliTest, WarmFailsWhereTheStoreKeepsNothing) {
  const std::string nobody = "redis://127.0.0.1:1";
  const Outcome lost =
      Run("store warm --json --model " KVCAKE_SOURCE_DIR "/models/demo --prompt-file " + dir_ +
          "/prompt --store " + nobody);
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_THAT(lost.err, HasSubstr("not all chunks could be kept in " + nobody));
  const json told = json::parse(lost.out);
  EXPECT_EQ(told["written"], 0);
  EXPECT_GT(told["writes_failed"].get<int>() + told["writes_dropped"].get<int>(), 0);
}

// Tells of each of two roots, and of both together.
TEST_F(StoreCliTest, ListsAndTotalsSayWhatIsThereAndWhatWasDoneWithIt) {
  Warm("prompt");
  Damage(ChunkFiles()[0]);
  Json("verify --quarantine " + Store(), /*exit_code=*/1);
  const std::vector<std::string> files = ChunkFiles();
  const uint64_t count = files.size(), bytes = fs::file_size(files[0]);
  const std::string root = Json("ls " + Store())[0]["root"], other(64, 'a');
  const std::string ours = Store() + "/v1/" + root, others = Store() + "/v1/" + other;
  fs::copy(ours, others, fs::copy_options::recursive);
  fs::remove(others + files[0].substr(ours.size()));
  for (const std::string& path : ChunkFiles()) {
    ASSERT_TRUE(FileSystem::Real().Touch(path, 1'700'000'000));
  }
  ASSERT_TRUE(FileSystem::Real().Touch(files[0], 1'600'000'000));
  std::ofstream(files[0] + ".tmp.1.0") << "half of a chunk";
  for (const std::string& of : {ours, others}) fs::remove(of + "/usage.txt");
  const auto add = [&](const std::string& of, const StoreUsage& usage) {
    return AddUsage(FileSystem::Real(), StoreDir(Store()), *ParseKeyHex(of), usage);
  };
  ASSERT_TRUE(add(root, {2, 3, 5, 7, 11, 13}));
  ASSERT_TRUE(add(other, {17, 19, 23, 29, 31, 37}));

  json list = Json("ls " + Store());
  ASSERT_EQ(list.size(), 2u);
  if (list[0]["root"] != root) std::swap(list[0], list[1]);
  const auto numbers = [&](const json& of) {
    std::vector<uint64_t> all;
    for (const char* name : {"chunks", "bytes", "oldest_use", "newest_use", "hits", "hit_bytes",
                             "writes", "evicted", "quarantined"}) {
      all.push_back(of[name]);
    }
    return all;
  };
  EXPECT_EQ(numbers(list[0]), (std::vector<uint64_t>{count, count * bytes, 1'600'000'000,
                                                     1'700'000'000, 2, 3, 5, 11, 13}));
  EXPECT_THAT(Run("store ls " + Store()).out,
              testing::ContainsRegex(" 2  2020-09-1[234] ..:..  2023-11-1[345] ..:..\n"))
      << "hits, the first use and the last, by whatever clock";
  EXPECT_EQ(numbers(list[1]), (std::vector<uint64_t>{count - 1, (count - 1) * bytes, 1'700'000'000,
                                                     1'700'000'000, 17, 19, 23, 31, 37}));

  const json sums = Json("stat " + Store());
  const uint64_t all = 2 * count - 1;
  for (const auto& [name, sum] : std::map<std::string, uint64_t>{{"models", 2},
                                                                 {"chunks", all},
                                                                 {"bytes", all * bytes},
                                                                 {"hits", 19},
                                                                 {"hit_bytes", 22},
                                                                 {"writes", 28},
                                                                 {"write_bytes", 36},
                                                                 {"evicted", 42},
                                                                 {"quarantined", 1},
                                                                 {"quarantined_bytes", bytes},
                                                                 {"being_written", 1}}) {
    EXPECT_EQ(sums[name], sum) << name;
  }
  EXPECT_EQ(sums["codec_bytes"], json({{"raw", all * bytes}}));
  EXPECT_LT(sums["free_bytes"].get<uint64_t>(), fs::space(Store()).capacity);
}

TEST_F(StoreCliTest, VerifyReadsEverythingAndTellsWhatIsBad) {
  Warm("prompt");
  const auto files = ChunkFiles();
  json good = Json("verify " + Store());
  EXPECT_EQ(good["chunks"].get<size_t>(), files.size());
  EXPECT_TRUE(good["bad"].empty());
  EXPECT_EQ(good["bytes"].get<uint64_t>(), files.size() * fs::file_size(files[0]));

  Damage(files[0]);
  fs::resize_file(files[1], 100);
  fs::copy_file(files[3], files[2], fs::copy_options::overwrite_existing);
  const json bad = Json("verify " + Store(), /*exit_code=*/1);
  ASSERT_EQ(bad["bad"].size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bad["bad"][i]["path"], files[i]);
  EXPECT_THAT(bad["bad"][0]["reason"].get<std::string>(), HasSubstr("checksum"));
  EXPECT_THAT(bad["bad"][1]["reason"].get<std::string>(), HasSubstr("100 bytes"));
  EXPECT_THAT(bad["bad"][2]["reason"].get<std::string>(), HasSubstr("another chunk"));
  EXPECT_EQ(bad["chunks"].get<size_t>(), files.size() - 3);
  EXPECT_EQ(ChunkFiles().size(), files.size()) << "looking changes nothing";

  const Outcome moved = Run("store verify --quarantine " + Store());
  EXPECT_EQ(moved.exit_code, 1);
  EXPECT_THAT(moved.out, AllOf(HasSubstr(files[0]), HasSubstr("; 3 bad\n"))) << "no hint to it";
  EXPECT_EQ(ChunkFiles().size(), files.size() - 3);
  EXPECT_EQ(Run("store verify " + Store()).exit_code, 0);
  const json quarantined = Json("quarantine " + Store());
  ASSERT_EQ(quarantined.size(), 3u);
  for (const json& file : quarantined) {
    EXPECT_FALSE(file["reason"].get<std::string>().empty());
    const FileInfo info = FileSystem::Real().Stat(file["path"]).value();
    EXPECT_EQ(file["bytes"], info.bytes);
    EXPECT_EQ(file["mtime"], info.mtime_s);
  }
  EXPECT_THAT(Run("store quarantine " + Store()).out,
              AllOf(HasSubstr("another chunk"), HasSubstr("\n3 files; --clear deletes them\n")));
  const json stat = Json("stat " + Store());
  EXPECT_EQ(stat["quarantined"], 3);
  EXPECT_EQ(stat["quarantined_bytes"], 2 * fs::file_size(files[3]) + 100);
  // JSON stays JSON whatever a file is called.
  std::ofstream(Store() + "/v1/quarantine/\xff\xfe") << "x";
  EXPECT_EQ(Json("quarantine " + Store()).size(), 4u);
  EXPECT_EQ(Json("quarantine --clear " + Store())["files"], 4);
  EXPECT_TRUE(Json("quarantine " + Store()).empty());
}

TEST_F(StoreCliTest, WhatHasNotGotTheNewKeyIsSaid) {
  const auto key_file = [&](char letter) {
    const std::string path = Write(std::string("key-") + letter, std::string(32, letter));
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    return path;
  };
  const std::string old_key = key_file('a'), new_key = key_file('b');
  const auto with = [&](const std::string& key) {
    return "'" + Store() + "?key-file=" + key + "'";
  };
  Json("warm --model " KVCAKE_SOURCE_DIR "/models/demo --prompt-file " + dir_ + "/prompt --store " +
       with(old_key));
  EXPECT_EQ(Json("ls " + Store())[0]["encryption"], "AES-256-GCM");
  EXPECT_THAT(Run("store ls " + Store()).out, HasSubstr("raw, encrypted"));
  const auto files = ChunkFiles();
  Damage(files[0]);
  const std::string rekey = "rekey " + with(old_key) + " --new-key-file " + new_key;
  const Outcome words = Run("store " + rekey);
  EXPECT_EQ(words.exit_code, 1);
  EXPECT_THAT(words.out, AllOf(HasSubstr(files[0]), HasSubstr("; 1 failed\n")));
  const json again = Json(rekey, /*exit_code=*/1);
  EXPECT_EQ(again["chunks"], 0);
  EXPECT_EQ(again["others"], files.size() - 1);
  ASSERT_EQ(again["failed"].size(), 1u);
  EXPECT_EQ(again["failed"][0]["path"], files[0]);
  fs::remove(files[0]);
  EXPECT_THAT(
      Run("store verify " + with(old_key)).out,
      HasSubstr(fmt::format("\n{} of them are of other keys or none, and were not decrypted",
                            files.size() - 1)));
  EXPECT_THAT(Run("store verify " + with(new_key)).out, Not(HasSubstr("other keys")));
  EXPECT_EQ(Json("verify " + with(old_key))["decrypted"], 0);
  EXPECT_EQ(Json("verify " + with(new_key))["decrypted"], files.size() - 1);
}

TEST_F(StoreCliTest, EvictRemovesWhatMeetsTheConditions) {
  Warm("prompt");
  const auto old = ChunkFiles();
  for (const std::string& path : old) {
    ASSERT_TRUE(FileSystem::Real().Touch(path, UnixSeconds() - 8 * 86400));
  }
  Warm("other");
  const size_t all = ChunkFiles().size();
  ASSERT_GT(all, old.size() + 2);
  const uint64_t bytes = fs::file_size(old[0]);

  EXPECT_EQ(Json("evict --older-than 30d " + Store())["files"], 0);
  EXPECT_EQ(Json("evict --older-than 7d --to " + std::to_string((all - 1) * bytes) + " " +
                 Store())["files"],
            1);
  EXPECT_EQ(Json("evict --older-than 7d " + Store())["files"].get<size_t>(), old.size() - 1);
  EXPECT_EQ(ChunkFiles().size(), all - old.size()) << "what was used lately stays";
  const json to = Json("evict --to " + std::to_string(2 * bytes + 1) + " " + Store());
  EXPECT_EQ(to["bytes"].get<uint64_t>(), (all - old.size() - 2) * bytes);
  EXPECT_EQ(ChunkFiles().size(), 2u);

  const Outcome unknown = Run("store evict --model llama " + Store());
  EXPECT_EQ(unknown.exit_code, 1);
  const std::string root = Json("ls " + Store())[0]["root"];
  EXPECT_THAT(unknown.err, HasSubstr("demo (" + root.substr(0, 12) + ")")) << "what there is";
  for (const size_t digits : {1, 7}) {
    EXPECT_EQ(Run("store evict --model " + root.substr(0, digits) + " " + Store()).exit_code, 1)
        << "others may begin like that";
  }
  EXPECT_EQ(ChunkFiles().size(), 2u);
  EXPECT_EQ(Json("evict --model " + root.substr(0, 8) + " " + Store())["files"], 2);
  Warm("prompt");
  EXPECT_EQ(Json("evict --model demo " + Store())["files"].get<size_t>(), old.size());
  EXPECT_TRUE(ChunkFiles().empty());
  EXPECT_EQ(Json("stat " + Store())["codec_bytes"], json::object());

  EXPECT_EQ(Run("store evict " + Store()).exit_code, 1) << "never all by accident";
  EXPECT_EQ(Run("store evict --to 5parsec " + Store()).exit_code, 2);
  EXPECT_EQ(Run("store evict --older-than 7x " + Store()).exit_code, 2);
  Warm("prompt");
  EXPECT_EQ(Run("store evict --older-than=-7d " + Store()).exit_code, 2);
  EXPECT_FALSE(ChunkFiles().empty()) << "nothing was used after now";
}

TEST_F(StoreCliTest, WhateverIsWrittenBesideChunksTheyAreListed) {
  Warm("prompt");
  const std::string root = Json("ls " + Store())[0]["root"];
  std::string deep = "{\"model\": ";
  for (int i = 0; i < 170'000; ++i) deep += "{\"a\":";
  Write("store/v1/" + root + "/model.json", deep + "1" + std::string(170'001, '}'));
  EXPECT_EQ(Json("ls " + Store())[0]["root"], root);
  Write("store/v1/" + root + "/model.json", "no JSON");
  EXPECT_TRUE(Json("ls " + Store())[0]["model"].is_null());
  const std::string far = "/dev/shm" + dir_;  // a file system that knows such times
  fs::create_directories(far);
  fs::copy(Store(), far + "/store", fs::copy_options::recursive);
  for (const auto& entry : fs::recursive_directory_iterator(far + "/store")) {
    const timespec times[] = {{.tv_sec = 9'000'000'000'000'000'000, .tv_nsec = 0},
                              {.tv_sec = 9'000'000'000'000'000'000, .tv_nsec = 0}};
    if (entry.is_regular_file()) {
      EXPECT_EQ(utimensat(AT_FDCWD, entry.path().c_str(), times, 0), 0);
    }
  }
  const Outcome list = Run("store ls " + far + "/store");
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_THAT(list.out, HasSubstr(root.substr(0, 12)));
  fs::remove_all(far);
}

TEST_F(StoreCliTest, NamesThatOthersWroteDoNothingToTheTerminal) {
  Warm("prompt");
  const std::string root = Json("ls " + Store())[0]["root"];
  Write("store/v1/" + root + "/model.json",
        R"({"model": "caf\u00e9\u001b[2J\n", "codec": "\u001b]0;raw\u0007"})");
  const Outcome list = Run("store ls " + Store());
  EXPECT_THAT(list.out,
              AllOf(HasSubstr("caf\xc3\xa9\\x1b[2J\\x0a"), HasSubstr("\\x1b]0;raw\\x07")));
  const Outcome stat = Run("store stat " + Store());
  EXPECT_THAT(stat.out, HasSubstr("\\x1b]0;raw\\x07"));
  const Outcome unknown = Run("store evict --model other " + Store());
  EXPECT_THAT(unknown.err, HasSubstr("caf\xc3\xa9\\x1b[2J"));
  const std::string quarantine = "store/v1/quarantine";
  fs::create_directory(dir_ + "/" + quarantine);
  Write(quarantine + "/\x1b]0;x\x07\nline", "no chunk");
  const Outcome bad = Run("store quarantine " + Store());
  EXPECT_THAT(bad.out, HasSubstr("/\\x1b]0;x\\x07\\x0aline: it has 8 bytes"));
  fs::create_directories(dir_ + "/" + quarantine + "/\x1b[2J/full");
  const Outcome full = Run("store quarantine --clear " + Store());
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("/\\x1b[2J: "));
  for (const std::string* printed : {&list.out, &stat.out, &unknown.err, &bad.out, &full.err}) {
    EXPECT_THAT(*printed, Not(HasSubstr("\x1b"))) << *printed;
  }
}

TEST_F(StoreCliTest, WhatIsNoStoreIsSaidSo) {
  for (const char* command : {"ls", "stat", "verify", "clear", "quarantine", "evict --to 0"}) {
    const Outcome outcome = Run(std::string("store ") + command + " " + dir_);
    EXPECT_EQ(outcome.exit_code, 1) << command;
    EXPECT_THAT(outcome.err, HasSubstr("store")) << command;
    EXPECT_THAT(Run(std::string("store ") + command + " gs://bucket").err, HasSubstr("s3://"));
  }
  const Outcome outcome = Run("run --store '" + Store() + "?colour=red' --model x --prompt y");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("'colour'"));
  EXPECT_FALSE(fs::exists(Store()));
}

}  // namespace
}  // namespace kvcake
