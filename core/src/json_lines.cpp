#include "troupe/core/json_lines.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <variant>

#include "json_text.hpp"

namespace troupe::core {

namespace {

using internal::append_json_string;

void append_value(std::string& out, const value& x) {
  struct visitor {
    std::string& out;
    void operator()(std::monostate) const { out += "null"; }
    void operator()(bool b) const { out += b ? "true" : "false"; }
    void operator()(std::int64_t i) const { internal::append_json(out, i); }
    void operator()(double d) const { internal::append_json(out, d); }
    void operator()(const std::string& s) const { append_json_string(out, s); }
  };
  std::visit(visitor{out}, x);
}

/// Appends `{"key":…,"key":…}`.
template <class Map, class Append>
void append_map(std::string& out, const Map& xs, Append append) {
  out += '{';
  bool first = true;
  for (auto& [key, x] : xs) {
    if (!std::exchange(first, false))
      out += ',';
    append_json_string(out, key);
    out += ':';
    append(x);
  }
  out += '}';
}

void append_number(std::string& out, std::string_view key, std::uint64_t x) {
  out += key;
  internal::append_json(out, x);
}
void append_number(std::string& out, std::string_view key, double x) {
  out += key;
  internal::append_json(out, x);
}

/// Without the closing brace, for members that follow.
void append_open_metadata(std::string& out, const metadata& x) {
  append_number(out, R"({"trainer":)", std::uint64_t{x.trainer});
  out += R"(,"name":)";
  append_json_string(out, x.name);
  append_number(out, R"(,"incarnation":)", std::uint64_t{x.incarnation});
  append_number(out, R"(,"sync":)", std::uint64_t{x.sync});
  append_number(out, R"(,"step":)", x.step);
  append_number(out, R"(,"epoch":)", x.epoch);
  append_number(out, R"(,"samples":)", x.samples);
  append_number(out, R"(,"loss":)", x.loss);
  append_number(out, R"(,"accuracy":)", x.accuracy);
  append_number(out, R"(,"grad_norm":)", x.grad_norm);
  append_number(out, R"(,"compute_seconds":)", x.compute_seconds);
  append_number(out, R"(,"wait_seconds":)", x.wait_seconds);
  append_number(out, R"(,"sync_seconds":)", x.sync_seconds);
  append_number(out, R"(,"memory_bytes":)", x.memory_bytes);
  out += R"(,"numbers":)";
  append_json(out, x.numbers);
  out += R"(,"hyperparameters":)";
  append_json(out, x.hp);
}

} // namespace

void append_json(std::string& out, const hyperparameters& xs) {
  append_map(out, xs, [&](const value& x) { append_value(out, x); });
}

void append_json(std::string& out, const std::map<std::string, double, std::less<>>& xs) {
  append_map(out, xs, [&](double d) { internal::append_json(out, d); });
}

void append_json(std::string& out, const metadata& x) {
  append_open_metadata(out, x);
  out += '}';
}

void append_json(std::string& out, const decision& x) {
  out += R"({"action":)";
  append_json_string(out, to_string(x.act));
  if (!x.changes.empty()) {
    out += R"(,"changes":)";
    append_json(out, x.changes);
  }
  if (x.copy_from)
    append_number(out, R"(,"copy_from":)", std::uint64_t{*x.copy_from});
  if (!x.average_of.empty()) {
    for (bool first = true; auto t : x.average_of)
      append_number(out, std::exchange(first, false) ? R"(,"average_of":[)" : ",", std::uint64_t{t});
    out += ']';
  }
  if (!x.reason.empty()) {
    out += R"(,"reason":)";
    append_json_string(out, x.reason);
  }
  out += '}';
}

void append_json_text(std::string& out, std::string_view text) { append_json_string(out, text); }

void append_sync_point(std::string& out, sync_index k, const std::vector<metadata>& reports,
                       const std::map<trainer_id, decision>& decisions) {
  const decision go_on;
  std::uint64_t step = 0;
  for (auto& m : reports)
    step = std::max(step, m.step);
  append_number(out, R"("index":)", std::uint64_t{k});
  append_number(out, R"(,"step":)", step);
  out += R"(,"trainers":[)";
  std::size_t used = 0;
  for (bool first = true; auto& m : reports) {
    if (!std::exchange(first, false))
      out += ',';
    append_open_metadata(out, m);
    out += R"(,"decision":)";
    auto d = decisions.find(m.trainer);
    used += d != decisions.end();
    append_json(out, d == decisions.end() ? go_on : d->second);
    out += '}';
  }
  out += ']';
  if (used == decisions.size())
    return;
  out += R"(,"others":[)";
  for (bool first = true; auto& [t, d] : decisions) {
    if (std::ranges::find(reports, t, &metadata::trainer) != reports.end())
      continue;
    append_number(out, std::exchange(first, false) ? R"({"trainer":)" : R"(,{"trainer":)", std::uint64_t{t});
    out += R"(,"decision":)";
    append_json(out, d);
    out += '}';
  }
  out += ']';
}

std::string utc_text(std::chrono::system_clock::time_point t) {
  using namespace std::chrono;
  auto ms = floor<milliseconds>(t);
  auto day = floor<days>(ms);
  year_month_day date{day};
  hh_mm_ss time{ms - day};
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), static_cast<int>(time.hours().count()),
                static_cast<int>(time.minutes().count()), static_cast<int>(time.seconds().count()),
                static_cast<int>(time.subseconds().count()));
  return text.data();
}

} // namespace troupe::core
