#include "app/store_names.h"

#include <nlohmann/json.hpp>

namespace kvcake {

std::string ModelName(const StoreRoot& root) {
  const auto model = nlohmann::json::parse(root.description, nullptr, false);
  if (!model.is_object()) return "unknown";
  const auto name = model.find("model");
  return name != model.end() && name->is_string() ? name->get<std::string>() : "unknown";
}

Result<std::vector<ChunkKey>> RootsOf(const std::string& dir, const std::string& model) {
  constexpr size_t kDigitsMin = 8;
  ASSIGN_OR_RETURN(const auto roots, ListStore(dir));
  std::vector<ChunkKey> found;
  std::string names;
  for (const StoreRoot& root : roots) {
    const std::string hex = root.root.Hex();
    if (ModelName(root) == model || (model.size() >= kDigitsMin && hex.starts_with(model))) {
      found.push_back(root.root);
    }
    names += fmt::format(" {} ({})", ModelName(root), hex.substr(0, 12));
  }
  if (!found.empty()) return found;
  return Fail(ErrorCode::kNotFound, "--model {}: {} has nothing of it, but{}", model, dir,
              names.empty() ? " is empty" : names);
}

}  // namespace kvcake
