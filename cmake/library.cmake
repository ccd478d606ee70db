# libkvcake.so: the C API of src/lib, with the rooms below it inside. Nothing but what
# src/lib/kvcake.map lists is seen from outside.
target_compile_definitions(lib PRIVATE KVCAKE_VERSION="${PROJECT_VERSION}")
add_library(kvcake_library SHARED $<TARGET_OBJECTS:lib>)
set(version_script ${CMAKE_SOURCE_DIR}/src/lib/kvcake.map)
set_target_properties(kvcake_library PROPERTIES OUTPUT_NAME kvcake SOVERSION 0 LINKER_LANGUAGE CXX
                      VERSION ${PROJECT_VERSION} LINK_DEPENDS ${version_script})
target_include_directories(kvcake_library INTERFACE ${CMAKE_SOURCE_DIR}/src/lib)
target_link_libraries(kvcake_library PRIVATE cake)
# nodelete: where a name server hangs, a thread may be in the library after all stores are closed.
target_link_options(kvcake_library PRIVATE -Wl,--version-script=${version_script} -Wl,-z,nodelete)
# What docs/library.md shows, as its readers compile it.
add_executable(restore_example examples/restore.c)
set_target_properties(restore_example PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON
                      C_EXTENSIONS OFF)
target_compile_options(restore_example PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(restore_example PRIVATE kvcake_library)
if(KVCAKE_SANITIZE)  # what the library asks of the sanitizers is of C++
  set_target_properties(restore_example PROPERTIES LINKER_LANGUAGE CXX)
endif()

install(TARGETS kvcake_library LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES src/lib/kvcake.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
