# The CPU kernels are built once for each instruction set and chosen at run time (src/kernel_table.cpp). -O3 in every
# configuration: without it g++ leaves the loops scalar. No contraction: kernels say themselves where to fuse, so that
# an element's result does not depend on where it falls in a vector loop.
set(kernel_options -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off)
function(troupe_cpu_kernels namespace)
  set(target troupe_kernels_${namespace})
  add_library(${target} OBJECT src/kernels/cpu.cpp)
  target_compile_definitions(${target} PRIVATE TROUPE_KERNELS=${namespace})
  target_compile_options(${target} PRIVATE ${kernel_options} ${ARGN})
  target_include_directories(${target} PRIVATE src include)
  target_compile_features(${target} PRIVATE cxx_std_20)
  target_link_libraries(${target} PRIVATE troupe::core Random123::Random123 $<BUILD_INTERFACE:troupe_warnings>)
  target_sources(troupe_gpu PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  troupe_cpu_kernels(cpu_baseline -march=x86-64-v2)
  troupe_cpu_kernels(cpu_v3 -march=x86-64-v3)
  troupe_cpu_kernels(cpu_v4 -march=x86-64-v4)
  target_compile_definitions(troupe_gpu PRIVATE TROUPE_KERNELS_X86)
else()
  troupe_cpu_kernels(cpu_baseline)
endif()
set_source_files_properties(src/counter_random.cpp src/lr_schedule.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
if(TROUPE_HAVE_CUDA)
  # ftz: as the CPU's threads do (core/subnormals.hpp).
  # 554: nvcc takes the conversion of mat<T> to mat<const T> for useless where T is const already.
  set_source_files_properties(src/kernels.cu PROPERTIES COMPILE_OPTIONS "--fmad=false;-ftz=true;--diag-suppress=554")
endif()
