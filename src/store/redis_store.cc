#include "store/redis_store.h"

#include <spdlog/spdlog.h>

#include <future>
#include <utility>

#include "base/printable.h"

namespace kvcake {

namespace asio = boost::asio;
using Kind = RespReply::Kind;

namespace {

// Commands, of which a connection takes 16384: for several prompts at once, and for reads beside.
constexpr size_t kLooksAtOnce = 2048;
constexpr uint64_t kValueBytesMax = 512ull << 20;  // proto-max-bulk-len's default

Status StatusOf(const Result<RespReply>& reply) {
  if (!reply) return tl::unexpected(reply.error());
  if (reply->kind != Kind::kError) return {};
  if (reply->ErrorWord() == "WRONGTYPE") {
    return Fail(ErrorCode::kCorrupt, "it is no string, and so no chunk");
  }
  const std::string_view word = reply->ErrorWord();
  const bool is_login = word == "NOAUTH";
  ErrorCode code = ErrorCode::kIo;
  if (word == "OOM") code = ErrorCode::kNoSpace;
  if (is_login || word == "NOPERM") code = ErrorCode::kInvalidArgument;
  const char* remedy = "";
  if (is_login) remedy = " (KVCAKE_REDIS_PASSWORD, or redis://USER:PASSWORD@HOST)";
  if (word == "MOVED") remedy = " (it is a node of a cluster: redis+cluster://HOST:PORT)";
  return Fail(code, "Redis says: {}{}", PrintableAscii(reply->text), remedy);
}

// What came of a value, or of a part of one, that was asked for.
Result<uint64_t> Landed(const Result<RespReply>& reply, bool is_whole) {
  RETURN_IF_ERROR(StatusOf(reply));
  if (reply->landed) return reply->bulk_bytes;
  // A part of what is not there is empty.
  if (reply->kind == Kind::kNil || (!is_whole && reply->bulk_bytes == 0)) {
    return Fail(ErrorCode::kNotFound, "it is not there");
  }
  return Fail(ErrorCode::kCorrupt, "{} has {} bytes, which no chunk of this model has",
              is_whole ? "the value" : "a part", reply->bulk_bytes);
}

}  // namespace

RedisStore::RedisStore(RedisStoreOptions options)
    : options_(std::move(options)),
      work_(context_.get_executor()),
      client_(context_, options_.client),
      claims_(client_, [this](const ChunkKey& key) { return NameOf(key); }),
      goodbye_(context_),
      thread_([this] { context_.run(); }) {}

RedisStore::~RedisStore() { thread_.join(); }

void RedisStore::Post(std::function<void()> function) { asio::post(context_, std::move(function)); }

void RedisStore::Close(std::function<void()> closed) {
  closed_ = std::move(closed);
  // Others need not wait for what this one had claimed; nor does it wait long for them to hear it.
  goodbye_.expires_after(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(options_.goodbye));
  goodbye_.async_wait([this](auto&&) { CloseNow(); });
  claims_.EndAll([this] { CloseNow(); });
}

void RedisStore::CloseNow() {
  if (client_.is_closing()) return;
  goodbye_.cancel();
  client_.Close([this] {
    work_.reset();
    closed_();
  });
}

std::string RedisStore::NameOf(const ChunkKey& key) const {
  return fmt::format("{}:v1:{}:{}", options_.prefix, options_.root.Hex(), key.Hex());
}

void RedisStore::Get(RemoteGet get) {
  const std::string name = NameOf(get.key);
  // A value of a length that is known is asked for by GET, too, where all of it is wanted; one that
  // is longer than that shows then.
  RedisCommand command{.words = {}, .landing = get.landing, .may_be_shorter = get.may_be_shorter};
  if (get.is_whole) {
    command.words = {"GET", name};
  } else {
    command.words = {"GETRANGE", name, std::to_string(get.offset),
                     std::to_string(get.offset + get.landing.size() - 1)};
  }
  command.done = [is_whole = get.is_whole, done = std::move(get.done)](Result<RespReply> reply) {
    done(Landed(reply, is_whole));
  };
  client_.Send(name, std::move(command));
}

void RedisStore::Has(const ChunkKey& key, std::function<void(Result<bool>)> done) {
  const std::string name = NameOf(key);
  client_.Send(name, {.words = {"EXISTS", name},
                      .done = [done = std::move(done)](Result<RespReply> reply) -> void {
                        const Status status = StatusOf(reply);
                        if (!status) return done(tl::unexpected(status.error()));
                        done(reply->kind == Kind::kInteger && reply->integer > 0);
                      }});
}

// Another connection may bring what is put later before it.
void RedisStore::Discard(const ChunkKey& key) {
  if (!discards_.Begin(key)) return;
  const std::string name = NameOf(key);
  client_.Send(name,
               {.words = {"UNLINK", name}, .done = [this, key](auto&&) { discards_.End(key); }});
}

void RedisStore::Touch(std::span<const ChunkKey> keys) {
  for (const ChunkKey& key : keys) {
    const std::string name = NameOf(key);
    client_.Send(name, {.words = {"PEXPIRE", name, RedisMilliseconds(options_.time_to_live)},
                        .done = [](auto&&) {}});
  }
}

bool RedisStore::Claim(ClaimRequest request) {
  Post([this, request = std::move(request)]() mutable { claims_.Claim(std::move(request)); });
  return true;
}

void RedisStore::Disclaim(std::span<const ChunkKey> keys) {
  Post([this, keys = std::vector(keys.begin(), keys.end())] { claims_.End(keys); });
}

Result<RespReply> RedisStore::Ask(const ChunkKey& key, RedisCommand command) {
  std::promise<Result<RespReply>> replied;
  command.done = [&](Result<RespReply> reply) { replied.set_value(std::move(reply)); };
  Post([&] { discards_.After(key, [&] { client_.Send(NameOf(key), std::move(command)); }); });
  return replied.get_future().get();
}

Result<PutOutcome> RedisStore::Put(const ChunkKey& key,
                                   std::span<const std::span<const std::byte>> pieces) {
  const std::string name = NameOf(key);
  RedisCommand set{
      .words = {"SET", name}, .value = {pieces.begin(), pieces.end()}, .words_behind = {"NX"}};
  if (options_.time_to_live.count() > 0) {
    set.words_behind.insert(set.words_behind.end(),
                            {"PX", RedisMilliseconds(options_.time_to_live)});
  }
  const Result<RespReply> reply = Ask(key, std::move(set));
  RETURN_IF_ERROR(StatusOf(reply));
  return reply->kind == Kind::kNil ? PutOutcome::kWasThere : PutOutcome::kKept;
}

Result<bool> RedisStore::Remove(const ChunkKey& key) {
  const Result<RespReply> reply = Ask(key, {.words = {"UNLINK", NameOf(key)}});
  RETURN_IF_ERROR(StatusOf(reply));
  return reply->integer > 0;
}

Result<std::unique_ptr<RemoteTier>> OpenRedisTier(const RedisTierOptions& options) {
  RemoteTierOptions tier = options;
  tier.looks_at_once = kLooksAtOnce;
  if (const uint64_t bytes = tier.form.FileBytesMax(tier.layout); bytes > kValueBytesMax) {
    spdlog::warn(
        "a chunk has up to {} bytes, and Redis takes no value of more than {} unless its "
        "proto-max-bulk-len was raised: use chunks of fewer tokens",
        bytes, kValueBytesMax);
  }
  return RemoteTier::Open(std::move(tier), std::make_unique<RedisStore>(RedisStoreOptions{
                                               .client = options.client,
                                               .root = options.root,
                                               .prefix = options.prefix,
                                               .time_to_live = options.time_to_live,
                                               .goodbye = options.goodbye}));
}

}  // namespace kvcake
