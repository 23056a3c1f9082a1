#include "troupe/gpu/training_group.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <stdexcept>
#include <tuple>

#include "batch_feed.hpp"
#include "kernel_table.hpp"
#include "record_pages.hpp"

namespace troupe::gpu {

std::string_view to_string(optimizer_kind x) noexcept {
  return x == optimizer_kind::sgd ? "sgd" : "adamw";
}

namespace {

constexpr std::int64_t norm_scratch = 256; // floats a member, see gradient_norm
constexpr std::int64_t evaluation_rows = 256;

/// "weights.dense0.weight" -> "momentum.dense0.weight"
std::string state_name(std::string_view prefix, const parameter& p) {
  return std::string(prefix) + p.name.substr(p.name.find('.'));
}

/// Where the parts of a member's record lie, in floats. First what is kept, then what follows from it.
struct record {
  std::int64_t first = 0;  ///< SGD's momentum, AdamW's first moment
  std::int64_t second = 0; ///< AdamW's second moment
  std::int64_t statistics = 0;
  std::int64_t low = 0;    ///< the bf16 copy
  std::int64_t stride = 0; ///< of all

  record(const model_layout& l, optimizer_kind optimizer) {
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
  /// The next part. Large ones begin at different places of their page: equal places in several arrays of one loop make loads
  /// wait for unrelated stores (4 KiB aliasing).
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

} // namespace

struct training_group::impl {
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
    bool all = true;                 ///< none of them rests
    bool clips = false;
    bool into_momentum = false;
    float momentum = 0;
    model::pass pass;
    std::size_t names = 0;           ///< where its members begin in `turn_members`
    std::size_t active = 0;          ///< how many
  };

  context& ctx;
  group_options options;
  bool at_once;                      ///< all members of a page in one pass
  std::unique_ptr<model> net;
  record at;
  internal::batch_feed feed;
  std::unique_ptr<internal::record_pages> records;
  lane_buffers lane;
  table rows;

  std::vector<std::int64_t> member_of;  ///< by row
  std::vector<std::int64_t> row_of;     ///< by member; -1: nobody has this number
  std::vector<member_params> host_params; ///< by row, as all that follow
  std::vector<place> places;            ///< in the data, as the counters have it
  std::vector<std::uint8_t> host_active, wanted_active;
  std::vector<std::uint8_t> sent_active; ///< what the device has
  std::vector<part> turns;
  std::vector<std::int64_t> turn_members;
  bool planned = false;
  std::vector<member_counters> exchange;
  std::vector<place> wanted;            ///< of the feed, for a moment

  /// What a captured step depends on beside device memory's contents.
  using step_key = std::tuple<const float*, std::int64_t, std::int64_t, bool, bool, bool, bool, float>;
  static constexpr std::size_t most_captures = 64;
  bool captures;                        ///< steps are captured
  std::map<step_key, captured> captured_steps; ///< empty ones were met once

  impl(context& c, group_options o)
    : ctx(c), options(std::move(o)), at_once(ctx.kernels().wants_many), net(make_net(1)),
      at(net->layout(), options.optimizer), feed(c, options.data, options.batch, evaluation_rows), captures(c.wants_capture()) {
    const auto batch = options.batch;
    if (batch < 1 || batch > options.data->train().examples)
      throw std::invalid_argument("batch: " + std::to_string(batch) + " is not between 1 and the number of training examples, "
                                  + std::to_string(options.data->train().examples));
    if (batch < net->least_batch())
      throw std::invalid_argument("batch: batch normalisation needs at least " + std::to_string(net->least_batch())
                                  + " examples in a batch");
    const auto block = at_once ? 1 : options.block > 0 ? options.block : chosen_block();
    records = std::make_unique<internal::record_pages>(ctx, at.stride, block);
    lane = take_lanes(net->lanes());
    feed.make_room(1);
  }

  std::unique_ptr<model> make_net(std::int64_t lanes) const {
    return options.make(ctx, lanes, std::max(options.batch, evaluation_rows));
  }

