#include "store/s3_signature.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "base/check.h"
#include "base/hash.h"

namespace kvcake {
namespace {

constexpr const char* kAlgorithm = "AWS4-HMAC-SHA256";

std::string_view AsText(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

std::string Lower(std::string_view text) {
  std::string lower;
  for (const unsigned char c : text) lower += static_cast<char>(std::tolower(c));
  return lower;
}

// Without spaces around it, and with one for several.
std::string Squeezed(std::string_view value) {
  std::string squeezed;
  for (const char c : value) {
    if (c == ' ' && (squeezed.empty() || squeezed.back() == ' ')) continue;
    squeezed += c;
  }
  if (squeezed.ends_with(' ')) squeezed.pop_back();
  return squeezed;
}

}  // namespace

std::string UriEncode(std::string_view text, bool keep_slash) {
  std::string encoded;
  for (const unsigned char c : text) {
    const bool is_plain = (c < 128 && std::isalnum(c)) || c == '-' || c == '.' || c == '_' ||
                          c == '~' || (keep_slash && c == '/');
    if (is_plain) {
      encoded += static_cast<char>(c);
    } else {
      encoded += fmt::format("%{:02X}", c);
    }
  }
  return encoded;
}

std::string UriEncode(const UrlQuery& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) encoded.emplace_back(UriEncode(name), UriEncode(value));
  std::sort(encoded.begin(), encoded.end());
  std::string text;
  for (const auto& [name, value] : encoded) {
    if (!text.empty()) text += '&';
    text += fmt::format("{}={}", name, value);
  }
  return text;
}

std::string AmzDate(int64_t unix_s) {
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

std::string Authorization(const SignableRequest& request, const S3Credentials& credentials,
                          const SignatureScope& scope) {
  std::map<std::string, std::string> headers;  // sorted by name
  for (const auto& [name, value] : request.headers) {
    auto& of_name = headers[Lower(name)];
    if (!of_name.empty()) of_name += ',';
    of_name += Squeezed(value);
  }
  const auto date = headers.find("x-amz-date");
  CHECK(date != headers.end() && headers.contains("host"));
  std::string lines, names;
  for (const auto& [name, value] : headers) {
    lines += fmt::format("{}:{}\n", name, value);
    if (!names.empty()) names += ';';
    names += name;
  }
  const std::string canonical =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path, UriEncode(request.query),
                  lines, names, request.payload_sha256);
  const std::string day = date->second.substr(0, 8);
  const std::string where = fmt::format("{}/{}/{}/aws4_request", day, scope.region, scope.service);
  const std::string to_sign = fmt::format("{}\n{}\n{}\n{}", kAlgorithm, date->second, where,
                                          ToHex(Sha256().Update(canonical).Finish()));
  Digest key = HmacSha256("AWS4" + credentials.secret_key, day);
  key = HmacSha256(AsText(key), scope.region);
  key = HmacSha256(AsText(key), scope.service);
  key = HmacSha256(AsText(key), "aws4_request");
  return fmt::format("{} Credential={}/{},SignedHeaders={},Signature={}", kAlgorithm,
                     credentials.access_key, where, names, ToHex(HmacSha256(AsText(key), to_sign)));
}

}  // namespace kvcake
