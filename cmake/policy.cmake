# sluice_add_policy(NAME source...): the shared object NAME.so of a policy, for --policy and for STARPU_SCHED_LIB, and,
# where the simulator's StarPU is there too, NAME.simgrid.so. Targets: NAME and NAME-simgrid. Used by Sluice itself and,
# through find_package(sluice), by everyone else.
function(sluice_add_policy name)
  set(targets ${name})
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE sluice::policy)
  if(TARGET sluice::policy-simgrid)
    add_library(${name}-simgrid MODULE ${ARGN})
    target_link_libraries(${name}-simgrid PRIVATE sluice::policy-simgrid)
    set_target_properties(${name}-simgrid PROPERTIES OUTPUT_NAME ${name}.simgrid EXPORT_COMPILE_COMMANDS OFF)
    list(APPEND targets ${name}-simgrid)
  endif()
  foreach(target IN LISTS targets)
    target_compile_features(${target} PRIVATE cxx_std_20)
    # StarPU unloads what STARPU_SCHED_LIB named while it still uses it: nodelete. The loader can say why an object
    # does not fit when it need not resolve all of it: lazy. What two objects share stays each one's own: exclude-libs.
    target_link_options(${target} PRIVATE -Wl,-z,nodelete -Wl,-z,lazy -Wl,--exclude-libs,ALL)
    set_target_properties(${target} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                                               POSITION_INDEPENDENT_CODE ON)
  endforeach()
endfunction()
