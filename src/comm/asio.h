// Boost.Asio as this room uses it: without coroutines, which clang 14 lacks.
#pragma once

// clang-format off
#include <utility>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
// clang-format on

#include <chrono>

#include "base/clock.h"

namespace kvcake {

// As timers take them.
inline std::chrono::nanoseconds Nanoseconds(Seconds seconds) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(seconds);
}

}  // namespace kvcake
