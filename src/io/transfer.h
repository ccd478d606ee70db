// The progress of one read over short ones; shared by the queues.
#pragma once

#include <cstdint>
#include <span>

#include "io/io_queue.h"

namespace kvcake {

class Transfer {
 public:
  explicit Transfer(const IoOp& op) : op_(op) {}

  const IoOp& op() const { return op_; }
  uint64_t done() const { return done_; }
  uint64_t offset() const { return op_.offset + resume_; }
  std::span<std::byte> left() const { return op_.buffer.subspan(resume_); }

  // Notes that a call starting at offset() moved n bytes; true when the operation is complete.
  bool Advance(uint64_t n) {
    const uint64_t before = done_;
    done_ = resume_ + n;
    if (n == 0 || done_ == op_.buffer.size()) return true;
    // Direct I/O goes on from an aligned place: what lies between is read again. Without progress
    // the end of the file has been met.
    resume_ = op_.file->direct() ? done_ / kDirectAlign * kDirectAlign : done_;
    return done_ <= before;
  }

 private:
  IoOp op_;
  uint64_t done_ = 0;    // bytes from the buffer's start that hold data
  uint64_t resume_ = 0;  // where the next call starts; at most done_
};

}  // namespace kvcake
