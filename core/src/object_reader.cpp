#include "object_reader.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>

#include "json_path.hpp"
#include "troupe/core/suggest.hpp"

namespace troupe::core::internal {

error fault_at(std::string_view where, std::string_view text) {
  std::string out{where};
  if (!out.empty())
    out += ": ";
  out += text;
  return {errc::invalid_argument, std::move(out)};
}

std::string_view kind_of(const json& j) noexcept {
  switch (j.type()) {
  case json::value_t::null: return "null";
  case json::value_t::object: return "an object";
  case json::value_t::array: return "a list";
  case json::value_t::string: return "a text";
  case json::value_t::boolean: return "a boolean";
  default: return "a number";
  }
}

namespace {

std::string shortest(double x) {
  std::array<char, 32> buffer;
  return {buffer.data(), std::to_chars(buffer.data(), buffer.data() + buffer.size(), x).ptr};
}

/// Walks the document once to find what the parsed tree no longer shows: where it stops being JSON, keys given twice, and
/// nesting so deep that code working on the tree could run out of stack.
class syntax_checker : public nlohmann::json_sax<json> {
public:
  syntax_checker(std::string_view text, std::vector<error>& faults) : text_(text), faults_(faults) {}

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool string(string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool start_object(std::size_t) override { return open(true); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(false); }
  bool end_array() override { return close(); }

  bool key(string_t& x) override {
    auto& top = stack_.back();
    top.key = std::move(x);
    if (!top.keys.insert(top.key).second)
      faults_.push_back(fault_at(pointer(), "is given twice"));
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    std::string what = e.what();
    // "[json.exception…] parse error at line 3, column 5: syntax error while parsing …"
    constexpr std::string_view at = "parse error at ";
    if (auto i = what.find(at); i != std::string::npos) {
      faults_.push_back({errc::invalid_argument, what.substr(i + at.size())});
      return false;
    }
    auto before = text_.substr(0, std::min(position, text_.size()));
    auto line = static_cast<std::size_t>(std::ranges::count(before, '\n')) + 1;
    auto column = before.size() - (before.rfind('\n') + 1); // npos + 1 is 0
    if (auto i = what.find("] "); i != std::string::npos)
      what.erase(0, i + 2);
    faults_.push_back({errc::invalid_argument,
                       "line " + std::to_string(line) + ", column " + std::to_string(column) + ": " + what});
    return false;
  }

private:
  struct frame {
    bool object;
    std::string key;
    std::size_t index = 0; ///< of a list: elements so far
    std::set<std::string, std::less<>> keys;
  };

  std::string pointer() const {
    std::string out;
    for (auto& f : stack_)
      out = f.object ? json_child(out, f.key) : json_child(out, f.index);
    return out;
  }
  bool scalar() {
    if (!stack_.empty() && !stack_.back().object)
      ++stack_.back().index;
    return true;
  }
  bool open(bool object) {
    if (stack_.size() == 64) {
      faults_.push_back(fault_at(pointer(), "is nested deeper than 64 levels"));
      return false;
    }
    stack_.push_back({object, {}, 0, {}});
    return true;
  }
  bool close() {
    stack_.pop_back();
    return scalar();
  }

  std::string_view text_;
  std::vector<error>& faults_;
  std::vector<frame> stack_;
};

} // namespace

std::optional<json> parse_document(std::string_view text, std::vector<error>& faults) {
  if (auto zero = text.find('\0'); zero != std::string_view::npos) {
    faults.push_back({errc::invalid_argument, "byte " + std::to_string(zero) + " is zero: this is no text file"});
    return std::nullopt;
  }
  auto before = faults.size();
  syntax_checker checker{text, faults};
  bool good = json::sax_parse(text.begin(), text.end(), &checker, nlohmann::detail::input_format_t::json, true, true);
  if (!good || faults.size() != before)
    return std::nullopt;
  return json::parse(text.begin(), text.end(), nullptr, true, true);
}

object_reader::object_reader(const json& j, std::string where, std::vector<error>& faults)
    : object_(j.is_object() ? &j : nullptr), where_(std::move(where)), faults_(faults) {
  if (!object_)
    faults_.push_back(fault_at(where_, "must be an object, but is " + std::string{kind_of(j)}));
}

const json* object_reader::raw(std::string_view key) {
  if (std::ranges::find(known_, key) == known_.end())
    known_.push_back(key);
  if (!object_)
    return nullptr;
  auto i = object_->find(key);
  return i == object_->end() ? nullptr : &*i;
}

void object_reader::text(std::string_view key, std::string& into) {
  auto* j = raw(key);
  if (!j)
    return;
  if (j->is_string())
    into = j->get<std::string>();
  else
    fault(key, "must be a text, but is " + std::string{kind_of(*j)});
}

void object_reader::boolean(std::string_view key, bool& into) {
  auto* j = raw(key);
  if (!j)
    return;
  if (j->is_boolean())
    into = j->get<bool>();
  else
    fault(key, "must be true or false, but is " + std::string{kind_of(*j)});
}

std::optional<std::uint64_t> object_reader::whole_number(const json& j, const std::string& where, std::uint64_t low,
                                                         std::uint64_t high) {
  std::optional<std::uint64_t> x;
  if (j.is_number_unsigned())
    x = j.get<std::uint64_t>();
  else if (j.is_number_float()) // beyond 2^53 a double no longer says which whole number is meant
    if (auto d = j.get<double>(); d >= 0 && d <= 0x1p53 && d == std::floor(d))
      x = static_cast<std::uint64_t>(d);
  if (x && *x >= low && *x <= high)
    return x;
  auto range = high == UINT64_MAX ? " of at least " + std::to_string(low)
                                  : " from " + std::to_string(low) + " to " + std::to_string(high);
  auto is = j.is_number() ? j.dump() : std::string{kind_of(j)};
  faults_.push_back(fault_at(where, "must be a whole number" + range + ", but is " + is));
  return std::nullopt;
}

void object_reader::real(std::string_view key, double& into, double low, double high, bool above) {
  auto* j = raw(key);
  if (!j)
    return;
  if (j->is_number())
    if (auto x = j->get<double>(); x <= high && (above ? x > low : x >= low)) {
      into = x;
      return;
    }
  fault(key, "must be a number " + std::string{above ? "above " : "from "} + shortest(low) + (above ? " up to " : " to ") +
                 shortest(high) + ", but is " + (j->is_number() ? j->dump() : std::string{kind_of(*j)}));
}

void object_reader::fault(std::string_view key, std::string_view text) {
  faults_.push_back(fault_at(key.empty() ? where_ : pointer(key), text));
}

std::string object_reader::pointer(std::string_view key) const { return json_child(where_, key); }

void object_reader::finish() {
  if (!object_)
    return;
  for (auto& [key, ignored] : object_->items())
    if (std::ranges::find(known_, key) == known_.end())
      fault(key, "is no known key" + suggestion(key, std::span<const std::string_view>{known_}));
}

} // namespace troupe::core::internal
