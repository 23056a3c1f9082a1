#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "batch_feed.hpp"
#include "device_record.hpp"
#include "record_pages.hpp"
#include "spillable.hpp"
#include "troupe/gpu/training_group.hpp"

namespace troupe::gpu {

namespace internal {

constexpr std::int64_t norm_scratch = 256; // floats a member, see gradient_norm
constexpr std::int64_t evaluation_rows = 256;

/// Where the parts of a member's record lie, in floats. First what is kept, then what follows from it.
struct record_layout {
  std::int64_t first = 0;  ///< SGD's momentum, AdamW's first moment
  std::int64_t second = 0; ///< AdamW's second moment
  std::int64_t statistics = 0;
  std::int64_t low = 0;    ///< the bf16 copy
  std::int64_t stride = 0; ///< of all

  record_layout(const model_layout& l, optimizer_kind optimizer) {
    const auto moment = [&] { return place(l.size); };
    stride = l.size;
    first = moment();
    if (optimizer == optimizer_kind::adamw)
      second = moment();
    if (l.statistics_size > 0)
      statistics = place(l.statistics_size);
    if (l.precision == precision_kind::bf16)
      low = place((l.size + 1) / 2);
  }

private:
  /// The next part. Large ones begin at different places of their page: equal places in several arrays of one
  /// loop make loads wait for unrelated stores (4 KiB aliasing).
  std::int64_t place(std::int64_t n) {
    constexpr std::int64_t line = 32, page = 1024, skew = 9 * line;
    auto at = (stride + line - 1) / line * line;
    ++parts_;
    if (n >= 4 * page)
      at += ((parts_ * skew - at) % page + page) % page;
    stride = (at + n + line - 1) / line * line;
    return at;
  }

  std::int64_t parts_ = 0;
};

} // namespace internal

/// What a group consists of. Its functions are in training_group.cpp (members, their records, memory),
/// training_group_steps.cpp (who steps when, a step, its capture) and training_group_measures.cpp (measuring,
/// saving, loading).
/// training_group_room.cpp: what of it gives way to other groups.
struct training_group::impl final : internal::spillable {
  /// Small things of each row in device memory.
  struct table {
    std::int64_t rows = 0;
    buffer params, counters, active;
  };
  /// What passes need for each lane beside the model's own workspace.
  struct lane_buffers {
    buffer gradient, scratch;
    buffer plain_params, probe; ///< for passes that are not training
  };
  using place = internal::batch_feed::place;
  /// Active members that step at once: rows first … first + count - 1, of one page.
  struct part {
    std::int64_t first = 0, count = 0;
    bool clips = false;
    bool into_momentum = false;
    float momentum = 0;
    model::pass pass;
    std::size_t names = 0;  ///< where its members begin in `turn_members`
    std::size_t active = 0; ///< how many
  };

  context& ctx;
  group_options options;
  bool at_once; ///< all members of a page in one pass
  std::unique_ptr<model> net; ///< null: its workspace, the lanes' memory and the feed's gave way to other groups
  const model_layout layout;
  std::int64_t lanes = 1;     ///< of `net`, or the next one's
  internal::record_layout at;
  internal::batch_feed feed;
  std::unique_ptr<internal::record_pages> records;
  lane_buffers lane;
  table rows;
  std::shared_ptr<internal::spill_list> others;
  int at_work = 0;                    ///< functions that use memory: none of it goes meanwhile
  std::uint64_t worked = 0;           ///< when, last
  std::uint64_t workspace_floor = 0;  ///< bytes, of a workspace that gave way

  std::vector<std::int64_t> member_of;    ///< by row
  std::vector<std::int64_t> row_of;       ///< by member; -1: nobody has this number
  std::vector<member_params> host_params; ///< by row, as all that follow
  std::vector<place> places;              ///< in the data, as the counters have it
  std::vector<std::uint8_t> host_active, wanted_active;
  std::vector<std::uint8_t> sent_active; ///< what the device has
  std::vector<part> turns;
  std::vector<std::int64_t> turn_members;
  bool planned = false;
  std::vector<member_counters> exchange;
  std::vector<place> wanted; ///< of the feed, for a moment

  /// What a captured step depends on beside device memory's contents.
  using step_key = std::tuple<const float*, std::int64_t, std::int64_t, bool, bool, bool, float>;
  struct known_step {
    captured work;          ///< empty: met once
    std::uint64_t used = 0; ///< when, last
  };
  static constexpr std::size_t most_captures = 64; ///< whichever was used longest ago makes room
  bool captures;                                   ///< steps are captured
  std::map<step_key, known_step> captured_steps;
  std::uint64_t launch_clock = 0;

  impl(context& c, group_options o);
  std::unique_ptr<model> make_net(std::int64_t lanes) const;
  std::int64_t chosen_block() const;

