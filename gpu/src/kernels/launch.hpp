#pragma once

#if defined(__CUDACC__) || defined(TROUPE_CUDA_EMULATION)
#include "kernels/launch_cuda.hpp"
#else
#include "kernels/launch_cpu.hpp"
#endif
