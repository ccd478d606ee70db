#include "store/s3_store.h"

#include <curl/curl.h>
#include <fmt/core.h>

#include <future>
#include <utility>

#include "base/printable.h"

namespace kvcake {

Error S3ReplyError(const CurlReply& reply, const S3Place& place) {
  const std::string code = S3ErrorCode(reply);
  if (reply.status == 404 && code != "NoSuchBucket") {
    return {ErrorCode::kNotFound, "it is not there"};
  }
  ErrorCode error = ErrorCode::kInvalidArgument;  // where there is a remedy
  std::string remedy;
  if (code == "NoSuchBucket") {
    remedy = " (create it: kvcake makes no buckets)";
  } else if (code == "ExpiredToken" || code == "InvalidToken") {
    remedy =
        " (set new credentials and start again; those of AWS's credentials file are read again by "
        "themselves)";
  } else if (code == "InvalidObjectState") {
    error = ErrorCode::kCorrupt;  // as a cache it is none: it makes room for one that can be read
    remedy = " (it is archived: have the bucket's rules expire objects, not move them)";
  } else if (reply.status == 403) {
    remedy =
        " (the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject and, so that what "
        "is missing is told from what is forbidden, s3:ListBucket)";
  } else if (reply.status == 301 || reply.status == 307) {
    remedy = " (its bucket is elsewhere: name its region= or endpoint=)";
  }
  return {remedy.empty() ? ErrorCode::kIo : error,
          fmt::format("{} answers {}{}", place.Text(), S3ErrorText(reply), remedy)};
}

std::string S3Folder(const S3Place& place, const ChunkKey& root) {
  return fmt::format("{}v1/{}/", place.prefix, root.Hex());
}

Result<std::unique_ptr<S3Store>> S3Store::Open(S3StoreOptions options) {
  ASSIGN_OR_RETURN(auto client, S3Client::Open(options.client));
  return std::unique_ptr<S3Store>(new S3Store(std::move(options), std::move(client)));
}

bool S3Store::HasExpired(const CurlReply& reply) const {
  if (options_.time_to_live.count() <= 0) return false;
  // By the server's clock alone.
  const time_t now = curl_getdate(std::string(reply.Header("date")).c_str(), nullptr);
  const time_t then = curl_getdate(std::string(reply.Header("last-modified")).c_str(), nullptr);
  return now >= 0 && then >= 0 && static_cast<double>(now - then) >= options_.time_to_live.count();
}

// What is no reply to the request, as by a proxy, says nothing of the object: it is no kCorrupt.
Result<uint64_t> S3Store::Landed(const RemoteGet& get, const Result<CurlReply>& reply) const {
  if (!reply) {
    const bool is_range_too_long = !get.is_whole && reply.error().code == ErrorCode::kCorrupt;
    return Fail(is_range_too_long ? ErrorCode::kIo : reply.error().code, "{}",
                reply.error().message);
  }
  if (reply->status == 416) {
    return Fail(ErrorCode::kCorrupt, "it ends before byte {}", get.offset);
  }
  if (!reply->ok()) return tl::unexpected(S3ReplyError(*reply, options_.client.place));
  if (HasExpired(*reply)) return Fail(ErrorCode::kNotFound, "it has expired");
  if (reply->status != (get.is_whole ? 200 : 206)) {
    return Fail(ErrorCode::kIo, "{} answers {} to a request for {}", options_.client.place.Text(),
                reply->status, get.is_whole ? "an object" : "a range: it serves no ranges");
  }
  const std::string_view range = reply->Header("content-range");
  if (!get.is_whole && !range.empty() && !range.starts_with(fmt::format("bytes {}-", get.offset))) {
    return Fail(ErrorCode::kIo, "{} answers a request for byte {} and what follows with {}",
                options_.client.place.Text(), get.offset, PrintableAscii(range));
  }
  if (!get.may_be_shorter && reply->bytes < get.landing.size()) {
    return Fail(ErrorCode::kCorrupt, "it has {} bytes of {} from byte {} on", reply->bytes,
                get.landing.size(), get.offset);
  }
  return reply->bytes;
}

void S3Store::Get(RemoteGet get) {
  S3Request request{.name = NameOf(get.key), .landing = get.landing, .is_wanted = get.is_wanted};
  if (!get.is_whole) {
    request.landing_status = 206;
    request.headers.emplace_back(
        "range", fmt::format("bytes={}-{}", get.offset, get.offset + get.landing.size() - 1));
  }
  request.done = [this, get = std::move(get)](Result<CurlReply> reply) {
    if (reply && reply->ok() && HasExpired(*reply)) Discard(get.key);
    get.done(Landed(get, reply));
  };
  client_->Send(std::move(request));
}

void S3Store::Has(const ChunkKey& key, std::function<void(Result<bool>)> done) {
  client_->Send({.method = "HEAD",
                 .name = NameOf(key),
                 .tries = 1,  // computing is quicker than to ask again
                 .done = [this, key, done = std::move(done)](Result<CurlReply> reply) -> void {
                   if (!reply) return done(tl::unexpected(reply.error()));
                   if (reply->ok()) {
                     const bool has_expired = HasExpired(*reply);
                     if (has_expired) Discard(key);
                     return done(!has_expired);
                   }
                   if (reply->status == 404) return done(false);
                   done(tl::unexpected(S3ReplyError(*reply, options_.client.place)));
                 }});
}

void S3Store::Discard(const ChunkKey& key) {
  if (!discards_.Begin(key)) return;
  client_->Send({.method = "DELETE", .name = NameOf(key), .done = [this, key](auto&&) {
                   discards_.End(key);
                 }});
}

void S3Store::Close(std::function<void()> closed) {
  client_->http().Close();
  // Behind what Close ends.
  client_->http().Post(std::move(closed));
}

Result<CurlReply> S3Store::Ask(const ChunkKey& key, S3Request request) {
  std::promise<Result<CurlReply>> replied;
  request.name = NameOf(key);
  request.done = [&](Result<CurlReply> reply) { replied.set_value(std::move(reply)); };
  Post([&] { discards_.After(key, [&] { client_->Send(std::move(request)); }); });
  return replied.get_future().get();
}

Result<PutOutcome> S3Store::Put(const ChunkKey& key,
                                std::span<const std::span<const std::byte>> pieces) {
  const auto put = [&](HeaderList headers) {
    return Ask(key, {.method = "PUT",
                     .headers = std::move(headers),
                     .body = {pieces.begin(), pieces.end()},
                     .payload_sha256 = PayloadSha256(pieces)});
  };
  Result<CurlReply> reply =
      put(knows_conditions_ ? HeaderList{{"if-none-match", "*"}} : HeaderList());
  if (reply && reply->status == 412) {
    // What was sent before, and not answered, is what is there.
    const PutOutcome there = reply->is_sent_again ? PutOutcome::kKept : PutOutcome::kWasThere;
    if (options_.time_to_live.count() <= 0) return there;
    const Result<CurlReply> held = Ask(key, {.method = "HEAD"});
    if (held && held->ok() && !HasExpired(*held)) return there;
    reply = put({});
  } else if (reply && reply->status == 501) {  // it knows no conditions
    knows_conditions_ = false;
    reply = put({});
  }
  if (!reply) return tl::unexpected(reply.error());
  if (!reply->ok()) return tl::unexpected(S3ReplyError(*reply, options_.client.place));
  return PutOutcome::kKept;
}

// A reply to DELETE does not say whether there was anything.
Result<bool> S3Store::Remove(const ChunkKey& key) {
  ASSIGN_OR_RETURN(const CurlReply held, Ask(key, {.method = "HEAD"}));
  if (held.status == 404) return false;
  ASSIGN_OR_RETURN(const CurlReply removed, Ask(key, {.method = "DELETE"}));
  if (!removed.ok() && removed.status != 404) {
    return tl::unexpected(S3ReplyError(removed, options_.client.place));
  }
  return removed.ok();
}

Result<std::unique_ptr<RemoteTier>> OpenS3Tier(const S3TierOptions& options) {
  ASSIGN_OR_RETURN(auto store, S3Store::Open({.client = options.client,
                                              .root = options.root,
                                              .time_to_live = options.time_to_live}));
  RemoteTierOptions tier = options;
  tier.looks_at_once = kS3Connections;
  return RemoteTier::Open(std::move(tier), std::move(store));
}

}  // namespace kvcake
