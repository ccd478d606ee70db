#include "store/owner.h"

#include <fmt/core.h>

#include <charconv>

#include "base/hash.h"

namespace kvcake {
namespace {

constexpr char kAttribute[] = "user.kvcake.owner";
constexpr size_t kHexDigits = 16;

}  // namespace

OwnerId OwnerOf(std::string_view tenant) {
  if (tenant.empty()) return kNobody;
  const Digest digest = Sha256().Update(tenant).Finish();
  OwnerId owner = 0;
  for (size_t i = 0; i < sizeof(owner); ++i) owner = owner << 8 | digest[i];
  return owner == kNobody ? 1 : owner;
}

Status WriteOwner(File& file, OwnerId owner) {
  return file.SetAttribute(kAttribute, fmt::format("{:016x}", owner));
}

OwnerId ReadOwner(FileSystem& fs, const std::string& path) {
  const auto text = fs.Attribute(path, kAttribute, kHexDigits);
  if (!text || text->size() != kHexDigits) return kNobody;
  OwnerId owner = kNobody;
  const char* const end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, owner, 16);
  return parsed.ec == std::errc() && parsed.ptr == end ? owner : kNobody;
}

}  // namespace kvcake
