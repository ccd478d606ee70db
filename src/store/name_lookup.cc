#include "store/name_lookup.h"

#include <exception>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace kvcake {

namespace asio = boost::asio;
using boost::system::error_code;

struct NameLookup::Shared {
  // Runs on the context's thread.
  void Tell(error_code error, const Endpoints& endpoints) {
    if (const auto call = std::exchange(found, nullptr)) call(error, endpoints);
  }

  Found found = nullptr;  // belongs to the context's thread
  Mutex mutex;
  asio::io_context* context GUARDED_BY(mutex) = nullptr;  // null: nobody waits any more
};

NameLookup::NameLookup(asio::io_context& context, Resolve resolve)
    : resolve_(std::move(resolve)), shared_(std::make_shared<Shared>()) {
  MutexLock lock(shared_->mutex);
  shared_->context = &context;
}

NameLookup::~NameLookup() { Cancel(); }

void NameLookup::Start(const std::string& host, uint16_t port, Found found) {
  shared_->found = std::move(found);
  const auto tell = [shared = shared_](error_code error, Endpoints endpoints) {
    MutexLock lock(shared->mutex);
    if (shared->context == nullptr) return;
    asio::post(*shared->context, [shared, error, endpoints = std::move(endpoints)] {
      shared->Tell(error, endpoints);
    });
  };
  error_code no_address;
  const auto address = asio::ip::make_address(host, no_address);
  if (!no_address) return tell({}, {{address, port}});
  try {
    // Nothing may leave the thread: it would end the process.
    std::thread([tell, resolve = resolve_, host, port] {
      error_code error;
      Endpoints endpoints;
      try {
        endpoints = resolve(host, port, error);
      } catch (...) {
        error = asio::error::no_memory;
      }
      try {
        tell(error, std::move(endpoints));
      } catch (...) {  // no memory even to say so: the caller's time-out has to
      }
    }).detach();
  } catch (const std::exception&) {  // no thread, or no memory for what it takes along
    tell(asio::error::no_memory, {});
  }
}

void NameLookup::Cancel() {
  // Outlive the lock: `found` may hold what this is a part of.
  const auto shared = shared_;
  const auto found = std::exchange(shared->found, nullptr);
  MutexLock lock(shared->mutex);
  shared->context = nullptr;
}

NameLookup::Endpoints NameLookup::SystemResolve(const std::string& host, uint16_t port,
                                                error_code& error) {
  asio::io_context context;
  asio::ip::tcp::resolver resolver(context);
  const auto found = resolver.resolve(host, std::to_string(port), error);
  return {found.begin(), found.end()};
}

}  // namespace kvcake
