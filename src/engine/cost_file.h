// What was learnt about compute and tiers, kept beside the store so that a fresh process plans well
// from its first slice. A file that is missing, old or damaged teaches nothing and harms nothing.
#pragma once

#include <string>

#include "cake/restorer.h"

namespace kvcake {

void LoadCosts(const std::string& path, ComputeCost& compute, Restorer& restorer);
void SaveCosts(const std::string& path, const ComputeCost& compute, const Restorer& restorer);

}  // namespace kvcake
