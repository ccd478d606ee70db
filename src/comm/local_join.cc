#include "comm/local_join.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/tcp_comm.h"

namespace kvcake {
namespace {

constexpr uint32_t kCallMagic = 0x314c564b;  // "KVL1"

// With it come size - 1 descriptors: those of the connections with the others, in their order.
struct LocalCall {
  uint32_t magic = kCallMagic;
  int32_t rank = 0, size = 0;
};

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// By rank; none for a rank's own.
using Row = std::vector<Descriptor>;

// A call to one rank as a message, with room for its descriptors.
struct CallMessage {
  CallMessage() {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  CallMessage(const CallMessage&) = delete;  // it points into itself
  CallMessage& operator=(const CallMessage&) = delete;

  LocalCall call;
  iovec bytes = {.iov_base = &call, .iov_len = sizeof(call)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kLocalRanksMax)> control = {};
  msghdr header = {};
};

tl::unexpected<Error> NoSocket() {
  return Fail(ErrorCode::kResourceExhausted, "no sockets for local ranks: {}: raise ulimit -n",
              std::strerror(errno));
}

Result<std::vector<Row>> ConnectAll(int size) {
  std::vector<Row> rows(size);
  for (Row& row : rows) row.resize(size);
  for (int low = 0; low < size; ++low) {
    for (int high = low + 1; high < size; ++high) {
      std::array<int, 2> ends;
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return NoSocket();
      rows[low][high] = Descriptor(ends[0]);
      rows[high][low] = Descriptor(ends[1]);
    }
  }
  return rows;
}

Status Pass(int control, int rank, const Row& row) {
  CallMessage message;
  message.call.rank = rank;
  message.call.size = static_cast<int32_t>(row.size());
  message.header.msg_controllen = CMSG_SPACE(sizeof(int) * (row.size() - 1));
  cmsghdr* header = CMSG_FIRSTHDR(&message.header);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * (row.size() - 1));
  unsigned char* out = CMSG_DATA(header);
  for (const Descriptor& socket : row) {
    const int fd = socket.get();
    if (fd < 0) continue;
    std::memcpy(out, &fd, sizeof(fd));
    out += sizeof(fd);
  }
  if (sendmsg(control, &message.header, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return {};
  return Fail(ErrorCode::kIo, "the worker of rank {} is gone: {}", rank, std::strerror(errno));
}

std::unique_ptr<Comm> CommOf(int rank, Row row) {
  TcpCommOptions options{.rank = rank, .addresses = {}};
  std::vector<int> sockets;
  for (Descriptor& socket : row) {
    options.addresses.emplace_back("this machine");
    sockets.push_back(socket.Release());
  }
  return CommOverSockets(options, sockets);
}

// Whatever descriptors came with a message.
std::vector<Descriptor> DescriptorsOf(msghdr& message) {
  std::vector<Descriptor> found;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(fd), sizeof(fd));
      found.emplace_back(fd);
    }
  }
  return found;
}

Result<std::unique_ptr<Comm>> TakeCall(int control) {
  CallMessage message;
  const ssize_t got = recvmsg(control, &message.header, MSG_CMSG_CLOEXEC);
  if (got == 0 || (got < 0 && errno == ECONNRESET)) {
    return Fail(ErrorCode::kNotFound, "the process that has started this worker is gone");
  }
  if (got < 0) return Fail(ErrorCode::kIo, "no call from the leader: {}", std::strerror(errno));
  std::vector<Descriptor> sockets = DescriptorsOf(message.header);
  const LocalCall& call = message.call;
  const bool sound = got == sizeof(call) && call.magic == kCallMagic &&
                     (message.header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && call.size > 1 &&
                     call.size <= kLocalRanksMax && call.rank >= 0 && call.rank + 1 < call.size &&
                     sockets.size() + 1 == static_cast<size_t>(call.size);
  if (!sound) return Fail(ErrorCode::kCorrupt, "what the leader sends is no chain of local ranks");
  Row row;
  size_t next = 0;
  for (int rank = 0; rank < call.size; ++rank) {
    row.push_back(rank == call.rank ? Descriptor() : std::move(sockets[next++]));
  }
  return CommOf(call.rank, std::move(row));
}

}  // namespace

Result<ControlSockets> NewControlSockets() {
  std::array<int, 2> ends;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) return NoSocket();
  return ControlSockets{ends[0], ends[1]};
}

Result<std::unique_ptr<Comm>> AwaitLocalLeader(int control, const std::stop_token& stop) {
  const Descriptor stopped(eventfd(0, EFD_CLOEXEC));
  CHECK(stopped.get() >= 0);
  const std::stop_callback stops(stop, [&] { eventfd_write(stopped.get(), 1); });
  while (true) {
    std::array<pollfd, 2> ready = {pollfd{.fd = control, .events = POLLIN, .revents = 0},
                                   pollfd{.fd = stopped.get(), .events = POLLIN, .revents = 0}};
    if (poll(ready.data(), ready.size(), -1) < 0) continue;  // a signal
    if (ready[1].revents != 0) return Fail(ErrorCode::kCancelled, "no leader has called");
    return TakeCall(control);
  }
}

Result<std::unique_ptr<Comm>> GatherLocalWorkers(std::span<const int> controls) {
  const int size = static_cast<int>(controls.size()) + 1;
  CHECK(size > 1 && size <= kLocalRanksMax);
  ASSIGN_OR_RETURN(std::vector<Row> rows, ConnectAll(size));
  for (int rank = 0; rank + 1 < size; ++rank) {
    RETURN_IF_ERROR(Pass(controls[rank], rank, rows[rank]));
  }
  return CommOf(size - 1, std::move(rows.back()));
}

}  // namespace kvcake
