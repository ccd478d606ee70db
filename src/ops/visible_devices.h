// Which CUDA device a process uses, of those that it may see.
#pragma once

#include <string>

namespace kvcake {

// The value of CUDA_VISIBLE_DEVICES that leaves the device with this number, from 0 on, of those in
// `list`, counted round; of all where `list` is null, as the variable is when it is not set.
std::string VisibleDevice(const char* list, int number);

// Sets the variable so. Before anything asks for the device; a second time changes nothing.
void ChooseCudaDevice(int number);

}  // namespace kvcake
