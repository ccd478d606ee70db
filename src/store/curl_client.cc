#include "store/curl_client.h"

#include <curl/curl.h>
#include <fmt/core.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/printable.h"

namespace kvcake {
namespace {

// What libcurl reads into and writes from, at a time.
constexpr long kReadBytes = 512 << 10, kWriteBytes = 512 << 10;
constexpr size_t kHeadersMax = 256, kHeaderBytesMax = 64 << 10, kErrorTextMax = 64 << 10;
constexpr Seconds kBetweenLooks{0.05};  // through what waits
constexpr int kPollMilliseconds = 1000;

std::string_view Trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

long Milliseconds(Seconds time) {
  return std::clamp(std::lround(std::min(time.count(), 1e6) * 1e3), 1L, 1000000000L);
}

}  // namespace

std::string_view CurlReply::Header(std::string_view name) const {
  for (const auto& [of, value] : headers) {
    if (of == name) return value;
  }
  return "";
}

struct CurlClient::Curl {
  CURLM* multi = nullptr;

  ~Curl() {
    if (multi != nullptr) curl_multi_cleanup(multi);
  }
};

struct CurlClient::Transfer {
  CurlRequest request;
  size_t text_max = 0;
  Seconds stall_timeout{};
  CurlReply reply = {};
  curl_slist* headers = nullptr;
  size_t header_bytes = 0;
  size_t piece = 0, sent = 0;  // of the body: which piece, and how much of it
  curl_off_t moved = 0;        // bytes, both ways
  TimePoint moved_at{};
  bool is_too_long = false, is_told = false, is_unwanted = false, is_stalled = false;
  std::array<char, CURL_ERROR_SIZE> error = {};

  ~Transfer() { curl_slist_free_all(headers); }

  uint64_t body_bytes() const {
    uint64_t bytes = 0;
    for (const auto& part : request.body) bytes += part.size();
    return bytes;
  }

  // What libcurl calls; `self` is a Transfer.
  static size_t OnBody(char* data, size_t, size_t bytes, void* self) {
    return static_cast<Transfer*>(self)->TakeBody(data, bytes);
  }
  static size_t OnHeader(char* data, size_t, size_t bytes, void* self) {
    return static_cast<Transfer*>(self)->TakeHeader({data, bytes});
  }
  static size_t OnRead(char* buffer, size_t, size_t bytes, void* self) {
    return static_cast<Transfer*>(self)->GiveBody(buffer, bytes);
  }
  // Only ever back to the beginning, where a connection that was kept turns out to be gone.
  static int OnSeek(void* self, curl_off_t offset, int origin) {
    if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    auto& transfer = *static_cast<Transfer*>(self);
    transfer.piece = transfer.sent = 0;
    transfer.reply.is_sent_again = true;
    return CURL_SEEKFUNC_OK;
  }
  static int OnProgress(void* self, curl_off_t, curl_off_t down, curl_off_t, curl_off_t up) {
    auto& transfer = *static_cast<Transfer*>(self);
    const auto& is_wanted = transfer.request.is_wanted;
    const TimePoint now = Clock::Real().Now();
    if (down + up != std::exchange(transfer.moved, down + up)) transfer.moved_at = now;
    transfer.is_stalled = now - transfer.moved_at > transfer.stall_timeout;
    transfer.is_unwanted = is_wanted && !is_wanted();
    return transfer.is_stalled || transfer.is_unwanted ? 1 : 0;
  }

