# Where programs and shared objects look for libraries: absolute folders in the build tree, and what lies beside them once
# installed. CMake's own way leaves an empty element, the current directory, in the build tree's.
set(CMAKE_NO_BUILTIN_CHRPATH ON)

# sluice_rpath(TARGET INSTALLED build_folder...): the build folders, and INSTALLED in the copy that is installed, such as
# $ORIGIN/../lib/sluice. To be called before install(TARGETS).
function(sluice_rpath target installed)
  set(folders ${ARGN})
  list(REMOVE_DUPLICATES folders)
  list(JOIN folders ":" built)
  # The installed one is written over it, and needs the room.
  string(LENGTH "${installed}" room)
  string(LENGTH "${built}" length)
  while(length LESS room)
    string(APPEND built "/.")
    string(LENGTH "${built}" length)
  endwhile()
  string(REPLACE ":" ";" build_list "${built}")
  set_target_properties(${target} PROPERTIES
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "${build_list}"
    SLUICE_BUILT_RPATH "${built}" SLUICE_INSTALLED_RPATH "${installed}")
endfunction()

# sluice_install_rpath(TARGET folder component): after install(TARGETS ... DESTINATION folder COMPONENT component).
function(sluice_install_rpath target folder component)
  get_target_property(built ${target} SLUICE_BUILT_RPATH)
  get_target_property(installed ${target} SLUICE_INSTALLED_RPATH)
  string(REPLACE "$" "\\$" installed "${installed}")
  install(CODE "file(RPATH_CHANGE
    FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${folder}/$<TARGET_FILE_NAME:${target}>\"
    OLD_RPATH \"${built}\" NEW_RPATH \"${installed}\")" COMPONENT ${component})
endfunction()
