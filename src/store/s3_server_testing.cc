#include "store/s3_server_testing.h"

#include <arpa/inet.h>
#include <fmt/chrono.h>
#include <fmt/core.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/check.h"
#include "base/hash.h"
#include "io/file_system.h"
#include "store/store_url.h"

namespace kvcake {
namespace {

constexpr std::string_view kBucket = "/bucket";
constexpr int64_t kSkewMax_s = 900;
constexpr size_t kPageMax = 1000;

std::string HttpDate(int64_t unix_s) {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S GMT}", fmt::gmtime(static_cast<time_t>(unix_s)));
}

uint64_t Number(std::string_view text) {
  uint64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string ErrorBody(const std::string& code, size_t text_bytes = 0) {
  return fmt::format(
      "<?xml version=\"1.0\"?><Error><Code>{}</Code><Message>told to{}</Message></Error>", code,
      std::string(text_bytes, '.'));
}

bool SendAll(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Appends what comes; false when nothing more does.
bool Receive(int socket, std::string& into) {
  char some[64 << 10];
  const ssize_t got = recv(socket, some, sizeof(some), 0);
  if (got > 0) into.append(some, static_cast<size_t>(got));
  return got > 0;
}

// Takes a request out of what has come; nothing when the connection has ended.
std::optional<S3Seen> ReadRequest(int socket, std::string& pending) {
  size_t end;
  while ((end = pending.find("\r\n\r\n")) == std::string::npos) {
    if (!Receive(socket, pending)) return std::nullopt;
  }
  S3Seen seen;
  std::string_view head = std::string_view(pending).substr(0, end);
  const std::string_view first = head.substr(0, head.find("\r\n"));
  const size_t space = first.find(' ');
  seen.method = first.substr(0, space);
  seen.target = first.substr(space + 1, first.rfind(' ') - space - 1);
  while (head.find("\r\n") != head.npos) {
    head.remove_prefix(head.find("\r\n") + 2);
    const std::string_view line = head.substr(0, head.find("\r\n"));
    const size_t colon = line.find(':');
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    std::string_view value = line.substr(colon + 1);
    while (value.starts_with(' ')) value.remove_prefix(1);
    seen.headers[name] = value;
  }
  const size_t body = Number(seen.headers["content-length"]), from = end + 4;
  while (pending.size() < from + body) {
    if (!Receive(socket, pending)) return std::nullopt;
  }
  seen.body = pending.substr(from, body);
  pending.erase(0, from + body);
  const std::string_view target = seen.target;
  const size_t question = target.find('?');
  const std::string path = DecodeUrlText(target.substr(0, question)).value_or("");
  if (path.starts_with(std::string(kBucket) + "/")) seen.name = path.substr(kBucket.size() + 1);
  std::string_view rest = question == target.npos ? "" : target.substr(question + 1);
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find('&'));
    const size_t equals = std::min(one.find('='), one.size() - 1);
    seen.query[DecodeUrlText(one.substr(0, equals)).value_or("")] =
        DecodeUrlText(one.substr(equals + 1)).value_or("");
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
  }
  return seen;
}

}  // namespace

S3Server::S3Server() {
  setenv("no_proxy", "127.0.0.1", 1);
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(listener_ >= 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  CHECK(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  port_ = ntohs(address.sin_port);
  CHECK(listen(listener_, 128) == 0);
  listening_ = std::thread([this] { Listen(); });
}

S3Server::~S3Server() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  shutdown(listener_, SHUT_RDWR);
  listening_.join();
  CutConnections();
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  close(listener_);
}

S3Place S3Server::Place() const {
  return {.bucket = "bucket", .region = "us-east-1", .endpoint = endpoint(), .is_path_style = true};
}

void S3Server::SetFault(std::function<S3Fault(const S3Seen&)> fault) {
  MutexLock lock(mutex_);
  fault_ = std::move(fault);
}

void S3Server::SetClockAhead(int64_t seconds) {
  MutexLock lock(mutex_);
  ahead_s_ = seconds;
}

void S3Server::SetCredentials(S3Credentials credentials) {
  MutexLock lock(mutex_);
  credentials_ = std::move(credentials);
}

std::vector<S3Seen> S3Server::Requests() const {
  MutexLock lock(mutex_);
  return seen_;
}

std::optional<std::string> S3Server::Object(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto at = objects_.find(name);
  return at == objects_.end() ? std::nullopt : std::optional(at->second.bytes);
}

void S3Server::SetObject(const std::string& name, std::string bytes) {
  MutexLock lock(mutex_);
  objects_[name] = {std::move(bytes), Now()};
}

std::vector<std::string> S3Server::Names() const {
  MutexLock lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, kept] : objects_) names.push_back(name);
  return names;
}

