#include "store/redis_tier.h"

#include <array>
#include <atomic>
#include <future>
#include <utility>

#include "base/check.h"
#include "store/chunk_format.h"
#include "store/verify_read.h"

namespace kvcake {

namespace asio = boost::asio;
using Kind = RespReply::Kind;

namespace {

constexpr std::chrono::seconds kGoodbye{1};

struct alignas(8) HeaderBlock {
  std::array<std::byte, kPageHeaderBytes> bytes;
};

Status StatusOf(const Result<RespReply>& reply) {
  if (!reply) return tl::unexpected(reply.error());
  if (reply->kind != Kind::kError) return {};
  const bool is_full = reply->ErrorWord() == "OOM";
  return Fail(is_full ? ErrorCode::kNoSpace : ErrorCode::kIo, "Redis says: {}", reply->text);
}

}  // namespace

struct RedisTier::Read {
  ReadRequest request;
  ReadId id = 0;
  std::atomic<bool> cancelled{false};
  HeaderBlock header;  // of a read of some layers
  int parts = 0;       // of the value, whose replies are due
  Status status = {};  // the first failure
  NumericPath numeric_path = NumericPath::kUnknown;
};

struct RedisTier::Looking {
  LookRequest request;
  std::vector<bool> held;
  size_t due = 0;
  TimePoint began{};
};

Result<std::unique_ptr<RedisTier>> RedisTier::Open(RedisTierOptions options) {
  RETURN_IF_ERROR(CheckStorable(options.layout));
  return std::unique_ptr<RedisTier>(new RedisTier(std::move(options)));
}

RedisTier::RedisTier(RedisTierOptions options)
    : options_(std::move(options)),
      known_(options_.known_keys_max),
      work_(context_.get_executor()),
      client_(context_, options_.client),
      claims_(client_, [this](const ChunkKey& key) { return NameOf(key); }),
      goodbye_(context_),
      thread_([this] { context_.run(); }) {}

RedisTier::~RedisTier() {
  // Others need not wait for what this one had claimed; nor does it wait long for them to hear it.
  asio::post(context_, [this] {
    goodbye_.expires_after(kGoodbye);
    goodbye_.async_wait([this](auto&&) { Close(); });
    claims_.EndAll([this] { Close(); });
  });
  thread_.join();
  MutexLock lock(mutex_);
  CHECK(reads_.empty());
}

void RedisTier::Close() {
  if (client_.is_closing()) return;
  goodbye_.cancel();
  client_.Close([this] { work_.reset(); });
}

std::string RedisTier::NameOf(const ChunkKey& key) const {
  return fmt::format("{}:v1:{}:{}", options_.prefix, options_.root.Hex(), key.Hex());
}

ReadId RedisTier::Get(ReadRequest request) {
  CheckLanding(options_.layout, request);
  const auto read = std::make_shared<Read>();
  read->request = std::move(request);
  {
    MutexLock lock(mutex_);
    read->id = next_id_++;
    reads_[read->id] = read;
  }
  asio::post(context_, [this, read] { Begin(read); });
  return read->id;
}

void RedisTier::Cancel(ReadId id) {
  MutexLock lock(mutex_);
  if (const auto at = reads_.find(id); at != reads_.end()) at->second->cancelled = true;
}

void RedisTier::Begin(const ReadPtr& read) {
  if (read->cancelled || client_.is_closing()) {
    read->status = Fail(ErrorCode::kCancelled, "the read was cancelled");
    return Finish(read);
  }
  const std::string name = NameOf(read->request.key);
  const KvLayout& layout = options_.layout;
  const auto landing = read->request.landing.first(ReadBytes(layout, read->request));
  const auto send = [&](std::vector<std::string> words, std::span<std::byte> into, bool is_header) {
    ++read->parts;
    client_.Send(name, {.words = std::move(words),
                        .landing = into,
                        .done = [this, read, is_header](Result<RespReply> reply) {
                          OnPart(read, is_header, std::move(reply));
                        }});
  };
  if (!read->request.layers) return send({"GET", name}, landing, true);
  const uint64_t first = layout.slab_offset(read->request.layers->first);
  send({"GETRANGE", name, "0", std::to_string(kPageHeaderBytes - 1)}, read->header.bytes, true);
  send({"GETRANGE", name, std::to_string(first), std::to_string(first + landing.size() - 1)},
       landing, false);
}

void RedisTier::OnPart(const ReadPtr& read, bool is_header, Result<RespReply> reply) {
  Status status = StatusOf(reply);
  if (status && !reply->landed) {
    const bool is_missing = reply->kind == Kind::kNil || reply->bulk_bytes == 0;
    status =
        is_missing
            ? Status(Fail(ErrorCode::kNotFound, "it is not there"))
            : Status(Fail(ErrorCode::kCorrupt, "{} has {} bytes, which no chunk of this model has",
                          is_header ? "the value" : "the part", reply->bulk_bytes));
  }
  if (read->status) read->status = std::move(status);
  if (--read->parts > 0) return;
  if (read->status) read->status = Verify(*read);
  Finish(read);
}

Status RedisTier::Verify(Read& read) const {
  const auto header = read.request.layers
                          ? ConstHeaderBytes(read.header.bytes)
                          : ConstHeaderBytes(read.request.landing.first<kPageHeaderBytes>());
  ASSIGN_OR_RETURN(read.numeric_path,
                   VerifyRead(header, read.request, options_.root, options_.layout));
  return {};
}

void RedisTier::Finish(const ReadPtr& read) {
  const ChunkKey key = read->request.key;
  const bool corrupt = !read->status && read->status.error().code == ErrorCode::kCorrupt;
  const bool missing = !read->status && read->status.error().code == ErrorCode::kNotFound;
  const bool cancelled = !read->status && read->status.error().code == ErrorCode::kCancelled;
  if (read->status) {
    known_.Add(key);
    read_faults_.Succeeded();
  } else if (corrupt || missing) {
    known_.Remove(key);
  }
  if (!read->status && !missing && !cancelled) {
    read->status.error().message =
        fmt::format("chunk {}: {}", key.Hex(), read->status.error().message);
    read_faults_.Failed(read->status.error());
  }
  if (corrupt) Remove(key);
  ReadResult result{read->status, 0, read->numeric_path};
  if (read->status) result.bytes = ReadBytes(options_.layout, read->request);
  {
    MutexLock lock(mutex_);
    stats_.reads += read->status.has_value();
    stats_.read_bytes += result.bytes;
    stats_.reads_failed += !read->status && !missing && !cancelled;
    stats_.quarantined += corrupt;
    reads_.erase(read->id);
  }
  read->request.done(std::move(result));
}

void RedisTier::Remove(const ChunkKey& key) {
  if (client_.is_closing()) return;
  const std::string name = NameOf(key);
  client_.Send(name, {.words = {"UNLINK", name}, .done = [](auto&&) {}});
}

bool RedisTier::Look(LookRequest request) {
  if (request.keys.empty()) return false;
  const auto looking = std::make_shared<Looking>();
  looking->held.resize(request.keys.size());
  looking->due = request.keys.size();
  looking->request = std::move(request);
  looking->began = Clock::Real().Now();
  asio::post(context_, [this, looking] {
    for (size_t i = 0; i < looking->request.keys.size(); ++i) {
      const auto done = [this, looking, i](Result<RespReply> reply) {
        OnLooked(looking, i, std::move(reply));
      };
      if (client_.is_closing()) {
        done(Fail(ErrorCode::kCancelled, "the store is closed"));
        continue;
      }
      const std::string name = NameOf(looking->request.keys[i]);
      client_.Send(name, {.words = {"EXISTS", name}, .done = done});
    }
  });
  return true;
}

void RedisTier::OnLooked(const std::shared_ptr<Looking>& looking, size_t i,
                         Result<RespReply> reply) {
  const ChunkKey& key = looking->request.keys[i];
  const bool held = reply && reply->kind == Kind::kInteger && reply->integer > 0;
  looking->held[i] = held;
  if (held) {
    known_.Add(key);
  } else if (reply) {
    known_.Remove(key);
  }
  if (--looking->due > 0) return;
  looks_.Add(Clock::Real().Now() - looking->began);
  looking->request.found(0, looking->held);
}

void RedisTier::Unpin(std::span<const ChunkKey> keys) {
  if (options_.time_to_live.count() <= 0) return;
  asio::post(context_, [this, keys = std::vector(keys.begin(), keys.end())] {
    const std::string ms =
        std::to_string(static_cast<int64_t>(options_.time_to_live.count() * 1e3));
    for (const ChunkKey& key : keys) {
      if (client_.is_closing()) return;
      const std::string name = NameOf(key);
      client_.Send(name, {.words = {"PEXPIRE", name, ms}, .done = [](auto&&) {}});
    }
  });
}

bool RedisTier::Claim(ClaimRequest request) {
  asio::post(context_,
             [this, request = std::move(request)]() mutable { claims_.Claim(std::move(request)); });
  return true;
}

void RedisTier::Disclaim(std::span<const ChunkKey> keys) {
  asio::post(context_, [this, keys = std::vector(keys.begin(), keys.end())] { claims_.End(keys); });
}

Result<RespReply> RedisTier::Ask(const std::string& name, RedisCommand command) {
  std::promise<Result<RespReply>> replied;
  command.done = [&](Result<RespReply> reply) { replied.set_value(std::move(reply)); };
  asio::post(context_, [&] { client_.Send(name, std::move(command)); });
  return replied.get_future().get();
}

Status RedisTier::Put(const ChunkWrite& chunk) {
  CHECK(chunk.page.size() == options_.layout.page_bytes());
  if (known_.Contains({&chunk.key, 1})[0]) return {};
  HeaderBlock header;
  EncodeHeader(header.bytes, {.root = options_.root,
                              .key = chunk.key,
                              .parent = chunk.parent,
                              .layout = options_.layout,
                              .numeric_path = chunk.numeric_path,
                              .slab_checksums = SlabChecksums(options_.layout, chunk.page)});
  const std::string name = NameOf(chunk.key);
  RedisCommand set{.words = {"SET", name},
                   .value = {header.bytes, chunk.page.subspan(kPageHeaderBytes)},
                   .words_behind = {"NX"}};
  if (options_.time_to_live.count() > 0) {
    set.words_behind.insert(
        set.words_behind.end(),
        {"PX", std::to_string(static_cast<int64_t>(options_.time_to_live.count() * 1e3))});
  }
  const Result<RespReply> reply = Ask(name, std::move(set));
  const Status status = StatusOf(reply);
  if (status) {
    known_.Add(chunk.key);
    write_faults_.Succeeded();
  } else {
    write_faults_.Failed(status.error());
  }
  const bool found = status && reply->kind == Kind::kNil;  // another process has just put it
  Disclaim({&chunk.key, 1});
  MutexLock lock(mutex_);
  stats_.writes_failed += !status;
  stats_.writes += status && !found;
  stats_.writes_found += found;
  if (status && !found) stats_.write_bytes += chunk.page.size();
  return status;
}

Status RedisTier::Evict(const ChunkKey& key) {
  const std::string name = NameOf(key);
  const Result<RespReply> reply = Ask(name, {.words = {"UNLINK", name}});
  RETURN_IF_ERROR(StatusOf(reply));
  known_.Remove(key);
  MutexLock lock(mutex_);
  stats_.evicted += reply->integer > 0;
  return {};
}

TierStats RedisTier::Stats() const {
  MutexLock lock(mutex_);
  TierStats stats = stats_;
  stats.chunks = known_.size();
  stats.bytes = stats.chunks * options_.layout.page_bytes();
  stats.looks = looks_.totals();
  return stats;
}

}  // namespace kvcake