  /// Members of a turn on the CPU. Several share what an operation costs beside its arithmetic, as long as what a step of all of
  /// them touches stays in the second-level cache (bench_fusion --block): 1.25 times as fast for 32-16-10, 1.05 for 784-16-10,
  /// slower for 784-64-64-10.
  std::int64_t chosen_block() const {
    const auto touched = static_cast<std::int64_t>(sizeof(float))
                         * (at.stride + net->layout().size + options.batch * options.data->train().features);
    return std::clamp<std::int64_t>((384 << 10) / touched, 1, 8);
  }

  std::int64_t count() const { return static_cast<std::int64_t>(member_of.size()); }
  std::int64_t size() const { return net->layout().size; }
  std::int64_t matrices() const { return net->layout().matrix_size; }
  bool low() const { return net->layout().precision == precision_kind::bf16; }

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
    if (net->layout().statistics_size > 0)
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
  vec<float> gradient_section(std::int64_t from, std::int64_t to) const { return {lane.gradient.as<float>() + from, to - from, size()}; }
  vec<float> norm_sums() const { return {lane.scratch.as<float>(), norm_scratch, norm_scratch}; }

  // -- memory --------------------------------------------------------------------------------------------------------

  template <class T>
  buffer zeroed(std::int64_t n) {
    auto b = ctx.allocate_of<T>(static_cast<std::size_t>(n));
    ctx.zero(b.data(), b.size());
    return b;
  }

  lane_buffers take_lanes(std::int64_t lanes) {
    lane_buffers l;
    l.gradient = zeroed<float>(lanes * size());
    l.scratch = zeroed<float>(lanes * norm_scratch);
    l.probe = zeroed<member_counters>(lanes);
    l.plain_params = ctx.allocate_of<member_params>(static_cast<std::size_t>(lanes));
    const std::vector<member_params> plain(static_cast<std::size_t>(lanes));
    ctx.upload(l.plain_params.data(), std::span<const member_params>(plain));
    return l;
  }

  table take_table(std::int64_t n) {
    table t;
    t.rows = n;
    t.params = zeroed<member_params>(n);
    t.counters = zeroed<member_counters>(n);
    t.active = zeroed<std::uint8_t>(n);
    const auto kept = static_cast<std::size_t>(std::min(count(), n));
    if (kept > 0) {
      ctx.copy(t.params.data(), rows.params.data(), kept * sizeof(member_params));
      ctx.copy(t.counters.data(), rows.counters.data(), kept * sizeof(member_counters));
    }
    return t;
  }

  /// Everything anew with `n` rows and lanes; takes over the records. Throws `out_of_memory`, nothing has changed then.
  void resize(std::int64_t n) {
    auto new_net = make_net(n);
    auto new_table = take_table(n);
    auto new_lanes = take_lanes(n);
    feed.make_room(n);
    records->resize(n, count());
    net = std::move(new_net);
    lane = std::move(new_lanes);
    rows = std::move(new_table);
    moved();
  }

  /// Memory that steps use lies elsewhere now.
  void moved() {
    captured_steps.clear();
    sent_active.clear();
    planned = false;
  }

  /// Room for `n` rows' small things.
  void make_table_room(std::int64_t n, std::int64_t want) {
    while (rows.rows < n)
      try {
        rows = take_table(std::max(n, want));
        moved();
      } catch (const out_of_memory&) {
        if (std::exchange(want, n) <= n && !records->give_up_frame())
          throw;
        moved();
      }
  }

  /// Room for one more.
  void make_room() {
    const auto n = count();
    if (at_once && !records->divided()) {
      if (records->pages() == 0) {
        make_table_room(1, 1);
        records->resize(1, 0);
        return;
      }
      if (n < records->rows())
        return;
      try {
        resize(2 * records->rows());
        return;
      } catch (const out_of_memory&) {
        // Two halves, so that one can come and go while the other computes.
        make_table_room(n + 1, std::max<std::int64_t>(2 * n, 256));
        records->divide(std::max<std::int64_t>(records->rows() / 2, 1));
        moved();
      }
    }
    if (const auto block = records->rows_per_page(); n > 0 && net->lanes() < block) // a lone member needs one
      try {
        auto new_net = make_net(block);
        auto new_lanes = take_lanes(block);
        feed.make_room(block);
        net = std::move(new_net);
        lane = std::move(new_lanes);
        moved();
      } catch (const out_of_memory&) { // then turns are as short as the lanes there are
      }
    make_table_room(n + 1, std::max(2 * rows.rows, records->rows_per_page()));
    if (n >= records->rows())
      records->add_page();
  }

