// Work for another thread than the one that moves bytes.
#pragma once

#include <functional>

#include "server/asio.h"

namespace kvcake {

// Runs `work` on the pool; the coroutine goes on where it was.
template <typename T>
boost::asio::awaitable<T> Offload(boost::asio::thread_pool& pool, std::function<T()> work) {
  auto run = [work = std::move(work)]() -> boost::asio::awaitable<T> { co_return work(); };
  co_return co_await boost::asio::co_spawn(pool, std::move(run), boost::asio::use_awaitable);
}

}  // namespace kvcake
