#include "ops/visible_devices.h"

#include <cstdlib>
#include <sstream>
#include <vector>

namespace kvcake {
namespace {

constexpr char kVariable[] = "CUDA_VISIBLE_DEVICES";

}  // namespace

std::string VisibleDevice(const char* list, int number) {
  if (list == nullptr) return std::to_string(number);
  std::vector<std::string> devices;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) devices.push_back(name);
  return devices.empty() ? std::string() : devices[number % devices.size()];
}

std::string VisibleDevice(int number) { return VisibleDevice(std::getenv(kVariable), number); }

void ChooseCudaDevice(const std::string& name) { setenv(kVariable, name.c_str(), /*overwrite=*/1); }

}  // namespace kvcake