  void give_up_room() {
    const auto n = count();
    if (at_once && !records->divided()) {
      if (n > 0 && n <= records->rows() / 4) {
        try {
          resize(records->rows() / 2);
        } catch (const std::exception&) { // no room for both at once; there will be another chance
        }
      }
    } else {
      while (records->rows() - n >= records->rows_per_page()) {
        records->drop_last_page();
        captured_steps.clear();
      }
    }
    planned = false;
  }

  void fresh(std::int64_t r, std::uint64_t seed) {
    std::vector<float> host(static_cast<std::size_t>(at.stride), 0.0F);
    const auto all = std::span(host);
    const auto& l = net->layout();
    net->initialise(all.subspan(0, static_cast<std::size_t>(l.size)),
                    all.subspan(static_cast<std::size_t>(at.statistics), static_cast<std::size_t>(l.statistics_size)), seed);
    ctx.upload(record_of(r), std::span<const float>(host));
    weights_changed(r);
    member_counters c;
    c.seed = seed;
    ctx.upload(counters_at(r), &c, sizeof c);
    places[static_cast<std::size_t>(r)] = {seed, 0, false};
  }

  /// Brings the bf16 copy up to date.
  void weights_changed(std::int64_t r) {
    if (low())
      to_bf16(ctx, 1, section(r, 0, 0, size()), low_section(r, 0, size()));
  }

  void set_params(std::int64_t r, const member_params& p) {
    host_params[static_cast<std::size_t>(r)] = p;
    ctx.upload(params_at(r), &p, sizeof p);
    planned = false;
  }

  /// Row `from` takes the place of row `to`.
  void move_row(std::int64_t from, std::int64_t to) noexcept {
    const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
    try {
      records->copy_row(from, to);
      ctx.copy(params_at(to), params_at(from), sizeof(member_params));
      ctx.copy(counters_at(to), counters_at(from), sizeof(member_counters));
    } catch (const device_error&) { // the device is lost, as the next step will tell
    }
    host_params[t] = host_params[f];
    places[t] = places[f];
    host_active[t] = host_active[f];
    member_of[t] = member_of[f];
    row_of[static_cast<std::size_t>(member_of[t])] = to;
  }

  // -- steps ---------------------------------------------------------------------------------------------------------

  /// Plain SGD needs no gradients of their own for matrices: products go straight into the momentum. The factor is an argument
  /// of the product, so it must be everyone's.
  bool goes_into_momentum(std::int64_t r) const {
    const auto& p = host_params[static_cast<std::size_t>(r)];
    return options.optimizer == optimizer_kind::sgd && p.clip_norm <= 0 && p.weight_decay == 0 && p.nesterov == 0;
  }
  bool alike(std::int64_t a, std::int64_t b) const {
    const auto& x = host_params[static_cast<std::size_t>(a)];
    const auto& y = host_params[static_cast<std::size_t>(b)];
    return goes_into_momentum(a) == goes_into_momentum(b) && (!goes_into_momentum(a) || x.momentum == y.momentum);
  }

  void plan() {
    turns.clear();
    turn_members.clear();
    const auto n = count();
    const auto page = records->rows_per_page();
    for (std::int64_t r = 0; r < n;) {
      if (!is_active(r)) {
        ++r;
        continue;
      }
      const auto page_end = (r / page + 1) * page;
      auto end = r + 1;
      if (at_once) {
        for (auto i = end; i < std::min(n, page_end); ++i)
          if (is_active(i))
            end = i + 1;
        if (captures) { // from the page's beginning, rounded up: the same launches whoever of them takes part
          r = page_end - page;
          end = r + std::min(page, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(end - r))));
        }
      } else {
        // What a member computes must not depend on its neighbours, so only those go together that would go the same way alone.
        while (end < std::min({n, page_end, r + net->lanes()}) && is_active(end) && alike(r, end))
          ++end;
      }
      add_turn(r, end);
      r = at_once ? page_end : end;
    }
    const bool masked = std::any_of(turns.begin(), turns.end(), [](const part& p) { return !p.all; });
    if (masked && sent_active != host_active) {
      auto mask = host_active;
      mask.resize(rows.active.size(), 0);
      ctx.upload(rows.active.data(), std::span<const std::uint8_t>(mask));
      sent_active = host_active;
    }
    planned = true;
  }

