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
  const auto teach = [&]() -> Status {
    if (!json.is_object() || !json.contains("compute") || !json.contains("tier")) {
      return Fail(ErrorCode::kInvalidArgument, "it has no compute and tier");
    }
    RETURN_IF_ERROR(learners.compute.FromJson(json["compute"]));
    RETURN_IF_ERROR(learners.restorer.TierCostFromJson(learners.tier, json["tier"]));
    if (learners.writes == nullptr || !json.contains("seen")) return {};
    return learners.writes->SeenFromJson(json["seen"]);
  };
  if (const Status taught = teach(); !taught) {
    spdlog::warn("{} is not a cost file of kvcake, measuring anew: {}", path,
                 taught.error().message);
  }
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
