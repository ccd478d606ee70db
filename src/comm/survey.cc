#include "comm/survey.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>

#include "comm/room_tags.h"
#include "comm/wait.h"

namespace kvcake {
namespace {

constexpr size_t kShortBytes = 8, kLongBytes = 2 << 20;
constexpr int kShortRounds = 16, kLongRounds = 3;

// What a rank tells the last one.
struct Record {
  std::array<char, kMachineBytesMax> machine = {};
  double latency_s = 0, bytes_per_s = 0;  // to the next rank
};

// Transfers that outlast a failed call keep their buffers.
struct Buffers {
  std::vector<std::byte> probe = std::vector<std::byte>(kLongBytes);
  std::array<std::byte, kShortBytes> echo = {};
  std::vector<Record> records;
};

class Surveyor {
 public:
  Surveyor(Comm& comm, Seconds timeout) : comm_(comm), deadline_(Clock::Real().Now() + timeout) {
    buffers_->records.resize(comm.size());
  }

  // The other end of Probe.
  Status Answer() {
    for (int round = 0; round < kShortRounds + kLongRounds; ++round) {
      RETURN_IF_ERROR(Receive(comm_.rank() - 1, kProbeTag, ProbeOf(round)));
      RETURN_IF_ERROR(Send(comm_.rank() - 1, kEchoTag, buffers_->echo));
    }
    return {};
  }

  // Measures the link to the next rank.
  Status Probe(Record* record) {
    double short_s = std::numeric_limits<double>::infinity(), long_s = short_s;
    for (int round = 0; round < kShortRounds + kLongRounds; ++round) {
      const TimePoint began = Clock::Real().Now();
      RETURN_IF_ERROR(Send(comm_.rank() + 1, kProbeTag, ProbeOf(round)));
      RETURN_IF_ERROR(Receive(comm_.rank() + 1, kEchoTag, buffers_->echo));
      double& best_s = round < kShortRounds ? short_s : long_s;
      best_s = std::min(best_s, (Clock::Real().Now() - began).count());
    }
    constexpr double kInstant = 1e-9;  // of clocks that tell no difference
    record->latency_s = short_s / 2;
    record->bytes_per_s = kLongBytes / std::max(long_s - short_s, kInstant);
    return {};
  }

  Result<Survey> Gather(const Record& own) {
    const int last = comm_.size() - 1;
    buffers_->records[comm_.rank()] = own;
    if (comm_.rank() != last) {
      RETURN_IF_ERROR(Send(last, kRecordTag, BytesOf(comm_.rank())));
      return Survey();
    }
    Survey survey{.bytes_per_s = std::numeric_limits<double>::infinity()};
    for (int rank = 0; rank <= last; ++rank) {
      if (rank < last) RETURN_IF_ERROR(Receive(rank, kRecordTag, BytesOf(rank)));
      const Record& record = buffers_->records[rank];
      survey.machines.emplace_back(record.machine.data(),
                                   strnlen(record.machine.data(), record.machine.size()));
      if (rank == last) break;
      survey.latency_s = std::max(survey.latency_s, record.latency_s);
      survey.bytes_per_s = std::min(survey.bytes_per_s, record.bytes_per_s);
    }
    return survey;
  }

 private:
  std::span<std::byte> ProbeOf(int round) const {
    return std::span(buffers_->probe).first(round < kShortRounds ? kShortBytes : kLongBytes);
  }
  std::span<std::byte> BytesOf(int rank) const {
    return std::as_writable_bytes(std::span(&buffers_->records[rank], 1));
  }

  Status Send(int to, int tag, std::span<const std::byte> data) {
    TransferWait wait;
    comm_.Send(to, tag, data, Keep(wait.Add(to)));
    return wait.Wait(deadline_, "measuring the links between ranks");
  }
  Status Receive(int from, int tag, std::span<std::byte> into) {
    TransferWait wait;
    comm_.Receive(from, tag, into, Keep(wait.Add(from)));
    return wait.Wait(deadline_, "measuring the links between ranks");
  }
  Comm::Done Keep(Comm::Done done) const {
    return [buffers = buffers_, done = std::move(done)](Status status) { done(std::move(status)); };
  }

  Comm& comm_;
  const TimePoint deadline_;
  const std::shared_ptr<Buffers> buffers_ = std::make_shared<Buffers>();
};

}  // namespace

Result<Survey> SurveyRanks(Comm& comm, const std::string& machine, Seconds timeout) {
  Record own;
  std::memcpy(own.machine.data(), machine.data(), std::min(machine.size(), own.machine.size()));
  Surveyor surveyor(comm, timeout);
  if (comm.rank() > 0) RETURN_IF_ERROR(surveyor.Answer());
  if (comm.rank() + 1 < comm.size()) RETURN_IF_ERROR(surveyor.Probe(&own));
  return surveyor.Gather(own);
}

}  // namespace kvcake