  std::int64_t count() const { return static_cast<std::int64_t>(member_of.size()); }
  std::int64_t size() const { return layout.size; }
  std::int64_t matrices() const { return layout.matrix_size; }
  bool low() const { return layout.precision == precision_kind::bf16; }

  /// In device memory, for what is enqueued next.
  float* record_of(std::int64_t row, bool change = true) const { return records->row(row, change); }
  std::int64_t row(std::int64_t member) const {
    const auto i = static_cast<std::size_t>(member);
    if (member < 0 || i >= row_of.size() || row_of[i] < 0)
      throw std::invalid_argument("training_group: there is no member " + std::to_string(member));
    return row_of[i];
  }
  std::size_t index(std::int64_t member) const { return static_cast<std::size_t>(row(member)); }
  member_params* params_at(std::int64_t r) const { return rows.params.as<member_params>() + r; }
  member_counters* counters_at(std::int64_t r) const { return rows.counters.as<member_counters>() + r; }

  member_state state_of(std::int64_t r, bool change = true) const {
    auto* base = record_of(r, change);
    member_state s;
    s.weights = base;
    s.stride = at.stride;
    if (layout.statistics_size > 0)
      s.statistics = base + at.statistics;
    if (low()) {
      s.low = reinterpret_cast<bf16*>(base + at.low);
      s.low_stride = 2 * at.stride;
    }
    return s;
  }
  vec<float> section(std::int64_t r, std::int64_t offset, std::int64_t from, std::int64_t to) const {
    return {record_of(r) + offset + from, to - from, at.stride};
  }
  vec<bf16> low_section(std::int64_t r, std::int64_t from, std::int64_t to) const {
    const auto s = state_of(r);
    return s.low == nullptr ? vec<bf16>{} : vec<bf16>{s.low + from, to - from, s.low_stride};
  }
  vec<float> gradient_section(std::int64_t from, std::int64_t to) const {
    return {lane.gradient.as<float>() + from, to - from, size()};
  }
  vec<float> norm_sums() const {
    return {lane.scratch.as<float>(), internal::norm_scratch, internal::norm_scratch};
  }

  // -- memory
  // --------------------------------------------------------------------------------------------------------

  template <class T>
  buffer zeroed(std::int64_t n);
  lane_buffers take_lanes(std::int64_t n);
  void make_workspace(std::int64_t n);
  table take_table(std::int64_t n);
  void resize(std::int64_t n);
  void moved();
  void make_table_room(std::int64_t n, std::int64_t want);
  void make_room();
  void give_up_room();

  // -- giving way
  // ---------------------------------------------------------------------------------------------------------

  /// For its life, the group is at work and has its workspace.
  class work_scope {
  public:
    enum class needs : std::uint8_t { workspace, states };
    explicit work_scope(impl& m, needs what = needs::workspace);
    ~work_scope() { --m_.at_work; }
    work_scope(const work_scope&) = delete;
    work_scope& operator=(const work_scope&) = delete;

  private:
    impl& m_;
  };
  std::uint64_t workspace_bytes() const noexcept;
  void need_workspace();
  std::uint64_t oldest() const noexcept override;
  std::uint64_t spill_oldest() override;
  std::uint64_t could_give() const noexcept override;
  std::uint64_t stuck() const noexcept override;
  std::uint64_t floor() const noexcept override;
  bool waits() const noexcept override;

  // -- members
  // -------------------------------------------------------------------------------------------------------

  void fresh(std::int64_t r, std::uint64_t seed);
  void weights_changed(std::int64_t r);
  void set_params(std::int64_t r, const member_params& p);
  void move_row(std::int64_t from, std::int64_t to) noexcept;
  member_counters read_counters(std::int64_t r);

  // -- steps
  // ---------------------------------------------------------------------------------------------------------

  bool is_active(std::int64_t r) const {
    return r < count() && host_active[static_cast<std::size_t>(r)] != 0;
  }
  bool goes_into_momentum(std::int64_t r) const;
  bool alike(std::int64_t a, std::int64_t b) const;
  bool goes_same_way(std::int64_t a, std::int64_t b) const;
  void plan();
  void need_plan() {
    if (!planned)
      plan();
  }
  void add_turn(std::int64_t first, std::int64_t end);
  void step(std::size_t turn);
  void load(const part& t);
  void note_places(const part& t);
  void advance(const part& t);
  bool launch_captured(const part& t, const float* base);
  void compute(const part& t, bool with_input);
  void update(const part& t);

  // -- measuring and keeping
  // -----------------------------------------------------------------------------------------

  template <class F>
  void in_passes(std::span<const std::int64_t> members, F&& f);
  static losses taken(member_counters& c);
  template <class F>
  void each_tensor(F&& f) const;
  std::vector<internal::device_record::part> record_parts() const;
};

} // namespace troupe::gpu
