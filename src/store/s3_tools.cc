#include "store/s3_tools.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <future>
#include <optional>
#include <utility>

#include "store/chunk_format.h"
#include "store/pages_seen.h"
#include "store/s3_client.h"
#include "store/s3_store.h"

namespace kvcake {
namespace {

// What a server says is not believed beyond it.
constexpr uint64_t kObjectBytesMax = kChunkBytesMax;
constexpr const char* kNamesAtOnce = "1000";
// Memory for more is taken when a header says so, too, which costs a request.
constexpr uint64_t kReadUnseenMax = 64 << 20;

// With the characters that XML writes by name.
std::string WithoutEntities(std::string_view text) {
  constexpr std::pair<std::string_view, char> kNamed[] = {
      {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}};
  std::string plain;
  while (!text.empty()) {
    size_t taken = 1;
    char c = text[0];
    for (const auto& [name, named] : kNamed) {
      if (!text.starts_with(name)) continue;
      taken = name.size();
      c = named;
    }
    plain += c;
    text.remove_prefix(taken);
  }
  return plain;
}

// 2009-10-12T17:50:30.000Z
int64_t ReadTime(const std::string& text) {
  tm time = {};
  return strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &time) == nullptr ? 0 : timegm(&time);
}

class S3Listing : public RemoteListing {
 public:
  explicit S3Listing(std::unique_ptr<S3Client> client) : client_(std::move(client)) {}

  Status ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) override;
  Result<std::vector<std::byte>> Read(const FoundValue& value) override;
  // As the time of a request begins before it has a connection.
  size_t remove_max() const override { return kS3Connections; }
  Result<RemovedValues> Remove(std::span<const std::string> names) override;
  std::string why_no_times() const override {
    return client_->place().Text() + " does not say when its objects were written";
  }

 private:
  // The replies that are not errors, in order.
  Result<std::vector<CurlReply>> Ask(std::vector<S3Request> requests);
  tl::unexpected<Error> Named(const Error& error) const {
    return Fail(error.code, "{}: {}", client_->place().Text(), error.message);
  }
  // The first `count` bytes of an object, or all, which are no more.
  Result<std::vector<std::byte>> ReadFirst(const std::string& name, uint64_t count, bool all);
  // PREFIX/v1/ROOT/KEY
  std::optional<ChunkId> IdOf(std::string_view name) const;
  std::string folder() const { return client_->place().prefix + "v1/"; }

  const std::unique_ptr<S3Client> client_;
};

Result<std::vector<CurlReply>> S3Listing::Ask(std::vector<S3Request> requests) {
  std::vector<Result<CurlReply>> replies(requests.size());
  std::promise<void> all;
  size_t due = requests.size();  // the client's thread's
  if (due == 0) return std::vector<CurlReply>();
  client_->http().Post([&] {
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i].done = [&, i](Result<CurlReply> reply) {
        replies[i] = std::move(reply);
        if (--due == 0) all.set_value();
      };
      client_->Send(std::move(requests[i]));
    }
  });
  all.get_future().wait();
  std::vector<CurlReply> good;
  for (auto& reply : replies) {
    if (!reply) return Named(reply.error());
    good.push_back(std::move(*reply));
  }
  return good;
}

std::optional<ChunkId> S3Listing::IdOf(std::string_view name) const {
  const std::string before = folder();
  const size_t hex = 2 * sizeof(Digest);
  if (!name.starts_with(before)) return std::nullopt;
  name.remove_prefix(before.size());
  if (name.size() != 2 * hex + 1 || name[hex] != '/') return std::nullopt;
  const auto root = ParseKeyHex(name.substr(0, hex));
  const auto key = ParseKeyHex(name.substr(hex + 1));
  if (!root || !key) return std::nullopt;
  return ChunkId{*root, *key};
}

Status S3Listing::ForEachPage(const std::function<Status(std::span<const FoundValue>)>& visit) {
  std::string next;
  PagesSeen pages;
  do {
    UrlQuery query = {{"list-type", "2"}, {"max-keys", kNamesAtOnce}, {"prefix", folder()}};
    if (!next.empty()) query.emplace_back("continuation-token", next);
    std::vector<S3Request> one(1);
    one[0].query = std::move(query);
    ASSIGN_OR_RETURN(const auto replies, Ask(std::move(one)));
    if (!replies[0].ok()) return tl::unexpected(S3ReplyError(replies[0], client_->place()));
    auto page = ParseS3Page(replies[0].text);
    if (!page) return Named(page.error());
    next = std::move(page->next);
    if (const Status on = next.empty() ? Status() : pages.GoOnTo(next); !on) {
      return Named(on.error());
    }
    std::vector<FoundValue> found;
    for (S3Page::Object& object : page->objects) {
      const auto id = IdOf(object.name);
      if (!id) continue;
      FoundValue value{.id = *id, .name = std::move(object.name), .bytes = object.bytes};
      if (object.modified_s > 0) value.used_s = object.modified_s;
      found.push_back(std::move(value));
    }
    if (!found.empty()) RETURN_IF_ERROR(visit(found));
  } while (!next.empty());
  return {};
}

