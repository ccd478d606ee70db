#include "engine/cost_file.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace kvcake {

void LoadCosts(const std::string& path, const Learners& learners) {
  std::ifstream file(path);
  if (!file) return;
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto teach = [&] {
    if (!json.is_object() || !json.contains("compute") || !json.contains("tier")) return false;
    if (!learners.compute.FromJson(json["compute"])) return false;
    if (!learners.restorer.TierCostFromJson(learners.tier, json["tier"])) return false;
    if (learners.writes == nullptr || !json.contains("seen")) return true;
    return learners.writes->SeenFromJson(json["seen"]).has_value();
  };
  if (!teach()) spdlog::warn("{} is not a cost file of kvcake: measuring anew", path);
}

void SaveCosts(const std::string& path, const Learners& learners) {
  nlohmann::json json = {{"compute", learners.compute.ToJson()},
                         {"tier", learners.restorer.TierCostToJson(learners.tier)}};
  if (learners.writes != nullptr) json["seen"] = learners.writes->SeenToJson();
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  std::error_code error;
  std::ofstream(temporary) << json.dump() << '\n';
  std::filesystem::rename(temporary, path, error);
  if (error) std::filesystem::remove(temporary, error);
}

}  // namespace kvcake
