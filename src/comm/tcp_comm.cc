#include "comm/tcp_comm.h"

#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "base/printable.h"
#include "comm/asio.h"
#include "comm/delivery.h"
#include "comm/link.h"
#include "comm/tcp_mesh.h"

namespace kvcake {

namespace net = boost::asio;
using boost::system::error_code;
using net::ip::tcp;

namespace {

constexpr uint32_t kMagic = 0x3143564b;  // "KVC1"
constexpr size_t kSkipBytes = 64 << 10;  // of an unwanted message, at once
constexpr uint64_t kAsideBytes = 128;    // that a message aside takes beside its own, however short
constexpr int kLooksInSilence = 5;       // for whether a rank still takes what it is sent

constexpr int kPartingTag = -1;  // of the text that says why a rank closes
constexpr size_t kPartingBytesMax = 500;
constexpr int kLooksInVain = 4;  // for whether more has been sent

// Before each message; its bytes never change meaning.
struct FrameHeader {
  uint32_t magic = kMagic;
  int32_t tag = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(FrameHeader) == 16);

struct Outgoing {
  int tag;
  std::span<const std::byte> data;
  Comm::Done done;
};

struct Incoming {
  std::span<std::byte> into;
  Comm::Done done;
};

template <typename Queues>
std::optional<typename Queues::mapped_type::value_type> TakeFirst(Queues& queues, int tag) {
  const auto it = queues.find(tag);
  if (it == queues.end()) return std::nullopt;
  auto first = std::make_optional(std::move(it->second.front()));
  it->second.pop_front();
  if (it->second.empty()) queues.erase(it);
  return first;
}

// A connection; everything here is the thread's.
struct Peer {
  Peer(net::io_context& context, int rank, std::string address)
      : rank(rank), address(std::move(address)), timer(context) {}

  const int rank;
  const std::string address;
  std::unique_ptr<Link> link;  // null: this rank itself
  // Once set, nothing is sent or read any more, and handlers that come later find nothing to do.
  std::optional<Error> send_lost, lost;
  // Nothing more can be written: what is to be sent is lost when reading ends, too, or pauses.
  std::optional<Error> write_failed;

  std::deque<Outgoing> outgoing;  // the first one is being written
  FrameHeader out_header;
  net::steady_timer timer;  // of AwaitDelivery
  bool awaiting = false;

  FrameHeader in_header;  // of the message being read, or of the one that reading pauses at
  bool paused = false;
  std::optional<Incoming> reading;  // straight into its buffer
  std::vector<std::byte> filling;   // to be kept aside
  // By tag; a tag has unmatched receives or messages aside, never both.
  std::map<int, std::deque<Incoming>> posted;
  std::map<int, std::deque<std::vector<std::byte>>> aside;
  uint64_t aside_bytes = 0;
};

// As much at once as the kernel takes or has; the library's own is 64 KiB.
size_t Everything(error_code error, size_t) { return error ? 0 : SIZE_MAX; }

void SetOptions(int fd) {
  sockaddr_storage name = {};
  socklen_t length = sizeof(name);
  CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0);
  if (name.ss_family == AF_UNIX) return;  // whose other end is never far
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);  // an idle peer whose machine is gone is noticed in 25 s
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

class StreamComm : public Comm {
 public:
  StreamComm(const TcpCommOptions& options, std::vector<RawLink> links)
      : rank_(options.rank),
        aside_bytes_max_(options.aside_bytes_max),
        silence_(options.silence),
        work_(context_.get_executor()) {
    for (size_t rank = 0; rank < links.size(); ++rank) {
      peers_.push_back(
          std::make_unique<Peer>(context_, static_cast<int>(rank), options.addresses[rank]));
      if (links[rank].fd < 0) continue;
      Peer& peer = *peers_.back();
      SetOptions(links[rank].fd);
      peer.link = std::make_unique<Link>(context_, std::move(links[rank]));
      ReadHeader(peer);
    }
    thread_ = std::thread([this] { context_.run(); });
  }

  ~StreamComm() override {
    End(Fail(ErrorCode::kCancelled, "rank {} has ended", rank_).value(), /*says_why=*/false);
    work_.reset();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(peers_.size()); }

