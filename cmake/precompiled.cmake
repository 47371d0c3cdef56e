# The headers that most sources include, compiled once: the first build takes half as long. For ./run.sh alone: elsewhere a
# source is to name what it includes, and ccache finds objects of other checkouts.
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
