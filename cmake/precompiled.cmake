# The headers that most sources include, compiled once: the first build takes half as long. For ./run.sh and for the
# sanitizers: the release build has none, so that a source must name what it includes.
set(precompiled <algorithm> <array> <filesystem> <functional> <map> <memory> <optional> <span> <string> <vector>
                <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp> <spdlog/spdlog.h>)

# sluice_precompile(OWNER headers TARGETS targets...): those that are compiled with the same definitions share them.
function(sluice_precompile owner)
  cmake_parse_arguments(ARG "" "" "TARGETS" ${ARGN})
  target_precompile_headers(${owner} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
  foreach(target IN LISTS ARG_TARGETS)
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endforeach()
  # Where they do not fit after all, they are read as usual.
  set_target_properties(${owner} ${ARG_TARGETS} PROPERTIES PCH_WARN_INVALID OFF)
endfunction()

sluice_precompile(sluice_base ${precompiled} TARGETS sluice_perfmodels sluice_models)
sluice_precompile(sluice_codelets ${precompiled} <starpu.h> TARGETS sluice_graphs)
sluice_precompile(sluice_runs ${precompiled} <boost/program_options.hpp> <starpu.h> TARGETS sluice_engine)

# sluice_precompile_test(TARGET): the tests share one set, which an executable of its own compiles, so that no test program
# waits for another one.
function(sluice_precompile_test target)
  if(NOT TARGET sluice_test_headers)
    add_executable(sluice_test_headers EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/support/headers.cc)
    target_link_libraries(sluice_test_headers PRIVATE sluice::models GTest::gtest_main sluice_options)
    sluice_precompile(sluice_test_headers ${precompiled} <gtest/gtest.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM sluice_test_headers)
  set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
endfunction()
