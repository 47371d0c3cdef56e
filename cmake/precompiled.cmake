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

# sluice_precompile_test(TARGET): the tests share one set, which the first of them compiles.
function(sluice_precompile_test target)
  get_property(owner GLOBAL PROPERTY sluice_precompiled_tests)
  if(NOT owner)
    set_property(GLOBAL PROPERTY sluice_precompiled_tests ${target})
    sluice_precompile(${target} ${precompiled} <gtest/gtest.h>)
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
    set_target_properties(${target} PROPERTIES PCH_WARN_INVALID OFF)
  endif()
endfunction()
