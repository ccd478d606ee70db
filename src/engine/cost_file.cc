#include "engine/cost_file.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvcake {

void LoadCosts(const std::string& path, ComputeCost& compute, Restorer& restorer) {
  std::ifstream file(path);
  if (!file) return;
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("compute") || !json.contains("tiers") ||
      !compute.FromJson(json["compute"]) || !restorer.TierCostsFromJson(json["tiers"])) {
    spdlog::warn("{} is not a cost file of kvcake: measuring anew", path);
  }
}

void SaveCosts(const std::string& path, const ComputeCost& compute, const Restorer& restorer) {
  const nlohmann::json json = {{"compute", compute.ToJson()},
                               {"tiers", restorer.TierCostsToJson()}};
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  std::error_code error;
  std::ofstream(temporary) << json.dump() << '\n';
  std::filesystem::rename(temporary, path, error);
  if (error) std::filesystem::remove(temporary, error);
}

}  // namespace kvcake
