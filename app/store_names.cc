#include "app/store_names.h"

#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace kvcake {

namespace {

std::string Described(const StoreRoot& root, const char* field, const char* otherwise) {
  const auto model = nlohmann::json::parse(root.description, nullptr, false);
  if (!model.is_object()) return otherwise;
  const auto value = model.find(field);
  return value != model.end() && value->is_string() ? value->get<std::string>() : otherwise;
}

}  // namespace

std::string ModelName(const StoreRoot& root) { return Described(root, "model", "unknown"); }

std::string CodecOf(const StoreRoot& root) { return Described(root, "codec", "raw"); }

std::string EncryptionOf(const StoreRoot& root) { return Described(root, "encryption", ""); }

Result<std::vector<ChunkKey>> RootsOf(std::span<const StoreRoot> roots, const std::string& store,
                                      const std::string& model) {
  constexpr size_t kDigitsMin = 8;
  std::vector<ChunkKey> found;
  std::string names;
  for (const StoreRoot& root : roots) {
    const std::string hex = root.root.Hex();
    if (ModelName(root) == model || (model.size() >= kDigitsMin && hex.starts_with(model))) {
      found.push_back(root.root);
    }
    names += fmt::format(" {} ({})", Printable(ModelName(root)), hex.substr(0, 12));
  }
  if (!found.empty()) return found;
  return Fail(ErrorCode::kNotFound,
              "--model {}: {} has nothing of it (a name, or 8 digits of a root at least), but{}",
              model, store, names.empty() ? " is empty" : names);
}

}  // namespace kvcake
