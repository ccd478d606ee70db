#include "store/s3_client.h"

#include <curl/curl.h>
#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/hash.h"
#include "base/printable.h"
#include "io/file_system.h"

namespace kvcake {
namespace {

constexpr size_t kMessageMax = 200;
// Beyond it S3 says that a clock is wrong; less is no reason to believe the server's.
constexpr int64_t kSkewMin_s = 60;

// What a server that is busy, or in trouble for a moment, says.
bool MayPass(const CurlReply& reply) {
  return reply.status == 408 || reply.status == 409 || reply.status == 429 ||
         (reply.status >= 500 && reply.status != 501);
}

// Whether what was asked for may be done all the same.
bool MayBeDone(const CurlReply& reply) { return reply.status >= 500 && reply.status != 503; }

// host or host:port, as the Host header has it: without the port that the scheme implies.
std::string HostOf(std::string_view url) {
  const bool is_tls = url.starts_with("https:");
  url.remove_prefix(url.find("://") + 3);
  std::string_view host = url.substr(0, url.find('/'));
  const std::string_view implied = is_tls ? ":443" : ":80";
  if (host.ends_with(implied)) host.remove_suffix(implied.size());
  return std::string(host);
}

std::string PathOf(std::string_view url) {
  const size_t slash = url.find('/', url.find("://") + 3);
  return slash == url.npos ? "" : std::string(url.substr(slash));
}

}  // namespace

std::string_view XmlElement(std::string_view xml, std::string_view tag) {
  const std::string open = fmt::format("<{}>", tag), close = fmt::format("</{}>", tag);
  const size_t begin = xml.find(open);
  if (begin == xml.npos) return "";
  const size_t from = begin + open.size(), end = xml.find(close, from);
  return end == xml.npos ? "" : xml.substr(from, end - from);
}

std::string S3ErrorCode(const CurlReply& reply) {
  return PrintableAscii(std::string(XmlElement(reply.text, "Code")).substr(0, kMessageMax));
}

std::string S3ErrorText(const CurlReply& reply) {
  const std::string code = S3ErrorCode(reply);
  const std::string message =
      PrintableAscii(std::string(XmlElement(reply.text, "Message")).substr(0, kMessageMax));
  return fmt::format("{}{}{}{}{}", reply.status, code.empty() ? "" : " ", code,
                     message.empty() ? "" : ": ", message);
}

std::string PayloadSha256(std::span<const std::span<const std::byte>> body) {
  Sha256 hash;
  for (const auto& piece : body) hash.Update(piece);
  return ToHex(hash.Finish());
}

struct S3Client::Asked {
  S3Request request;
  TimePoint until;
  int tries = 0;
  bool is_mended = false;
  bool may_be_done = false;  // by an earlier try
  // What it was signed with the last time.
  S3Credentials credentials = {};
  std::string region = {};
  int64_t server_ahead_s = 0;
};

Result<std::unique_ptr<S3Client>> S3Client::Open(S3ClientOptions options) {
  // What the environment or a file gets wrong is said now; that nothing is there, when it is
  // needed.
  if (!options.credentials) {
    const auto local = LocalCredentials(options.place.profile);
    if (!local) return tl::unexpected(local.error());
  }
  std::unique_ptr<S3Client> client(new S3Client(std::move(options)));
  const S3ClientOptions& with = client->options_;
  ASSIGN_OR_RETURN(client->http_, CurlClient::Open({.connections = with.connections,
                                                    .connect_timeout = with.connect_timeout,
                                                    .stall_timeout = with.stall_timeout,
                                                    .ca = with.place.ca}));
  client->credentials_.emplace(*client->http_, with.place.profile, with.credentials);
  return client;
}

void S3Client::Send(S3Request request) {
  const auto asked = std::make_shared<Asked>();
  uint64_t bytes = request.landing.size();
  for (const auto& piece : request.body) bytes += piece.size();
  if (request.payload_sha256.empty()) request.payload_sha256 = PayloadSha256(request.body);
  asked->request = std::move(request);
  asked->until = Clock::Real().Now() + options_.give_up +
                 Seconds(static_cast<double>(bytes) / options_.slowest_bytes_per_s);
  // Not from within this call, whatever fails.
  http_->Post([this, asked] { Try(asked); });
}

Seconds S3Client::Left(const Asked& asked) const { return asked.until - Clock::Real().Now(); }

void S3Client::Try(const AskedPtr& asked) {
  ++asked->tries;
  const auto& is_wanted = asked->request.is_wanted;
  if (http_->is_closed() || (is_wanted && !is_wanted())) {
    return asked->request.done(Fail(ErrorCode::kCancelled, "nobody wants it any more"));
  }
  credentials_->Get([this, asked](const Result<S3Credentials>& credentials) {
    if (!credentials) return asked->request.done(tl::unexpected(credentials.error()));
    SendSigned(asked, *credentials);
  });
}

void S3Client::SendSigned(const AskedPtr& asked, const S3Credentials& credentials) {
  asked->credentials = credentials;
  asked->region = options_.place.region;
  asked->server_ahead_s = server_ahead_s_;
  const S3Request& request = asked->request;
  const std::string base = options_.place.BaseUrl();
  std::string path = PathOf(base);
  if (!request.name.empty() || path.empty())
    path.append(1, '/').append(UriEncode(request.name, true));
  SignableRequest signable{.method = request.method,
                           .path = path,
                           .query = request.query,
                           .headers = request.headers,
                           .payload_sha256 = request.payload_sha256};
  signable.headers.emplace_back("host", HostOf(base));
  signable.headers.emplace_back("x-amz-content-sha256", request.payload_sha256);
  signable.headers.emplace_back("x-amz-date", AmzDate(UnixSeconds() + server_ahead_s_));
  if (!credentials.session_token.empty()) {
    signable.headers.emplace_back("x-amz-security-token", credentials.session_token);
  }
  CurlRequest http{.method = request.method,
                   .url = base.substr(0, base.size() - PathOf(base).size()) + path,
                   .headers = signable.headers,
                   .body = request.body,
                   .landing = request.landing,
                   .landing_status = request.landing_status,
                   .until = asked->until,
                   .is_wanted = request.is_wanted};
  if (!request.query.empty()) http.url.append(1, '?').append(UriEncode(request.query));
  http.headers.emplace_back(
      "authorization", Authorization(signable, credentials, {.region = options_.place.region}));
  http.done = [this, asked](Result<CurlReply> reply) { OnReply(asked, std::move(reply)); };
  http_->Send(std::move(http));
}

void S3Client::OnReply(const AskedPtr& asked, Result<CurlReply> reply) {
  if (!reply) {
    const bool may_pass =
        reply.error().code == ErrorCode::kIo || reply.error().code == ErrorCode::kDeadline;
    if (may_pass && MayRetry(*asked)) return Retry(asked, true);
  } else if (!reply->ok()) {
    if (!asked->is_mended && Mend(*asked, *reply)) {
      asked->is_mended = true;
      return Try(asked);
    }
    if (MayPass(*reply) && MayRetry(*asked)) return Retry(asked, MayBeDone(*reply));
  }
  if (reply) reply->is_sent_again |= asked->may_be_done;
  asked->request.done(std::move(reply));
}

bool S3Client::MayRetry(const Asked& asked) const {
  const int tries = asked.request.tries > 0 ? asked.request.tries : options_.tries;
  return asked.tries < tries && Left(asked).count() > 0;
}

bool S3Client::Mend(const Asked& asked, const CurlReply& reply) {
  const std::string code = S3ErrorCode(reply);
  const std::string region(reply.Header("x-amz-bucket-region"));
  const bool is_refused = reply.status == 400 || reply.status == 403;
  // A reply to HEAD has no code: what else could be wrong is looked at.
  const bool is_silent = is_refused && code.empty();
  const bool is_elsewhere = reply.status == 301 || reply.status == 307 || reply.status == 400;
  if (is_elsewhere && IsS3Region(region) && region != asked.region) {
    if (asked.region == options_.place.region) {
      spdlog::warn("{}: its bucket is in {}, not in {}; name it: region={}", options_.place.Text(),
                   region, asked.region, region);
      options_.place.region = region;
    }
    return true;
  }
  if (code == "RequestTimeTooSkewed" || is_silent) {
    const time_t server = curl_getdate(std::string(reply.Header("date")).c_str(), nullptr);
    const int64_t ahead = server < 0 ? 0 : static_cast<int64_t>(server) - UnixSeconds();
    if (std::abs(ahead - asked.server_ahead_s) >= kSkewMin_s) {
      if (asked.server_ahead_s == server_ahead_s_) {
        spdlog::warn("{}: its clock is {} s ahead of this machine's; requests are dated by it",
                     options_.place.Text(), ahead);
        server_ahead_s_ = ahead;
      }
      return true;
    }
  }
  const bool has_expired = code == "ExpiredToken" || code == "InvalidToken" ||
                           code == "TokenRefreshRequired" ||
                           (is_silent && !asked.credentials.session_token.empty());
  return has_expired && credentials_->Forget(asked.credentials);
}

void S3Client::Retry(const AskedPtr& asked, bool may_be_done) {
  asked->may_be_done |= may_be_done;
  const double most =
      std::min(options_.retry_max.count(),
               options_.retry_min.count() * static_cast<double>(1 << std::min(asked->tries, 20)));
  const double wait = std::uniform_real_distribution<double>(0, most)(random_);
  http_->After(Seconds(std::min(wait, std::max(Left(*asked).count(), 0.0))),
               [this, asked] { Try(asked); });
}

}  // namespace kvcake
