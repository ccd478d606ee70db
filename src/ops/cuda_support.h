// Whether a driver and a card are such as the CUDA backend needs, before either is used.
#pragma once

#include <string>

#include "base/status.h"

namespace kvcake {

// Versions as CUDA numbers them (12050 is 12.5): the driver's, 0 where there is none, and that of
// the toolkit that this program was built with. kUnsupported says which driver is needed.
Status CheckCudaDriver(int driver, int toolkit);

// `capability` of 90 is 9.0. Newer cards than kernels were compiled for are told by CUDA.
Status CheckCudaCard(const std::string& name, int capability, int driver);

}  // namespace kvcake
