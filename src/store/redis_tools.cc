#include "store/redis_tools.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/printable.h"
#include "codec/codec.h"
#include "store/chunk_format.h"
#include "store/chunk_walk.h"
#include "store/redis_client.h"

namespace kvcake {
namespace {

// What servers say is not believed beyond these.
constexpr int64_t kValueBytesMax = 1ll << 30, kIdleMax = 1ll << 40;

using Kind = RespReply::Kind;

constexpr const char* kPage = "512";  // names that SCAN gives at a time, about

// One server, asked by a thread that waits for the answers.
class Asker {
 public:
  static Result<std::unique_ptr<Asker>> Open(const RedisPlace& place) {
    ASSIGN_OR_RETURN(RedisClientOptions options, ClientOptions(place));
    options.is_cluster = false;  // SCAN is asked of a server, not of a key's
    return std::unique_ptr<Asker>(new Asker(std::move(options)));
  }
  ~Asker() {
    bool closed = false;
    client_.Close([&] { closed = true; });
    while (!closed) context_.run_one();
  }

  // The first failure, with the server's name, or all replies, in order; some may be errors.
  Result<std::vector<RespReply>> Ask(std::vector<RedisCommand> commands) {
    std::vector<RespReply> replies(commands.size());
    size_t due = commands.size();
    Status status;
    for (size_t i = 0; i < commands.size(); ++i) {
      commands[i].done = [&, i](Result<RespReply> reply) {
        --due;
        if (reply) {
          replies[i] = std::move(*reply);
        } else if (status) {
          status = tl::unexpected(reply.error());
        }
      };
      client_.Send("", std::move(commands[i]));
    }
    while (due > 0) context_.run_one();
    RETURN_IF_ERROR(status);
    return replies;
  }
  // One reply, which is no error.
  Result<RespReply> Ask(RedisCommand command) {
    std::vector<RedisCommand> one;
    one.push_back(std::move(command));
    ASSIGN_OR_RETURN(auto replies, Ask(std::move(one)));
    if (replies[0].kind != Kind::kError) return std::move(replies[0]);
    return Fail(ErrorCode::kIo, "{} says: {}", server_, PrintableAscii(replies[0].text));
  }

 private:
  explicit Asker(RedisClientOptions options)
      : server_(options.seeds[0].Text()),
        work_(context_.get_executor()),
        client_(context_, std::move(options)) {}