  bool is_active(std::int64_t r) const { return r < count() && host_active[static_cast<std::size_t>(r)] != 0; }

  void add_turn(std::int64_t first, std::int64_t end) {
    part t;
    t.first = first;
    t.count = end - first;
    t.names = turn_members.size();
    t.into_momentum = goes_into_momentum(first);
    t.momentum = host_params[static_cast<std::size_t>(first)].momentum;
    auto& p = t.pass;
    for (auto r = first; r < end; ++r) {
      if (!is_active(r)) {
        t.all = false;
        continue;
      }
      turn_members.push_back(member_of[static_cast<std::size_t>(r)]);
      t.into_momentum = t.into_momentum && alike(first, r);
      const auto& hp = host_params[static_cast<std::size_t>(r)];
      p.dropout = p.dropout || hp.dropout > 0;
      t.clips = t.clips || hp.clip_norm > 0;
    }
    t.into_momentum = t.into_momentum && t.all; // a product has no mask
    t.active = turn_members.size() - t.names;
    p.rows = options.batch;
    p.params = params_at(first);
    p.counters = counters_at(first);
    p.active = t.all ? nullptr : rows.active.as<std::uint8_t>() + first;
    turns.push_back(t);
  }

  // -- a step --------------------------------------------------------------------------------------------------------

  void step(std::size_t turn) {
    const auto& t = turns[turn];
    const auto* base = record_of(t.first);
    if (records->paged()) // before this turn's work is enqueued, so that it does not wait for it
      records->fetch_ahead(records->page_of(turns[(turn + 1) % turns.size()].first));
    load(t);
    if (!captures || !launch_captured(t, base))
      compute(t, !feed.staged());
    advance(t);
  }

  /// The batches of a step, where they come from the host.
  void load(const part& t) {
    if (!feed.staged())
      return;
    note_places(t);
    const auto from = feed.next(wanted);
    net->select(state_of(t.first), t.count);
    net->load_input(from.data, t.pass.counters, from.offset, t.pass.rows);
    feed.taken();
  }

  void note_places(const part& t) {
    wanted.assign(static_cast<std::size_t>(t.count), {});
    for (std::int64_t i = 0; i < t.count; ++i)
      if (is_active(t.first + i)) {
        wanted[static_cast<std::size_t>(i)] = places[static_cast<std::size_t>(t.first + i)];
        wanted[static_cast<std::size_t>(i)].active = true;
      }
  }

  void advance(const part& t) {
    for (auto r = t.first; r < t.first + t.count; ++r)
      if (is_active(r))
        ++places[static_cast<std::size_t>(r)].batch;
    if (feed.staged()) { // while the device computes
      note_places(t);
      feed.ahead(wanted);
    }
  }

  /// False where this step is to be enqueued call by call: a sequence met for the first time is not captured, so that libraries load
  /// what they need and what happens once costs nothing more; and after a capture failed none is tried again.
  bool launch_captured(const part& t, const float* base) {
    const step_key key{base, t.first, t.count, t.all, t.clips, t.into_momentum, t.pass.dropout, t.into_momentum ? t.momentum : 0};
    const auto [known, fresh] = captured_steps.try_emplace(key);
    if (fresh) {
      if (captured_steps.size() > most_captures)
        captured_steps.erase(known);
      return false;
    }
    if (!known->second) {
      std::string why; // the context keeps it for the slot's status
      known->second = ctx.capture([&] { compute(t, !feed.staged()); }, why);
      if (!known->second) {
        captures = false;
        captured_steps.clear();
        return false;
      }
    }
    ctx.launch(known->second);
    return true;
  }

