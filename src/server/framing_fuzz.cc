// Any bytes as what a client sends: refused, or requests of which it is certain where each ends.
// The first byte says how many bytes come at a time, which must make no difference.
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/string.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/request_head.h"

namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr uint32_t kHeaderMax = 16 << 10;
constexpr uint64_t kBodyMax = 64 << 10;
constexpr size_t kRequestsMax = 64;

struct Taken {
  kvcake::HttpRequest request = {};
  std::string body = {};
  size_t end = 0;  // in the bytes sent
};

bool IsNeedMore(const error_code& error) { return error == http::error::need_more; }

// Feeds the parser from `*at` on, `step` bytes more each time, until `done`. False: refused, or not
// all of it is there.
template <typename Done>
bool Feed(kvcake::RequestParser& parser, std::string_view sent, size_t step, size_t* at,
          const Done& done) {
  size_t shown = *at;
  while (!done()) {
    error_code error;
    *at += parser.put(boost::asio::buffer(sent.data() + *at, shown - *at), error);
    CHECK(*at <= shown);
    if (error && !IsNeedMore(error)) return false;
    if (done()) break;
    if (shown == sent.size()) return false;
    shown = std::min(sent.size(), shown + step);
  }
  return true;
}

// Once the head is read, before trailers join its fields: it names one host, one length, and at
// most one key.
void CheckHead(const kvcake::RequestParser& parser, size_t head_bytes) {
  const auto& head = parser.get();
  CHECK(head.count(http::field::host) == 1 ||
        (head.version() == 10 && head[http::field::host].empty()));
  CHECK(head.count(http::field::authorization) <= 1);
  if (parser.chunked()) {
    CHECK(head.count(http::field::content_length) == 0 && head.version() == 11);
    CHECK(beast::iequals(head[http::field::transfer_encoding], "chunked"));
  } else {
    CHECK(head.count(http::field::transfer_encoding) == 0);
  }
  CHECK(head_bytes <= kHeaderMax);
}

void CheckTaken(const kvcake::RequestParser& parser, const Taken& taken) {
  CHECK(taken.body.size() <= kBodyMax);
  if (!parser.chunked()) {
    const auto length = parser.get()[http::field::content_length];
    CHECK(taken.body.size() == (length.empty() ? 0 : std::stoull(std::string(length))));
  }
  for (const char c : taken.request.path) CHECK(static_cast<unsigned char>(c) > 0x20);
  CHECK(taken.request.id.empty() || kvcake::IsSaneRequestId(taken.request.id));
}

// What a server that sees so many bytes at a time takes for requests.
std::vector<Taken> Requests(std::string_view sent, size_t step) {
  std::vector<Taken> all;
  size_t at = 0;
  while (at < sent.size() && all.size() < kRequestsMax) {
    kvcake::RequestParser parser;
    parser.header_limit(kHeaderMax);
    parser.body_limit(kBodyMax);
    const size_t begin = at;
    if (!Feed(parser, sent, step, &at, [&] { return parser.is_header_done(); })) break;
    if (kvcake::CheckFraming(parser.get())) break;
    CheckHead(parser, at - begin);
    Taken taken{.request = kvcake::ToRequest(parser.get())};
    parser.eager(true);
    if (!Feed(parser, sent, step, &at, [&] { return parser.is_done(); })) break;
    taken.body = parser.get().body();
    taken.end = at;
    CheckTaken(parser, taken);
    all.push_back(std::move(taken));
  }
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view sent(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto whole = Requests(sent, sent.size() + 1);
  const auto pieces = Requests(sent, size_t{1} + data[0]);
  CHECK(whole.size() == pieces.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    CHECK(whole[i].end == pieces[i].end && whole[i].body == pieces[i].body);
    CHECK(whole[i].request.path == pieces[i].request.path);
    CHECK(whole[i].request.authorization == pieces[i].request.authorization);
  }
  return 0;
}
