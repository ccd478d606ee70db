#include "ops/cuda_support.h"

#include <fmt/core.h>

namespace kvcake {
namespace {

constexpr int kCapabilityMin = 80;
// Kernels that start early, and their launches as parts of graphs (ops/cuda_launch.h).
constexpr int kEarlyCapability = 90, kEarlyDriverMin = 12050;

std::string Version(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Status CheckCudaDriver(int driver, int toolkit) {
  if (driver <= 0) {
    return Fail(ErrorCode::kUnsupported,
                "no CUDA device can be used: there is no NVIDIA driver (a container needs docker "
                "run --gpus all)");
  }
  if (driver / 1000 >= toolkit / 1000) return {};
  return Fail(ErrorCode::kUnsupported,
              "no CUDA device can be used: the driver supports CUDA {}, and this kvcake was built "
              "with {}: update the driver, or build with an older toolkit",
              Version(driver), Version(toolkit));
}

Status CheckCudaCard(const std::string& name, int capability, int driver) {
  if (capability < kCapabilityMin) {
    return Fail(ErrorCode::kUnsupported,
                "{} has compute capability {}.{}: kvcake needs 8.0 or more, as of an A100", name,
                capability / 10, capability % 10);
  }
  if (capability >= kEarlyCapability && driver < kEarlyDriverMin) {
    return Fail(ErrorCode::kUnsupported,
                "{}: the driver supports CUDA {}, and on this card kvcake needs one that supports "
                "{} or newer",
                name, Version(driver), Version(kEarlyDriverMin));
  }
  return {};
}

}  // namespace kvcake
