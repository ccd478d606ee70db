#include "store/tier.h"

#include "base/check.h"

namespace kvcake {

uint64_t ReadBytes(const KvLayout& layout, const ReadRequest& request) {
  return request.layers ? request.layers->count * layout.slab_bytes() : layout.page_bytes();
}

void CheckLanding(const KvLayout& layout, const ReadRequest& request) {
  if (const auto& layers = request.layers) {
    CHECK(layers->first >= 0 && layers->count > 0 &&
          layers->first + layers->count <= layout.layers);
  }
  CHECK(request.landing.size() >= ReadBytes(layout, request));
}

}  // namespace kvcake
