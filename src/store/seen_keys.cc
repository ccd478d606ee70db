#include "store/seen_keys.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace kvcake {

bool SeenKeys::Add(uint64_t key) {
  if (!keys_.insert(key).second) return true;
  order_.push_back(key);
  if (order_.size() > keys_max_) {
    keys_.erase(order_.front());
    order_.pop_front();
  }
  return false;
}

nlohmann::json SeenKeys::ToJson() const { return order_; }

Status SeenKeys::FromJson(const nlohmann::json& json) {
  const auto is_key = [](const nlohmann::json& item) { return item.is_number_unsigned(); };
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), is_key)) {
    return Fail(ErrorCode::kInvalidArgument, "keys seen must be an array of whole numbers");
  }
  for (const nlohmann::json& item : json) Add(item.get<uint64_t>());
  return {};
}

}  // namespace kvcake
