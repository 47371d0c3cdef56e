# CUDA, where nvcc is: on PATH, in /usr/local/cuda/bin, or CMAKE_CUDA_COMPILER. Sets SLUICE_CUDA.
set(SLUICE_CUDA AUTO CACHE STRING "Kernels for NVIDIA GPUs: ON, OFF, or AUTO (where nvcc is)")
set_property(CACHE SLUICE_CUDA PROPERTY STRINGS AUTO ON OFF)
# Each generation is compiled anew, a minute or two each.
set(SLUICE_CUDA_ARCHITECTURES 90 CACHE STRING
    "GPU generations to compile for; the last one's PTX serves newer ones (scripts/bundle.sh has all)")

string(REGEX MATCHALL "[0-9]+" numbers "${SLUICE_CUDA_ARCHITECTURES}")
list(JOIN numbers "," numbers)
set(SLUICE_CUDA_DEFINITIONS "SLUICE_CUDA_ARCHITECTURE_LIST=${numbers}")
# Where the program looks for libsluice-cuda.so, seen from its own folder: installed, and built.
set(SLUICE_CUDA_FOLDERS "../${CMAKE_INSTALL_LIBDIR}/sluice:../codelets:../../codelets")

set(SLUICE_NVCC_OPTIONS --expt-relaxed-constexpr --extended-lambda -lineinfo -Xcompiler=-Wall -Werror=all-warnings)
set(SLUICE_HAS_CUDA OFF)
if(SLUICE_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(SLUICE_NVCC nvcc HINTS /usr/local/cuda/bin)
    if(SLUICE_NVCC)
      set(CMAKE_CUDA_COMPILER ${SLUICE_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${SLUICE_CUDA_ARCHITECTURES})
    if(CCACHE)
      set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
    endif()
    enable_language(CUDA)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)  # StarPU takes the one that is loaded
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has it
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    find_package(CUDAToolkit REQUIRED)
    if(SLUICE_BUILD_TESTS)
      find_package(Boost REQUIRED COMPONENTS context)  # the emulation's threads
    endif()
    set(SLUICE_HAS_CUDA ON)
  elseif(SLUICE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SLUICE_CUDA=ON, but there is no nvcc; set CMAKE_CUDA_COMPILER to it")
  endif()
endif()

# sluice_emulated(VARIABLE sources...): the same sources with each .cu as plain C++, for targets that run on the CPU.
function(sluice_emulated variable)
  set(emulated)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "\\.cu$")
      set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/emulated/${source}.cc)
      file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${CMAKE_CURRENT_SOURCE_DIR}/${source}\"\n")
      list(APPEND emulated ${wrapper})
    else()
      list(APPEND emulated ${source})
    endif()
  endforeach()
  set(${variable} ${emulated} PARENT_SCOPE)
endfunction()

# sluice_cuda_library(NAME sources... LINK libraries... REAL sources... EMULATED sources... USED_BY sources): sluice::NAME
# for GPUs and, where tests are built, sluice::NAME_emulated: the same .cu files as plain C++ for tests that have no GPU
# (codelets/cuda/emulation). REAL and EMULATED: sources of one of the two only. sluice::NAME_linked and
# sluice::NAME_emulated_linked bring the sources USED_BY into the program that links them. Nothing without CUDA.
function(sluice_cuda_library name)
  if(NOT SLUICE_HAS_CUDA)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "LINK;REAL;EMULATED;USED_BY" ${ARGN})
  add_library(sluice_${name} STATIC ${ARG_UNPARSED_ARGUMENTS} ${ARG_REAL})
  add_library(sluice::${name} ALIAS sluice_${name})
  target_include_directories(sluice_${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(sluice_${name} PUBLIC ${ARG_LINK} CUDA::cudart ${CMAKE_DL_LIBS})
  # A source that is ours alone is C++ with warnings; nvcc's host pass sees code that it wrote itself.
  target_compile_options(sluice_${name} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:${SLUICE_NVCC_OPTIONS}>")
  sluice_cuda_linked(sluice_${name} ${ARG_USED_BY})

  if(NOT SLUICE_BUILD_TESTS)
    return()
  endif()
  sluice_emulated(emulated ${ARG_UNPARSED_ARGUMENTS} ${ARG_EMULATED})
  add_library(sluice_${name}_emulated STATIC ${emulated})
  add_library(sluice::${name}_emulated ALIAS sluice_${name}_emulated)
  target_include_directories(sluice_${name}_emulated PUBLIC ${PROJECT_SOURCE_DIR})
  target_include_directories(sluice_${name}_emulated SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
  target_compile_definitions(sluice_${name}_emulated PUBLIC SLUICE_CUDA_EMULATION)
  target_compile_options(sluice_${name}_emulated PRIVATE -Wno-unknown-pragmas)  # nvcc's "unroll"
  target_link_libraries(sluice_${name}_emulated PUBLIC ${ARG_LINK}
    $<LINK_LIBRARY:WHOLE_ARCHIVE,sluice_cuda_emulation> sluice_options)
  set_target_properties(sluice_${name}_emulated PROPERTIES EXPORT_COMPILE_COMMANDS OFF)
  sluice_cuda_linked(sluice_${name}_emulated ${ARG_USED_BY})
endfunction()

# sluice_cuda_linked(library sources...): the library with the sources of a program that links it.
function(sluice_cuda_linked library)
  list(TRANSFORM ARGN PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ OUTPUT_VARIABLE sources)
  add_library(${library}_linked INTERFACE)
  target_sources(${library}_linked INTERFACE ${sources})
  target_link_libraries(${library}_linked INTERFACE ${library})
  target_compile_definitions(${library}_linked INTERFACE ${SLUICE_PROGRAM_DEFINITIONS} ${SLUICE_CUDA_DEFINITIONS})
  string(REPLACE "sluice_" "sluice::" alias ${library}_linked)
  add_library(${alias} ALIAS ${library}_linked)
endfunction()
