// What was learnt about compute and a tier, kept beside each store so that a fresh process plans
// well from its first slice. A file that is missing, old or damaged teaches nothing and harms
// nothing.
#pragma once

#include <string>
#include <string_view>

#include "cake/restorer.h"
#include "io/file_system.h"
#include "store/write_behind.h"

namespace kvcake {

// Whose costs one file keeps.
struct Learners {
  ComputeCost& compute;
  Restorer& restorer;
  int tier = 0;
  WriteBehind* writes = nullptr;  // may be null
};

// Where the costs of `device`, a text that names it and how it is used, are kept in a store.
std::string CostPath(const std::string& store_dir, const ChunkKey& root, std::string_view device);
void LoadCosts(const std::string& path, const Learners& learners);
// Replaces the file when all of the new one is written; what fails is only logged.
void SaveCosts(const std::string& path, const Learners& learners,
               FileSystem& fs = FileSystem::Real());

}  // namespace kvcake
