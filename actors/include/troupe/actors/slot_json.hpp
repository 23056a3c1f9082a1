#pragma once

#include <nlohmann/json_fwd.hpp>

#include "troupe/actors/run.hpp"

namespace troupe::actors {

/// A slot as `troupe status --json` and the run directory's slots.json show it; docs/command.md lists the members.
nlohmann::json to_json(const slot_info& s);
/// Throws nlohmann::json::exception where a member is missing or of another type.
slot_info slot_from_json(const nlohmann::json& x);

} // namespace troupe::actors
