# A libkvcake for machines of which nothing is known but their glibc: what Debian has as static
# libraries or as headers is inside.
foreach(library XXHASH URING)
  list(GET ${library}_LIBRARIES 0 name)
  find_library(${library}_STATIC lib${name}.a REQUIRED)
  set_target_properties(PkgConfig::${library} PROPERTIES INTERFACE_LINK_LIBRARIES
                                                         ${${library}_STATIC})
endforeach()
set(curl_library ${CMAKE_DL_LIBS})  # src/store/curl_loaded.cc
set(curl_without /nothing)
add_library(spdlog_inside INTERFACE)  # Debian's spdlog and fmt, from their headers
target_compile_definitions(spdlog_inside INTERFACE SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
target_link_libraries(spdlog_inside INTERFACE Threads::Threads)
set(spdlog_library spdlog_inside)
add_link_options(-static-libstdc++ -static-libgcc -Wl,-z,defs -s)
