#include <curl/curl.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <optional>
#include <span>

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

// Handles that get one object after another, on connections that stay.
class Loop {
 public:
  Loop(const S3Place& place, const std::optional<S3Credentials>& credentials, uint64_t bytes,
       int handles)
      : place_(place), bytes_(bytes) {
    const std::string sigv4 = fmt::format("aws:amz:{}:s3", place.region);
    for (int i = 0; i < handles; ++i) {
      CURL* const handle = curl_easy_init();
      Landing& landing = landings_[handle];
      landing.value.resize(bytes);
      curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &OnBody);
      curl_easy_setopt(handle, CURLOPT_WRITEDATA, &landing);
      curl_easy_setopt(handle, CURLOPT_BUFFERSIZE, 512L << 10);
      curl_easy_setopt(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
      curl_easy_setopt(handle, CURLOPT_FAILONERROR, 1L);
      if (!place.ca.empty()) curl_easy_setopt(handle, CURLOPT_CAINFO, place.ca.c_str());
      if (credentials) {
        const std::string user = credentials->access_key + ':' + credentials->secret_key;
        curl_easy_setopt(handle, CURLOPT_AWS_SIGV4, sigv4.c_str());
        curl_easy_setopt(handle, CURLOPT_USERPWD, user.c_str());
      }
    }
  }
  ~Loop() {
    for (const auto& [handle, landing] : landings_) curl_easy_cleanup(handle);
    curl_multi_cleanup(multi_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  Status Get(std::span<const std::string> names) {
    names_ = names;
    Status status;
    for (const auto& [handle, landing] : landings_) Start(handle);
    for (int running = 1; running > 0;) {
      curl_multi_perform(multi_, &running);
      int left = 0;
      while (const CURLMsg* const message = curl_multi_info_read(multi_, &left)) {
        CURL* const handle = message->easy_handle;
        const CURLcode code = message->data.result;
        curl_multi_remove_handle(multi_, handle);
        if (code != CURLE_OK || landings_[handle].landed != bytes_) {
          status = Fail(ErrorCode::kIo, "a bare GET of {} bytes: {}, {} came", bytes_,
                        curl_easy_strerror(code), landings_[handle].landed);
          names_ = {};
        }
        Start(handle);
        running = 1;  // there may be another now
      }
      if (running > 0) curl_multi_poll(multi_, nullptr, 0, 100, nullptr);
    }
    return status;
  }

 private:
  void Start(CURL* handle) {
    if (names_.empty()) return;
    landings_[handle].landed = 0;
    const std::string url = place_.BaseUrl() + '/' + UriEncode(names_.front(), true);
    names_ = names_.subspan(1);
    curl_easy_setopt(handle, CURLOPT_URL, url.c_str());
    curl_multi_add_handle(multi_, handle);
  }

  const S3Place& place_;
  const uint64_t bytes_;
  CURLM* const multi_ = curl_multi_init();
  std::map<CURL*, Landing> landings_;
  std::span<const std::string> names_;  // that nobody gets yet
};

}  // namespace

Result<Rate> BareS3Gets(const S3Place& place, const std::vector<std::string>& names, uint64_t bytes,
                        int handles) {
  ASSIGN_OR_RETURN(const auto credentials, LocalCredentials(place.profile));
  Loop loop(place, credentials, bytes, handles);
  // Connections begin slowly, and those of a store are there.
  const size_t first = std::min(names.size(), static_cast<size_t>(handles));
  RETURN_IF_ERROR(loop.Get(std::span(names).first(first)));
  const Stopwatch watch;
  RETURN_IF_ERROR(loop.Get(names));
  return watch.Of(names.size() * bytes);
}

}  // namespace kvcake::bench
