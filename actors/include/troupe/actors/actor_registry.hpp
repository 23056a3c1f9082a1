#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/actors/caf.hpp"
#include "troupe/actors/tensor.hpp"
#include "troupe/core/result.hpp"

namespace troupe::actors {

/// What a factory gets besides its config.
struct actor_context {
  caf::actor_system& system;
  std::span<const gpu_place> places; ///< slots for GPU actors; may be empty
  std::string name;                  ///< of the actor to be made
  /// Actors made before this one in the same list, by name, for those that need to know each other.
  const std::map<std::string, caf::actor>* others = nullptr;
};

/// Actors by type name, with JSON configs. Explicit: nothing registers itself; a program fills one and passes it on.
class actor_registry {
public:
  /// Makes the actor; may throw or return an error, either text reaches the user with the actor's name. Typed handles are passed as
  /// `caf::actor_cast<caf::actor>(handle)`.
  using factory = std::function<core::result<caf::actor>(const actor_context& ctx, const nlohmann::json& config)>;
  /// Checks a config before anything starts; appends one text per fault, each beginning with the JSON pointer of the fault below
  /// `where`.
  using checker =
      std::function<void(const nlohmann::json& config, std::string_view where, std::vector<core::error>& faults)>;

  /// Replaces an entry of the same name.
  void add(std::string type, factory make, checker check = nullptr);
  bool contains(std::string_view type) const;
  std::vector<std::string> names() const;

  /// An unknown type is an error that lists the known ones.
  core::result<caf::actor> spawn(std::string_view type, const actor_context& ctx, const nlohmann::json& config) const;

  using actors = std::map<std::string, caf::actor>;
  /// Makes a list of actors: [{"name": "watch", "type": "watcher", "config": {…}}, …]. All faults of the list are found before the
  /// first actor is made, each with its JSON pointer; if one then cannot be made, those made before it are ended.
  std::variant<actors, std::vector<core::error>> spawn_all(const nlohmann::json& list, caf::actor_system& sys,
                                                           std::span<const gpu_place> places,
                                                           std::string_view where = {}) const;

private:
  struct entry {
    factory make;
    checker check;
  };
  core::error unknown(std::string_view type) const;
  std::map<std::string, entry, std::less<>> entries_;
};

} // namespace troupe::actors
