// Probes: small reads of a device that is left alone, until one of them goes well.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "io/io_queue.h"
#include "store/device_health.h"

namespace kvcake {

// Belongs to the I/O thread, in whose queue probes lie beside its reads, but outside their bounds.
class DeviceProbes {
 public:
  static constexpr int kProbesMax = 4;  // that may be lost
  static constexpr uint64_t kProbeBytes = kDirectAlign;

  // What a probe needs of others; must not block.
  struct Files {
    // Begins to open `path`; Opened is called with what comes of it, not from within.
    std::function<void(uint64_t tag, const std::string& path)> open;
    std::function<void(std::shared_ptr<File>)> close;
    // The path of a file, another for another `number`; nothing where none is known.
    std::function<std::optional<std::string>(uint64_t number)> sample;
  };
  // `health` and `queue` outlive it.
  DeviceProbes(DeviceHealth& health, IoQueue& queue, Seconds overdue_after, Files files);

  // Whether a tag is a probe's and not a read's, which are small.
  static bool IsProbe(uint64_t tag) { return tag >= kFirstTag; }

  // Starts a probe when one is due and may be made.
  void StartIfDue(TimePoint now);
  void Opened(uint64_t tag, Result<std::shared_ptr<File>> file);
  void Completed(const IoCompletion& completion);
  // Asks for all of them to end; what is in the queue is still to be completed.
  void Cancel();
  bool empty() const { return probes_.empty(); }
  // When StartIfDue is to be called, though nothing was heard of the device.
  std::optional<TimePoint> NextStart(TimePoint now) const;

 private:
  static constexpr uint64_t kFirstTag = UINT64_MAX / 2;
  struct Probe;

  bool MayStart(TimePoint now) const;

  DeviceHealth& health_;
  IoQueue& queue_;
  const Seconds overdue_after_;
  const Files files_;

  std::unordered_map<uint64_t, std::shared_ptr<Probe>> probes_;  // by tag: being opened or read
  uint64_t next_ = 0;
};

}  // namespace kvcake
