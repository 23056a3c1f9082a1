#include <cmath>
#include <cstdio>

#include "object_reader.hpp"
#include "policies.hpp"

namespace troupe::core {

std::string shown_number(double x) {
  if (!std::isfinite(x))
    return to_string(value{x});
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", x);
  return text;
}

bool objective::healthy(const metadata& m) const {
  return std::isfinite(m.number(metric)) && std::isfinite(m.loss);
}

bool objective::better(const metadata& a, const metadata& b) const {
  return better(a.number(metric), b.number(metric));
}

bool objective::ranks_before(const metadata& a, const metadata& b) const {
  if (healthy(a) != healthy(b))
    return healthy(a);
  if (healthy(a) && (better(a, b) || better(b, a)))
    return better(a, b);
  return a.trainer < b.trainer;
}

std::string objective::text(const metadata& m) const { return metric + " " + shown_number(m.number(metric)); }

std::string objective::fault(const metadata& m) const {
  if (!std::isfinite(m.loss))
    return "its loss is not finite";
  const auto absent = m.lacks(metric);
  return absent.empty() ? "its " + metric + " is not finite" : absent;
}

void read_objective(internal::object_reader& in, objective& into) {
  in.text("metric", into.metric);
  if (into.metric.empty())
    in.fault("metric", "must name a number of the metadata, such as \"accuracy\" or \"loss\"");
  std::string mode = into.metric == "loss" || into.metric == "grad_norm" ? "min" : "max";
  in.text("mode", mode);
  if (mode != "max" && mode != "min")
    in.fault("mode", "must be \"max\" or \"min\", but is \"" + mode + "\"");
  into.maximise = mode == "max";
}

} // namespace troupe::core