Result<std::vector<std::byte>> S3Listing::Read(const FoundValue& value) {
  if (value.bytes > kReadUnseenMax) {
    ASSIGN_OR_RETURN(const auto first, ReadFirst(value.name, kPageHeaderBytes, /*all=*/false));
    if (first.size() < kPageHeaderBytes) {
      return Fail(ErrorCode::kCorrupt, "it has {} bytes, fewer than a header", first.size());
    }
    const ConstHeaderBytes bytes(first.data(), kPageHeaderBytes);
    ASSIGN_OR_RETURN(const ChunkHeader header, DecodeHeader(bytes));
    if (header.file_bytes() != value.bytes) {
      return Fail(ErrorCode::kCorrupt, "it has {} bytes, and its header says {}", value.bytes,
                  header.file_bytes());
    }
  }
  return ReadFirst(value.name, std::max<uint64_t>(value.bytes, 1), /*all=*/true);
}

Result<std::vector<std::byte>> S3Listing::ReadFirst(const std::string& name, uint64_t count,
                                                    bool all) {
  std::vector<std::byte> bytes(count);
  std::vector<S3Request> one(1);
  one[0].name = name;
  one[0].landing = bytes;
  if (!all) {
    one[0].headers = {{"range", fmt::format("bytes=0-{}", count - 1)}};
    one[0].landing_status = 206;
  }
  ASSIGN_OR_RETURN(const auto replies, Ask(std::move(one)));
  const CurlReply& reply = replies.front();
  if (!reply.ok()) return tl::unexpected(S3ReplyError(reply, client_->place()));
  bytes.resize(reply.bytes);
  return bytes;
}

Result<RemovedValues> S3Listing::Remove(std::span<const std::string> names) {
  std::vector<S3Request> requests(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    requests[i].method = "DELETE";
    requests[i].name = names[i];
  }
  ASSIGN_OR_RETURN(const auto replies, Ask(std::move(requests)));
  RemovedValues removed;
  for (size_t i = 0; i < names.size(); ++i) {
    const CurlReply& reply = replies[i];
    removed.removed.push_back(reply.ok());
    if (reply.ok() || reply.status == 404) continue;
    removed.refused.push_back({names[i], S3ReplyError(reply, client_->place()).message});
  }
  return removed;
}

}  // namespace

// Elements of which only some are looked for, and never within one another: no tree is made of what
// a server says.
Result<S3Page> ParseS3Page(std::string_view xml) {
  if (xml.find("<ListBucketResult") == xml.npos || xml.find("</ListBucketResult>") == xml.npos) {
    return Fail(ErrorCode::kIo, "it lists no objects: is it S3?");
  }
  S3Page page;
  constexpr std::string_view kBegin = "<Contents>", kEnd = "</Contents>";
  for (size_t at = xml.find(kBegin); at != xml.npos; at = xml.find(kBegin, at)) {
    const size_t end = xml.find(kEnd, at);
    if (end == xml.npos) break;
    const std::string_view object = xml.substr(at, end - at);
    const std::string_view size = XmlElement(object, "Size");
    uint64_t bytes = 0;
    std::from_chars(size.data(), size.data() + size.size(), bytes);
    page.objects.push_back(
        {.name = WithoutEntities(XmlElement(object, "Key")),
         .bytes = std::min(bytes, kObjectBytesMax),
         .modified_s = ReadTime(std::string(XmlElement(object, "LastModified")))});
    at = end;
  }
  if (XmlElement(xml, "IsTruncated") == "true") {
    page.next = WithoutEntities(XmlElement(xml, "NextContinuationToken"));
    if (page.next.empty()) {
      return Fail(ErrorCode::kIo,
                  "it lists a part of its objects and not how to go on: does it know "
                  "ListObjectsV2?");
    }
  }
  return page;
}

Result<std::unique_ptr<RemoteListing>> OpenS3Listing(const S3Place& place) {
  ASSIGN_OR_RETURN(auto client, S3Client::Open({.place = place, .connections = kS3Connections}));
  return std::make_unique<S3Listing>(std::move(client));
}

}  // namespace kvcake
