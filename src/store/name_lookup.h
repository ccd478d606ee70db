// Finds a host's addresses and keeps nobody waiting: a name server that hangs keeps a thread, for
// as long as the system's resolver waits for it. (asio's resolver looks names up one after another
// on a thread that its io_context waits for in the end.)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "store/redis_asio.h"

namespace kvcake {

class NameLookup {
 public:
  using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;
  using Resolve = std::function<Endpoints(const std::string& host, uint16_t port,
                                          boost::system::error_code& error)>;
  using Found = std::function<void(boost::system::error_code, const Endpoints&)>;

  // `context` outlives it. `resolve` may take as long as it likes, and is called on any thread.
  // What it throws is told as no_memory.
  explicit NameLookup(boost::asio::io_context& context, Resolve resolve = SystemResolve);
  ~NameLookup();

  // Calls `found` once on the context's thread, never from within Start, unless it is cancelled
  // first, or there is no memory left to do so. Called once, and on that thread, as Cancel is.
  void Start(const std::string& host, uint16_t port, Found found);
  void Cancel();

  static Endpoints SystemResolve(const std::string& host, uint16_t port,
                                 boost::system::error_code& error);

 private:
  struct Shared;

  const Resolve resolve_;
  const std::shared_ptr<Shared> shared_;  // the thread has it, too, and may outlive this
};

}  // namespace kvcake
