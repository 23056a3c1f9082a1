#pragma once

#if defined(__CUDACC__)
#include "kernels/launch_cuda.hpp"
#else
#include "kernels/launch_cpu.hpp"
#endif
