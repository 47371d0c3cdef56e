# Everything comes from Debian's packages (scripts/packages.txt), StarPU from scripts/starpu.sh.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)  # only to tell oneDNN how many threads it has
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost REQUIRED COMPONENTS program_options)

pkg_check_modules(CAIRO REQUIRED IMPORTED_TARGET cairo)
pkg_check_modules(FXT REQUIRED IMPORTED_TARGET fxt)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

if(SLUICE_STARPU_SIMGRID_PREFIX)
  set(before "$ENV{PKG_CONFIG_PATH}")
  set(ENV{PKG_CONFIG_PATH} "${SLUICE_STARPU_SIMGRID_PREFIX}/lib/pkgconfig")
  unset(__pkg_config_checked_STARPU_SIMGRID CACHE)
  pkg_check_modules(STARPU_SIMGRID REQUIRED IMPORTED_TARGET starpu-1.4)
  set_target_properties(PkgConfig::STARPU_SIMGRID PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${STARPU_SIMGRID_INCLUDE_DIRS}")
  set(ENV{PKG_CONFIG_PATH} "${before}")
endif()
if(SLUICE_STARPU_PREFIX)
  set(ENV{PKG_CONFIG_PATH} "${SLUICE_STARPU_PREFIX}/lib/pkgconfig:$ENV{PKG_CONFIG_PATH}")
endif()
unset(__pkg_config_checked_STARPU CACHE)  # the prefix may be another one than last time
pkg_check_modules(STARPU REQUIRED IMPORTED_TARGET starpu-1.4)
set_target_properties(PkgConfig::STARPU PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${STARPU_INCLUDE_DIRS}")
list(APPEND CMAKE_BUILD_RPATH ${STARPU_LIBRARY_DIRS})

# oneDNN's own CMake configuration asks for OpenCL, which only its GPU half needs.
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES
  IMPORTED_LOCATION ${DNNL_LIBRARY} INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${DNNL_INCLUDE_DIR}")
