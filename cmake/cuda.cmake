# The CUDA language, for the .cu files of the rooms: machine code for A100, L4/4090 and H100/H200.
set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.5)  # ops/cuda_launch.h, ops/cuda_tensor_map.cu
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} is too old: kvcake needs 12.5 or newer")
endif()
find_package(CUDAToolkit REQUIRED)
# fmt 9 checks format strings in a way that nvcc cannot hand on to g++.
set(cuda_options -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter -DFMT_CONSTEVAL=
    -DFMT_USE_CONSTEXPR=1)
if(KVCAKE_WERROR)
  list(APPEND cuda_options "-Werror=all-warnings")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:${cuda_options}>")
set(cuda_libraries CUDA::cudart_static CUDA::cublasLt)
set(cuda_without WITHOUT /cuda_absent)