  void compute(const part& t, bool with_input) {
    const auto& p = t.pass;
    const auto r = t.first;
    net->select(state_of(r), t.count);
    begin_step(ctx, t.count, p.params, p.counters, p.active);
    if (with_input)
      net->load_input(feed.data().train(), p.counters, -1, p.rows);
    net->forward(p);
    auto* g = lane.gradient.as<float>();
    const auto all = size(), split = matrices();
    if (t.into_momentum) {
      net->backward(p, {record_of(r) + at.first, at.stride, t.momentum, g, all});
      sgd_apply(ctx, t.count, section(r, 0, 0, split), section(r, at.first, 0, split), p.counters, low_section(r, 0, split), p.active);
      sgd(ctx, t.count, section(r, 0, split, all), section(r, at.first, split, all), gradient_section(split, all), p.params,
          p.counters, {}, p.active);
    } else {
      net->backward(p, {g, all, 0, g, all});
      update(t);
    }
    end_step(ctx, t.count, p.counters, p.active);
  }

  void update(const part& t) {
    const auto& p = t.pass;
    const auto r = t.first, all = size();
    const auto g = gradient_section(0, all);
    if (t.clips)
      gpu::gradient_norm(ctx, t.count, g, p.params, p.counters, norm_sums(), p.active);
    if (options.optimizer == optimizer_kind::sgd)
      sgd(ctx, t.count, section(r, 0, 0, all), section(r, at.first, 0, all), g, p.params, p.counters, low_section(r, 0, all), p.active);
    else
      adamw(ctx, t.count, section(r, 0, 0, all), section(r, at.first, 0, all), section(r, at.second, 0, all), g, p.params,
            p.counters, low_section(r, 0, all), p.active);
  }

  void need_plan() {
    if (!planned)
      plan();
  }

  member_counters read_counters(std::int64_t r) {
    member_counters out;
    ctx.download(&out, counters_at(r), sizeof out);
    return out;
  }

  /// Covers these members with passes that do not train: `f(first row, count, each)`, where each(g) calls g(index, lane) for those
  /// of them that the pass computes.
  template <class F>
  void in_passes(std::span<const std::int64_t> members, F&& f) {
    std::map<std::int64_t, std::vector<std::size_t>> by_page; // what computes together lies in one
    for (std::size_t i = 0; i < members.size(); ++i)
      by_page[records->page_of(row(members[i]))].push_back(i);
    for (const auto& [page, who] : by_page) {
      auto first = count(), end = std::int64_t{0};
      for (const auto i : who) {
        first = std::min(first, row(members[i]));
        end = std::max(end, row(members[i]) + 1);
      }
      // At once even if others in between are computed for nothing, as long as they are not most.
      if (at_once && end - first <= 4 * std::ssize(who))
        f(first, end - first, [&](auto&& g) {
          for (const auto i : who)
            g(i, row(members[i]) - first);
        });
      else
        for (const auto i : who)
          f(row(members[i]), 1, [&](auto&& g) { g(i, 0); });
    }
  }

  static losses taken(member_counters& c) {
    const losses out{static_cast<double>(c.loss_sum), c.loss_count, c.correct, c.step, c.not_finite != 0};
    c.loss_sum = 0;
    c.loss_count = c.correct = c.not_finite = 0;
    return out;
  }

  /// Every state tensor of a member: (checkpoint name, shape, where in its record, size).
  template <class F>
  void each_tensor(F&& f) const {
    const auto& l = net->layout();
    for (const auto& p : l.weights)
      f(p.name, p.shape, p.offset, p.size);
    for (const auto& p : l.statistics)
      f(p.name, p.shape, at.statistics + p.offset, p.size);
    const bool sgd = options.optimizer == optimizer_kind::sgd;
    for (const auto& p : l.weights)
      f(state_name(sgd ? "momentum" : "moment1", p), p.shape, at.first + p.offset, p.size);
    if (!sgd)
      for (const auto& p : l.weights)
        f(state_name("moment2", p), p.shape, at.second + p.offset, p.size);
  }
};

training_group::training_group(context& ctx, group_options options) : impl_(std::make_unique<impl>(ctx, std::move(options))) {
}

training_group::~training_group() = default;

