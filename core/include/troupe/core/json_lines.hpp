#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/metadata.hpp"
#include "troupe/core/policy.hpp"

/// JSON text of what is written for every trainer at every sync point, straight into a string: a document tree per report would
/// cost several times as much. The text reads back as `to_json` of the same thing.
namespace troupe::core {

void append_json(std::string& out, const metadata& x);
void append_json(std::string& out, const decision& x);
void append_json(std::string& out, const hyperparameters& xs);
/// Named numbers; "nan", "inf" and "-inf" in quotes.
void append_json(std::string& out, const std::map<std::string, double, std::less<>>& xs);
/// A text in quotes, escaped; malformed UTF-8 is replaced.
void append_json_text(std::string& out, std::string_view text);

/// The members `"index": k, "step": s, "trainers": […]` of a sync point, without braces: one object per report, which is its
/// metadata with a member "decision" ("go_on" where none was made). A member "others" follows if there are decisions for
/// trainers that did not report. The step is the largest reported.
void append_sync_point(std::string& out, sync_index k, const std::vector<metadata>& reports,
                       const std::map<trainer_id, decision>& decisions);

/// "2026-11-30T10:00:00.123Z"
std::string utc_text(std::chrono::system_clock::time_point t);

} // namespace troupe::core
