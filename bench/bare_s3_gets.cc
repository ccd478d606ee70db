#include <curl/curl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>

#include "bench/bare_gets.h"
#include "store/s3_credentials.h"
#include "store/s3_signature.h"

namespace kvcake::bench {
namespace {

struct Landing {
  std::vector<char> value;
  size_t landed = 0;
};

size_t OnBody(char* data, size_t, size_t bytes, void* to) {
  auto& landing = *static_cast<Landing*>(to);
  if (bytes > landing.value.size() - landing.landed) return 0;
  std::memcpy(&landing.value[landing.landed], data, bytes);
  landing.landed += bytes;
  return bytes;
}

}  // namespace

Status BareS3Gets(const S3Place& place, const std::vector<std::string>& names, uint64_t bytes,
                  int handles) {
  ASSIGN_OR_RETURN(const auto credentials, LocalCredentials(place.profile));
  const std::string user =
      credentials ? credentials->access_key + ':' + credentials->secret_key : "";
  const std::string sigv4 = fmt::format("aws:amz:{}:s3", place.region);
  CURLM* const multi = curl_multi_init();
  std::map<CURL*, Landing> landings;
  size_t next = 0;
  Status status;
  const auto start = [&](CURL* handle) {
    if (next == names.size() || !status) return;
    landings[handle].landed = 0;
    const std::string url = place.BaseUrl() + '/' + UriEncode(names[next++], true);
    curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
    curl_multi_add_handle(multi, handle);
  };
  for (int i = 0; i < handles; ++i) {
    CURL* const handle = curl_easy_init();
    Landing& landing = landings[handle];
    landing.value.resize(bytes);
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &OnBody);
    curl_easy_setopt(handle, CURLOPT_WRITEDATA, &landing);
    curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
    curl_easy_setopt(handle, CURLOPT_FAILONERROR, 1L);
    if (!place.ca.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, place.ca.c_str());
    if (!user.empty()) {
      curl_easy_setopt(handle, CURLOPT_AWS_SIGV4, sigv4.c_str());
      curl_easy_setopt(handle, CURLOPT_USERPWD, user.c_str());
    }
  }
  for (const auto& [handle, landing] : landings) start(handle);
  for (int running = 1; running > 0;) {
    curl_multi_perform(multi, &running);
    int left = 0;
    while (CURLMsg* const message = curl_multi_info_read(multi, &left)) {
      CURL* const handle = message->easy_handle;
      const CURLcode code = message->data.result;
      curl_multi_remove_handle(multi, handle);
      if (code != CURLE_OK || landings[handle].landed != bytes) {
        status = Fail(ErrorCode::kIo, "a bare GET of {} bytes: {}, {} came", bytes,
                      curl_easy_strerror(code), landings[handle].landed);
      }
      start(handle);
      running = 1;  // there may be another now
    }
    if (running > 0) curl_multi_poll(multi, nullptr, 0, 100, nullptr);
  }
  for (const auto& [handle, landing] : landings) curl_easy_cleanup(handle);
  curl_multi_cleanup(multi);
  return status;
}

}  // namespace kvcake::bench
