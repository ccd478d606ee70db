#include "store/redis_tier.h"

#include <array>
#include <atomic>
#include <future>
#include <utility>

#include "base/check.h"
#include "base/printable.h"
#include "store/chunk_bytes.h"
#include "store/chunk_format.h"
#include "store/verify_read.h"

namespace kvcake {

namespace asio = boost::asio;
using Kind = RespReply::Kind;

namespace {

struct alignas(8) HeaderBlock {
  std::array<std::byte, kPageHeaderBytes> bytes;
};

Status StatusOf(const Result<RespReply>& reply) {
  if (!reply) return tl::unexpected(reply.error());
  if (reply->kind != Kind::kError) return {};
  if (reply->ErrorWord() == "WRONGTYPE") {
    return Fail(ErrorCode::kCorrupt, "it is no string, and so no chunk");
  }
  const bool is_full = reply->ErrorWord() == "OOM", is_login = reply->ErrorWord() == "NOAUTH";
  return Fail(is_full ? ErrorCode::kNoSpace : ErrorCode::kIo, "Redis says: {}{}",
              PrintableAscii(reply->text),
              is_login ? " (KVCAKE_REDIS_PASSWORD, or redis://USER:PASSWORD@HOST)" : "");
}

}  // namespace

struct RedisTier::Read {
  ReadRequest request;
  ReadId id = 0;
  std::atomic<bool> cancelled{false};
  HeaderBlock header = {};  // of a read of some layers of a raw chunk; else it is in the landing
  int parts = 0;            // of the value, whose replies are due
  uint64_t landed = 0;
  bool is_whole = false;   // all of it is wanted, or
  bool is_header = false;  // its header, to know where its layers are
  Status status = {};      // the first failure
  NumericPath numeric_path = NumericPath::kUnknown;
};

struct RedisTier::Looking {
  LookRequest request;
  std::vector<bool> held;
  size_t due = 0;
  TimePoint began{};
};

Result<std::unique_ptr<RedisTier>> RedisTier::Open(RedisTierOptions options) {
  RETURN_IF_ERROR(CheckStorable(options.layout, options.form.codec, options.form.encrypted));
  return std::unique_ptr<RedisTier>(new RedisTier(std::move(options)));
}

RedisTier::RedisTier(RedisTierOptions options)
    : options_(std::move(options)),
      kind_(ChunkKind::Of(options_)),
      known_(options_.known_keys_max),
      work_(context_.get_executor()),
      client_(context_, options_.client),
      claims_(client_, [this](const ChunkKey& key) { return NameOf(key); }),
      goodbye_(context_),
      thread_([this] { context_.run(); }) {}

RedisTier::~RedisTier() {
  // Others need not wait for what this one had claimed; nor does it wait long for them to hear it.
  asio::post(context_, [this] {
    goodbye_.expires_after(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(options_.goodbye));
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
  kind_.CheckRequest(request);
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
  const auto landing = read->request.landing.first(kind_.LandingBytes(read->request));
  const auto& layers = read->request.layers;
  if (!layers) return AskForAll(read);
  if (!options_.form.raw()) {
    read->is_header = true;
    return AskForPart(read, 0, landing.first<kPageHeaderBytes>());
  }
  AskForPart(read, 0, read->header.bytes);
  AskForPart(read, options_.layout.slab_offset(layers->first), landing);
}

void RedisTier::AskForAll(const ReadPtr& read) {
  read->is_whole = true;
  SendFor(read, {.words = {"GET", NameOf(read->request.key)},
                 .landing = read->request.landing.first(kind_.LandingBytes(read->request)),
                 .may_be_shorter = !options_.form.raw()});
}

void RedisTier::AskForPart(const ReadPtr& read, uint64_t offset, std::span<std::byte> landing) {
  SendFor(read, {.words = {"GETRANGE", NameOf(read->request.key), std::to_string(offset),
                           std::to_string(offset + landing.size() - 1)},
                 .landing = landing});
}

void RedisTier::SendFor(const ReadPtr& read, RedisCommand command) {
  ++read->parts;
  command.done = [this, read](Result<RespReply> reply) { OnPart(read, std::move(reply)); };
  client_.Send(NameOf(read->request.key), std::move(command));
}

void RedisTier::OnPart(const ReadPtr& read, Result<RespReply> reply) {
  Status status = StatusOf(reply);
  if (status && reply->landed) {
    read->landed += reply->bulk_bytes;
  } else if (status) {
    // A part of what is not there is empty.
    const bool is_missing =
        reply->kind == Kind::kNil || (!read->is_whole && reply->bulk_bytes == 0);
    status =
        is_missing
            ? Status(Fail(ErrorCode::kNotFound, "it is not there"))
            : Status(Fail(ErrorCode::kCorrupt, "{} has {} bytes, which no chunk of this model has",
                          read->is_whole ? "the value" : "a part", reply->bulk_bytes));
  }
  if (read->status) read->status = std::move(status);
  if (--read->parts > 0) return;
  if (read->status && std::exchange(read->is_header, false)) return AskForParts(read);
  if (read->status) read->status = Verify(*read);
  Finish(read);
}

void RedisTier::AskForParts(const ReadPtr& read) {
  const auto& [key, parent, landing, done, layers] = read->request;
  const auto header = DecodeHeaderFor(landing.first<kPageHeaderBytes>(), read->request, kind_);
  if (!header) {
    read->status = tl::unexpected(header.error());
  } else if (read->cancelled || client_.is_closing()) {
    read->status = Fail(ErrorCode::kCancelled, "the read was cancelled");
  } else {
    const uint64_t begin = header->layer_offset(layers->first);
    const uint64_t end = header->layer_offset(layers->first + layers->count);
    return AskForPart(read, begin, landing.subspan(begin, end - begin));
  }
  Finish(read);
}

Status RedisTier::Verify(Read& read) const {
  const bool is_apart = read.request.layers && options_.form.raw();
  const auto landing = read.request.landing;
  if (!is_apart && read.landed < kPageHeaderBytes) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes, fewer than a header", read.landed);
  }
  const auto header = is_apart ? ConstHeaderBytes(read.header.bytes)
                               : ConstHeaderBytes(landing.first<kPageHeaderBytes>());
  ASSIGN_OR_RETURN(read.numeric_path, VerifyRead(header, read.request, kind_, read.landed));
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
  ReadResult result{.status = read->status, .numeric_path = read->numeric_path};
  if (read->status) {
    result.bytes = options_.form.raw() ? ReadBytes(options_.layout, read->request) : read->landed;
  }
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
  const Status status = StatusOf(reply);
  const bool held = status && reply->kind == Kind::kInteger && reply->integer > 0;
  looking->held[i] = held;
  if (held) {
    known_.Add(key);
  } else if (status) {
    known_.Remove(key);
  } else if (status.error().code != ErrorCode::kCancelled) {
    read_faults_.Failed(status.error());
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
  if (known_.Contains({&chunk.key, 1})[0]) {
    Disclaim({&chunk.key, 1});
    return {};
  }
  const ChunkBytes bytes(chunk, kind_);
  const std::string name = NameOf(chunk.key);
  RedisCommand set{.words = {"SET", name},
                   .value = {bytes.pieces().begin(), bytes.pieces().end()},
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
  if (status && !found) stats_.write_bytes += bytes.bytes();
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
  // How long an encoded chunk is only those have told that came and went.
  const uint64_t moved = stats_.reads + stats_.writes;
  const uint64_t mean = moved > 0 ? (stats_.read_bytes + stats_.write_bytes) / moved : 0;
  stats.bytes = stats.chunks * (options_.form.raw() ? options_.layout.page_bytes() : mean);
  stats.looks = looks_.totals();
  return stats;
}

}  // namespace kvcake
