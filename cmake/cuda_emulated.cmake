# The .cu files of the rooms as C++, for a device that the CPU plays.
if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  message(FATAL_ERROR "tests/cuda_emulator switches threads as x86-64 does")
endif()
# First: its headers are found before those of the same names.
include_directories(tests/cuda_emulator)
add_compile_options(-Wno-unknown-pragmas)
# Devices refuse reads and writes that are not aligned as their types are; x86 does them. And GCC
# would note how it passed what is aligned to 64 bytes before 4.6.
set(cuda_options -fsanitize=alignment -fno-sanitize-recover=alignment -Wno-psabi)
add_library(cuda_emulator STATIC tests/cuda_emulator/block.cc tests/cuda_emulator/cublas.cc
            tests/cuda_emulator/runtime.cc)
target_compile_options(cuda_emulator PRIVATE ${cuda_options})
target_compile_definitions(cuda_emulator INTERFACE KVCAKE_CUDA_EMULATED)  # of tests
target_link_options(cuda_emulator INTERFACE -fsanitize=alignment)
set(cuda_libraries cuda_emulator)
set(cuda_without WITHOUT /cuda_absent)