const model& training_group::net() const noexcept {
  return *impl_->net;
}
optimizer_kind training_group::optimizer() const noexcept {
  return impl_->options.optimizer;
}
std::int64_t training_group::batch() const noexcept {
  return impl_->options.batch;
}
const resident_data& training_group::data() const noexcept {
  return *impl_->options.data;
}
std::int64_t training_group::batches_per_epoch() const noexcept {
  return data().train().examples / batch();
}
std::int64_t training_group::members() const noexcept {
  return impl_->count();
}
std::int64_t training_group::capacity() const noexcept {
  return impl_->records->rows();
}
bool training_group::swaps() const noexcept {
  return impl_->records->paged();
}
training_group::moved_state training_group::swapped(std::int64_t member) const {
  const auto n = impl_->records->swaps_of(impl_->row(member));
  return {n, n * impl_->records->page_bytes()};
}
std::chrono::nanoseconds training_group::swap_time() const noexcept {
  constexpr double bytes_a_nanosecond = 10; // PCIe 3.0 x16 or one core's copy; newer ones are faster
  return std::chrono::nanoseconds(
    swaps() ? static_cast<std::int64_t>(static_cast<double>(impl_->records->page_bytes()) / bytes_a_nanosecond) : 0);
}

std::int64_t training_group::join(std::uint64_t seed) {
  auto& m = *impl_;
  m.make_room();
  const auto r = m.count();
  auto number = std::find(m.row_of.begin(), m.row_of.end(), -1) - m.row_of.begin();
  if (number == std::ssize(m.row_of))
    m.row_of.push_back(-1);
  m.host_params.reserve(static_cast<std::size_t>(r + 1));
  m.host_active.reserve(static_cast<std::size_t>(r + 1));
  m.member_of.reserve(static_cast<std::size_t>(r + 1));
  m.places.resize(static_cast<std::size_t>(r + 1));
  m.fresh(r, seed);
  m.host_params.emplace_back();
  m.host_active.push_back(0);
  m.member_of.push_back(number);
  m.row_of[static_cast<std::size_t>(number)] = r;
  m.set_params(r, {});
  return number;
}

void training_group::leave(std::int64_t member) noexcept {
  auto& m = *impl_;
  const auto r = m.row(member), last = m.count() - 1;
  m.row_of[static_cast<std::size_t>(member)] = -1;
  if (r != last)
    m.move_row(last, r);
  m.host_params.pop_back();
  m.host_active.pop_back();
  m.places.pop_back();
  m.member_of.pop_back();
  m.give_up_room();
}

void training_group::reset(std::int64_t member, std::uint64_t seed) {
  impl_->fresh(impl_->row(member), seed);
}

void training_group::set_params(std::int64_t member, const member_params& params) {
  impl_->set_params(impl_->row(member), params);
}

const member_params& training_group::params(std::int64_t member) const {
  return impl_->host_params[impl_->index(member)];
}

void training_group::copy(std::int64_t from, std::int64_t to, bool with_counters) {
  auto& m = *impl_;
  const auto f = m.row(from), t = m.row(to);
  if (f == t)
    return;
  m.records->copy_row(f, t);
  if (with_counters) {
    m.places[static_cast<std::size_t>(t)] = m.places[static_cast<std::size_t>(f)];
    m.ctx.copy(m.counters_at(t), m.counters_at(f), sizeof(member_counters));
    return;
  }
  auto c = m.read_counters(t);
  c.updates = m.read_counters(f).updates; // goes with the moments
  m.ctx.upload(m.counters_at(t), &c, sizeof c);
}

void training_group::set_active(std::span<const std::int64_t> members) {
  auto& m = *impl_;
  m.wanted_active.assign(m.host_active.size(), 0);
  for (const auto member : members)
    m.wanted_active[m.index(member)] = 1;
  if (m.wanted_active == m.host_active)
    return;
  m.host_active.swap(m.wanted_active);
  m.planned = false;
}

std::size_t training_group::turns() {
  impl_->need_plan();
  return impl_->turns.size();
}

std::span<const std::int64_t> training_group::turn(std::size_t i) const {
  const auto& t = impl_->turns.at(i);
  return std::span(impl_->turn_members).subspan(t.names, t.active);
}

void training_group::step(std::size_t turn) {
  impl_->need_plan();
  if (turn >= impl_->turns.size())
    throw std::out_of_range("training_group: there is no turn " + std::to_string(turn));
  impl_->step(turn);
}

void training_group::step() {
  impl_->need_plan();
  for (std::size_t i = 0; i < impl_->turns.size(); ++i)
    impl_->step(i);
}

member_counters training_group::counters(std::int64_t member) {
  return impl_->read_counters(impl_->row(member));
}

training_group::losses training_group::take_losses(std::int64_t member) {
  losses out;
  take_losses({&member, 1}, {&out, 1});
  return out;
}

