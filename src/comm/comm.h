// Messages between the ranks of a chain, each from one to one.
//
// A transfer ends once, by its `done`: with the error of a peer that is gone, of Close, or of the
// transfer itself. Ranks are numbered from 0; a rank sends nothing to itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/status.h"

namespace kvcake {

// The caller's tags lie in [0, kTagLimit); those above are this room's own.
inline constexpr int kTagLimit = 1 << 30;

class Comm {
 public:
  // Runs on a thread of the Comm's own, never within the call that it ends: short, never blocks,
  // does not close or destroy a Comm.
  using Done = std::function<void(Status)>;

  // Closes first; later transfers' `done`s run before it returns.
  virtual ~Comm() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Starts to send; the bytes must stay until `done` has run, which may be before or after they are
  // received. From any thread, `done`'s included. Messages of two ranks with one tag arrive in the
  // order of the calls; those with different tags do not wait for each other's receives.
  virtual void Send(int to, int tag, std::span<const std::byte> data, Done done) = 0;
  // Into a buffer of exactly the message's size; else kCorrupt, with the message used up and the
  // buffer's content unspecified. May be posted before or after the message comes; from any thread.
  virtual void Receive(int from, int tag, std::span<std::byte> into, Done done) = 0;

  // Ends every unfinished transfer and every later one with `why`. When it returns the `done` of
  // every transfer before it has run and their buffers are touched no more, and the other ranks'
  // transfers with this one end in an error (kIo) that names it, and says why where nothing was on
  // its way to them; mpi_comm.h says what MPI cannot promise. From any thread but a `done`'s; the
  // first `why` stays.
  virtual void Close(Error why) = 0;

  // Payload bytes of this rank's sends that have ended well.
  virtual uint64_t sent_bytes() const = 0;
};

// kInvalidArgument where a transfer of `comm` with this peer and tag cannot be.
Status CheckTransfer(const Comm& comm, int peer, int tag);
// That of a receive into `into_bytes` that met a message of `bytes`: kCorrupt where they differ.
Status CheckSize(int from, int tag, uint64_t into_bytes, uint64_t bytes);

}  // namespace kvcake
