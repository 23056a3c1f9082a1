#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/actors/run.hpp"

/// What a run looks like in text. Plain functions of what the run tells, so that each is tested over strings.
namespace troupe::cli {

/// The lines that are redrawn while a run goes on: one for the whole, one per trainer as far as `rows` allows (those that are
/// live first), each at most `columns` wide.
std::vector<std::string> live_lines(const actors::run_status& s, std::size_t columns, std::size_t rows);

/// "3 trainers: 2 running, 1 finished; 4212 of 8424 steps (50%), 12.3 s": for output that is no terminal.
std::string progress_line(const actors::run_status& s);

/// "sync point 0 at step 936" and a table of reports and decisions.
std::string sync_point_text(const actors::sync_point_event& e);

/// What a decision means, for people: "takes weights of fast; lr 0.001 -> 0.05 (reason)".
std::string decision_text(const core::decision& d, const core::hyperparameters& before,
                          const std::map<core::trainer_id, std::string>& names);

/// The final table.
std::string results_text(const std::vector<actors::trainer_summary>& trainers);
/// A line about trainers that a slow disk holds back, or has held back; empty: none.
std::string record_text(const actors::record_info& x);
std::string slots_text(const std::vector<actors::slot_info>& slots); ///< a table
/// The tables of `troupe status`: trainers and slots.
std::string status_text(const actors::run_status& s);

/// One line for an event that people want to see; empty for others.
std::string event_text(std::string_view kind, const nlohmann::json& details);

/// Hyperparameters that are not the same for everybody, as a heading and a cell for each; those that are the same are left
/// out unless there is only one trainer. At most four keys.
std::vector<std::string> telling_keys(const std::vector<const core::hyperparameters*>& xs);

} // namespace troupe::cli
