// For fuzz targets: a model directory in memory that holds one file, the input.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace kvcake {

inline const std::string& FuzzDir(const char* file, const uint8_t* data, size_t size) {
  static const std::string dir = [] {
    std::string name = "/dev/shm/kvcake-fuzz-" + std::to_string(getpid());
    mkdir(name.c_str(), 0700);
    return name;
  }();
  std::ofstream out(dir + "/" + file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return dir;
}

}  // namespace kvcake
