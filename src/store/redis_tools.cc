#include "store/redis_tools.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "base/printable.h"
#include "store/pages_seen.h"
#include "store/redis_client.h"

namespace kvcake {
namespace {

// What servers say is not believed beyond these.
constexpr int64_t kToldBytesMax = 1ll << 30, kIdleMax = 1ll << 40;

using Kind = RespReply::Kind;

constexpr const char* kPage = "512";  // names that SCAN gives at a time, about

// A server or a cluster, asked by a thread that waits for the answers.
class Asker {
 public:
  // Asks the node of a cluster that has a key's slot.
  static Result<std::unique_ptr<Asker>> Open(const RedisPlace& place) {
    ASSIGN_OR_RETURN(RedisClientOptions options, ClientOptions(place));
    return std::unique_ptr<Asker>(new Asker(std::move(options)));
  }
  // The first of the place's servers, by itself.
  static Result<std::unique_ptr<Asker>> OpenServer(RedisPlace place) {
    place.is_cluster = false;
    return Open(place);
  }
  ~Asker() {
    bool closed = false;
    client_.Close([&] { closed = true; });
    while (!closed) context_.run_one();
  }

  struct Question {
    std::string key;  // that it is about; of a server by itself empty
    RedisCommand command;
  };
  // The first failure, with the server's name, or all replies, in order; some may be errors.
  Result<std::vector<RespReply>> Ask(std::vector<Question> questions) {
    std::vector<RespReply> replies(questions.size());
    size_t due = questions.size();
    Status status;
    for (size_t i = 0; i < questions.size(); ++i) {
      questions[i].command.done = [&, i](Result<RespReply> reply) {
        --due;
        if (reply) {
          replies[i] = std::move(*reply);
        } else if (status) {
          status = tl::unexpected(reply.error());
        }
      };
      client_.Send(questions[i].key, std::move(questions[i].command));
    }
    while (due > 0) context_.run_one();
    RETURN_IF_ERROR(status);
    return replies;
  }
  // One reply, which is no error.
  Result<RespReply> Ask(RedisCommand command) {
    std::vector<Question> one;
    one.push_back({"", std::move(command)});
    ASSIGN_OR_RETURN(auto replies, Ask(std::move(one)));
    RETURN_IF_ERROR(Check(replies[0]));
    return std::move(replies[0]);
  }
  // What the server says, with its name, where the reply is an error.
  Status Check(const RespReply& reply) const {
    if (reply.kind != Kind::kError) return {};
    return Fail(ErrorCode::kIo, "{} says: {}", server_, PrintableAscii(reply.text));
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
    const bool unnamed = host.empty() || host == "?";
    if (!unnamed && !IsHost(host)) continue;
    const RedisAddress master{unnamed ? told_by.host : host, static_cast<uint16_t>(port)};
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
    ASSIGN_OR_RETURN(const auto asker, Asker::OpenServer(one));
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
    ASSIGN_OR_RETURN(const auto asker, Asker::OpenServer(one));
    RETURN_IF_ERROR(ask(*asker));
  }
  return {};
}

// Calls `page` with the names of what is kept.
Status Scan(Asker& asker, const RedisPlace& place,
            const std::function<Status(std::span<const std::string>)>& page) {
  std::string cursor = "0";
  PagesSeen pages;
  do {
    ASSIGN_OR_RETURN(
        RespReply reply,
        asker.Ask({.words = {"SCAN", cursor, "MATCH", place.prefix + ":v1:*", "COUNT", kPage}}));
    if (reply.items.size() != 2) return Fail(ErrorCode::kIo, "SCAN is answered by no page");
    cursor = reply.items[0].text;
    std::vector<std::string> names;
    for (RespReply& item : reply.items[1].items) names.push_back(std::move(item.text));
    if (!names.empty()) RETURN_IF_ERROR(page(names));
    if (const Status on = cursor == "0" ? Status() : pages.GoOnTo(cursor); !on) {
      return Fail(on.error().code, "{}: {}", place.Text(), on.error().message);
    }
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

class RedisListing : public RemoteListing {
 public:
  RedisListing(RedisPlace place, std::unique_ptr<Asker> asker)
      : place_(std::move(place)), asker_(std::move(asker)) {}

  Status ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) override;
  Result<std::vector<std::byte>> Read(const FoundValue& value) override;
  size_t remove_max() const override { return 512; }
  Result<RemovedValues> Remove(std::span<const std::string> names) override;
  Status RemoveOthers() override;
  std::string why_no_times() const override {
    return place_.Text() +
           " does not keep when its values were used (its maxmemory-policy is an LFU one)";
  }

 private:
  const RedisPlace place_;
  const std::unique_ptr<Asker> asker_;
};

Status RedisListing::ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) {
  const int64_t now = UnixSeconds();
  return ForEachServer(place_, [&](Asker& server) {
    return Scan(server, place_, [&](std::span<const std::string> names) -> Status {
      std::vector<FoundValue> found;
      std::vector<Asker::Question> questions;
      for (const std::string& name : names) {
        const auto id = IdOf(place_, name);
        if (!id) continue;
        found.push_back({*id, name});
        questions.push_back({"", {.words = {"MEMORY", "USAGE", name}}});
        questions.push_back({"", {.words = {"OBJECT", "IDLETIME", name}}});
      }
      ASSIGN_OR_RETURN(const auto replies, server.Ask(std::move(questions)));
      for (size_t i = 0; i < found.size(); ++i) {
        const RespReply& bytes = replies[2 * i];
        const RespReply& idle = replies[2 * i + 1];
        // A server that does not tell what is there is not taken for an empty one. It may not know
        // when values were used, but not forbid to ask.
        RETURN_IF_ERROR(server.Check(bytes));
        if (idle.ErrorWord() == "NOPERM") RETURN_IF_ERROR(server.Check(idle));
        if (bytes.kind == Kind::kInteger) {
          found[i].bytes = std::clamp<int64_t>(bytes.integer, 0, kToldBytesMax);
        }
        if (idle.kind == Kind::kInteger) {
          found[i].used_s = now - std::clamp<int64_t>(idle.integer, 0, kIdleMax);
        }
      }
      // What has gone meanwhile is not there.
      std::erase_if(found, [](const FoundValue& value) { return value.bytes == 0; });
      return visit(found);
    });
  });
}

Result<std::vector<std::byte>> RedisListing::Read(const FoundValue& value) {
  std::vector<std::byte> bytes(value.bytes);  // no fewer than it has
  std::vector<Asker::Question> one;
  one.push_back(
      {value.name, {.words = {"GET", value.name}, .landing = bytes, .may_be_shorter = true}});
  ASSIGN_OR_RETURN(const auto replies, asker_->Ask(std::move(one)));
  const RespReply& reply = replies[0];
  if (reply.kind == Kind::kNil) return Fail(ErrorCode::kNotFound, "it is not there");
  if (reply.ErrorWord() == "WRONGTYPE") {
    return Fail(ErrorCode::kCorrupt, "it is no string, and so no chunk");
  }
  if (reply.kind == Kind::kError) {
    return Fail(ErrorCode::kIo, "Redis says: {}", PrintableAscii(reply.text));
  }
  if (!reply.landed) return Fail(ErrorCode::kCorrupt, "it has {} bytes", reply.bulk_bytes);
  bytes.resize(reply.bulk_bytes);
  return bytes;
}

Result<RemovedValues> RedisListing::Remove(std::span<const std::string> names) {
  std::vector<Asker::Question> questions;
  for (const std::string& name : names) questions.push_back({name, {.words = {"UNLINK", name}}});
  ASSIGN_OR_RETURN(const auto replies, asker_->Ask(std::move(questions)));
  RemovedValues removed;
  for (const RespReply& reply : replies) {
    if (reply.kind == Kind::kError) {
      return Fail(ErrorCode::kIo, "Redis says: {}", PrintableAscii(reply.text));
    }
    removed.removed.push_back(reply.integer > 0);
  }
  return removed;
}

Status RedisListing::RemoveOthers() {
  return ForEachServer(place_, [&](Asker& server) {
    return Scan(server, place_, [&](std::span<const std::string> names) -> Status {
      return Remove(names).map([](const RemovedValues&) {});
    });
  });
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

Result<std::unique_ptr<RemoteListing>> OpenRedisListing(const RedisPlace& place) {
  ASSIGN_OR_RETURN(auto asker, Asker::Open(place));
  return std::make_unique<RedisListing>(place, std::move(asker));
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

}  // namespace kvcake
