#include "server/http_api.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <random>

#include "base/dump_json.h"
#include "server/http_offload.h"

namespace kvcake {

namespace net = boost::asio;
using nlohmann::ordered_json;

namespace {

uint64_t Random() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

// The methods of each path. Paths that are not "open" ask for a key where there are keys.
struct Route {
  std::string_view path;
  std::string_view method;
  bool open = false;
  bool asks_engine = false;
  bool admins = false;       // at the admins' listener,
  bool clients = true;       // and at the clients', where there are both
  bool touches_all = false;  // all tenants, or, for want of an admin key, the tenant's own
};
constexpr Route kRoutes[] = {
    {.path = "/health", .method = "GET", .open = true, .admins = true},
    {.path = "/ready", .method = "GET", .open = true, .admins = true, .clients = false},
    {.path = "/version", .method = "GET", .open = true, .admins = true},
    {.path = "/metrics", .method = "GET", .open = true, .admins = true, .clients = false},
    {.path = "/v1/models", .method = "GET"},
    {.path = "/v1/completions", .method = "POST", .asks_engine = true},
    {.path = "/v1/chat/completions", .method = "POST", .asks_engine = true},
    {.path = "/tokenize", .method = "POST"},
    {.path = "/detokenize", .method = "POST"},
    {.path = "/cache/warm",
     .method = "POST",
     .asks_engine = true,
     .admins = true,
     .clients = false},
    {.path = "/cache/reset",
     .method = "POST",
     .admins = true,
     .clients = false,
     .touches_all = true},
};

constexpr std::string_view kModelPath = "/v1/models/";

const Route* FindRoute(std::string_view path) {
  if (path.starts_with(kModelPath) && path != kModelPath) path = "/v1/models";
  for (const Route& route : kRoutes) {
    if (route.path == path) return &route;
  }
  return nullptr;
}

// The path's methods, which Allow has all of (RFC 9110, 10.2.1).
std::string Allowed(const Route& route) {
  return fmt::format("{}{}, OPTIONS", route.method, route.method == "GET" ? ", HEAD" : "");
}

// The text of a part of a path.
std::string PercentDecoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    uint8_t byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool escaped = text[i] == '%' && i + 2 < text.size() &&
                         std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += escaped ? static_cast<char>(byte) : text[i];
    if (escaped) i += 2;
  }
  return decoded;
}

PreparePool::Options PoolOptions(PreparePool::Options options, const Runtime& runtime) {
  options.cpus = runtime.options().cpus;
  return options;
}

}  // namespace

HttpApi::HttpApi(net::io_context& context, Runtime& runtime, EngineLoop& loop,
                 Result<ChatTemplate> chat, ApiKeys keys, TraceFiles* traces, ApiOptions options)
    : context_(context),
      runtime_(runtime),
      loop_(loop),
      keys_(std::move(keys)),
      traces_(traces),
      options_(std::move(options)),
      preparer_(runtime, std::move(chat), options_.requests),
      created_(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())),
      metrics_(OnCuda(runtime.model().numeric_path()) ? "gpu" : "ram", runtime.tiers()),
      news_(context),
      id_salt_(Random()),
      pool_(PoolOptions(options_.prepare, runtime)) {
  metrics_.tenants.SetNames(keys_.tenants());
  loop_.OnTold([this] { news_.Notify(); });
  runtime_.engine().SetStepObserver([this](const StepRecord& step) { metrics_.Stepped(step); });
}

HttpApi::~HttpApi() { runtime_.engine().SetStepObserver({}); }

void HttpApi::SetKeys(ApiKeys keys) {
  keys_ = std::move(keys);
  metrics_.tenants.SetNames(keys_.tenants());
}

std::string HttpApi::NextId(const char* prefix) {
  const std::array<uint64_t, 2> number = {id_salt_, next_id_++};
  return fmt::format("{}-{:016x}", prefix, Xxh3_64(std::as_bytes(std::span(number))));
}

net::awaitable<void> HttpApi::Handle(const HttpRequest& request, HttpReply& reply) {
  Exchange exchange{
      .request = request, .reply = reply, .began = Clock::Real().Now(), .arrived = loop_.Now()};
  exchange.record = RecordOf(request);
  co_await Dispatch(exchange);
  Ended(exchange);
}

void HttpApi::Refused(const HttpRequest& request, const ApiError& error, uint64_t sent_bytes) {
  metrics_.Responded(error.status);
  RequestRecord record = RecordOf(request);
  record.status = error.status;
  record.sent_bytes = sent_bytes;
  record.error = error;
  LogRequest(record, options_.json_log);
}

