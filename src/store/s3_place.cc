#include "store/s3_place.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "store/s3_signature.h"

namespace kvcake {
namespace {

constexpr size_t kS3PrefixMax = 512, kRegionMax = 64;
constexpr std::string_view kDefaultRegion = "us-east-1";

bool IsMadeOf(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return (c < 128 && std::isalnum(c)) || others.find(static_cast<char>(c)) != others.npos;
  });
}

// The first of these that is set and says something.
std::string FromEnvironment(std::initializer_list<const char*> names) {
  for (const char* const name : names) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

// AWS wants lower case in new names; others have older ones.
Status CheckBucket(std::string_view bucket) {
  const bool fits = bucket.size() >= 3 && bucket.size() <= 63 && IsMadeOf(bucket, "-._") &&
                    std::isalnum(static_cast<unsigned char>(bucket[0]));
  if (fits) return {};
  return RefuseUrl(
      "'{}' is no name of a bucket: s3://BUCKET/PREFIX, with 3 to 63 letters, digits, "
      "'-', '.' and '_'",
      bucket);
}

Status CheckPrefix(std::string_view prefix) {
  if (prefix.size() > kS3PrefixMax || !IsMadeOf(prefix, "-_.~/=+:")) {
    return RefuseUrl("prefix '{}' must be at most {} letters, digits and -_.~/=+:", prefix,
                     kS3PrefixMax);
  }
  // Some clients and proxies would take these for steps in a path.
  for (const std::string_view step : {"//", "/./", "/../"}) {
    if (fmt::format("/{}", prefix).find(step) != std::string::npos) {
      return RefuseUrl("prefix '{}' has '{}' in it", prefix, step);
    }
  }
  return {};
}

// http[s]://host[:port][/path], without what follows a path.
Status CheckEndpoint(const std::string& endpoint) {
  const size_t mark = endpoint.find("://");
  const std::string scheme = endpoint.substr(0, mark);
  const std::string_view rest =
      mark == std::string::npos ? "" : std::string_view(endpoint).substr(mark + 3);
  if ((scheme == "http" || scheme == "https") && !rest.empty() && rest[0] != '/' &&
      IsMadeOf(rest, "-._~:/[]")) {
    return {};
  }
  const bool has_secret = endpoint.find('@') != std::string::npos;
  return RefuseUrl("endpoint{} must be http://HOST:PORT or https://HOST",
                   has_secret ? "" : fmt::format(" '{}'", endpoint));
}

}  // namespace

std::string S3Place::Text() const {
  std::string text = fmt::format("s3://{}", bucket);
  if (!prefix.empty()) text += fmt::format("/{}", prefix.substr(0, prefix.size() - 1));
  if (!endpoint.empty()) text += "?endpoint=" + endpoint;
  return text;
}

std::string S3Place::BaseUrl() const {
  const std::string to =
      endpoint.empty() ? fmt::format("https://s3.{}.amazonaws.com", region) : endpoint;
  if (is_path_style) return fmt::format("{}/{}", to, UriEncode(bucket));
  const size_t host = to.find("://") + 3;
  return fmt::format("{}{}.{}", to.substr(0, host), bucket, to.substr(host));
}

bool IsS3Region(std::string_view name) {
  return !name.empty() && name.size() <= kRegionMax && IsMadeOf(name, "-");
}

Result<S3Place> TakeS3Place(StoreUrl& url) {
  S3Place place;
  if (url.place.find('@') != std::string::npos) {
    return RefuseUrl(
        "credentials are not part of an s3:// URL: set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials");
  }
  const size_t slash = url.place.find('/');
  place.bucket = url.place.substr(0, slash);
  RETURN_IF_ERROR(CheckBucket(place.bucket));
  if (slash != std::string::npos) {
    place.prefix = url.place.substr(slash + 1);
    while (place.prefix.ends_with('/')) place.prefix.pop_back();
    RETURN_IF_ERROR(CheckPrefix(place.prefix));
    if (!place.prefix.empty()) place.prefix += '/';
  }
  place.endpoint = TakeOption(url, "endpoint")
                       .value_or(FromEnvironment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}));
  while (place.endpoint.ends_with('/')) place.endpoint.pop_back();
  if (!place.endpoint.empty()) RETURN_IF_ERROR(CheckEndpoint(place.endpoint));
  place.region =
      TakeOption(url, "region").value_or(FromEnvironment({"AWS_REGION", "AWS_DEFAULT_REGION"}));
  if (place.region.empty()) place.region = kDefaultRegion;
  if (!IsS3Region(place.region)) {
    return RefuseUrl("region '{}' must be letters, digits and '-', as in eu-central-1",
                     place.region);
  }
  // A bucket with a dot in its name is no name of one host under a certificate for *.s3....
  const bool has_dot = place.bucket.find('.') != std::string::npos;
  const std::string addressing =
      TakeOption(url, "addressing")
          .value_or(place.endpoint.empty() && !has_dot ? "virtual" : "path");
  if (addressing != "path" && addressing != "virtual") {
    return RefuseUrl("addressing '{}' must be path or virtual", addressing);
  }
  place.is_path_style = addressing == "path";
  place.profile = TakeOption(url, "profile").value_or("");
  place.ca = TakeOption(url, "tls-ca").value_or("");
  if (!place.ca.empty() && place.endpoint.starts_with("http:")) {
    return RefuseUrl("tls-ca is for TLS: endpoint=https://...");
  }
  return place;
}

}  // namespace kvcake