void training_group::take_losses(std::span<const std::int64_t> members, std::span<losses> out) {
  auto& m = *impl_;
  if (members.empty())
    return;
  auto first = m.row(members.front()), end = first + 1;
  for (const auto k : members) {
    first = std::min(first, m.row(k));
    end = std::max(end, m.row(k) + 1);
  }
  m.exchange.resize(static_cast<std::size_t>(end - first));
  const auto bytes = m.exchange.size() * sizeof(member_counters);
  m.ctx.download(m.exchange.data(), m.counters_at(first), bytes);
  for (std::size_t i = 0; i < members.size(); ++i)
    out[i] = impl::taken(m.exchange[static_cast<std::size_t>(m.row(members[i]) - first)]);
  m.ctx.upload(m.counters_at(first), m.exchange.data(), bytes);
}

training_group::quality training_group::evaluate(std::int64_t member) {
  quality out;
  evaluate({&member, 1}, {&out, 1});
  return out;
}

void training_group::evaluate(std::span<const std::int64_t> members, std::span<quality> out) {
  auto& m = *impl_;
  const auto& test = m.options.data->test();
  const auto rows = m.net->rows();
  auto* counters = m.lane.probe.as<member_counters>();
  model::pass p;
  p.training = false;
  p.params = m.lane.plain_params.as<member_params>();
  p.counters = counters;
  m.in_passes(members, [&](std::int64_t first, std::int64_t count, auto&& each) {
    m.net->select(m.state_of(first, false), count);
    each([&](std::size_t i, std::int64_t) { out[i] = {}; });
    // Whole batches, then the rest, each with counters of their own: losses are means over a batch's rows.
    const auto whole = test.examples / rows * rows;
    const std::array<std::pair<std::int64_t, std::int64_t>, 2> ranges{{{0, whole}, {whole, test.examples}}};
    for (const auto& [from, to] : ranges) {
      if (from == to)
        continue;
      m.exchange.assign(static_cast<std::size_t>(count), {});
      m.ctx.upload(counters, std::span<const member_counters>(m.exchange));
      p.rows = std::min(rows, to - from);
      for (auto offset = from; offset < to; offset += p.rows) {
        const auto source = m.feed.test(offset, p.rows);
        m.net->load_input(source.data, counters, source.offset, p.rows);
        m.feed.taken();
        m.net->forward(p);
        m.net->loss(p);
      }
      m.ctx.download(m.exchange.data(), counters, m.exchange.size() * sizeof(member_counters));
      each([&, rows_now = p.rows](std::size_t i, std::int64_t lane) {
        const auto& c = m.exchange[static_cast<std::size_t>(lane)];
        out[i].loss += static_cast<double>(c.loss_sum) * static_cast<double>(rows_now);
        out[i].accuracy += c.correct;
      });
    }
    each([&](std::size_t i, std::int64_t) {
      out[i].loss /= static_cast<double>(test.examples);
      out[i].accuracy /= static_cast<double>(test.examples);
    });
  });
}

double training_group::gradient_norm(std::int64_t member) {
  double out = 0;
  gradient_norm({&member, 1}, {&out, 1});
  return out;
}

