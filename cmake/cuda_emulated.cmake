# The .cu files of the rooms as C++, for a device that the CPU plays.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  message(FATAL_ERROR "tests/cuda_emulator switches threads as x86-64 does")
endif()
# First: its headers are found before those of the same names.
include_directories(tests/cuda_emulator)
add_compile_options(-Wno-unknown-pragmas)
add_library(cuda_emulator STATIC tests/cuda_emulator/block.cc tests/cuda_emulator/cublas.cc
            tests/cuda_emulator/runtime.cc)
set(cuda_libraries cuda_emulator)
set(cuda_without WITHOUT /cuda_absent)