  void Send(int to, int tag, std::span<const std::byte> data, Done done) override {
    const Status valid = CheckTransfer(*this, to, tag);
    PostInOrder([this, valid, to, out = Outgoing{tag, data, std::move(done)}]() mutable {
      if (!valid) return out.done(valid);
      Peer& peer = *peers_[to];
      if (closed_) return out.done(tl::unexpected(*closed_));
      if (peer.send_lost) return out.done(tl::unexpected(*peer.send_lost));
      peer.outgoing.push_back(std::move(out));
      if (peer.outgoing.size() == 1) Write(peer);
    });
  }

  void Receive(int from, int tag, std::span<std::byte> into, Done done) override {
    const Status valid = CheckTransfer(*this, from, tag);
    PostInOrder([this, valid, from, tag, in = Incoming{into, std::move(done)}]() mutable {
      if (!valid) return in.done(valid);
      Post(*peers_[from], tag, std::move(in));
    });
  }

  void Close(Error why) override { End(std::move(why), /*says_why=*/true); }

  uint64_t sent_bytes() const override { return sent_bytes_; }

 private:
  static Error Gone(const Peer& peer, const std::string& why) {
    return Fail(ErrorCode::kIo, "rank {} at {} is gone: {}", peer.rank, peer.address, why).value();
  }
  static Error Gone(const Peer& peer, error_code error) {
    return Gone(peer, peer.link->WhyNot(error));
  }

  void End(Error why, bool says_why) {
    CHECK(std::this_thread::get_id() != thread_.get_id());
    std::promise<void> ended;
    net::post(context_, [&] {
      if (!closed_) closed_ = std::move(why);
      LoseAll({.says_why = says_why}, ended);
    });
    ended.get_future().wait();
  }

  struct Ending {
    bool says_why;
    size_t unsent = SIZE_MAX;  // messages, when it last looked
    int in_vain = 0;           // looks since that became less
  };
  // Once no more of what is to be sent goes without waiting: the thread's handlers have a few
  // turns, as each writes a part of a message.
  void LoseAll(Ending ending, std::promise<void>& ended) {
    size_t unsent = 0;
    for (const auto& peer : peers_) unsent += peer->outgoing.size();
    ending.in_vain = unsent < ending.unsent ? 0 : ending.in_vain + 1;
    ending.unsent = unsent;
    if (unsent > 0 && ending.in_vain < kLooksInVain) {
      net::post(context_, [this, ending, &ended] { LoseAll(ending, ended); });
      return;
    }
    for (const auto& peer : peers_) {
      if (ending.says_why) SayWhy(*peer, closed_->message);
      Lose(*peer, *closed_);
    }
    ended.set_value();
  }

  static void SayWhy(Peer& peer, std::string_view why) {
    const bool may = peer.link && !peer.lost && !peer.write_failed && peer.outgoing.empty();
    if (!may) return;
    why = why.substr(0, kPartingBytesMax);
    const FrameHeader header{.tag = kPartingTag, .bytes = why.size()};
    std::vector<std::byte> frame(sizeof(header) + why.size());
    std::memcpy(frame.data(), &header, sizeof(header));
    std::memcpy(frame.data() + sizeof(header), why.data(), why.size());
    peer.link->SendAtOnce(frame);
  }

  // Once the socket is closed by its thread nothing touches a buffer.
  void Lose(Peer& peer, const Error& why) {
    if (peer.lost) return;
    peer.lost = why;
    if (peer.link) peer.link->Close();
    peer.timer.cancel();
    LoseSending(peer, why);
    if (peer.reading) peer.reading->done(tl::unexpected(why));
    peer.reading.reset();
    for (auto& [tag, queue] : std::exchange(peer.posted, {})) {
      for (Incoming& incoming : queue) incoming.done(tl::unexpected(why));
    }
  }

  // What the peer has sent before it went can still be read.
  void LoseSending(Peer& peer, const Error& why) {
    if (peer.send_lost) return;
    peer.send_lost = why;
    for (Outgoing& outgoing : std::exchange(peer.outgoing, {})) {
      outgoing.done(tl::unexpected(why));
    }
  }

