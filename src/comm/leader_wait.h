// A worker's port: callers that talk as a leader does (join_message.h), one of whom is chosen.
#pragma once

#include <optional>
#include <stop_token>
#include <string>

#include "comm/join_message.h"
#include "comm/tcp_join.h"

namespace kvcake {

struct LeadersCall {
  Call call;
  std::string from;  // its address and port
};

// Sleeps until a leader has called and been told to be ready, and says go; AwaitLeader tells what
// becomes of other callers. Empty when `stop` was asked for. With `has`, where a leader called from
// that the worker has, every other is told that it is taken, and none is chosen.
std::optional<LeadersCall> AwaitCall(const TcpListener& listener, const std::stop_token& stop,
                                     const JoinOptions& options, const std::string& has = "");

}  // namespace kvcake
