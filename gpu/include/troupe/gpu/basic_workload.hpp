#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/gpu/context.hpp"
#include "troupe/gpu/workload.hpp"

namespace troupe::gpu {

/// The short way to a workload of one's own: name the state, write `step` and `evaluate`, and the rest follows.
///
///     class newton final : public basic_workload {
///     public:
///       newton(context&, const workload_config& cfg) : basic_workload("newton", cfg) {
///         x_.resize(integer_option("size", 10, 1, 1000)); // from the experiment's "workload" object
///         weights("x", x_);                  // saved, copied and averaged between trainers
///         tunable("lr", lr_, 0.0, 10.0);     // may be pushed while it runs
///         counter("steps", steps_);          // saved for resuming, not copied
///       }
///       double step(context&) override { … }
///       evaluation evaluate(context&) override { … }
///     };
///     registry.add("newton", basic_workload::factory<newton>(), basic_workload::checker<newton>());
///
/// Options and hyperparameters that the constructor did not name are refused. State is registered by reference in the constructor
/// and must keep its size. Everything random should be a function of the
/// seed and a counter (`core::random_stream`), so that a restored workload goes on exactly as it would have.
class basic_workload : public workload {
public:
  void save(context& ctx, core::checkpoint& out) override;
  void load(context& ctx, const core::checkpoint& in, load_mode mode) override;
  core::result<void> check(const core::hyperparameters& changes) const override;
  void set(context& ctx, const core::hyperparameters& changes) override;
  std::string signature() const override; ///< kind and the shapes of all registered state
  std::uint64_t memory_bytes() const override;

  /// For `workload_registry::add`: makes a T from (context&, const workload_config&), then refuses options and hyperparameters
  /// of the configuration that T did not name. `more` is kept and handed to every T: what they share, such as data.
  template <class T, class... More>
  static workload_registry::factory factory(More... more) {
    return [more...](context& ctx, const workload_config& cfg) -> std::unique_ptr<workload> {
      auto made = std::make_unique<T>(ctx, cfg, more...);
      static_cast<basic_workload&>(*made).refuse_unknown(cfg);
      return made;
    };
  }
  /// For `workload_registry::add`, beside `factory`: finds a wrong option or hyperparameter before anything starts, by
  /// making a T on the CPU and dropping it. Leave it out for a T that is slow to make or needs a GPU: then what is wrong fails the
  /// trainer when it is made.
  template <class T, class... More>
  static workload_registry::checker checker(More... more) {
    return trial_of(factory<T>(more...));
  }

protected:
  basic_workload(std::string kind, const workload_config& cfg);

  std::uint64_t seed() const noexcept { return seed_; }

  // -- options: what the experiment's "workload" object says beside "type"; in the constructor only. A value of another type or out of
  // range is a fault: the fallback is returned, and the workload is refused after its constructor, with all its faults and their places
  // in the experiment.

  std::int64_t integer_option(std::string_view name, std::int64_t fallback, std::int64_t low, std::int64_t high);
  double number_option(std::string_view name, double fallback, double low, double high);
  std::string text_option(std::string_view name, std::string_view fallback);
  bool flag_option(std::string_view name, bool fallback);
  /// Null if absent. For lists and objects, whose checking is then T's: `data_spec::from_json` and the like.
  const nlohmann::json* json_option(std::string_view name);
  /// For a T that reads and checks `workload_config::options` itself: unknown ones are its affair.
  void checks_options_itself() noexcept { options_ = nullptr; }

  // -- state ---------------------------------------------------------------------------------------------------------

  /// A tensor "weights.<name>". `shape`: empty for a vector.
  void weights(std::string_view name, std::vector<float>& values, std::vector<std::int64_t> shape = {});
  /// `values` lies on the device and holds floats.
  void weights(std::string_view name, buffer& values, std::vector<std::int64_t> shape = {});
  /// As `weights`, but a tensor "state.<name>" that averaging leaves alone: momentum and the like.
  void state(std::string_view name, std::vector<float>& values, std::vector<std::int64_t> shape = {});
  void state(std::string_view name, buffer& values, std::vector<std::int64_t> shape = {});
  /// A number "counters.<name>" that resuming restores and copying another trainer's weights does not.
  void counter(std::string_view name, std::uint64_t& value);
  /// A hyperparameter in [low, high]. Takes its first value from the configuration, else leaves what `value` has; one that is out of
  /// range is a fault, as above.
  void tunable(std::string_view name, double& value, double low, double high);

private:
  struct entry {
    std::string name;
    std::vector<std::int64_t> shape;
    std::vector<float>* host = nullptr;
    buffer* device = nullptr;
    std::size_t count() const;
  };
  struct count_entry {
    std::string name;
    std::uint64_t* value;
  };
  struct tunable_entry {
    std::string name;
    double* value;
    double low, high;
  };

  static workload_registry::checker trial_of(workload_registry::factory make);
  template <class Read>
  auto read_option(std::string_view name, Read read);
  void add(std::string name, std::vector<float>* host, buffer* device, std::vector<std::int64_t> shape);
  void refuse_unknown(const workload_config& cfg);
  void refuse_faults() const;
  const tunable_entry* find(std::string_view name) const;
  std::string fault_of(std::string_view key, const core::value& x) const;

  std::string kind_;
  std::uint64_t seed_;
  core::hyperparameters initial_;
  const nlohmann::json* options_; ///< while T is being made
  std::vector<std::string> known_options_;
  std::vector<std::string> faults_; ///< of the configuration, found by the constructor of T
  std::vector<entry> tensors_;
  std::vector<count_entry> counters_;
  std::vector<tunable_entry> tunables_;
};

} // namespace troupe::gpu
