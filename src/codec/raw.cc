#include "codec/raw.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvcake {
namespace {

class RawCodec : public LayerCodec {
 public:
  explicit RawCodec(const KvLayout& layout) : payload_bytes_(layout.slab_payload_bytes()) {}

  uint64_t part_bytes_max() const override { return RoundUpToPart(payload_bytes_); }

  Result<uint64_t> Encode(const SlabPlace&, std::span<const uint16_t> slab,
                          std::span<std::byte> part) const override {
    CHECK(slab.size_bytes() == payload_bytes_ && part.size() >= part_bytes_max());
    std::memcpy(part.data(), slab.data(), payload_bytes_);
    std::memset(part.data() + payload_bytes_, 0, part_bytes_max() - payload_bytes_);
    return part_bytes_max();
  }

  Status Decode(const SlabPlace&, std::span<const std::byte> part,
                std::span<uint16_t> slab) const override {
    CHECK(slab.size_bytes() == payload_bytes_);
    if (part.size() != part_bytes_max()) {
      return Fail(ErrorCode::kCorrupt, "it has {} bytes, must have {}", part.size(),
                  part_bytes_max());
    }
    const auto padding = part.subspan(payload_bytes_);
    if (!std::all_of(padding.begin(), padding.end(), [](auto b) { return b == std::byte{0}; })) {
      return Fail(ErrorCode::kCorrupt, "its padding is not zero");
    }
    std::memcpy(slab.data(), part.data(), payload_bytes_);
    return {};
  }

 private:
  const uint64_t payload_bytes_;
};

}  // namespace

Result<std::unique_ptr<LayerCodec>> MakeRawCodec(const CodecSpec& spec, CodecIsa) {
  return std::make_unique<RawCodec>(spec.layout);
}

}  // namespace kvcake