  const std::string server_;
  boost::asio::io_context context_;
  // It waits for what comes, also between commands.
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  RedisClient client_;
};

using AskServer = std::function<Status(Asker&)>;

// The servers that have slots, as the cluster says.
Result<std::vector<RedisAddress>> MastersOf(const RespReply& slots, const RedisAddress& told_by) {
  std::vector<RedisAddress> masters;
  for (const RespReply& range : slots.items) {
    if (range.items.size() < 3 || range.items[2].items.size() < 2) continue;
    const std::string& host = range.items[2].items[0].text;
    const int64_t port = range.items[2].items[1].integer;
    if (port < 1 || port > 65535) continue;
    const RedisAddress master{host.empty() || host == "?" ? told_by.host : host,
                              static_cast<uint16_t>(port)};
    if (std::find(masters.begin(), masters.end(), master) == masters.end()) {
      masters.push_back(master);
    }
  }
  if (!masters.empty()) return masters;
  return Fail(ErrorCode::kIo, "the Redis cluster of {} has no slots", told_by.Text());
}

Result<std::vector<RedisAddress>> ServersOf(const RedisPlace& place) {
  if (!place.is_cluster) return place.seeds;
  Error error;
  for (const RedisAddress& seed : place.seeds) {
    RedisPlace one = place;
    one.seeds = {seed};
    ASSIGN_OR_RETURN(const auto asker, Asker::Open(one));
    const auto slots = asker->Ask({.words = {"CLUSTER", "SLOTS"}});
    if (slots) return MastersOf(*slots, seed);
    error = slots.error();
  }
  return tl::unexpected(error);
}

Status ForEachServer(const RedisPlace& place, const AskServer& ask) {
  ASSIGN_OR_RETURN(const auto servers, ServersOf(place));
  for (const RedisAddress& server : servers) {
    RedisPlace one = place;
    one.seeds = {server};
    ASSIGN_OR_RETURN(const auto asker, Asker::Open(one));
    RETURN_IF_ERROR(ask(*asker));
  }
  return {};
}

// Calls `page` with the names of what is kept.
Status Scan(Asker& asker, const RedisPlace& place,
            const std::function<Status(std::span<const std::string>)>& page) {
  std::string cursor = "0";
  do {
    ASSIGN_OR_RETURN(
        RespReply reply,
        asker.Ask({.words = {"SCAN", cursor, "MATCH", place.prefix + ":v1:*", "COUNT", kPage}}));
    if (reply.items.size() != 2) return Fail(ErrorCode::kIo, "SCAN is answered by no page");
    cursor = reply.items[0].text;
    std::vector<std::string> names;
    for (RespReply& item : reply.items[1].items) names.push_back(std::move(item.text));
    if (!names.empty()) RETURN_IF_ERROR(page(names));
  } while (cursor != "0");
  return {};
}

// PREFIX:v1:ROOT:KEY; nothing of other names, such as claims'.
std::optional<ChunkId> IdOf(const RedisPlace& place, std::string_view name) {
  const size_t root_at = place.prefix.size() + 4, hex = 2 * sizeof(Digest);
  if (name.size() != root_at + 2 * hex + 1 || name[root_at + hex] != ':') return std::nullopt;
  const auto root = ParseKeyHex(name.substr(root_at, hex));
  const auto key = ParseKeyHex(name.substr(root_at + hex + 1));
  if (!root || !key) return std::nullopt;
  return ChunkId{*root, *key};
}

struct FoundValue {
  ChunkId id;
  std::string name;
  uint64_t bytes = 0;
  std::optional<int64_t> idle_s = {};
};

using VisitPage = std::function<Status(Asker&, std::span<const FoundValue>)>;

Status ForEachPage(const RedisPlace& place, const VisitPage& visit) {
  return ForEachServer(place, [&](Asker& asker) {
    return Scan(asker, place, [&](std::span<const std::string> names) -> Status {
      std::vector<FoundValue> found;
      std::vector<RedisCommand> commands;
      for (const std::string& name : names) {
        const auto id = IdOf(place, name);
        if (!id) continue;
        found.push_back({*id, name});
        commands.push_back({.words = {"MEMORY", "USAGE", name}});
        commands.push_back({.words = {"OBJECT", "IDLETIME", name}});
      }
      ASSIGN_OR_RETURN(const auto replies, asker.Ask(std::move(commands)));
      for (size_t i = 0; i < found.size(); ++i) {
        const RespReply& bytes = replies[2 * i];
        const RespReply& idle = replies[2 * i + 1];
        if (bytes.kind == Kind::kInteger) {
          found[i].bytes = std::clamp<int64_t>(bytes.integer, 0, kValueBytesMax);
        }
        if (idle.kind == Kind::kInteger) {
          found[i].idle_s = std::clamp<int64_t>(idle.integer, 0, kIdleMax);
        }
      }
      // What has gone meanwhile is not there.
      std::erase_if(found, [](const FoundValue& value) { return value.bytes == 0; });
      return visit(asker, found);
    });
  });
}

Status Remove(Asker& asker, std::span<const std::string> names, uint64_t* removed) {
  std::vector<RedisCommand> commands;
  for (const std::string& name : names) commands.push_back({.words = {"UNLINK", name}});
  ASSIGN_OR_RETURN(const auto replies, asker.Ask(std::move(commands)));
  for (const RespReply& reply : replies) {
    if (reply.kind == Kind::kError) {
      return Fail(ErrorCode::kIo, "Redis says: {}", PrintableAscii(reply.text));
    }
    *removed += reply.integer > 0;
  }
  return {};
}

// Its codec; kCorrupt when it is not the chunk that its name says, kNotFound when it has gone.
Result<Codec> VerifyValue(Asker& asker, const FoundValue& value) {
  std::vector<std::byte> bytes(value.bytes);  // no fewer than it has
  ASSIGN_OR_RETURN(
      const RespReply reply,
      asker.Ask({.words = {"GET", value.name}, .landing = bytes, .may_be_shorter = true}));
  if (reply.kind == Kind::kNil) return Fail(ErrorCode::kNotFound, "it is not there");
  if (reply.ErrorWord() == "WRONGTYPE") {
    return Fail(ErrorCode::kCorrupt, "it is no string, and so no chunk");
  }
  if (!reply.landed) return Fail(ErrorCode::kCorrupt, "it has {} bytes", reply.bulk_bytes);
  ASSIGN_OR_RETURN(const ChunkHeader header, DecodeChunk(std::span(bytes).first(reply.bulk_bytes)));
  RETURN_IF_ERROR(CheckNamed(header, value.id));
  return header.codec;
}

uint64_t NumberAfter(std::string_view text, std::string_view name) {
  const size_t at = text.find(name);
  uint64_t value = 0;
  if (at == text.npos) return value;
  text.remove_prefix(at + name.size());
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

Result<std::vector<StoreRoot>> ListRedis(const RedisPlace& place) {
  std::map<std::string, StoreRoot> roots;
  const int64_t now = UnixSeconds();
  RETURN_IF_ERROR(ForEachPage(place, [&](Asker&, std::span<const FoundValue> found) -> Status {
    for (const FoundValue& value : found) {
      StoreRoot& root = roots[value.id.root.Hex()];
      root.root = value.id.root;
      ++root.chunks;
      root.bytes += value.bytes;
      if (!value.idle_s) continue;
      const int64_t used = now - *value.idle_s;
      root.newest_use_s = std::max(root.newest_use_s, used);
      root.oldest_use_s = root.oldest_use_s == 0 ? used : std::min(root.oldest_use_s, used);
    }
    return {};
  }));
  std::vector<StoreRoot> list;
  for (auto& [hex, root] : roots) list.push_back(std::move(root));
  std::stable_sort(list.begin(), list.end(), [](const StoreRoot& a, const StoreRoot& b) {
    return a.newest_use_s > b.newest_use_s;
  });
  return list;
}

Result<RedisMemory> MemoryOfRedis(const RedisPlace& place) {
  RedisMemory memory;
  bool is_bounded = true;
  RETURN_IF_ERROR(ForEachServer(place, [&](Asker& asker) -> Status {
    ASSIGN_OR_RETURN(const RespReply info, asker.Ask({.words = {"INFO", "memory"}}));
    const std::string_view text = info.text;
    const uint64_t max = NumberAfter(text, "\nmaxmemory:");
    memory.used_bytes += NumberAfter(text, "\nused_memory:");
    memory.max_bytes += max;
    is_bounded = is_bounded && max > 0;
    constexpr std::string_view kPolicy = "\nmaxmemory_policy:";
    const size_t at = text.find(kPolicy);
    if (memory.policy.empty() && at != text.npos) {
      const auto rest = text.substr(at + kPolicy.size());
      memory.policy = PrintableAscii(rest.substr(0, rest.find('\r')));
    }
    return {};
  }));
  if (!is_bounded) memory.max_bytes = 0;
  return memory;
}

Result<VerifiedStore> VerifyRedis(const RedisPlace& place) {
  VerifiedStore verified;
  RETURN_IF_ERROR(
      ForEachPage(place, [&](Asker& asker, std::span<const FoundValue> found) -> Status {
        for (const FoundValue& value : found) {
          const auto codec = VerifyValue(asker, value);
          if (codec) {
            ++verified.chunks;
            verified.bytes += value.bytes;
            ++verified.codecs[FindCodec(*codec)->name];
          } else if (codec.error().code == ErrorCode::kCorrupt) {
            verified.bad.push_back({value.name, codec.error().message});
          } else if (codec.error().code != ErrorCode::kNotFound) {
            return tl::unexpected(codec.error());
          }
        }
        return {};
      }));
  std::sort(verified.bad.begin(), verified.bad.end(),
            [](const BadFile& a, const BadFile& b) { return a.path < b.path; });
  return verified;
}

Result<ClearedStore> EvictRedis(const RedisPlace& place, const EvictRule& rule) {
  const int64_t now = UnixSeconds();
  std::vector<FoundValue> all;
  uint64_t bytes = 0;
  bool has_times = true;
  RETURN_IF_ERROR(ForEachPage(place, [&](Asker&, std::span<const FoundValue> found) -> Status {
    for (const FoundValue& value : found) {
      bytes += value.bytes;
      has_times = has_times && value.idle_s;
      all.push_back(value);
    }
    return {};
  }));
  if (!has_times && (rule.to_bytes || rule.used_before_s)) {
    return Fail(ErrorCode::kUnsupported,
                "{} does not keep when its values were used (its maxmemory-policy is an LFU one): "
                "evict by --model only",
                place.Text());
  }
  // Those used longest ago first.
  std::sort(all.begin(), all.end(), [](const FoundValue& a, const FoundValue& b) {
    return std::pair(b.idle_s, a.name) < std::pair(a.idle_s, b.name);
  });
  std::map<std::string, uint64_t> chosen;
  for (const FoundValue& value : all) {
    if (rule.to_bytes && bytes <= *rule.to_bytes) break;
    if (rule.used_before_s && now - *value.idle_s >= *rule.used_before_s) break;
    if (rule.roots &&
        std::find(rule.roots->begin(), rule.roots->end(), value.id.root) == rule.roots->end()) {
      continue;
    }
    bytes -= value.bytes;
    chosen.emplace(value.name, value.bytes);
  }
  ClearedStore cleared;
  RETURN_IF_ERROR(ForEachServer(place, [&](Asker& asker) {
    return Scan(asker, place, [&](std::span<const std::string> names) -> Status {
      std::vector<std::string> here;
      for (const std::string& name : names) {
        const auto at = chosen.find(name);
        if (at == chosen.end()) continue;
        cleared.bytes += at->second;
        here.push_back(name);
        chosen.erase(at);
      }
      return Remove(asker, here, &cleared.files);
    });
  }));
  return cleared;
}

Result<ClearedStore> ClearRedis(const RedisPlace& place) {
  ClearedStore cleared;
  // First the chunks, which are counted, then what else there is.
  RETURN_IF_ERROR(ForEachPage(place, [&](Asker& asker, std::span<const FoundValue> found) {
    std::vector<std::string> names;
    for (const FoundValue& value : found) {
      names.push_back(value.name);
      cleared.bytes += value.bytes;
    }
    return Remove(asker, names, &cleared.files);
  }));
  RETURN_IF_ERROR(ForEachServer(place, [&](Asker& asker) {
    return Scan(asker, place, [&](std::span<const std::string> names) {
      uint64_t others = 0;
      return Remove(asker, names, &others);
    });
  }));
  return cleared;
}

}  // namespace kvcake
