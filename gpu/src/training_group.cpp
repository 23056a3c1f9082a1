#include "training_group_impl.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

#include "backend.hpp"
#include "kernel_table.hpp"

namespace troupe::gpu {

using internal::evaluation_rows, internal::norm_scratch;

std::string_view to_string(optimizer_kind x) noexcept { return x == optimizer_kind::sgd ? "sgd" : "adamw"; }

training_group::impl::impl(context& c, group_options o)
    : ctx(c), options(std::move(o)), at_once(ctx.kernels().wants_many), net(make_net(1)),
      layout(net->layout()), at(layout, options.optimizer), feed(c, options.data, options.batch, evaluation_rows),
      others(c.impl().spills()), captures(c.wants_capture()) {
  const auto batch = options.batch;
  if (batch < 1 || batch > options.data->train().examples)
    throw std::invalid_argument("batch: " + std::to_string(batch) +
                                " is not between 1 and the number of training examples, " +
                                std::to_string(options.data->train().examples));
  if (batch < net->least_batch())
    throw std::invalid_argument("batch: batch normalisation needs at least " +
                                std::to_string(net->least_batch()) + " examples in a batch");
  const auto block = at_once ? 1 : options.block > 0 ? options.block : chosen_block();
  records = std::make_unique<internal::record_pages>(ctx, at.stride, block);
  lane = take_lanes(1);
  feed.make_room(1);
}

std::unique_ptr<model> training_group::impl::make_net(std::int64_t n) const {
  const internal::lent_scope lent(ctx.impl());
  return options.make(ctx, n, std::max(options.batch, evaluation_rows));
}

/// Members of a turn on the CPU. Several share what an operation costs beside its arithmetic, as long as what
/// a step of all of them touches stays in the second-level cache (bench_fusion --block): 1.25 times as fast
/// for 32-16-10, 1.05 for 784-16-10, slower for 784-64-64-10.
std::int64_t training_group::impl::chosen_block() const {
  const auto touched = static_cast<std::int64_t>(sizeof(float)) *
                       (at.stride + net->layout().size + options.batch * options.data->train().features);
  return std::clamp<std::int64_t>((384 << 10) / touched, 1, 8);
}

// -- memory
// ----------------------------------------------------------------------------------------------------------

template <class T>
buffer training_group::impl::zeroed(std::int64_t n) {
  auto b = ctx.allocate_of<T>(static_cast<std::size_t>(n));
  ctx.zero(b.data(), b.size());
  return b;
}

training_group::impl::lane_buffers training_group::impl::take_lanes(std::int64_t n) {
  const internal::lent_scope lent(ctx.impl());
  lane_buffers l;
  l.gradient = zeroed<float>(n * size());
  l.scratch = zeroed<float>(n * norm_scratch);
  l.probe = zeroed<member_counters>(n);
  l.plain_params = ctx.allocate_of<member_params>(static_cast<std::size_t>(n));
  const std::vector<member_params> plain(static_cast<std::size_t>(n));
  ctx.upload(l.plain_params.data(), std::span<const member_params>(plain));
  return l;
}

/// For passes of `n` members. Throws `out_of_memory`, nothing has changed then.
void training_group::impl::make_workspace(std::int64_t n) {
  auto new_net = make_net(n);
  auto new_lanes = take_lanes(n);
  feed.make_room(n);
  net = std::move(new_net);
  lane = std::move(new_lanes);
  lanes = n;
}

training_group::impl::table training_group::impl::take_table(std::int64_t n) {
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

/// Everything anew with `n` rows and lanes; takes over the records. Throws `out_of_memory`, nothing has
/// changed then.
void training_group::impl::resize(std::int64_t n) {
  auto new_net = make_net(n);
  auto new_table = take_table(n);
  auto new_lanes = take_lanes(n);
  feed.make_room(n);
  records->resize(n, count());
  net = std::move(new_net);
  lane = std::move(new_lanes);
  lanes = n;
  rows = std::move(new_table);
  moved();
}

/// Memory that steps use lies elsewhere now.
void training_group::impl::moved() {
  captured_steps.clear();
  sent_active.clear();
  planned = false;
}

/// Room for `n` rows' small things.
void training_group::impl::make_table_room(std::int64_t n, std::int64_t want) {
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
void training_group::impl::make_room() {
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
  if (const auto block = records->rows_per_page(); n > 0 && lanes < block) // a lone member needs one
    try {
      make_workspace(block);
      moved();
    } catch (const out_of_memory&) { // then turns are as short as the lanes there are
    }
  make_table_room(n + 1, std::max(2 * rows.rows, records->rows_per_page()));
  if (n >= records->rows())
    records->add_page();
}

void training_group::impl::give_up_room() {
  const auto n = count();
  if (!at_once || records->divided())
    while (records->rows() - n >= records->rows_per_page()) {
      records->drop_last_page();
      captured_steps.clear();
    }
  // What was divided has as many lanes as it had rows then. What gave way to others waits for another chance.
  if (at_once && records->pages() == 1 && n > 0 && n <= lanes / 4 && !waits())
    try {
      resize(records->divided() ? 2 * static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)))
                                : records->rows() / 2);
    } catch (const std::exception&) { // no room for both at once; there will be another chance
    }
  planned = false;
}

