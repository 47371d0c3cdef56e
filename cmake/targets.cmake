# sluice_library(NAME sources... LINK libraries...): one target a folder, with a sluice:: alias.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(sluice_${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  add_library(sluice::${name} ALIAS sluice_${name})
  target_include_directories(sluice_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(sluice_${name} PUBLIC ${ARG_LINK} sluice_options)
endfunction()

# Warnings and sanitizers, for our own code only.
add_library(sluice_options INTERFACE)
target_compile_options(sluice_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
  -Woverloaded-virtual -Werror
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)  # GCC 12 sees overlaps in std::string that are not there
if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()

# What the sanitizers may not complain about, each with its reason in the file.
set(SLUICE_TEST_ENVIRONMENT
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/lsan.supp:print_suppressions=0"
  "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp:print_suppressions=0:ignore_noninstrumented_modules=0")

# sluice_test(NAME name LABELS labels SOURCES sources LIBRARIES libraries)
function(sluice_test)
  cmake_parse_arguments(ARG "" "NAME" "LABELS;SOURCES;LIBRARIES" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_LIBRARIES} GTest::gtest_main sluice_options)
  target_compile_definitions(${ARG_NAME} PRIVATE SLUICE_TEST_DATA_DIR="${PROJECT_SOURCE_DIR}/tests")
  string(REPLACE ";" "\\;" labels "${ARG_LABELS}")
  gtest_discover_tests(${ARG_NAME} DISCOVERY_TIMEOUT 60 PROPERTIES LABELS "${labels}" TIMEOUT 600
                       ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
endfunction()