 private:
  size_t TakeBody(const char* data, size_t bytes) {
    if (!request.landing.empty() && reply.status == request.landing_status) {
      is_too_long = bytes > request.landing.size() - reply.bytes;
      if (is_too_long) return 0;
      std::memcpy(request.landing.data() + reply.bytes, data, bytes);
      reply.bytes += bytes;
    } else if (reply.ok() && request.landing.empty()) {
      is_too_long = bytes > text_max - reply.text.size();
      if (is_too_long) return 0;
      reply.text.append(data, bytes);
    } else {  // it tells what is wrong, if anything
      reply.text.append(data, std::min(bytes, kErrorTextMax - reply.text.size()));
      is_told = reply.text.size() == kErrorTextMax;  // what follows nobody reads
      if (is_told) return 0;
    }
    return bytes;
  }
  size_t TakeHeader(std::string_view line) {
    if (reply.bytes > 0 || !reply.text.empty()) return line.size();  // a trailer
    if (line.starts_with("HTTP/")) {  // those of 100 Continue, and the like, are not the reply's
      reply.headers.clear();
      reply.status = 0;
      header_bytes = 0;
      const size_t space = std::min(line.find(' '), line.size() - 1);
      std::from_chars(line.data() + space + 1, line.data() + line.size(), reply.status);
      return line.size();
    }
    const size_t colon = line.find(':');
    header_bytes += line.size();
    if (colon == line.npos || reply.headers.size() == kHeadersMax ||
        header_bytes > kHeaderBytesMax) {
      return line.size();
    }
    std::string name(line.substr(0, colon));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    reply.headers.emplace_back(std::move(name), Trimmed(line.substr(colon + 1)));
    return line.size();
  }
  size_t GiveBody(char* buffer, size_t room) {
    size_t given = 0;
    while (piece < request.body.size() && given < room) {
      const auto rest = request.body[piece].subspan(sent);
      const size_t bytes = std::min(rest.size(), room - given);
      std::memcpy(buffer + given, rest.data(), bytes);
      given += bytes;
      sent += bytes;
      if (bytes < rest.size()) break;
      ++piece;
      sent = 0;
    }
    return given;
  }
};

Result<std::unique_ptr<CurlClient>> CurlClient::Open(CurlClientOptions options) {
  static std::once_flag once;
  static CURLcode initialised;
  std::call_once(once, [] { initialised = curl_global_init(CURL_GLOBAL_DEFAULT); });
  if (initialised != CURLE_OK) {
    return Fail(ErrorCode::kUnsupported, "libcurl cannot be used: {}",
                curl_easy_strerror(initialised));
  }
  if (!options.ca.empty()) {
    FILE* const file = fopen(options.ca.c_str(), "r");
    if (file == nullptr) {
      return Fail(ErrorCode::kInvalidArgument, "tls-ca {} cannot be read: {}", options.ca,
                  std::strerror(errno));
    }
    fclose(file);
  }
  auto curl = std::make_unique<Curl>();
  curl->multi = curl_multi_init();
  if (curl->multi == nullptr) {
    return Fail(ErrorCode::kResourceExhausted, "libcurl has no memory");
  }
  curl_multi_setopt(curl->multi, CURLMOPT_PIPELINING, static_cast<long>(CURLPIPE_NOTHING));
  curl_multi_setopt(curl->multi, CURLMOPT_MAXCONNECTS, static_cast<long>(options.connections));
  return std::unique_ptr<CurlClient>(new CurlClient(std::move(options), std::move(curl)));
}

CurlClient::CurlClient(CurlClientOptions options, std::unique_ptr<Curl> curl)
    : options_(std::move(options)), curl_(std::move(curl)), thread_([this] { Run(); }) {}

CurlClient::~CurlClient() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  curl_multi_wakeup(curl_->multi);
  thread_.join();
  for (void* const handle : idle_handles_) curl_easy_cleanup(handle);
}

void CurlClient::Post(std::function<void()> function) {
  {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(function));
  }
  curl_multi_wakeup(curl_->multi);
}

void CurlClient::Send(CurlRequest request) {
  if (!is_closed_) return waiting_.push_back(std::move(request));
  Post([this, request = std::move(request)]() mutable {
    Finish(std::move(request), Fail(ErrorCode::kCancelled, "the client is closed"));
  });
}

void CurlClient::After(Seconds wait, std::function<void()> function) {
  if (is_closed_) return Post(std::move(function));
  timers_.emplace(Clock::Real().Now() + wait, std::move(function));
}

