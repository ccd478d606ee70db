// Asks an OpenAI-compatible server over HTTP, a connection for each request. One thread.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "bench/answer_reader.h"
#include "bench/server_url.h"
#include "server/asio.h"

namespace kvcake::bench {

class ServerClient {
 public:
  struct Options {
    ServerUrl url;
    std::string api_key;  // empty: none
    Seconds timeout{};    // of a request, from its connection to its last byte
  };
  ServerClient(boost::asio::io_context& context, Options options);

  // Looks the host up; before all else. kNotFound: there is no such host.
  boost::asio::awaitable<Status> Resolve();
  // The object at `path` ("/v1/models").
  boost::asio::awaitable<Result<nlohmann::json>> Get(std::string path);
  // The answer to a request for a stream. Its times are seconds since `zero`.
  boost::asio::awaitable<Answer> Ask(std::string path, std::string body, TimePoint zero);

 private:
  // What became of an exchange whose body was handed on; error: it broke off.
  struct Reply {
    int status = 0;
    std::string error_kind, error;
  };
  // With the status and the next bytes of the body; false: no more are wanted.
  using OnBody = std::function<bool(int, std::string_view)>;

  boost::asio::awaitable<Reply> Exchange(bool post, const std::string& path, std::string body,
                                         const OnBody& on_body);

  boost::asio::io_context& context_;
  const Options options_;
  boost::asio::ip::tcp::resolver::results_type endpoints_;
};

}  // namespace kvcake::bench
