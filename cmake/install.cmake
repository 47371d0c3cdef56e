# What a policy of one's own is built with: headers, the static library, a CMake package and pkg-config files. The
# headers keep their folders, so that an include is the same line here and elsewhere.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

install(FILES schedulers/look_ahead.h schedulers/plugin.h schedulers/policy.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/schedulers)
install(FILES perfmodels/chain.h perfmodels/cost_model.h perfmodels/footprint.h perfmodels/layer_cost.h
              perfmodels/memory_plan.h perfmodels/placement.h
              perfmodels/task.h perfmodels/timeline.h perfmodels/work.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/perfmodels)
install(TARGETS sluice)

# sluice_install_flavour(TARGET library flavour export pc): the library for one flavour of StarPU.
function(sluice_install_flavour target flavour export name)
  install(TARGETS sluice_${target} EXPORT ${export} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ${export} NAMESPACE sluice:: DESTINATION ${package_dir})
  set(library sluice-${target})
  configure_file(cmake/sluice.pc.in ${name}.pc @ONLY)
  # Read again at installation: --prefix may have changed it.
  install(CODE "
    file(READ \"${CMAKE_CURRENT_BINARY_DIR}/${name}.pc\" text)
    string(REPLACE \"prefix=${CMAKE_INSTALL_PREFIX}\\n\" \"prefix=\${CMAKE_INSTALL_PREFIX}\\n\" text \"\${text}\")
    file(WRITE \"${CMAKE_CURRENT_BINARY_DIR}/install/${name}.pc\" \"\${text}\")")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/install/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

sluice_install_flavour(policy native sluicePolicyTargets sluice)
if(TARGET sluice_policy-simgrid)
  sluice_install_flavour(policy-simgrid simgrid sluicePolicySimgridTargets sluice-simgrid)
endif()

configure_package_config_file(cmake/sluiceConfig.cmake.in sluiceConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sluiceConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/sluiceConfigVersion.cmake
        cmake/policy.cmake DESTINATION ${package_dir})
