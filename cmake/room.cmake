# Most of the time to build went into what every file parses and instantiates anew: gtest, gmock,
# JSON, CLI11. So several files of a target are compiled at once; a name of one file's anonymous
# namespace must not be another's of the same target. Tests run for milliseconds, and flags are read
# once: they are optimised less; benches, which measure, are not. Under the address sanitizer tests
# that mostly wait are not optimised at all, which takes a third of the time; half of that is
# parsing.
option(KVCAKE_UNITY "Compile several files of a target at once" ON)
function(kvcake_in_batches target files)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${KVCAKE_UNITY}
                                             UNITY_BUILD_BATCH_SIZE ${files})
  # Where the sources are is not in what was compiled, so that ccache knows it again elsewhere.
  target_compile_options(${target} PRIVATE -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
endfunction()
# A test mostly waits unless a second argument is true.
function(kvcake_test_options test)
  set(computes ${ARGN})
  if(KVCAKE_SANITIZE)
    target_compile_definitions(${test} PRIVATE KVCAKE_SANITIZED)
  endif()
  if(KVCAKE_SANITIZE MATCHES "address" AND NOT computes)
    kvcake_in_batches(${test} 12)
    target_compile_options(${test} PRIVATE -O0)
  else()
    kvcake_in_batches(${test} 6)
    target_compile_options(${test} PRIVATE "$<$<CONFIG:Release>:-O1>")
  endif()
endfunction()

# Seconds after which a test of a room hangs. Emulators are tens of times slower.
set(room_test_timeout 300)
if(CMAKE_CROSSCOMPILING OR KVCAKE_CUDA_EMULATED)
  set(room_test_timeout 1200)
endif()

# kvcake_room(NAME [IN_LIBRARY] [ALONE] [COMPUTES] [DIR dir] [WITHOUT regex] [DEPS rooms...]
# [LIBS targets...]) makes the library of a room from its sources (src/NAME unless DIR is given,
# without those whose path matches the regex) and one test program from the *_test.cc beside them;
# its tests carry the room's name as their ctest label. What tests share in files called
# x_testing.cc is the library NAME_testing, which holds that of the rooms below, too: the tests of
# the room and of those above it link it, no program does. Each x_fuzz.cc becomes a test that
# replays its corpus and some mutations of it, and with KVCAKE_FUZZ a libFuzzer program NAME_x_fuzz.
# Files called x_bench.cc become the Google Benchmark program NAME_bench. With KVCAKE_CUDA a room's
# .cu files are sources, too. IN_LIBRARY: libkvcake.so holds it, too, where nobody but itself sees
# its names. ALONE: its sources are compiled one by one, as those for each instruction set have the
# same names. COMPUTES: its tests do not mostly wait.
function(kvcake_room name)
  cmake_parse_arguments(ROOM "IN_LIBRARY;ALONE;COMPUTES" "DIR;WITHOUT" "DEPS;LIBS" ${ARGN})
  if(NOT ROOM_DIR)
    set(ROOM_DIR src/${name})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${ROOM_DIR}/*.cc)
  if(KVCAKE_CUDA OR KVCAKE_CUDA_EMULATED)
    file(GLOB cuda_sources CONFIGURE_DEPENDS ${ROOM_DIR}/*.cu)
    list(APPEND sources ${cuda_sources})
    if(KVCAKE_CUDA_EMULATED)
      set_source_files_properties(${cuda_sources} PROPERTIES LANGUAGE CXX
                                  COMPILE_OPTIONS "${cuda_options}")
    endif()
  endif()
  if(ROOM_WITHOUT)
    list(FILTER sources EXCLUDE REGEX ${ROOM_WITHOUT})
  endif()
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(testing ${sources})
  list(FILTER testing INCLUDE REGEX "_testing\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|testing|fuzz|bench)\\.cc$")
  if(sources)
    add_library(${name} STATIC ${sources})
    target_link_libraries(${name} PUBLIC ${ROOM_DEPS} ${ROOM_LIBS})
    target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
    if(NOT ROOM_ALONE)
      kvcake_in_batches(${name} 6)
    endif()
    if(ROOM_IN_LIBRARY)
      set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
                            CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE ${ROOM_DEPS} ${ROOM_LIBS})
    target_include_directories(${name} INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
  endif()
  if(KVCAKE_TESTS)
    list(TRANSFORM ROOM_DEPS APPEND _testing)
    if(testing)
      add_library(${name}_testing STATIC ${testing})
      target_link_libraries(${name}_testing PUBLIC ${name} ${ROOM_DEPS})
    else()
      add_library(${name}_testing INTERFACE)
      target_link_libraries(${name}_testing INTERFACE ${name} ${ROOM_DEPS})
    endif()
  endif()
  file(GLOB fuzzers CONFIGURE_DEPENDS ${ROOM_DIR}/*_fuzz.cc)
  foreach(source ${fuzzers})
    get_filename_component(fuzzer ${source} NAME_WE)
    set(fuzzer ${name}_${fuzzer})
    if(KVCAKE_FUZZ)  # which looks for ways through the room, not through those below
      target_compile_options(${name} PRIVATE -fsanitize=fuzzer-no-link)
      add_executable(${fuzzer} ${source})
      target_link_libraries(${fuzzer} PRIVATE ${name} -fsanitize=fuzzer)
    endif()
    if(KVCAKE_TESTS)
      add_executable(${fuzzer}_replay ${source} tests/fuzz_replay.cc)
      target_link_libraries(${fuzzer}_replay PRIVATE ${name})
      add_test(NAME ${name}.${fuzzer}_replay
               COMMAND ${fuzzer}_replay ${CMAKE_SOURCE_DIR}/tests/corpus/${fuzzer} 2000)
      set_tests_properties(${name}.${fuzzer}_replay PROPERTIES LABELS ${name}
                                                               TIMEOUT ${room_test_timeout})
    endif()
  endforeach()
  file(GLOB benches CONFIGURE_DEPENDS ${ROOM_DIR}/*_bench.cc)
  if(KVCAKE_TESTS AND benches)
    add_executable(${name}_bench ${benches})
    target_link_libraries(${name}_bench PRIVATE ${name} benchmark::benchmark)
  endif()
  if(KVCAKE_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE ${name}_testing GTest::gmock GTest::gtest_main)
    kvcake_test_options(${name}_test ${ROOM_COMPUTES})
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. NO_PRETTY_VALUES
                         PROPERTIES LABELS ${name} TIMEOUT ${room_test_timeout}
                         DISCOVERY_TIMEOUT 60)
  endif()
endfunction()