// -- members
// ---------------------------------------------------------------------------------------------------------

void training_group::impl::fresh(std::int64_t r, std::uint64_t seed) {
  auto* record = record_of(r);
  ctx.zero(record, static_cast<std::size_t>(at.stride) * sizeof(float));
  net->initialise(record, record + at.statistics, seed);
  weights_changed(r);
  member_counters c;
  c.seed = seed;
  ctx.upload(counters_at(r), &c, sizeof c);
  places[static_cast<std::size_t>(r)] = {seed, 0, false};
}

/// Brings the bf16 copy up to date.
void training_group::impl::weights_changed(std::int64_t r) {
  if (low())
    to_bf16(ctx, 1, section(r, 0, 0, size()), low_section(r, 0, size()));
}

void training_group::impl::set_params(std::int64_t r, const member_params& p) {
  ctx.upload(params_at(r), &p, sizeof p);
  host_params[static_cast<std::size_t>(r)] = p;
  planned = false;
}

/// Row `from` takes the place of row `to`.
void training_group::impl::move_row(std::int64_t from, std::int64_t to) noexcept {
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

member_counters training_group::impl::read_counters(std::int64_t r) {
  member_counters out;
  ctx.download(&out, counters_at(r), sizeof out);
  return out;
}

training_group::training_group(context& ctx, group_options options)
    : impl_(std::make_unique<impl>(ctx, std::move(options))) {
  impl_->others->add(*impl_);
}

training_group::~training_group() { impl_->others->remove(*impl_); }

const model& training_group::net() const {
  const impl::work_scope work(*impl_);
  return *impl_->net;
}
optimizer_kind training_group::optimizer() const noexcept { return impl_->options.optimizer; }
std::int64_t training_group::batch() const noexcept { return impl_->options.batch; }
const resident_data& training_group::data() const noexcept { return *impl_->options.data; }
std::int64_t training_group::batches_per_epoch() const noexcept { return data().train().examples / batch(); }
std::int64_t training_group::members() const noexcept { return impl_->count(); }
std::int64_t training_group::capacity() const noexcept { return impl_->records->rows(); }
bool training_group::swaps() const noexcept { return impl_->records->paged(); }
training_group::moved_state training_group::swapped(std::int64_t member) const {
  const auto n = impl_->records->swaps_of(impl_->row(member));
  return {n, n * impl_->records->page_bytes()};
}
std::chrono::nanoseconds training_group::swap_time() const noexcept {
  return internal::copy_time(swaps() ? impl_->records->page_bytes() : 0);
}

std::int64_t training_group::join(std::uint64_t seed) {
  auto& m = *impl_;
  const impl::work_scope work(m);
  m.make_room();
  const auto r = m.count();
  auto number = std::find(m.row_of.begin(), m.row_of.end(), -1) - m.row_of.begin();
  if (number == std::ssize(m.row_of))
    m.row_of.push_back(-1);
  m.host_params.reserve(static_cast<std::size_t>(r + 1));
  m.host_active.reserve(static_cast<std::size_t>(r + 1));
  m.member_of.reserve(static_cast<std::size_t>(r + 1));
  m.places.resize(static_cast<std::size_t>(r + 1));
  try {
    m.fresh(r, seed);
  } catch (...) {
    m.places.pop_back();
    throw;
  }
  const member_params plain;
  m.ctx.upload(m.params_at(r), &plain, sizeof plain); // from here on nothing fails
  m.host_params.push_back(plain);
  m.host_active.push_back(0);
  m.member_of.push_back(number);
  m.row_of[static_cast<std::size_t>(number)] = r;
  m.planned = false;
  return number;
}

void training_group::leave(std::int64_t member) noexcept {
  auto& m = *impl_;
  const auto r = m.row(member), last = m.count() - 1;
  const impl::work_scope work(m, impl::work_scope::needs::states);
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
  const impl::work_scope work(*impl_);
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
  const impl::work_scope work(m, impl::work_scope::needs::states);
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

std::uint64_t training_group::memory_bytes() const noexcept {
  const auto& m = *impl_;
  return m.workspace_bytes() + m.records->device_bytes() + m.rows.params.size() + m.rows.counters.size() +
         m.rows.active.size();
}

std::uint64_t training_group::memory_bytes_per_member() const noexcept {
  return memory_bytes() / static_cast<std::uint64_t>(std::max<std::int64_t>(members(), 1));
}

} // namespace troupe::gpu