void CurlClient::Close() {
  if (std::exchange(is_closed_, true)) return;
  // Not from within the call that closes it.
  Post([this] {
    EndTransfers();
    auto timers = std::exchange(timers_, {});
    for (auto& [time, function] : timers) function();
  });
}

void CurlClient::Run() {
  // A connection that the server has closed is an error of a call, and no signal.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  while (RunPosted()) {
    RunTimers();
    StartWaiting();
    int running = 0;
    CHECK(curl_multi_perform(curl_->multi, &running) == CURLM_OK);
    TakeEnded();
    CHECK(curl_multi_poll(curl_->multi, nullptr, 0, PollMilliseconds(), nullptr) == CURLM_OK);
  }
}

// False once the client is being destroyed and nothing is left to do.
bool CurlClient::RunPosted() {
  while (true) {
    std::vector<std::function<void()>> posted;
    bool stop;
    {
      MutexLock lock(mutex_);
      posted.swap(posted_);
      stop = stop_;
    }
    for (auto& function : posted) function();
    if (!posted.empty()) continue;
    if (!stop) return true;
    if (is_closed_) return false;
    Close();
  }
}

void CurlClient::RunTimers() {
  const TimePoint now = Clock::Real().Now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto function = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    function();
  }
}

int CurlClient::PollMilliseconds() const {
  if (!waiting_.empty() && transfers_.size() < static_cast<size_t>(options_.connections)) return 0;
  if (timers_.empty()) return kPollMilliseconds;
  const Seconds left = timers_.begin()->first - Clock::Real().Now();
  return std::clamp(static_cast<int>(std::ceil(left.count() * 1e3)), 0, kPollMilliseconds);
}

void CurlClient::LookThroughWaiting() {
  const TimePoint now = Clock::Real().Now();
  if (waiting_.empty() || now - looked_through_ < kBetweenLooks) return;
  looked_through_ = now;
  std::deque<CurlRequest> waiting = std::exchange(waiting_, {});
  for (CurlRequest& request : waiting) {
    if (request.is_wanted && !request.is_wanted()) {
      Finish(std::move(request), Fail(ErrorCode::kCancelled, "nobody wants it any more"));
    } else if (request.until <= now) {
      Finish(std::move(request), Fail(ErrorCode::kDeadline, "too many requests were before it"));
    } else {
      waiting_.push_back(std::move(request));
    }
  }
}

void CurlClient::StartWaiting() {
  LookThroughWaiting();
  while (!waiting_.empty() && transfers_.size() < static_cast<size_t>(options_.connections)) {
    CurlRequest request = std::move(waiting_.front());
    waiting_.pop_front();
    Start(std::move(request));
  }
}