void S3Server::CutConnections() {
  MutexLock lock(mutex_);
  for (const int socket : sockets_) shutdown(socket, SHUT_RDWR);
}

int64_t S3Server::Now() const { return UnixSeconds() + ahead_s_; }

void S3Server::Listen() {
  while (true) {
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    MutexLock lock(mutex_);
    if (socket < 0 || stop_) {
      if (socket >= 0) close(socket);
      return;
    }
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    sockets_.insert(socket);
    threads_.emplace_back([this, socket] { Serve(socket); });
  }
}

void S3Server::Serve(int socket) {
  std::string pending;
  while (const auto seen = ReadRequest(socket, pending)) {
    const Reply reply = Answer(*seen);
    const S3Fault& fault = reply.fault;
    if (fault.closes) break;
    std::string head = fmt::format("HTTP/1.1 {} told\r\n", reply.status);
    for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
    if (reply.status != 204 && !reply.headers.contains("Content-Length")) {
      head += fmt::format("Content-Length: {}\r\n", reply.body.size());
    }
    head += "\r\n";
    std::string_view body = seen->method == "HEAD" ? "" : std::string_view(reply.body);
    const auto short_of = fault.cut_after ? fault.cut_after : fault.hang_after;
    const bool is_short = short_of && *short_of < body.size();
    if (is_short) body = body.substr(0, *short_of);
    if (!fault.hangs && (!SendAll(socket, head) || !SendAll(socket, body))) break;
    if (is_short && fault.cut_after) break;
    if (fault.hangs || is_short) {  // until the client, or the test, has had enough
      std::string nothing;
      while (Receive(socket, nothing)) {
      }
      break;
    }
  }
  MutexLock lock(mutex_);
  sockets_.erase(socket);
  close(socket);
}

S3Server::Reply S3Server::Answer(const S3Seen& seen) {
  std::function<S3Fault(const S3Seen&)> fault_of;
  {
    MutexLock lock(mutex_);
    seen_.push_back(seen);
    fault_of = fault_;
  }
  const S3Fault fault = fault_of ? fault_of(seen) : S3Fault{};
  MutexLock lock(mutex_);
  Reply reply;
  if (fault.status > 0) {
    reply = {
        .status = fault.status,
        .headers = {},
        .body = fault.code.empty() ? fault.body : ErrorBody(fault.code, fault.code_text_bytes)};
  } else if (auto refused = Refuse(seen)) {
    reply = std::move(*refused);
  } else {
    reply = seen.name.empty() ? List(seen) : AnswerObject(seen);
  }
  for (const auto& [name, value] : fault.headers) reply.headers[name] = value;
  reply.headers.emplace("Date", HttpDate(Now()));
  reply.fault = fault;
  return reply;
}

std::optional<S3Server::Reply> S3Server::Refuse(const S3Seen& seen) {
  const auto refused = [](const char* code) {
    return Reply{.status = 403, .headers = {}, .body = ErrorBody(code)};
  };
  const auto header = [&](const char* name) {
    const auto at = seen.headers.find(name);
    return at == seen.headers.end() ? std::string() : at->second;
  };
  const std::string authorization = header("authorization"), date = header("x-amz-date");
  if (authorization.empty()) return refused("AccessDenied");
  tm time = {};
  if (strptime(date.c_str(), "%Y%m%dT%H%M%SZ", &time) == nullptr) return refused("AccessDenied");
  if (std::abs(timegm(&time) - Now()) > kSkewMax_s) return refused("RequestTimeTooSkewed");
  if (header("x-amz-security-token") != credentials_.session_token) return refused("ExpiredToken");
  const std::string sent = ToHex(Sha256().Update(seen.body).Finish());
  if (header("x-amz-content-sha256") != sent) return refused("XAmzContentSHA256Mismatch");
  const size_t question = seen.target.find('?');
  SignableRequest signable{.method = seen.method,
                           .path = seen.target.substr(0, question),
                           .query = {seen.query.begin(), seen.query.end()},
                           .payload_sha256 = sent};
  const size_t at = authorization.find("SignedHeaders=") + 14;
  std::string names = authorization.substr(at, authorization.find(',', at) - at) + ';';
  for (size_t end; (end = names.find(';')) != names.npos; names.erase(0, end + 1)) {
    const std::string name = names.substr(0, end);
    signable.headers.emplace_back(name, header(name.c_str()));
  }
  for (const auto& [name, value] : seen.headers) {  // these are to be signed
    if (name.starts_with("x-amz-") && authorization.find(name) == std::string::npos) {
      return refused("AccessDenied");
    }
  }
  if (Authorization(signable, credentials_, {.region = "us-east-1"}) != authorization) {
    return refused("SignatureDoesNotMatch");
  }
  return std::nullopt;
}