  // Until it has taken all that it was sent: then keepalive tells whether it is there.
  void AwaitDelivery(Peer& peer) {
    if (peer.awaiting) return;
    peer.awaiting = true;
    peer.timer.expires_after(Nanoseconds(silence_ / kLooksInSilence));
    peer.timer.async_wait([this, &peer](error_code) {
      peer.awaiting = false;
      if (peer.lost) return;
      const Delivery delivery = DeliveryOf(peer.link->fd(), silence_);
      if (delivery == Delivery::kUnanswered) {
        Lose(peer,
             Gone(peer, fmt::format("it has acknowledged nothing for {:g} s", silence_.count())));
      } else if (delivery == Delivery::kUnderWay || !peer.outgoing.empty()) {
        AwaitDelivery(peer);
      }
    });
  }

  void Write(Peer& peer) {
    AwaitDelivery(peer);
    const Outgoing& outgoing = peer.outgoing.front();
    peer.out_header = {.tag = outgoing.tag, .bytes = outgoing.data.size()};
    const std::array<net::const_buffer, 2> buffers = {
        net::buffer(&peer.out_header, sizeof(FrameHeader)),
        net::buffer(outgoing.data.data(), outgoing.data.size())};
    net::async_write(*peer.link, buffers, Everything, [this, &peer](error_code error, size_t) {
      if (peer.send_lost) return;
      if (error) return FailWriting(peer, error);
      const Outgoing sent = std::move(peer.outgoing.front());
      peer.outgoing.pop_front();
      if (!peer.outgoing.empty()) Write(peer);
      sent_bytes_ += sent.data.size();
      sent.done({});
    });
  }

  // The end of what can be read says more than that nothing can be written.
  void FailWriting(Peer& peer, error_code error) {
    peer.write_failed = Gone(peer, error);
    const bool ends = error == net::error::broken_pipe || error == net::error::connection_reset;
    if (!ends || peer.paused) LoseSending(peer, *peer.write_failed);
  }

  // In the order of the calls, of whatever threads: what Asio's own thread posts may be overtaken.
  void PostInOrder(std::function<void()> call) {
    {
      MutexLock lock(calls_mutex_);
      calls_.push_back(std::move(call));
    }
    net::post(context_, [this] {
      MutexLock lock(calls_mutex_);
      const std::function<void()> first = std::move(calls_.front());
      calls_.pop_front();
      lock.Unlock();
      first();
    });
  }

  // Reads, then goes on with `next`.
  template <typename Next>
  void Read(Peer& peer, net::mutable_buffer buffer, Next next) {
    net::async_read(*peer.link, buffer, Everything, [this, &peer, next](error_code error, size_t) {
      if (peer.lost) return;
      if (error) return Lose(peer, Gone(peer, error));
      next();
    });
  }

  void ReadHeader(Peer& peer) {
    Read(peer, net::buffer(&peer.in_header, sizeof(FrameHeader)), [this, &peer] {
      const FrameHeader& header = peer.in_header;
      if (header.magic == kMagic && header.tag >= 0) return ReadBody(peer);
      if (header.magic == kMagic && header.tag == kPartingTag && header.bytes <= kPartingBytesMax) {
        return ReadParting(peer);
      }
      Lose(peer, Fail(ErrorCode::kCorrupt, "what rank {} at {} sends is no message", peer.rank,
                      peer.address)
                     .value());
    });
  }

  void ReadParting(Peer& peer) {
    peer.filling.resize(peer.in_header.bytes);
    Read(peer, net::buffer(peer.filling), [this, &peer] {
      const std::string_view why(reinterpret_cast<const char*>(peer.filling.data()),
                                 peer.filling.size());
      Lose(peer, Gone(peer, "it says: " + PrintableAscii(why)));
    });
  }

