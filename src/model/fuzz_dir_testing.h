// For fuzz targets: a model directory in memory that holds what the target writes there.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvcake {

// Replaces one file of the directory, which is removed when the process ends in peace; returns the
// directory.
inline const std::string& FuzzDir(const char* file, const uint8_t* data, size_t size) {
  struct Directory {
    const std::string path =
        (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : std::filesystem::temp_directory_path()) /
        ("kvcake-fuzz-" + std::to_string(getpid()));
    Directory() { std::filesystem::create_directory(path); }
    ~Directory() { std::filesystem::remove_all(path); }
  };
  static const Directory dir;
  std::ofstream out(dir.path + "/" + file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return dir.path;
}

}  // namespace kvcake
