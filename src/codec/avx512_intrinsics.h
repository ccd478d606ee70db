// The intrinsics of AVX-512, without warnings that are not the including file's.
#pragma once

// Those of GCC 12 read values that they then ignore, which shows where they are inlined.
#pragma GCC diagnostic ignored "-Wuninitialized"
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <cstdint>
