// Work for another thread than the one that moves bytes.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http_server.h"
#include "server/prepare_pool.h"

namespace kvcake {

// Has the tenant's `work`, on so many bytes, done by the pool; the coroutine, of `context`, goes on
// where it was. Nothing: the pool's queue is full.
template <typename T>
boost::asio::awaitable<std::optional<T>> Offload(boost::asio::io_context& context,
                                                 PreparePool& pool, const std::string& tenant,
                                                 size_t bytes, std::function<T()> work) {
  std::optional<T> result;
  std::exception_ptr thrown;
  const auto done = std::make_shared<Signal>(context);
  const bool taken = pool.Post(tenant, bytes, [&result, &thrown, &work, done] {
    try {
      result.emplace(work());
    } catch (...) {  // no memory is left for it: the connection's to know
      thrown = std::current_exception();
    }
    done->Notify();
  });
  if (!taken) co_return std::nullopt;
  while (!co_await done->Wait()) {
  }
  if (thrown) std::rethrow_exception(thrown);
  co_return std::move(result);
}

}  // namespace kvcake
