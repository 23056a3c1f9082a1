#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "troupe/core/experiment.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/device.hpp"

namespace troupe::cli {

/// Which slots a run is to have on this machine. `count` and `devices` (the command line) go before the experiment's "slots";
/// without either: on all GPUs, or on the CPU where there are none, one per GPU or core, but no more than trainers. Several
/// devices take turns.
std::vector<core::slot_request> requested_slots(const core::experiment& exp, std::optional<unsigned> count,
                                                const std::vector<std::string>& devices, const gpu::device_report& report);

/// The same, ready to be opened by so many worker processes (0: by this one). Faults name the option or the place in the file.
std::variant<std::vector<gpu::slot_options>, std::vector<core::error>>
choose_slots(const core::experiment& exp, std::optional<unsigned> count, const std::vector<std::string>& devices,
             const gpu::device_report& report, unsigned workers = 0);

/// A sentence for each GPU on which several worker processes have slots; `dealt`: the slots of each.
std::vector<std::string> notes_on_shared_gpus(const std::vector<std::vector<gpu::slot_options>>& dealt);

} // namespace troupe::cli
