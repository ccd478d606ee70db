// Which CUDA device a process uses, of those that it may see.
#pragma once

#include <string>

namespace kvcake {

// What CUDA_VISIBLE_DEVICES calls the device with this number, from 0 on, of those in `list`,
// counted round; of all where `list` is null, as the variable is when it is not set.
std::string VisibleDevice(const char* list, int number);
// Reads the variable itself.
std::string VisibleDevice(int number);

// Leaves this one visible. Before anything asks for the device.
void ChooseCudaDevice(const std::string& name);

}  // namespace kvcake
