# Component program: what runs. Component cuda: kernels for GPUs. Component development: what a policy of one's own is
# built with, headers, the static library, a CMake package and pkg-config files. The headers keep their folders, so that an
# include is the same line here and elsewhere.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

install(FILES schedulers/look_ahead.h schedulers/plugin.h schedulers/policy.h schedulers/schedule.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/schedulers)
install(FILES perfmodels/chain.h perfmodels/cost_model.h perfmodels/footprint.h perfmodels/layer_cost.h
              perfmodels/memory_plan.h perfmodels/placement.h
              perfmodels/routing.h perfmodels/sublayer.h perfmodels/task.h perfmodels/timeline.h perfmodels/work.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/perfmodels)

set(private_dir ${CMAKE_INSTALL_LIBDIR}/sluice)
install(TARGETS sluice COMPONENT program)
sluice_install_rpath(sluice ${CMAKE_INSTALL_BINDIR} program)
if(TARGET sluice-simulate)
  install(TARGETS sluice-simulate COMPONENT program)
  sluice_install_rpath(sluice-simulate ${CMAKE_INSTALL_BINDIR} program)
endif()
if(TARGET sluice-cuda)
  install(TARGETS sluice-cuda LIBRARY DESTINATION ${private_dir} COMPONENT cuda)
  sluice_install_rpath(sluice-cuda ${private_dir} cuda)
endif()
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)

# sluice_install_starpu(prefix folder): StarPU's library, which few distributions have, beside the program that uses it.
function(sluice_install_starpu prefix folder)
  # By the name that programs ask for.
  file(GLOB library ${prefix}/lib/libstarpu-1.4.so.? ${prefix}/lib/libstarpu-1.4.so.??)
  if(NOT library)
    message(FATAL_ERROR "${prefix}/lib has no libstarpu-1.4.so")
  endif()
  get_filename_component(name "${library}" NAME)
  install(CODE "
    set(library \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}/${name}\")
    file(REAL_PATH \"${library}\" from)
    get_filename_component(to \"\${library}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${to}\")
    configure_file(\"\${from}\" \"\${library}\" COPYONLY)
    execute_process(COMMAND \"${CMAKE_STRIP}\" \"\${library}\" COMMAND_ERROR_IS_FATAL ANY)
    file(RPATH_REMOVE FILE \"\${library}\")
    execute_process(COMMAND \"${PROJECT_SOURCE_DIR}/scripts/relocate-starpu.sh\" \"\${library}\"
                    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
endfunction()
sluice_install_starpu(${STARPU_PREFIX} ${private_dir})
if(TARGET sluice-simulate)
  sluice_install_starpu(${STARPU_SIMGRID_PREFIX} ${private_dir}/simgrid)
endif()

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
