#include "cake/cost_file.h"

#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/json_file.h"
#include "store/store_dir.h"

namespace kvcake {
namespace {

// Whoever writes to the store's directory may have written it. The keys that are remembered
// (WriteBehindOptions::seen_max) are a tenth of this, what was measured a few kilobytes.
constexpr JsonLimits kCostLimits{.max_bytes = 16 << 20, .max_values = 1 << 20, .max_depth = 8};

Status Teach(const nlohmann::json& json, const Learners& learners) {
  if (!json.is_object() || !json.contains("compute") || !json.contains("tier")) {
    return Fail(ErrorCode::kInvalidArgument, "it has no compute and tier");
  }
  RETURN_IF_ERROR(learners.compute.FromJson(json["compute"]));
  RETURN_IF_ERROR(learners.restorer.TierCostFromJson(learners.tier, json["tier"]));
  if (learners.writes == nullptr || !json.contains("seen")) return {};
  return learners.writes->SeenFromJson(json["seen"]);
}

std::string CostText(const Learners& learners) {
  nlohmann::json json = {{"compute", learners.compute.ToJson()},
                         {"tier", learners.restorer.TierCostToJson(learners.tier)}};
  if (learners.writes != nullptr) json["seen"] = learners.writes->SeenToJson();
  return json.dump() + '\n';
}

void Load(const KeptCosts& file) {
  const auto json = ReadJsonFile(file.path, kCostLimits);
  if (!json && json.error().code == ErrorCode::kNotFound) return;
  const Status taught = json ? Teach(*json, file.learners) : tl::unexpected(json.error());
  if (taught) return;
  const std::string& why = taught.error().message;
  spdlog::warn("not a cost file of kvcake, measuring anew: {}",
               json ? fmt::format("{}: {}", file.path, why) : why);  // which names the file
}

}  // namespace

std::string CostPath(const std::string& store_dir, const ChunkKey& root, std::string_view device) {
  return fmt::format("{}/cost-{:016x}.json", StoreDir(store_dir).RootDir(root),
                     Xxh3_64(std::as_bytes(std::span(device))));
}

void LoadCosts(const std::vector<KeptCosts>& files) {
  for (size_t i = files.size(); i-- > 0;) Load(files[i]);
}

CostKeeper::CostKeeper(std::vector<KeptCosts> files, Seconds interval, FileSystem& fs)
    : interval_(interval), fs_(fs) {
  for (KeptCosts& kept : files) files_.push_back({std::move(kept)});
  thread_.At(Clock::Real().Now() + interval_, [this] { Run(); });
}

void CostKeeper::Run() {
  const bool last = stop_;  // else what is learnt while this saves is saved once more
  for (File& file : files_) Save(file);
  if (!last) thread_.At(Clock::Real().Now() + interval_, [this] { Run(); });
}

void CostKeeper::Save(File& file) {
  std::string text = CostText(file.kept.learners);
  if (text == file.text) return;
  const Status written = WriteText(fs_, file.kept.path, text);
  if (written) file.text = std::move(text);
  // A directory that is not there has been cleared, and there is nothing to keep costs for.
  const bool failed = !written && written.error().code != ErrorCode::kNotFound;
  if (failed && !file.failed) {
    spdlog::warn("what was measured of compute and loads is not kept: {}", written.error().message);
  }
  file.failed = failed;
}

}  // namespace kvcake
