#include "troupe/actors/actor_registry.hpp"

#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace troupe::actors {

using core::errc;

void actor_registry::add(std::string type, factory make, checker check) {
  if (type.empty() || !make)
    throw std::invalid_argument("an actor type needs a name and a factory");
  entries_.insert_or_assign(std::move(type), entry{std::move(make), std::move(check)});
}

bool actor_registry::contains(std::string_view type) const { return entries_.find(type) != entries_.end(); }

std::vector<std::string> actor_registry::names() const {
  std::vector<std::string> out;
  for (const auto& [name, e] : entries_)
    out.push_back(name);
  return out;
}

core::error actor_registry::unknown(std::string_view type) const {
  std::string known;
  for (const auto& [name, e] : entries_)
    known += (known.empty() ? "" : ", ") + name;
  return {errc::not_found, "there is no actor type \"" + std::string{type} + "\"; there " +
                               (known.empty() ? "are none: the program registers its own" : "are: " + known)};
}

core::result<caf::actor> actor_registry::spawn(std::string_view type, const actor_context& ctx,
                                               const nlohmann::json& config) const {
  const auto i = entries_.find(type);
  if (i == entries_.end())
    return unknown(type);
  const auto named = [&](const core::error& e) { return core::error{e.code, "actor " + ctx.name + ": " + e.text}; };
  try {
    auto made = i->second.make(ctx, config);
    if (!made)
      return named(made.error());
    if (!*made)
      return named({errc::internal, "the factory of \"" + std::string{type} + "\" made nothing"});
    return made;
  } catch (const std::exception& e) {
    return named({errc::failed, e.what()});
  }
}

std::variant<actor_registry::actors, std::vector<core::error>>
actor_registry::spawn_all(const nlohmann::json& list, caf::actor_system& sys, std::span<const gpu_place> places,
                          std::string_view where) const {
  std::vector<core::error> faults;
  const auto fault = [&](const std::string& at, const std::string& what) {
    faults.push_back({errc::invalid_argument, at + ": " + what});
  };
  struct wanted {
    std::string name, type;
    nlohmann::json config;
  };
  std::vector<wanted> all;
  std::map<std::string, std::string> seen; // name to place
  if (!list.is_array())
    fault(where.empty() ? std::string{"the list of actors"} : std::string{where}, "must be a list, such as [{\"name\": \"a\", \"type\": \"watcher\"}]");
  else
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto at = std::string{where} + "/" + std::to_string(i);
      const auto& x = list[i];
      if (!x.is_object()) {
        fault(at, "must be an object with name, type and config");
        continue;
      }
      for (const auto& [key, value] : x.items())
        if (key != "name" && key != "type" && key != "config")
          fault(at + "/" + key, "unknown key; there are: name, type, config");
      wanted w;
      for (auto [key, into] : {std::pair{"name", &w.name}, std::pair{"type", &w.type}})
        if (!x.contains(key) || !x[key].is_string() || x[key].get_ref<const std::string&>().empty())
          fault(at + "/" + key, "must be a text that is not empty");
        else
          *into = x[key];
      w.config = x.value("config", nlohmann::json::object());
      if (!w.name.empty())
        if (const auto [first, fresh] = seen.emplace(w.name, at); !fresh)
          fault(at + "/name", "\"" + w.name + "\" is also the name of " + first->second);
      if (!w.type.empty()) {
        const auto e = entries_.find(w.type);
        if (e == entries_.end())
          fault(at + "/type", unknown(w.type).text);
        else if (e->second.check)
          e->second.check(w.config, at + "/config", faults);
      }
      all.push_back(std::move(w));
    }
  if (!faults.empty())
    return faults;
  actors out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto made = spawn(all[i].type, {sys, places, all[i].name, &out}, all[i].config);
    if (!made) {
      for (const auto& [name, hdl] : out)
        caf::anon_send_exit(hdl, caf::exit_reason::user_shutdown);
      return std::vector{core::error{made.error().code, std::string{where} + "/" + std::to_string(i) + ": " + made.error().text}};
    }
    out.emplace(all[i].name, std::move(*made));
  }
  return out;
}

} // namespace troupe::actors