  void ReadBody(Peer& peer) {
    const FrameHeader header = peer.in_header;
    if (auto incoming = TakeFirst(peer.posted, header.tag)) {
      const Status status = CheckSize(peer.rank, header.tag, incoming->into.size(), header.bytes);
      if (!status) {
        Skip(peer, header.bytes);
        return incoming->done(status);
      }
      peer.reading = std::move(incoming);
      const auto into = peer.reading->into;
      Read(peer, net::buffer(into.data(), into.size()), [this, &peer] {
        const Incoming received = *std::exchange(peer.reading, std::nullopt);
        ReadHeader(peer);
        received.done({});
      });
    } else if (HasRoomAside(peer, header.bytes)) {
      peer.aside_bytes += header.bytes + kAsideBytes;
      peer.filling.resize(header.bytes);
      Read(peer, net::buffer(peer.filling), [this, &peer] {
        auto message = std::exchange(peer.filling, {});
        const int tag = peer.in_header.tag;
        ReadHeader(peer);
        if (auto posted = TakeFirst(peer.posted, tag)) return HandOver(peer, tag, *posted, message);
        peer.aside[tag].push_back(std::move(message));
      });
    } else {
      peer.paused = true;
      if (peer.write_failed) LoseSending(peer, *peer.write_failed);
    }
  }

  bool HasRoomAside(const Peer& peer, uint64_t bytes) const {
    const uint64_t room = aside_bytes_max_ - std::min(aside_bytes_max_, peer.aside_bytes);
    return room >= kAsideBytes && bytes <= room - kAsideBytes;
  }

  void Skip(Peer& peer, uint64_t bytes) {
    if (bytes == 0) return ReadHeader(peer);
    peer.filling.resize(std::min<uint64_t>(bytes, kSkipBytes));
    const uint64_t left = bytes - peer.filling.size();
    Read(peer, net::buffer(peer.filling), [this, &peer, left] { Skip(peer, left); });
  }

  // A message that was aside.
  void HandOver(Peer& peer, int tag, const Incoming& incoming,
                const std::vector<std::byte>& message) {
    peer.aside_bytes -= message.size() + kAsideBytes;
    const Status status = CheckSize(peer.rank, tag, incoming.into.size(), message.size());
    if (status) std::ranges::copy(message, incoming.into.begin());
    incoming.done(status);
  }

  void Post(Peer& peer, int tag, Incoming incoming) {
    if (closed_) return incoming.done(tl::unexpected(*closed_));
    if (const auto message = TakeFirst(peer.aside, tag)) {
      HandOver(peer, tag, incoming, *message);
    } else if (peer.lost) {
      return incoming.done(tl::unexpected(*peer.lost));
    } else {
      peer.posted[tag].push_back(std::move(incoming));
    }
    // There is a receive for it now, or room aside.
    if (peer.paused && !peer.lost) {
      peer.paused = false;
      ReadBody(peer);
    }
  }

  const int rank_;
  const uint64_t aside_bytes_max_;
  const Seconds silence_;
  std::atomic<uint64_t> sent_bytes_ = 0;
  net::io_context context_{1};
  net::executor_work_guard<net::io_context::executor_type> work_;

  Mutex calls_mutex_;
  std::deque<std::function<void()>> calls_ GUARDED_BY(calls_mutex_);

  // The thread's.
  std::vector<std::unique_ptr<Peer>> peers_;
  std::optional<Error> closed_;

  std::thread thread_;
};

}  // namespace

Result<TcpListener> TcpListener::Open(const std::string& address) {
  net::io_context context;
  ASSIGN_OR_RETURN(const Endpoints endpoints, Resolve(context, address));
  tcp::acceptor acceptor(context);
  const tcp::endpoint& endpoint = endpoints.front();
  error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(net::socket_base::max_listen_connections, error);
  if (error) return Fail(ErrorCode::kIo, "cannot listen at {}: {}", address, error.message());
  const uint16_t port = acceptor.local_endpoint().port();
  return TcpListener(acceptor.release(), port, endpoint.address().is_loopback());
}

TcpListener::TcpListener(TcpListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_), loopback_(other.loopback_) {}

TcpListener::~TcpListener() {
  if (fd_ >= 0) close(fd_);
}

Result<std::unique_ptr<Comm>> ConnectTcp(const TcpListener& listener,
                                         const TcpCommOptions& options) {
  ASSIGN_OR_RETURN(auto links, ConnectMesh(listener, options));
  return std::make_unique<StreamComm>(options, std::move(links));
}

std::unique_ptr<Comm> CommOverSockets(const TcpCommOptions& options,
                                      const std::vector<int>& sockets) {
  std::vector<RawLink> links;
  for (const int fd : sockets) links.push_back({.fd = fd});
  return std::make_unique<StreamComm>(options, std::move(links));
}

}  // namespace kvcake
