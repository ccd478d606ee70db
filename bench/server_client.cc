#include "bench/server_client.h"

#include <fmt/core.h>

#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <nlohmann/json.hpp>

#include "base/json_file.h"

namespace kvcake::bench {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr uint64_t kBodyMax = 1 << 30;
constexpr uint32_t kHeaderMax = 64 << 10;
constexpr size_t kReadBytes = 16 << 10;
constexpr size_t kErrorBytesMax = 64 << 10;  // of a body that is no answer
constexpr size_t kDocumentBytesMax = 4 << 20;

http::request<http::string_body> MakeRequest(bool post, const ServerUrl& url,
                                             const std::string& path, const std::string& api_key,
                                             std::string body) {
  http::request<http::string_body> request(post ? http::verb::post : http::verb::get,
                                           url.path + path, 11);
  request.set(http::field::host, url.HostHeader());
  request.set(http::field::user_agent, "kvcake-bench");
  request.set(http::field::content_type, "application/json");
  if (!api_key.empty()) request.set(http::field::authorization, "Bearer " + api_key);
  request.keep_alive(false);
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

}  // namespace

ServerClient::ServerClient(net::io_context& context, Options options)
    : context_(context), options_(std::move(options)) {}

net::awaitable<Status> ServerClient::Resolve() {
  tcp::resolver resolver(context_);
  error_code error;
  endpoints_ = co_await resolver.async_resolve(options_.url.host, options_.url.port,
                                               net::redirect_error(net::use_awaitable, error));
  if (error) {
    co_return Fail(ErrorCode::kNotFound, "there is no host {}: {}", options_.url.host,
                   error.message());
  }
  co_return Status();
}

net::awaitable<ServerClient::Reply> ServerClient::Exchange(bool post, const std::string& path,
                                                           std::string body,
                                                           const OnBody& on_body) {
  Reply reply;
  error_code error;
  const auto broke = [&](const char* kind) {
    const bool late = error == beast::error::timeout;
    reply.error_kind = late ? "timeout" : kind;
    reply.error = late ? fmt::format("no whole answer within {:g} s", options_.timeout.count())
                       : error.message();
  };
  auto request = MakeRequest(post, options_.url, path, options_.api_key, std::move(body));
  beast::tcp_stream stream(context_);
  stream.expires_after(std::chrono::duration_cast<std::chrono::milliseconds>(options_.timeout));
  co_await stream.async_connect(endpoints_, net::redirect_error(net::use_awaitable, error));
  if (error) {
    broke("cannot connect");
    co_return reply;
  }
  error_code ignored;
  stream.socket().set_option(tcp::no_delay(true), ignored);
  // A server that refuses a request may have answered before it has read it all.
  error_code write_error;
  co_await http::async_write(stream, request, net::redirect_error(net::use_awaitable, write_error));
  request.body() = std::string();
  beast::flat_buffer buffer(kHeaderMax + kReadBytes);
  http::response_parser<http::buffer_body> parser;
  parser.header_limit(kHeaderMax);
  parser.body_limit(kBodyMax);
  co_await http::async_read_header(stream, buffer, parser,
                                   net::redirect_error(net::use_awaitable, error));
  if (error) {
    if (write_error) error = write_error;
    broke("connection lost");
    co_return reply;
  }
  reply.status = static_cast<int>(parser.get().result_int());
  std::string space(kReadBytes, '\0');
  while (!parser.is_done()) {
    auto& piece = parser.get().body();
    piece.data = space.data();
    piece.size = space.size();
    co_await http::async_read_some(stream, buffer, parser,
                                   net::redirect_error(net::use_awaitable, error));
    const size_t bytes = space.size() - piece.size;
    if (bytes > 0 && !on_body(reply.status, {space.data(), bytes})) co_return reply;
    if (error && error != http::error::need_buffer) {
      broke("connection lost");
      co_return reply;
    }
  }
  co_return reply;
}

net::awaitable<Result<nlohmann::json>> ServerClient::Get(std::string path) {
  std::string body;
  const OnBody collect = [&](int, std::string_view bytes) {
    body += bytes;
    return body.size() <= kDocumentBytesMax;
  };
  const std::string place =
      fmt::format("http://{}{}{}", options_.url.HostHeader(), options_.url.path, path);
  const Reply reply = co_await Exchange(false, path, std::string(), collect);
  if (!reply.error_kind.empty()) {
    co_return Fail(ErrorCode::kIo, "{} does not answer: {} ({}): is the server running?", place,
                   reply.error_kind, reply.error);
  }
  if (reply.status == 401 || reply.status == 403) {
    co_return Fail(ErrorCode::kInvalidArgument, "{} answers with {}: --api-key gives it a key",
                   place, ErrorMessage(reply.status, body));
  }
  if (reply.status != 200) {
    co_return Fail(ErrorCode::kIo, "{} answers with {}: is it an OpenAI-compatible server?", place,
                   ErrorMessage(reply.status, body));
  }
  co_return ParseJson(body, place);
}

net::awaitable<Answer> ServerClient::Ask(std::string path, std::string body, TimePoint zero) {
  AnswerReader reader;
  std::string refusal;
  bool wanted = true;
  const OnBody take = [&](int status, std::string_view bytes) {
    if (status != 200) {
      refusal += bytes;
      return refusal.size() < kErrorBytesMax;
    }
    wanted = reader.Feed(bytes, (Clock::Real().Now() - zero).count());
    return wanted;
  };
  const Reply reply = co_await Exchange(true, path, std::move(body), take);
  Answer answer = reader.Finish();
  if (!reply.error_kind.empty() && (reply.status == 0 || reply.status == 200)) {
    answer.SetError(reply.error_kind, reply.error);
  } else if (reply.status != 200) {
    answer.SetError(fmt::format("HTTP {}", reply.status), ErrorMessage(reply.status, refusal));
  }
  co_return answer;
}

}  // namespace kvcake::bench