S3Server::Reply S3Server::AnswerObject(const S3Seen& seen) {
  const auto at = objects_.find(seen.name);
  const bool is_there = at != objects_.end();
  if (seen.method == "PUT") {
    if (is_there && seen.headers.contains("if-none-match")) {
      return {.status = 412, .headers = {}, .body = ErrorBody("PreconditionFailed")};
    }
    objects_[seen.name] = {seen.body, Now()};
    return {};
  }
  if (seen.method == "DELETE") {
    if (is_there) objects_.erase(at);
    return {.status = 204};
  }
  if (!is_there) return {.status = 404, .headers = {}, .body = ErrorBody("NoSuchKey")};
  const std::string& bytes = at->second.bytes;
  Reply reply{.headers = {{"Last-Modified", HttpDate(at->second.modified_s)},
                          {"ETag", fmt::format("\"{}\"", bytes.size())}},
              .body = bytes};
  if (seen.method == "HEAD") {
    reply.headers["Content-Length"] = std::to_string(bytes.size());
    return reply;
  }
  const auto range = seen.headers.find("range");
  if (range == seen.headers.end()) return reply;
  const std::string_view text = std::string_view(range->second).substr(6);  // bytes=
  const uint64_t first = Number(text), last = Number(text.substr(text.find('-') + 1));
  if (first >= bytes.size())
    return {.status = 416, .headers = {}, .body = ErrorBody("InvalidRange")};
  reply.status = 206;
  reply.body = bytes.substr(first, last - first + 1);
  reply.headers["Content-Range"] =
      fmt::format("bytes {}-{}/{}", first, first + reply.body.size() - 1, bytes.size());
  return reply;
}

S3Server::Reply S3Server::List(const S3Seen& seen) {
  const auto query = [&](const char* name) {
    const auto at = seen.query.find(name);
    return at == seen.query.end() ? std::string() : at->second;
  };
  const std::string prefix = query("prefix");
  std::string body = "<?xml version=\"1.0\"?><ListBucketResult>";
  size_t listed = 0;
  for (auto at = objects_.lower_bound(std::max(prefix, query("continuation-token")));
       at != objects_.end() && at->first.starts_with(prefix); ++at) {
    if (listed++ == kPageMax) {
      body += fmt::format(
          "<IsTruncated>true</IsTruncated><NextContinuationToken>{}"
          "</NextContinuationToken>",
          at->first);
      break;
    }
    const auto modified = fmt::gmtime(static_cast<time_t>(at->second.modified_s));
    body += fmt::format(
        "<Contents><Key>{}</Key><LastModified>{:%Y-%m-%dT%H:%M:%S.000Z}</LastModified>"
        "<Size>{}</Size></Contents>",
        at->first, modified, at->second.bytes.size());
  }
  return {.headers = {{"Content-Type", "application/xml"}}, .body = body + "</ListBucketResult>"};
}

ScopedEnvironment::ScopedEnvironment(
    std::initializer_list<std::pair<const char*, const char*>> variables) {
  for (const auto& [name, value] : variables) {
    const char* const before = std::getenv(name);
    before_.emplace_back(name,
                         before == nullptr ? std::nullopt : std::optional<std::string>(before));
    if (value == nullptr) {
      unsetenv(name);
    } else {
      setenv(name, value, 1);
    }
  }
}

ScopedEnvironment::~ScopedEnvironment() {
  for (const auto& [name, value] : before_) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
}

}  // namespace kvcake