// Whatever has become of it.
void HttpApi::Ended(Exchange& exchange) {
  RequestRecord& record = exchange.record;
  record.sent_bytes = exchange.reply.sent_bytes();
  record.total_s = (Clock::Real().Now() - exchange.began).count();
  LogRequest(record, options_.json_log);
  if (record.status == 429) metrics_.tenants.Refused(record.tenant);
  if (!record.completion) return;
  const Completion& completion = *record.completion;
  if (record.answers > 0) {
    metrics_.tenants.Answered(
        record.tenant, {.answers = record.answers,
                        .prompt_tokens = static_cast<uint64_t>(completion.report.prompt_tokens),
                        .cached_tokens = static_cast<uint64_t>(CachedTokens(completion)),
                        .answer_tokens = completion.tokens.size()});
  }
  metrics_.overhead_s.Observe(std::max(0.0, record.total_s - completion.steps_s));
}

net::awaitable<void> HttpApi::Send(Exchange& exchange, HttpResponse response) {
  exchange.record.status = response.status;
  metrics_.Responded(response.status);
  const bool sent = co_await exchange.reply.Send(std::move(response));
  if (!sent && !exchange.record.error) exchange.record.error = ClientGone();
}

net::awaitable<void> HttpApi::SendError(Exchange& exchange, ApiError error, std::string allow) {
  HttpResponse response{.status = error.status};
  response.body = ErrorBody(error);
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  if (!allow.empty()) response.headers.emplace_back("Allow", std::move(allow));
  if (error.final) response.headers.emplace_back("x-should-retry", "false");  // OpenAI's clients'
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  exchange.record.error = std::move(error);
  co_await Send(exchange, std::move(response));
}

