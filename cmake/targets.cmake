# sluice_library(NAME sources... LINK libraries...): one target a folder, with a sluice:: alias. What links StarPU is
# built for both of its flavours where the simulator's is there, too: sluice::NAME and sluice::NAME_simgrid.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  sluice_flavour(sluice_${name} sluice::${name} "${ARG_UNPARSED_ARGUMENTS}" "${ARG_LINK}")
  if(NOT SLUICE_STARPU_SIMGRID_PREFIX)
    return()
  endif()
  set(libraries)
  set(uses_starpu FALSE)
  foreach(library IN LISTS ARG_LINK)
    if(library STREQUAL "PkgConfig::STARPU")
      set(library PkgConfig::STARPU_SIMGRID)
      set(uses_starpu TRUE)
    elseif(TARGET ${library}_simgrid)
      set(library ${library}_simgrid)
      set(uses_starpu TRUE)
    endif()
    list(APPEND libraries ${library})
  endforeach()
  if(uses_starpu)
    sluice_flavour(sluice_${name}_simgrid sluice::${name}_simgrid "${ARG_UNPARSED_ARGUMENTS}" "${libraries}")
    # The native one stands for both in compile_commands.json, which clang-tidy reads.
    set_target_properties(sluice_${name}_simgrid PROPERTIES EXCLUDE_FROM_ALL ON EXPORT_COMPILE_COMMANDS OFF)
  endif()
endfunction()

function(sluice_flavour target alias sources libraries)
  add_library(${target} STATIC ${sources})
  add_library(${alias} ALIAS ${target})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${libraries} sluice_options)
endfunction()

