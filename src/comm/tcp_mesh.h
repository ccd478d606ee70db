// How the ranks of a chain over TCP find each other.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <vector>

#include "comm/asio.h"
#include "comm/link.h"
#include "comm/tcp_comm.h"

namespace kvcake {

using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

// Lies between two attempts to dial, or to accept where the system refuses.
inline constexpr std::chrono::milliseconds kTryAgainAfter{50};

// Resolves "host:port" or "[IPv6]:port"; kInvalidArgument, or kIo where the name is not known.
Result<Endpoints> Resolve(boost::asio::io_context& context, const std::string& address);
// Side by side: it takes as long as the slowest.
std::vector<Result<Endpoints>> ResolveAll(boost::asio::io_context& context,
                                          std::span<const std::string> addresses);

// kInvalidArgument where two are one and the same worker, by name or by what was found: a leader
// would take it twice, and wait for itself for ever.
Status CheckDistinct(std::span<const std::string> addresses,
                     std::span<const Result<Endpoints>> found);

// "address:port".
std::string NameOf(const boost::asio::ip::tcp::endpoint& endpoint);

// For the caller to accept with; the listener stays open when it closes.
boost::asio::ip::tcp::acceptor Duplicate(boost::asio::io_context& context,
                                         const TcpListener& listener);

// As ConnectTcp; the connections by rank, which are the caller's to close; none to itself.
Result<std::vector<RawLink>> ConnectMesh(const TcpListener& listener,
                                         const TcpCommOptions& options);

}  // namespace kvcake