net::awaitable<void> HttpApi::Dispatch(Exchange& exchange) {
  const HttpRequest& request = exchange.request;
  const std::string& path = request.path;
  const Route* route = FindRoute(path);
  const bool here = route != nullptr &&
                    (request.admin ? route->admins : route->clients || !options_.admin_listener);
  if (!here) {
    ApiError error{.status = 404, .message = fmt::format("there is no {}", path)};
    if (route != nullptr)
      error.message += request.admin ? " at --admin-port" : " but at --admin-port";
    co_await SendError(exchange, std::move(error));
    co_return;
  }
  if (request.method == "OPTIONS") {  // a browser asks before it lets a script
    HttpResponse response{.status = 204, .content_type = ""};
    response.headers = {{"Allow", Allowed(*route)},
                        {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                        {"Access-Control-Allow-Headers", "*, Authorization"},
                        {"Access-Control-Max-Age", "600"}};
    co_await Send(exchange, std::move(response));
    co_return;
  }
  if (request.method != route->method && !(request.method == "HEAD" && route->method == "GET")) {
    ApiError error{.status = 405, .message = fmt::format("{} is for {}", path, route->method)};
    co_return co_await SendError(exchange, std::move(error), Allowed(*route));
  }
  if (route->asks_engine) {
    exchange.record.id = NextId(path == "/v1/chat/completions" ? "chatcmpl" : "cmpl");
  }
  if (!route->open) {
    auto error = route->touches_all ? FindAdmin(exchange) : FindTenant(exchange);
    if (error) co_return co_await SendError(exchange, std::move(*error));
  }
  if (route->method == "POST") {
    std::optional<ApiError> error;
    if (!options_.any_content_type) error = CheckJsonType(request.content_type);
    if (!error) error = CheckUncoded(request.content_encoding);
    if (error) co_return co_await SendError(exchange, std::move(*error));
    if (!co_await ReadBody(exchange)) co_return;
  }
  if (path == "/v1/completions") co_return co_await Generate(exchange, Ask::kCompletion);
  if (path == "/v1/chat/completions") co_return co_await Generate(exchange, Ask::kChat);
  if (path == "/cache/warm") co_return co_await Warm(exchange);
  if (path == "/tokenize") co_return co_await AnswerBody(exchange, &RequestPreparer::TokenizeBody);
  if (path == "/detokenize")
    co_return co_await AnswerBody(exchange, &RequestPreparer::DetokenizeBody);
  co_await AnswerAtOnce(exchange);
}

namespace {

ApiError KeyWanted(const char* what) {
  return {.status = 401,
          .message = fmt::format("this server asks for {}: Authorization: Bearer KEY", what),
          .code = "invalid_api_key"};
}

}  // namespace

std::optional<ApiError> HttpApi::FindTenant(Exchange& exchange) const {
  if (keys_.open()) return std::nullopt;
  auto tenant = keys_.Tenant(exchange.request.authorization);
  if (!tenant) return KeyWanted("a key");
  exchange.record.tenant = std::move(*tenant);
  return std::nullopt;
}

std::optional<ApiError> HttpApi::FindAdmin(Exchange& exchange) const {
  const HttpRequest& request = exchange.request;
  switch (keys_.AdminOf(request.authorization)) {
    case ApiKeys::Admin::kMay:
      return std::nullopt;
    case ApiKeys::Admin::kOwn:
      return FindTenant(exchange);
    case ApiKeys::Admin::kUnknownKey:
      return KeyWanted("a key that may do this");
    case ApiKeys::Admin::kMayNot:
      break;
  }
  return ApiError{.status = 403,
                  .message = fmt::format("{} touches all tenants: it asks for the server's admin "
                                         "key (--admin-key)",
                                         request.path),
                  .code = "admin_key_required"};
}

net::awaitable<void> HttpApi::AnswerAtOnce(Exchange& exchange) {
  const std::string& path = exchange.request.path;
  HttpResponse response;
  response.body = "{}";
  if (path == "/ready" && draining_) {
    ApiError error{.status = 503, .message = "the server is shutting down"};
    co_await SendError(exchange, std::move(error));
    co_return;
  }
  if (path == "/ready" || path == "/health") {
    if (std::string ailment = Ailment(); !ailment.empty()) {
      ApiError error{.status = 503, .message = std::move(ailment), .code = kEngineStuck};
      co_await SendError(exchange, std::move(error));
      co_return;
    }
  }
  if (path.starts_with(kModelPath)) {
    const std::string name = PercentDecoded(std::string_view(path).substr(kModelPath.size()));
    if (auto error = preparer_.CheckModel(name))
      co_return co_await SendError(exchange, std::move(*error));
    response.body = DumpJson(ModelJson(name));
  } else if (path == "/v1/models") {
    response.body = Models();
  } else if (path == "/version") {
    response.body = DumpJson(ordered_json{{"version", options_.version}});
  } else if (path == "/metrics") {
    response.content_type = "text/plain; version=0.0.4";
    response.body = metrics_.Text(options_.requests.model_names[0], runtime_,
                                  {.loop = loop_.Stats(),
                                   .chain = options_.chain(),
                                   .preparing = pool_.load(),
                                   .http = options_.connections(),
                                   .version = options_.version});
  } else if (path == "/cache/reset") {
    const std::string& tenant = exchange.record.tenant;
    tenant.empty() ? runtime_.pool().DropCached() : runtime_.engine().DropCachedOf(tenant);
  }
  co_await Send(exchange, std::move(response));
}

std::string HttpApi::Ailment() const {
  const Seconds since = loop_.SinceTurn();
  if (since <= options_.health_timeout) return "";
  return fmt::format(
      "the engine thread has not come around for {:.1f} s, longer than any step should take "
      "(--health-timeout {} s)",
      since.count(), options_.health_timeout.count());
}

net::awaitable<bool> HttpApi::ReadBody(Exchange& exchange) {
  auto body = co_await exchange.reply.ReadBody();
  if (body) {
    exchange.body = std::move(*body);
    exchange.record.received_bytes = exchange.body.size();
    co_return true;
  }
  if (body.error().status == 499) {
    exchange.record.status = 499;
    exchange.record.error = std::move(body.error());
  } else {
    co_await SendError(exchange, std::move(body.error()));
  }
  co_return false;
}

ordered_json HttpApi::ModelJson(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "kvcake"},
          {"root", options_.requests.model_names[0]},
          {"parent", nullptr},
          {"max_model_len", options_.requests.model_len_max}};
}

std::string HttpApi::Models() const {
  auto data = ordered_json::array();
  for (const std::string& name : options_.requests.model_names) data.push_back(ModelJson(name));
  return DumpJson(ordered_json{{"object", "list"}, {"data", std::move(data)}});
}

ApiError HttpApi::ClientGone() { return {.status = 499, .message = "the client has gone"}; }

ApiError HttpApi::PoolFull() {
  return {.status = 429,
          .message =
              "too many requests wait to be tokenized: try again later "
              "(--tokenizer-queue-max)",
          .code = "queue_full"};
}

// A worker makes the answer of the request's body alone.
net::awaitable<void> HttpApi::AnswerBody(Exchange& exchange, BodyAnswer answer) {
  std::function<ApiResult<std::string>()> work = [&] {
    const std::string taken = std::move(exchange.body);
    return (preparer_.*answer)(taken);
  };
  const size_t bytes = exchange.body.size();
  auto made = co_await Offload(context_, pool_, exchange.record.tenant, bytes, std::move(work));
  exchange.reply.BodyDropped();
  if (!made) co_return co_await SendError(exchange, PoolFull());
  auto body = std::move(*made);
  if (!body) co_return co_await SendError(exchange, std::move(body.error()));
  HttpResponse response;
  response.body = std::move(*body);
  co_await Send(exchange, std::move(response));
}

}  // namespace kvcake
