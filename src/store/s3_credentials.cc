#include "store/s3_credentials.h"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "io/file_system.h"

namespace kvcake {
namespace {

constexpr const char* kNowhere =
    "no S3 credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write them to "
    "~/.aws/credentials, or give the instance a role";
// They are asked for again so long before they expire, and no more often than that.
constexpr int64_t kEarly_s = 300;
constexpr Seconds kBetweenAsking{30};
// An endpoint that is there answers at once.
constexpr Seconds kInstancePatience{2};
constexpr const char* kTokenSeconds = "21600";

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

std::string Trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r"), last = text.find_last_not_of(" \t\r");
  return first == std::string::npos ? std::string() : text.substr(first, last - first + 1);
}

// [default], [name], [profile name] or [profile "name"]; of the last three the name.
std::string SectionOf(const std::string& line) {
  std::string name = Trimmed(line.substr(1, line.find(']') - 1));
  if (name.starts_with("profile ")) name = Trimmed(name.substr(8));
  if (name.size() > 1 && name.front() == '"' && name.back() == '"') {
    name = name.substr(1, name.size() - 2);
  }
  return name;
}

// What a section of one of AWS's files says; nothing of a file or a section that is not there.
std::optional<S3Credentials> ReadSection(const std::string& path, const std::string& section) {
  std::ifstream file(path);
  std::optional<S3Credentials> found;
  bool is_in = false;
  for (std::string line; std::getline(file, line);) {
    line = Trimmed(line);
    if (line.starts_with('[')) {
      is_in = SectionOf(line) == section;
      continue;
    }
    const size_t equals = line.find('=');
    if (!is_in || line.starts_with('#') || line.starts_with(';') || equals == line.npos) continue;
    std::string name = Trimmed(line.substr(0, equals));
    const std::string value = Trimmed(line.substr(equals + 1));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    const auto set = [&](std::string S3Credentials::*field) {
      if (!found) found.emplace();
      (*found).*field = value;
    };
    if (name == "aws_access_key_id") set(&S3Credentials::access_key);
    if (name == "aws_secret_access_key") set(&S3Credentials::secret_key);
    if (name == "aws_session_token") set(&S3Credentials::session_token);
  }
  return found;
}

std::string PathOf(const char* variable, const char* name) {
  const std::string given = Environment(variable);
  return given.empty() ? Environment("HOME") + "/.aws/" + name : given;
}

// What goes into headers has no ends of lines.
bool IsPlain(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

bool IsWhole(const S3Credentials& credentials) {
  return !credentials.access_key.empty() && !credentials.secret_key.empty() &&
         IsPlain(credentials.access_key) && IsPlain(credentials.session_token);
}

// Sources of AWS's programs that kvcake does not look at: another identity would be used instead.
constexpr const char* kOtherSources[] = {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                                         "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                         "AWS_WEB_IDENTITY_TOKEN_FILE"};

}  // namespace

Result<std::optional<S3Credentials>> LocalCredentials(const std::string& given) {
  const std::string set_profile = Environment("AWS_PROFILE");
  const std::string profile = !given.empty() ? given : set_profile;
  const S3Credentials set{Environment("AWS_ACCESS_KEY_ID"), Environment("AWS_SECRET_ACCESS_KEY"),
                          Environment("AWS_SESSION_TOKEN")};
  // A profile that the store names is meant, whatever else is set.
  if (given.empty() && (!set.access_key.empty() || !set.secret_key.empty())) {
    if (IsWhole(set)) return set;
    return Fail(ErrorCode::kInvalidArgument,
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY go together: {} is not set",
                set.access_key.empty() ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY");
  }
  const std::string name = profile.empty() ? "default" : profile;
  const std::pair<std::string, std::string> sections[] = {
      {PathOf("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name},
      {PathOf("AWS_CONFIG_FILE", "config"), name}};
  for (const auto& [path, section] : sections) {
    const auto found = ReadSection(path, section);
    if (!found) continue;
    if (IsWhole(*found)) return found;
    return Fail(ErrorCode::kInvalidArgument,
                "[{}] of {} needs both aws_access_key_id and aws_secret_access_key", section, path);
  }
  if (profile.empty()) {
    for (const char* const source : kOtherSources) {
      if (Environment(source).empty()) continue;
      return Fail(ErrorCode::kUnsupported,
                  "S3 credentials of {} are not known to kvcake: set AWS_ACCESS_KEY_ID, "
                  "AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
                  source);
    }
    return std::nullopt;
  }
  return Fail(ErrorCode::kInvalidArgument, "neither {} nor {} has credentials of profile '{}'",
              sections[0].first, sections[1].first, profile);
}

Result<S3Credentials> ParseInstanceCredentials(std::string_view text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto field = [&](const char* name) {
    const auto at = json.is_object() ? json.find(name) : json.end();
    return at != json.end() && at->is_string() ? at->template get<std::string>() : std::string();
  };
  S3Credentials credentials{field("AccessKeyId"), field("SecretAccessKey"), field("Token")};
  tm expires = {};
  const std::string when = field("Expiration");
  if (!IsWhole(credentials) || strptime(when.c_str(), "%Y-%m-%dT%H:%M:%S", &expires) == nullptr) {
    return Fail(ErrorCode::kIo, "the instance endpoint answers no credentials");
  }
  credentials.expires_s = timegm(&expires);
  return credentials;
}

S3CredentialSource::S3CredentialSource(CurlClient& http, std::string profile,
                                       std::optional<S3Credentials> given)
    : http_(http),
      profile_(std::move(profile)),
      instance_endpoint_([] {
        std::string disabled = Environment("AWS_EC2_METADATA_DISABLED");
        for (char& c : disabled) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        if (disabled == "true") return std::string();
        std::string given = Environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
        while (given.ends_with('/')) given.pop_back();
        return given.empty() ? std::string("http://169.254.169.254") : given;
      }()),
      is_given_(given.has_value()),
      known_(std::move(given)) {}

bool S3CredentialSource::Forget(const S3Credentials& bad) {
  if (is_given_) return false;
  const auto are_bad = [&](const std::optional<S3Credentials>& some) {
    return some && some->access_key == bad.access_key && some->secret_key == bad.secret_key &&
           some->session_token == bad.session_token;
  };
  if (!are_bad(known_)) return true;
  // The environment and the files say what they said: something else is refused.
  if (const auto local = LocalCredentials(profile_); local && are_bad(*local)) return false;
  // The instance endpoint had no others a moment ago: something else is refused.
  if (are_bad(forgotten_) && Clock::Real().Now() - asked_ < kBetweenAsking) return false;
  forgotten_ = std::exchange(known_, std::nullopt);
  asked_ = {};
  return true;
}

void S3CredentialSource::Get(Ready ready) {
  const int64_t left = !known_                  ? 0
                       : known_->expires_s == 0 ? kEarly_s + 1
                                                : known_->expires_s - UnixSeconds();
  if (!known_ && waiting_.empty()) {
    auto local = LocalCredentials(profile_);
    if (!local) return ready(tl::unexpected(local.error()));
    if (*local) {
      known_ = **local;
      return ready(*known_);
    }
    if (instance_endpoint_.empty()) return ready(Fail(ErrorCode::kInvalidArgument, "{}", kNowhere));
  }
  const TimePoint now = Clock::Real().Now();
  const bool was_asked = asked_ != TimePoint{} && now - asked_ < kBetweenAsking;
  const bool may_ask = !is_asking_ && !was_asked;
  if (left > 0) {
    if (left <= kEarly_s && may_ask) AskForToken();
    return ready(*known_);
  }
  if (!is_asking_ && !may_ask) {
    if (refused_) return ready(tl::unexpected(*refused_));
    return ready(*known_);  // given a moment ago: one of the clocks is wrong
  }
  waiting_.push_back(std::move(ready));
  if (!is_asking_) AskForToken();
}

// Version 2 of the instance endpoint: a token, then the role's name, then its credentials.
void S3CredentialSource::AskForToken() {
  is_asking_ = true;
  asked_ = Clock::Real().Now();
  Ask({.method = "PUT",
       .url = instance_endpoint_ + "/latest/api/token",
       .headers = {{"X-aws-ec2-metadata-token-ttl-seconds", kTokenSeconds}}},
      [this](const CurlReply& reply) {
        if (IsPlain(reply.text)) return AskForRole(reply.text);
        Answer(Fail(ErrorCode::kIo, "{} (the instance endpoint answers no token)", kNowhere));
      });
}

void S3CredentialSource::AskForRole(const std::string& token) {
  Ask({.url = instance_endpoint_ + "/latest/meta-data/iam/security-credentials/",
       .headers = {{"X-aws-ec2-metadata-token", token}}},
      [this, token](const CurlReply& reply) {
        AskForCredentials(token, reply.text.substr(0, reply.text.find('\n')));
      });
}

void S3CredentialSource::AskForCredentials(const std::string& token, const std::string& role) {
  Ask({.url = instance_endpoint_ + "/latest/meta-data/iam/security-credentials/" + UriEncode(role),
       .headers = {{"X-aws-ec2-metadata-token", token}}},
      [this](const CurlReply& reply) { Answer(ParseInstanceCredentials(reply.text)); });
}

void S3CredentialSource::Ask(CurlRequest request, std::function<void(const CurlReply&)> next) {
  request.until = Clock::Real().Now() + kInstancePatience;
  request.is_direct = true;
  request.done = [this, next = std::move(next)](Result<CurlReply> reply) {
    if (reply && reply->ok()) return next(*reply);
    if (!reply && reply.error().code == ErrorCode::kCancelled) {
      return Answer(tl::unexpected(reply.error()));
    }
    Answer(Fail(ErrorCode::kIo, "{} (the instance endpoint: {})", kNowhere,
                reply ? fmt::format("status {}", reply->status) : reply.error().message));
  };
  http_.Send(std::move(request));
}

void S3CredentialSource::Answer(Result<S3Credentials> result) {
  is_asking_ = false;
  refused_.reset();
  if (result) {
    known_ = *result;
  } else {
    refused_ = result.error();
  }
  const auto waiting = std::exchange(waiting_, {});
  for (const Ready& ready : waiting) ready(result);
}

}  // namespace kvcake