# Warnings and sanitizers, for our own code only. nvcc has its own (cuda.cmake).
add_library(sluice_options INTERFACE)
set(options -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor -Woverloaded-virtual)
# For us alone: another compiler, or another way to compile, sees other things, and nobody's first build may end at one.
if(SLUICE_BUILD_TESTS)
  list(APPEND options -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  list(APPEND options -Wno-restrict)  # GCC 12 sees overlaps in std::string that are not there
  list(APPEND options --param=ggc-min-heapsize=524288)  # kB before GCC collects garbage: a twentieth of the time
endif()
# Of code that runs once a command and not once a task or token; a third of the time.
set(SLUICE_COMPILE_QUICKLY $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1>)
# Sanitizers have checks of their own; _FORTIFY_SOURCE needs an optimizer.
if(SLUICE_HARDENING AND NOT SLUICE_SANITIZE)
  list(APPEND options -fstack-protector-strong)
  if(NOT CMAKE_BUILD_TYPE STREQUAL Debug)
    list(APPEND options -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2)
  endif()
endif()
if(SLUICE_SANITIZE)
  list(APPEND options -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
endif()
target_compile_options(sluice_options INTERFACE "$<$<COMPILE_LANGUAGE:C,CXX>:${options}>")
if(SLUICE_SANITIZE)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
elseif(SLUICE_HARDENING)
  # Policies are bound when first called, see sluice_add_policy().
  target_link_options(sluice_options INTERFACE
    -Wl,-z,relro $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-Wl,-z,now>)
endif()

# What the sanitizers may not complain about, each with its reason in the file. One variable: gtest_discover_tests()
# drops what follows a semicolon.
if(SLUICE_SANITIZE MATCHES thread)
  set(SLUICE_TEST_ENVIRONMENT
    "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:print_suppressions=0:ignore_noninstrumented_modules=0")
else()
  set(SLUICE_TEST_ENVIRONMENT "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0")
endif()

# sluice_take_quarter(TARGET RESULT): with sanitizers, programs of fast tests are cut into four quarters of about as many
# sources. The target quarter_N builds those of one, and ${RESULT} names it: their tests have it as a label.
function(sluice_take_quarter target result)
  get_property(sizes GLOBAL PROPERTY sluice_quarter_sizes)
  if(NOT sizes)
    set(sizes 0 0 0 0)
  endif()
  set(fewest 0)
  foreach(quarter RANGE 1 3)
    list(GET sizes ${fewest} least)
    list(GET sizes ${quarter} size)
    if(size LESS least)
      set(fewest ${quarter})
    endif()
  endforeach()
  list(GET sizes ${fewest} size)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources length)
  list(REMOVE_AT sizes ${fewest})
  math(EXPR size "${size} + ${length}")
  list(INSERT sizes ${fewest} ${size})
  set_property(GLOBAL PROPERTY sluice_quarter_sizes "${sizes}")
  set(name quarter_${fewest})
  if(NOT TARGET ${name})
    add_custom_target(${name})
  endif()
  add_dependencies(${name} ${target})
  set_target_properties(${target} PROPERTIES SLUICE_QUARTER ${name})
  set(${result} ${name} PARENT_SCOPE)
endfunction()

# sluice_test(NAME name LABELS labels SOURCES sources LIBRARIES libraries SLOW patterns TOGETHER suite ALONE NO_TSAN).
# SLOW: of a fast one the tests that take long with sanitizers and show them nothing that others do not, as --gtest_filter
# has them. TOGETHER: a suite that prepares much, and once for all of its tests; what it prepares computes on both cores.
# Each test is a process of its own; with sanitizers, where a process takes long to start, a quarter of the fast ones is,
# unless they stand ALONE. NO_TSAN: one that has no threads, or whose threads other tests run as well.
function(sluice_test)
  cmake_parse_arguments(ARG "ALONE;NO_TSAN" "NAME;TOGETHER" "LABELS;SOURCES;LIBRARIES;SLOW" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main sluice_options)
  target_compile_definitions(${ARG_NAME} PRIVATE SLUICE_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests")
  if(SLUICE_PRECOMPILED_HEADERS)
    sluice_precompile_test(${ARG_NAME})
  endif()
  string(REPLACE ";" ":" slow "${ARG_SLOW}")
  if(SLUICE_SANITIZE)
    if(NOT "fast" IN_LIST ARG_LABELS OR (ARG_NO_TSAN AND SLUICE_SANITIZE MATCHES thread))
      set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL TRUE)
      return()
    endif()
    sluice_take_quarter(${ARG_NAME} quarter)
    list(APPEND ARG_LABELS ${quarter})
    if(NOT ARG_ALONE)
      foreach(shard RANGE 3)
        add_test(NAME ${ARG_NAME}_${shard} COMMAND ${ARG_NAME} "--gtest_filter=-${slow}")
        set_tests_properties(${ARG_NAME}_${shard} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 1200
          ENVIRONMENT "GTEST_TOTAL_SHARDS=4;GTEST_SHARD_INDEX=${shard};${SLUICE_TEST_ENVIRONMENT}")
      endforeach()
      return()
    endif()
  else()
    target_compile_options(${ARG_NAME} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)  # compiled more often than run
  endif()

  set(apart ${ARG_SLOW})
  if(ARG_TOGETHER)
    add_test(NAME ${ARG_TOGETHER} COMMAND ${ARG_NAME} "--gtest_filter=${ARG_TOGETHER}.*")
    set_tests_properties(${ARG_TOGETHER} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 1200 PROCESSORS 2
      ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
    list(APPEND apart "${ARG_TOGETHER}.*")
  endif()
  if(ARG_SLOW)
    gtest_discover_tests(${ARG_NAME} TEST_FILTER "${slow}" TEST_LIST ${ARG_NAME}_SLOW DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS slow TIMEOUT 600 ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
  endif()
  set(filter)
  if(apart)
    string(REPLACE ";" ":" patterns "${apart}")
    set(filter TEST_FILTER "-${patterns}")
  endif()
  string(REPLACE ";" "\\;" labels "${ARG_LABELS}")
  gtest_discover_tests(${ARG_NAME} ${filter} DISCOVERY_TIMEOUT 60
                       PROPERTIES LABELS "${labels}" TIMEOUT 600 ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
endfunction()

# sluice_gpu_test(NAME name SOURCES sources LIBRARIES libraries): one that runs where there is a GPU, and is skipped as a
# whole where there is none.
function(sluice_gpu_test)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/needs_device.cc)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main sluice_options)
  target_compile_options(${ARG_NAME} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${SLUICE_NVCC_OPTIONS}>")
  target_compile_definitions(${ARG_NAME} PRIVATE SLUICE_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests")
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS gpu TIMEOUT 600 SKIP_REGULAR_EXPRESSION "no GPU: "
    ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
endfunction()
