#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "troupe/core/experiment.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/device.hpp"

namespace troupe::gpu {

/// What to open for slots that were asked for, in order: the devices are looked up, and what a slot gets of a GPU's memory
/// follows from its share.
///
/// A slot without `milli_share` has an equal part of what the others leave of its device. A GPU slot's budget is its share of
/// the memory less `context_bytes` for each process that has a slot on it (`workers`, to which the slots are dealt in turn; 0: this one
/// alone) and less cuBLAS's workspace of each slot; a CPU slot has none unless it was given. A CPU slot with
/// a share of its own is pinned to that part of the cores; others are not pinned, since other processes would be pinned to the
/// same ones. All these slots together may pin a quarter of the host's memory, in equal parts, unless they were given their own; of
/// `available` where that is given (`available_host_memory`), so that runs beside each other do not add up. Appends one text per fault, each beginning with a JSON pointer: where + "/0/device: …". The result is usable
/// only if no fault was added.
std::vector<slot_options> make_slots(const device_report& found, std::span<const core::slot_request> wanted, math_mode math,
                                     std::string_view where, std::vector<core::error>& faults, std::uint64_t available = 0,
                                     unsigned workers = 0);

/// What is left of a GPU's memory for the CUDA context and the libraries of one process. An estimate, not measured.
inline constexpr std::uint64_t context_bytes = std::uint64_t{512} << 20;

/// What this process could have of the host's memory now, without paging and within its control groups; 0: not known.
std::uint64_t available_host_memory();

} // namespace troupe::gpu
