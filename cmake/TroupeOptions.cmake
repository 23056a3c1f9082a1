# Every switch of the build, in one place.
option(TROUPE_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_SAMPLES "Build the samples" ${PROJECT_IS_TOP_LEVEL})
option(TROUPE_BUILD_BENCH "Build the benchmarks" OFF)
option(TROUPE_BUILD_CLI "Build the troupe command" ON)
option(TROUPE_WERROR "Treat warnings as errors" OFF)
set(TROUPE_CUDA "AUTO" CACHE STRING "Build the CUDA backend: AUTO (when nvcc is found), ON or OFF")
set_property(CACHE TROUPE_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TROUPE_SANITIZE "" CACHE STRING "Sanitizers for all code, as for -fsanitize= (address,undefined or thread)")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${TROUPE_CCACHE}")
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${TROUPE_CCACHE}")
endif()

add_library(troupe_warnings INTERFACE)
target_compile_options(troupe_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wnon-virtual-dtor -Woverloaded-virtual>
  # GCC 12 warns of "literal" + std::string (GCC bug 105651).
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TROUPE_WERROR}>>:-Werror>)
if(TROUPE_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TROUPE_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined>)
  # CAF 0.17.6 binds a reference to a null std::tuple<> whenever an actor is spawned without arguments.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null>)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
endif()

# CUDA: decided before any language is enabled, so that a machine without nvcc still configures.
set(TROUPE_HAVE_CUDA OFF)
if(NOT TROUPE_CUDA STREQUAL "OFF")
  # Code for Hopper, and PTX that a driver compiles for any other GPU since Turing when it is first used, in each process until the
  # driver's cache has it. The preset "package" has code for all.
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "75-virtual;90-real")
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know that nvcc has it since 12.0
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    endif()
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(TROUPE_HAVE_CUDA ON)
    message(STATUS "CUDA kernels are built for: ${CMAKE_CUDA_ARCHITECTURES} (CMAKE_CUDA_ARCHITECTURES)")
  elseif(TROUPE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TROUPE_CUDA=ON, but no CUDA compiler was found: put nvcc on PATH or set CUDACXX")
  endif()
endif()
