#include "bench/load_copies.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/harness.h"
#include "ops/cuda_device.h"
#include "ops/cuda_page_copier.h"

namespace kvcake::bench {
namespace {

// As much memory of the host as of the device, in chunks of one size.
class CopyRun {
 public:
  CopyRun(uint64_t bytes, uint64_t chunk_bytes)
      : device_(*CudaDevice::Get().value()),
        chunk_bytes_(chunk_bytes),
        chunks_(std::max<uint64_t>(bytes / chunk_bytes, 1)),
        host_(chunks_ * chunk_bytes, Memory::kPinned),
        pages_(chunks_ * chunk_bytes, Memory::kDevice),
        copier_(NewCudaPageCopier()) {
    device_.Wait();  // the buffer has been zeroed
    uint64_t random = 1;
    for (uint64_t& word : Words()) word = random = random * 6364136223846793005 + 1;
  }

  // Bytes a second, all chunks asked for at once.
  double ByCopier(bool to_device) {
    const TimePoint start = Clock::Real().Now();
    AwaitCopies(static_cast<int64_t>(chunks_), [&](int64_t i, std::function<void()> done) {
      if (to_device) {
        copier_->ToPage(Chunk(pages_, i), Chunk(host_, i), std::move(done));
      } else {
        copier_->FromPage(Chunk(host_, i), Chunk(pages_, i), std::move(done));
      }
    });
    return RateSince(start);
  }

  double Plain(bool to_device) {
    const TimePoint start = Clock::Real().Now();
    for (uint64_t i = 0; i < chunks_; ++i) {
      const auto host = Chunk(host_, i), page = Chunk(pages_, i);
      if (to_device) {
        device_.CopyToDevice(page.data(), host.data(), chunk_bytes_);
      } else {
        device_.CopyToHost(host.data(), page.data(), chunk_bytes_);
      }
    }
    device_.Wait();
    return RateSince(start);
  }

  // Sent, overwritten here and fetched again.
  Status Check() {
    const std::vector<uint64_t> sent(Words().begin(), Words().end());
    ByCopier(/*to_device=*/true);
    std::ranges::fill(Words(), 0);
    ByCopier(/*to_device=*/false);
    if (std::ranges::equal(Words(), sent)) return {};
    return Fail(ErrorCode::kCorrupt, "chunks of {} bytes came back from the device as others",
                chunk_bytes_);
  }

 private:
  std::span<std::byte> Chunk(const Buffer& buffer, uint64_t i) const {
    return {buffer.data() + i * chunk_bytes_, chunk_bytes_};
  }
  std::span<uint64_t> Words() const {
    return {host_.as<uint64_t>(), host_.size() / sizeof(uint64_t)};
  }
  double RateSince(TimePoint start) const {
    return static_cast<double>(host_.size()) / (Clock::Real().Now() - start).count();
  }

  CudaDevice& device_;
  const uint64_t chunk_bytes_, chunks_;
  const Buffer host_, pages_;
  const std::unique_ptr<PageCopier> copier_;
};

}  // namespace

Status MeasureCopies(const LoadOptions& options, nlohmann::ordered_json* json) {
  fmt::print("{:<16} {:>6} {:>28} {:>28} {:>9}\n", "copies", "MiB", "MB/s (min - max)",
             "plain MB/s (min - max)", "of plain");
  for (const uint64_t chunk_bytes : options.chunk_bytes) {
    CopyRun run(options.bytes, chunk_bytes);
    RETURN_IF_ERROR(run.Check());
    for (const bool to_device : {true, false}) {
      std::vector<double> ours, plain;
      for (int repeat = 0; repeat < options.repeats; ++repeat) {
        ours.push_back(run.ByCopier(to_device) / 1e6);
        plain.push_back(run.Plain(to_device) / 1e6);
      }
      const double share = Median(ours) / Median(plain);
      const char* op = to_device ? "host to device" : "device to host";
      fmt::print("{:<16} {:>6} {:>28} {:>28} {:>8.1f}%\n", op, chunk_bytes >> 20, Spread(ours, 0),
                 Spread(plain, 0), 100 * share);
      json->push_back({{"op", op},
                       {"chunk_bytes", chunk_bytes},
                       {"bytes_per_s", Median(ours) * 1e6},
                       {"plain_bytes_per_s", Median(plain) * 1e6},
                       {"device", DeviceName(options.path)}});
    }
  }
  return {};
}

}  // namespace kvcake::bench
