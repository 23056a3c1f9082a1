#pragma once

/// Forward declarations of gpu's public types.
namespace troupe::gpu {

struct device_info;
struct slot_options;
class context;
class buffer;
class gemm_plan;
class slot_worker;
class workload;
class workload_registry;

} // namespace troupe::gpu
