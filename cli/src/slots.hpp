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

/// What is wrong with the trainers' own "slot"s where these are the slots, dealt to `workers` processes if there are any: a fault for each
/// entry of the file that names one which does not exist.
std::vector<core::error> check_pins(const core::experiment& exp, const std::vector<gpu::slot_options>& slots, unsigned workers,
                                    const gpu::device_report& report);

/// The same of the file alone, as far as its own "slots" tell: a number beyond them.
std::vector<core::error> check_own_pins(const core::experiment& exp);

/// The same for an entry that is to be added to a run with these slots. What else may be wrong with it is not looked at.
core::result<void> check_pin_of(const std::string& entry, const std::vector<gpu::slot_options>& slots, unsigned workers,
                                const gpu::device_report& report);

} // namespace troupe::cli