void CurlClient::Start(CurlRequest request) {
  void* handle = nullptr;
  if (idle_handles_.empty()) {
    handle = curl_easy_init();
  } else {
    handle = idle_handles_.back();
    idle_handles_.pop_back();
  }
  if (handle == nullptr) {
    return Finish(std::move(request), Fail(ErrorCode::kIo, "libcurl has no memory"));
  }
  auto transfer = std::make_unique<Transfer>();
  Transfer& of = *transfer;
  of.request = std::move(request);
  of.text_max = options_.text_max;
  of.stall_timeout = options_.stall_timeout;
  of.moved_at = Clock::Real().Now();
  for (const auto& [name, value] : of.request.headers) {
    of.headers = curl_slist_append(of.headers, fmt::format("{}: {}", name, value).c_str());
  }
  // It would wait for a server that does not know the header.
  of.headers = curl_slist_append(of.headers, "Expect:");
  const auto set = [&](CURLoption option, auto value) { curl_easy_setopt(handle, option, value); };
  set(CURLOPT_URL, of.request.url.c_str());
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  set(CURLOPT_HTTPHEADER, of.headers);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_QUICK_EXIT, 1L);  // a hanging name server is not waited for
  set(CURLOPT_TCP_NODELAY, 1L);
  set(CURLOPT_BUFFERSIZE, kReadBytes);
  set(CURLOPT_UPLOAD_BUFFERSIZE, kWriteBytes);
  set(CURLOPT_CONNECTTIMEOUT_MS, Milliseconds(options_.connect_timeout));
  set(CURLOPT_TIMEOUT_MS, Milliseconds(of.request.until - of.moved_at));
  set(CURLOPT_ERRORBUFFER, of.error.data());
  set(CURLOPT_WRITEFUNCTION, &Transfer::OnBody);
  set(CURLOPT_WRITEDATA, &of);
  set(CURLOPT_HEADERFUNCTION, &Transfer::OnHeader);
  set(CURLOPT_HEADERDATA, &of);
  set(CURLOPT_XFERINFOFUNCTION, &Transfer::OnProgress);
  set(CURLOPT_XFERINFODATA, &of);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  if (!options_.ca.empty()) {
    set(CURLOPT_CAINFO, options_.ca.c_str());
    set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));  // and nobody else
  }
  if (of.request.is_direct) set(CURLOPT_NOPROXY, "*");
  if (of.request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (of.request.method == "PUT") {
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(of.body_bytes()));
    set(CURLOPT_READFUNCTION, &Transfer::OnRead);
    set(CURLOPT_READDATA, &of);
    set(CURLOPT_SEEKFUNCTION, &Transfer::OnSeek);
    set(CURLOPT_SEEKDATA, &of);
  } else if (of.request.method != "GET") {
    CHECK(of.request.body.empty());
    set(CURLOPT_CUSTOMREQUEST, of.request.method.c_str());
  }
  transfers_.emplace(handle, std::move(transfer));
  CHECK(curl_multi_add_handle(curl_->multi, handle) == CURLM_OK);
}

void CurlClient::TakeEnded() {
  int left = 0;
  while (const CURLMsg* const message = curl_multi_info_read(curl_->multi, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    void* const handle = message->easy_handle;
    const CURLcode code = message->data.result;
    curl_multi_remove_handle(curl_->multi, handle);  // `message` is gone with it
    const auto node = transfers_.extract(handle);
    Transfer& transfer = *node.mapped();
    curl_easy_reset(handle);  // it knows the transfer no more
    idle_handles_.push_back(handle);
    if (code == CURLE_OK || transfer.is_told) {
      Finish(std::move(transfer.request), std::move(transfer.reply));
    } else if (transfer.is_unwanted) {
      Finish(std::move(transfer.request), Fail(ErrorCode::kCancelled, "nobody wants it any more"));
    } else if (transfer.is_too_long) {
      const bool has_landed = !transfer.request.landing.empty();
      Finish(std::move(transfer.request), Fail(has_landed ? ErrorCode::kCorrupt : ErrorCode::kIo,
                                               "it is longer than it should be"));
    } else if (transfer.is_stalled) {
      Finish(std::move(transfer.request),
             Fail(ErrorCode::kDeadline, "not a byte came or went for {} s",
                  transfer.stall_timeout.count()));
    } else {
      ErrorCode error = ErrorCode::kIo;
      if (code == CURLE_OPERATION_TIMEDOUT) error = ErrorCode::kDeadline;
      if (code == CURLE_PEER_FAILED_VERIFICATION) error = ErrorCode::kInvalidArgument;
      const std::string why =
          transfer.error[0] != '\0' ? transfer.error.data() : curl_easy_strerror(code);
      Finish(std::move(transfer.request), Fail(error, "{}", PrintableAscii(why)));
    }
  }
}

void CurlClient::EndTransfers() {
  auto transfers = std::exchange(transfers_, {});
  auto waiting = std::exchange(waiting_, {});
  for (auto& [handle, transfer] : transfers) {
    curl_multi_remove_handle(curl_->multi, handle);
    curl_easy_cleanup(handle);
  }
  const auto closed = Fail(ErrorCode::kCancelled, "the client is closed");
  for (auto& [handle, transfer] : transfers) Finish(std::move(transfer->request), closed);
  for (CurlRequest& request : waiting) Finish(std::move(request), closed);
}

void CurlClient::Finish(CurlRequest request, Result<CurlReply> reply) {
  request.done(std::move(reply));
}

}  // namespace kvcake