void training_group::gradient_norm(std::span<const std::int64_t> members, std::span<double> out) {
  auto& m = *impl_;
  const auto all = m.size();
  auto* counters = m.lane.probe.as<member_counters>();
  m.in_passes(members, [&](std::int64_t first, std::int64_t count, auto&& each) {
    m.exchange.resize(static_cast<std::size_t>(count));
    const auto bytes = m.exchange.size() * sizeof(member_counters);
    m.ctx.download(m.exchange.data(), m.counters_at(first), bytes);
    for (auto& c : m.exchange) {
      // As the last step saw them: its batch, and its dropout mask.
      c.batch -= c.batch > 0 ? 1 : 0;
      c.step -= c.step > 0 ? 1 : 0;
      impl::taken(c);
    }
    m.ctx.upload(counters, m.exchange.data(), bytes);
    model::pass p;
    p.rows = m.options.batch;
    p.move_statistics = false;
    each([&](std::size_t, std::int64_t lane) {
      p.dropout = p.dropout || m.host_params[static_cast<std::size_t>(first + lane)].dropout > 0;
    });
    p.params = m.params_at(first);
    p.counters = counters;
    m.wanted.assign(static_cast<std::size_t>(count), {});
    each([&](std::size_t, std::int64_t lane) {
      const auto& c = m.exchange[static_cast<std::size_t>(lane)];
      m.wanted[static_cast<std::size_t>(lane)] = {c.seed, c.batch, true};
    });
    m.net->select(m.state_of(first, false), count);
    const auto source = m.feed.next(m.wanted);
    m.net->load_input(source.data, counters, source.offset, p.rows);
    m.feed.taken();
    m.net->forward(p);
    auto* g = m.lane.gradient.as<float>();
    m.net->backward(p, {g, all, 0, g, all});
    gpu::gradient_norm(m.ctx, count, m.gradient_section(0, all), p.params, counters, m.norm_sums(), nullptr);
    m.ctx.download(m.exchange.data(), counters, bytes);
    each([&](std::size_t i, std::int64_t lane) {
      out[i] = static_cast<double>(m.exchange[static_cast<std::size_t>(lane)].grad_norm);
    });
  });
}

void training_group::save(std::int64_t member, core::checkpoint& out) {
  auto& m = *impl_;
  const auto r = m.row(member);
  std::vector<float> host(static_cast<std::size_t>(m.at.stride));
  m.ctx.download(host.data(), m.record_of(r, false), host.size() * sizeof(float));
  m.each_tensor([&](const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t at, std::int64_t size) {
    out.add(name, core::dtype::f32, shape, std::span<const float>(host).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size)));
  });
  const auto c = m.read_counters(r);
  const std::array<std::uint64_t, 3> state{c.seed, c.step, c.batch};
  out.add("counters", core::dtype::u64, {3}, std::span<const std::uint64_t>(state));
  const std::array<std::uint64_t, 1> updates{c.updates};
  out.add("optimizer.updates", core::dtype::u64, {1}, std::span<const std::uint64_t>(updates));
}

void training_group::load(std::int64_t member, const core::checkpoint& in, bool with_counters) {
  auto& m = *impl_;
  const auto r = m.row(member);
  auto require = [&](const std::string& name, core::dtype type, std::span<const std::int64_t> shape) {
    auto t = in.expect(name, type, shape);
    if (!t)
      throw std::invalid_argument(t.error().text);
    return *t;
  };
  m.each_tensor([&](const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t, std::int64_t) {
    require(name, core::dtype::f32, shape);
  });
  constexpr std::array<std::int64_t, 1> three{3}, one{1};
  const auto* state = require("counters", core::dtype::u64, three);
  const auto* updates = require("optimizer.updates", core::dtype::u64, one);

  std::vector<float> host(static_cast<std::size_t>(m.at.stride), 0.0F);
  m.each_tensor([&](const std::string& name, const std::vector<std::int64_t>&, std::int64_t at, std::int64_t) {
    const auto values = in.find(name)->as<float>();
    std::copy(values.begin(), values.end(), host.begin() + at);
  });
  m.ctx.upload(m.record_of(r), std::span<const float>(host));
  m.weights_changed(r);
  auto c = m.read_counters(r);
  c.updates = updates->as<std::uint64_t>().front(); // goes with the moments
  if (with_counters) {
    const auto values = state->as<std::uint64_t>();
    c.seed = values[0];
    c.step = values[1];
    c.batch = values[2];
  }
  m.places[static_cast<std::size_t>(r)] = {c.seed, c.batch, false};
  impl::taken(c);
  m.ctx.upload(m.counters_at(r), &c, sizeof c);
}

std::uint64_t training_group::memory_bytes() const noexcept {
  const auto& m = *impl_;
  std::uint64_t sum = m.net->memory_bytes() + m.feed.memory_bytes() + m.records->device_bytes();
  for (const auto* b : {&m.lane.gradient, &m.lane.scratch, &m.lane.plain_params, &m.lane.probe, &m.rows.params, &m.rows.counters,
                        &m.rows.active})
    sum += b->size();
  return sum;
}

std::uint64_t training_group::memory_bytes_per_member() const noexcept {
  return memory_bytes() / static_cast<std::uint64_t>(std::max<std::int64_t>(members(), 1));
}

} // namespace troupe::gpu
