// kvcake store: what is kept in a store, and what to do about it.
#include <fmt/chrono.h>
#include <fmt/core.h>

#include <map>
#include <nlohmann/json.hpp>

#include "app/flags.h"
#include "app/progress.h"
#include "app/store_names.h"
#include "base/dump_json.h"
#include "base/utf8.h"
#include "store/open_store.h"
#include "store/quarantine.h"
#include "store/redis_tools.h"
#include "store/rekey.h"
#include "store/remote_tools.h"
#include "store/store_tools.h"

namespace kvcake {
namespace {

using Json = nlohmann::ordered_json;

struct StoreCommandFlags {
  std::string store;                         // as given
  std::string dir;                           // that it names,
  std::shared_ptr<RemoteListing> remote;     // or a store elsewhere,
  std::optional<RedisPlace> redis;           // which is this, if it is Redis
  std::shared_ptr<const StoreKey> key = {};  // the store's, where it is named with one
  bool json = false;
  bool quarantine = false;   // verify
  std::string new_key_file;  // rekey
  bool clear = false;        // quarantine
  std::optional<uint64_t> to_bytes;
  std::optional<double> older_than_s;
  std::string model;
};

// Names of files may be of any bytes.
void PrintJson(const Json& json) { fmt::print("{}\n", DumpJson(json, 2)); }

double MiB(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

Json Describe(const StoreRoot& root) {
  // Whoever may write to the directory has written it, and to print it recurs.
  constexpr int kDepthMax = 64;
  const auto model = Json::parse(
      root.description, [](int depth, auto&&...) { return depth < kDepthMax; }, false);
  return {{"root", root.root.Hex()},
          {"model", model.is_object() ? model : Json()},
          {"codec", CodecOf(root)},
          {"encryption", EncryptionOf(root).empty() ? Json() : Json(EncryptionOf(root))},
          {"chunks", root.chunks},
          {"bytes", root.bytes},
          {"oldest_use", root.oldest_use_s},
          {"newest_use", root.newest_use_s},
          {"hits", root.usage.reads},
          {"hit_bytes", root.usage.read_bytes},
          {"writes", root.usage.writes},
          {"evicted", root.usage.evicted},
          {"quarantined", root.usage.quarantined}};
}

Json Describe(const std::vector<BadFile>& files) {
  auto list = Json::array();
  for (const BadFile& file : files) {
    list.push_back({{"path", file.path}, {"reason", file.reason}});
  }
  return list;
}

void DrawBytes(ProgressLine& line, uint64_t done, uint64_t total) {
  line.Draw(static_cast<double>(done), static_cast<double>(total),
            fmt::format("{:.0f} of {:.0f} MiB", MiB(done), MiB(total)));
}

std::string Day(int64_t unix_s) {
  const auto time = static_cast<time_t>(unix_s);
  std::tm local = {};
  // There are file systems whose times are in no year.
  if (unix_s == 0 || localtime_r(&time, &local) == nullptr) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M}", local);
}

Result<std::vector<StoreRoot>> RootsIn(const StoreCommandFlags& flags) {
  return flags.remote ? ListRemote(*flags.remote) : ListStore(flags.dir);
}

Result<bool> List(const StoreCommandFlags& flags) {
  ASSIGN_OR_RETURN(const auto roots, RootsIn(flags));
  if (flags.json) {
    auto list = Json::array();
    for (const StoreRoot& root : roots) list.push_back(Describe(root));
    PrintJson(list);
    return true;
  }
  fmt::print("{:<14} {:<28} {:<20} {:>8} {:>12} {:>10}  {:<16}  {:<16}\n", "root", "model", "codec",
             "chunks", "MiB", "hits", "oldest use", "last use");
  for (const StoreRoot& root : roots) {
    fmt::print("{:<14} {:<28} {:<20} {:>8} {:>12.1f} {:>10}  {:<16}  {:<16}\n",
               root.root.Hex().substr(0, 12), Printable(ModelName(root)),
               Printable(CodecOf(root)) + (EncryptionOf(root).empty() ? "" : ", encrypted"),
               root.chunks, MiB(root.bytes), root.usage.reads, Day(root.oldest_use_s),
               Day(root.newest_use_s));
  }
  return true;
}

// What a directory has and a store elsewhere has not is left out.
Result<bool> StatRemote(const StoreCommandFlags& flags) {
  ASSIGN_OR_RETURN(const auto roots, RootsIn(flags));
  std::optional<RedisMemory> memory;
  if (flags.redis) {
    ASSIGN_OR_RETURN(memory, MemoryOfRedis(*flags.redis));
  }
  uint64_t chunks = 0, bytes = 0;
  for (const StoreRoot& root : roots) {
    chunks += root.chunks;
    bytes += root.bytes;
  }
  if (flags.json) {
    Json json = {{"models", roots.size()}, {"chunks", chunks}, {"bytes", bytes}};
    if (memory) {
      json["used_memory"] = memory->used_bytes;
      json["maxmemory"] = memory->max_bytes;
      json["maxmemory_policy"] = memory->policy;
    }
    PrintJson(json);
    return true;
  }
  fmt::print("{:<16} {}\n{:<16} {} ({:.1f} MiB)\n", "models", roots.size(), "chunks", chunks,
             MiB(bytes));
  if (!memory) return true;
  fmt::print(
      "{:<16} {:.1f} MiB of {}\n{:<16} {}\n", "memory", MiB(memory->used_bytes),
      memory->max_bytes > 0 ? fmt::format("{:.1f} MiB", MiB(memory->max_bytes)) : "no maximum",
      "when it is full", memory->policy);
  return true;
}

Result<bool> Stat(const StoreCommandFlags& flags) {
  if (flags.remote) return StatRemote(flags);
  ASSIGN_OR_RETURN(const auto roots, ListStore(flags.dir));
  ASSIGN_OR_RETURN(const auto quarantined, ListQuarantine(flags.dir));
  ASSIGN_OR_RETURN(const SpaceInfo space, FileSystem::Real().Space(flags.dir));
  uint64_t chunks = 0, bytes = 0, bad_bytes = 0, temporaries = 0;
  std::map<std::string, uint64_t> codecs;  // bytes
  StoreUsage usage;
  for (const StoreRoot& root : roots) {
    chunks += root.chunks;
    bytes += root.bytes;
    if (root.chunks > 0) codecs[CodecOf(root)] += root.bytes;
    usage.reads += root.usage.reads;
    usage.read_bytes += root.usage.read_bytes;
    usage.writes += root.usage.writes;
    usage.write_bytes += root.usage.write_bytes;
    usage.evicted += root.usage.evicted;
  }
  for (const QuarantinedFile& file : quarantined) bad_bytes += file.bytes;
  RETURN_IF_ERROR(
      ScanStore(FileSystem::Real(), StoreDir(flags.dir),
                {.chunk = {},
                 .temporary = [&](const std::string&, int, const FileInfo&) { ++temporaries; }}));
  if (flags.json) {
    PrintJson({{"models", roots.size()},
               {"chunks", chunks},
               {"bytes", bytes},
               {"codec_bytes", codecs},
               {"hits", usage.reads},
               {"hit_bytes", usage.read_bytes},
               {"writes", usage.writes},
               {"write_bytes", usage.write_bytes},
               {"evicted", usage.evicted},
               {"quarantined", quarantined.size()},
               {"quarantined_bytes", bad_bytes},
               {"being_written", temporaries},
               {"free_bytes", space.free_bytes}});
    return true;
  }
  fmt::print("{:<16} {}\n{:<16} {} ({:.1f} MiB)\n", "models", roots.size(), "chunks", chunks,
             MiB(bytes));
  for (const auto& [codec, of] : codecs) {
    fmt::print("  {:<14} {:.1f} MiB\n", Printable(codec), MiB(of));
  }
  fmt::print("{:<16} {} ({:.1f} MiB)\n{:<16} {} ({:.1f} MiB)\n", "hits", usage.reads,
             MiB(usage.read_bytes), "writes", usage.writes, MiB(usage.write_bytes));
  fmt::print("{:<16} {}\n{:<16} {} ({:.1f} MiB)\n", "evicted", usage.evicted, "quarantined",
             quarantined.size(), MiB(bad_bytes));
  fmt::print("{:<16} {}\n{:<16} {:.1f} MiB\n", "being written", temporaries, "free on disk",
             MiB(space.free_bytes));
  return true;
}

// False when something is bad.
Result<bool> Verify(const StoreCommandFlags& flags) {
  const TimePoint start = Clock::Real().Now();
  ProgressLine line;
  VerifyOptions options;
  options.quarantine = flags.quarantine;
  options.key = flags.key;
  options.progress = [&](uint64_t done, uint64_t total) { DrawBytes(line, done, total); };
  if (flags.remote && flags.quarantine) {
    return Fail(ErrorCode::kUnsupported,
                "--quarantine: {} has no place for bad chunks; who reads one next removes it",
                flags.store);
  }
  ASSIGN_OR_RETURN(const VerifiedStore verified, flags.remote
                                                     ? VerifyRemote(*flags.remote, flags.key.get())
                                                     : VerifyStore(flags.dir, options));
  const double seconds = (Clock::Real().Now() - start).count();
  if (flags.json) {
    PrintJson({{"chunks", verified.chunks},
               {"bytes", verified.bytes},
               {"codecs", verified.codecs},
               {"decrypted", verified.decrypted},
               {"seconds", seconds},
               {"bad", Describe(verified.bad)}});
    return verified.bad.empty();
  }
  for (const BadFile& file : verified.bad) fmt::print("{}: {}\n", file.path, file.reason);
  std::string codecs;
  for (const auto& [codec, chunks] : verified.codecs) {
    codecs += fmt::format("{}{} {}", codecs.empty() ? "" : ", ", chunks, codec);
  }
  fmt::print(
      "{} chunks in order ({}), {:.1f} MiB in {:.1f} s ({:.0f} MB/s); {} bad{}\n", verified.chunks,
      codecs.empty() ? "empty" : codecs, MiB(verified.bytes), seconds,
      static_cast<double>(verified.bytes) / 1e6 / std::max(seconds, 1e-9), verified.bad.size(),
      verified.bad.empty() || flags.quarantine || flags.remote ? ""
                                                               : " (--quarantine moves them away)");
  if (flags.key && verified.decrypted < verified.chunks) {
    fmt::print("{} of them are of other keys or none, and were not decrypted\n",
               verified.chunks - verified.decrypted);
  }
  return verified.bad.empty();
}

// False when something stays with the old key.
Result<bool> Rekey(const StoreCommandFlags& flags) {
  if (flags.remote) {
    return Fail(ErrorCode::kUnsupported,
                "{}: only directories get another key; what is kept by the old one goes in time",
                flags.store);
  }
  if (!flags.key) {
    return Fail(ErrorCode::kInvalidArgument,
                "which key does the store have now? name it with the store: '{}?key-file=FILE'",
                flags.dir);
  }
  ASSIGN_OR_RETURN(const StoreKey to, StoreKey::Load(flags.new_key_file, "--new-key-file"));
  ProgressLine line;
  RekeyOptions options;
  options.progress = [&](uint64_t done, uint64_t total) { DrawBytes(line, done, total); };
  ASSIGN_OR_RETURN(const RekeyedStore rekeyed, RekeyStore(flags.dir, *flags.key, to, options));
  if (flags.json) {
    PrintJson({{"chunks", rekeyed.chunks},
               {"bytes", rekeyed.bytes},
               {"others", rekeyed.others},
               {"failed", Describe(rekeyed.failed)}});
    return rekeyed.failed.empty();
  }
  for (const BadFile& file : rekeyed.failed) fmt::print("{}: {}\n", file.path, file.reason);
  fmt::print("{} chunks have the new key, {:.1f} MiB; {} of other keys or none; {} failed\n",
             rekeyed.chunks, MiB(rekeyed.bytes), rekeyed.others, rekeyed.failed.size());
  return rekeyed.failed.empty();
}

void PrintCleared(const StoreCommandFlags& flags, const ClearedStore& cleared) {
  if (flags.json) {
    PrintJson({{"files", cleared.files}, {"bytes", cleared.bytes}});
  } else {
    fmt::print("removed {} {}, {:.1f} MiB\n", cleared.files, flags.remote ? "chunks" : "files",
               MiB(cleared.bytes));
  }
}

Result<bool> Evict(const StoreCommandFlags& flags) {
  EvictRule rule;
  rule.to_bytes = flags.to_bytes;
  if (flags.older_than_s) {
    rule.used_before_s = UnixSeconds() - static_cast<int64_t>(*flags.older_than_s);
  }
  if (!flags.model.empty()) {
    ASSIGN_OR_RETURN(const auto roots, RootsIn(flags));
    ASSIGN_OR_RETURN(rule.roots, RootsOf(roots, flags.store, flags.model));
  }
  if (!rule.to_bytes && !rule.used_before_s && !rule.roots) {
    return Fail(ErrorCode::kInvalidArgument,
                "say what to evict: --to SIZE, --older-than TIME or --model NAME; store clear "
                "removes all");
  }
  ASSIGN_OR_RETURN(const ClearedStore cleared,
                   flags.remote ? EvictRemote(*flags.remote, rule) : EvictStore(flags.dir, rule));
  PrintCleared(flags, cleared);
  return true;
}

Result<bool> Clear(const StoreCommandFlags& flags) {
  ASSIGN_OR_RETURN(const ClearedStore cleared,
                   flags.remote ? ClearRemote(*flags.remote) : ClearStore(flags.dir));
  PrintCleared(flags, cleared);
  return true;
}

Result<bool> Quarantine(const StoreCommandFlags& flags) {
  if (flags.remote) return Fail(ErrorCode::kUnsupported, "{} has no quarantine", flags.store);
  if (flags.clear) {
    ASSIGN_OR_RETURN(const ClearedStore cleared, ClearQuarantine(flags.dir));
    PrintCleared(flags, cleared);
    return true;
  }
  ASSIGN_OR_RETURN(const auto files, ListQuarantine(flags.dir));
  if (flags.json) {
    auto list = Json::array();
    for (const QuarantinedFile& file : files) {
      list.push_back({{"path", file.path},
                      {"bytes", file.bytes},
                      {"mtime", file.mtime_s},
                      {"reason", WhyQuarantined(file)}});
    }
    PrintJson(list);
    return true;
  }
  for (const QuarantinedFile& file : files) {
    fmt::print("{}  {:>10.1f} MiB  {}\n", Day(file.mtime_s), MiB(file.bytes),
               Printable(file.path + ": " + WhyQuarantined(file)));
  }
  fmt::print("{} files; --clear deletes them\n", files.size());
  return true;
}

// Reads where the store is; what is said of it from then on has no password.
Status ReadPlace(StoreCommandFlags& flags) {
  ASSIGN_OR_RETURN(const StoreOptions store, ReadStoreUrl(flags.store));
  flags.dir = store.dir;
  flags.redis = store.redis;
  if (!store.keeps_files()) {
    ASSIGN_OR_RETURN(flags.remote, OpenRemoteListing(store));
  }
  flags.key = store.key;
  flags.store = store.Place();
  return {};
}

}  // namespace

void AddStoreCommand(CLI::App& app, int* exit_code) {
  auto flags = std::make_shared<StoreCommandFlags>();
  CLI::App* store = app.add_subcommand("store", "look at, check, fill or empty a store");
  store->require_subcommand(1);
  const auto add = [&](const char* name, const char* help,
                       Result<bool> (*body)(const StoreCommandFlags&)) {
    CLI::App* command = store->add_subcommand(name, help);
    command->add_option("--store,dir", flags->store, "the directory or URL given as --store")
        ->required();
    command->add_flag("--json", flags->json, "print JSON");
    command->callback([flags, exit_code, body] {
      if (const Status read = ReadPlace(*flags); !read) {
        *exit_code = Fatal(read.error());
        return;
      }
      const Result<bool> good = body(*flags);
      if (!good) *exit_code = Fatal(good.error());
      if (good && !*good) *exit_code = 1;
    });
    return command;
  };
  add("ls", "what is kept, by model", List);
  add("stat", "totals: chunks, hits, writes, quarantined files, free space", Stat);
  add("verify", "read every chunk and check every byte; exit code 1 when one is bad", Verify)
      ->add_flag("--quarantine", flags->quarantine, "move bad files away");
  CLI::App* evict = add("evict", "remove the chunks that meet every condition given", Evict);
  evict->add_option("--to", flags->to_bytes, "those used longest ago, until SIZE is left")
      ->transform(SizeValue());
  evict->add_option("--older-than", flags->older_than_s, "not used for so long, e.g. 7d or 12h")
      ->transform(DurationValue())
      ->check(Between(0.0, 1e9));
  evict->add_option("--model", flags->model, "of this model: its name or root as ls prints them");
  add("rekey", "encrypt by another key what the store's key-file has encrypted", Rekey)
      ->add_option("--new-key-file", flags->new_key_file, "the key that it gets")
      ->required();
  add("clear", "delete every chunk (other files in the directory are left alone)", Clear);
  add("quarantine", "what failed verification, and why", Quarantine)
      ->add_flag("--clear", flags->clear, "delete it");
  AddStoreWarmCommand(*store, exit_code);
}

}  // namespace kvcake
