// Copies pages to and from the CUDA device beside its kernels: each way has a stream and a thread.
#pragma once

#include <memory>

#include "kv/page_copier.h"

namespace kvcake {

// Staging memory is page-locked (Memory::kPinned). Its destructor waits until all has been copied.
// There is a device.
std::unique_ptr<PageCopier> NewCudaPageCopier();

}  // namespace kvcake
