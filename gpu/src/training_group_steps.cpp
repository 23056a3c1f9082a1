#include "training_group_impl.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>

namespace troupe::gpu {

/// Plain SGD needs no gradients of their own for matrices: products go straight into the momentum. The factor
/// is an argument of the product, so it must be everyone's.
bool training_group::impl::goes_into_momentum(std::int64_t r) const {
  const auto& p = host_params[static_cast<std::size_t>(r)];
  return options.optimizer == optimizer_kind::sgd && p.clip_norm <= 0 && p.weight_decay == 0 &&
         p.nesterov == 0;
}
bool training_group::impl::alike(std::int64_t a, std::int64_t b) const {
  const auto& x = host_params[static_cast<std::size_t>(a)];
  const auto& y = host_params[static_cast<std::size_t>(b)];
  return goes_into_momentum(a) == goes_into_momentum(b) &&
         (!goes_into_momentum(a) || x.momentum == y.momentum);
}

/// Alone, both would call the same operations.
bool training_group::impl::goes_same_way(std::int64_t a, std::int64_t b) const {
  const auto& x = host_params[static_cast<std::size_t>(a)];
  const auto& y = host_params[static_cast<std::size_t>(b)];
  return alike(a, b) && (x.dropout > 0) == (y.dropout > 0) && (x.clip_norm > 0) == (y.clip_norm > 0);
}

void training_group::impl::plan() {
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
        // Where memory was scarce, the tables end within the page.
        end = r + std::min({page, rows.rows - r,
                            static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(end - r)))});
      }
    } else {
      // What a member computes must not depend on its neighbours, so only those go together that would go the
      // same way alone.
      while (end < std::min({n, page_end, r + lanes}) && is_active(end) && goes_same_way(r, end))
        ++end;
    }
    add_turn(r, end);
    r = at_once ? page_end : end;
  }
  const bool masked = std::any_of(turns.begin(), turns.end(), [](const part& p) { return p.pass.active != nullptr; });
  if (masked && sent_active != host_active) {
    auto mask = host_active;
    mask.resize(rows.active.size(), 0);
    ctx.upload(rows.active.data(), std::span<const std::uint8_t>(mask));
    sent_active = host_active;
  }
  planned = true;
}

void training_group::impl::add_turn(std::int64_t first, std::int64_t end) {
  part t;
  t.first = first;
  t.count = end - first;
  t.names = turn_members.size();
  t.into_momentum = goes_into_momentum(first);
  t.momentum = host_params[static_cast<std::size_t>(first)].momentum;
  bool all = true, rests = false;
  auto& p = t.pass;
  for (auto r = first; r < end; ++r) {
    if (!is_active(r)) {
      all = false;
      rests = rests || r < count();
      continue;
    }
    turn_members.push_back(member_of[static_cast<std::size_t>(r)]);
    t.into_momentum = t.into_momentum && alike(first, r);
    const auto& hp = host_params[static_cast<std::size_t>(r)];
    p.dropout = p.dropout || hp.dropout > 0;
    t.clips = t.clips || hp.clip_norm > 0;
  }
  // A product has no mask. What it leaves in rows without a member is overwritten when one joins.
  t.into_momentum = t.into_momentum && !rests;
  t.active = turn_members.size() - t.names;
  p.rows = options.batch;
  p.params = params_at(first);
  p.counters = counters_at(first);
  // Captured steps always have a mask: who takes part may change then without another capture.
  p.active = all && !captures ? nullptr : rows.active.as<std::uint8_t>() + first;
  turns.push_back(t);
}

// -- a step
// ----------------------------------------------------------------------------------------------------------

void training_group::impl::step(std::size_t turn) {
  const work_scope work(*this);
  const auto& t = turns[turn];
  // The next turn's page begins to come before this turn's work is enqueued, so that it does not wait for it.
  const auto* base = records->row_for_turn(t.first, records->page_of(turns[(turn + 1) % turns.size()].first));
  load(t);
  if (!captures || !launch_captured(t, base))
    compute(t, !feed.staged());
  advance(t);
}

/// The batches of a step, where they come from the host.
void training_group::impl::load(const part& t) {
  if (!feed.staged())
    return;
  note_places(t);
  const auto from = feed.next(wanted);
  net->select(state_of(t.first), t.count);
  net->load_input(from.data, t.pass.counters, from.offset, t.pass.rows);
  feed.taken();
}

void training_group::impl::note_places(const part& t) {
  wanted.assign(static_cast<std::size_t>(t.count), {});
  for (std::int64_t i = 0; i < t.count; ++i)
    if (is_active(t.first + i)) {
      wanted[static_cast<std::size_t>(i)] = places[static_cast<std::size_t>(t.first + i)];
      wanted[static_cast<std::size_t>(i)].active = true;
    }
}

void training_group::impl::advance(const part& t) {
  for (auto r = t.first; r < t.first + t.count; ++r)
    if (is_active(r))
      ++places[static_cast<std::size_t>(r)].batch;
  if (feed.staged()) { // while the device computes
    note_places(t);
    feed.ahead(wanted);
  }
}

/// False where this step is to be enqueued call by call: a sequence met for the first time is not captured,
/// so that libraries load what they need and what happens once costs nothing more; and after a capture failed
/// none is tried again.
bool training_group::impl::launch_captured(const part& t, const float* base) {
  const step_key key{base,    t.first,         t.count,        t.clips, t.into_momentum, t.pass.dropout,
                     t.into_momentum ? t.momentum : 0};
  const auto [at, fresh] = captured_steps.try_emplace(key);
  auto& known = at->second;
  known.used = ++launch_clock;
  if (fresh) {
    if (captured_steps.size() > most_captures)
      captured_steps.erase(std::min_element(captured_steps.begin(), captured_steps.end(), [](const auto& a, const auto& b) {
        return a.second.used < b.second.used;
      }));
    return false;
  }
  if (!known.work) {
    std::string why; // the context keeps it for the slot's status
    known.work = ctx.capture([&] { compute(t, !feed.staged()); }, why);
    if (!known.work) {
      captures = false;
      captured_steps.clear();
      return false;
    }
  }
  ctx.launch(known.work);
  return true;
}

void training_group::impl::compute(const part& t, bool with_input) {
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
    sgd_apply(ctx, t.count, section(r, 0, 0, split), section(r, at.first, 0, split), p.counters,
              low_section(r, 0, split), p.active);
    sgd(ctx, t.count, section(r, 0, split, all), section(r, at.first, split, all),
        gradient_section(split, all), p.params, p.counters, {}, p.active);
  } else {
    net->backward(p, {g, all, 0, g, all});
    update(t);
  }
  end_step(ctx, t.count, p.counters, p.active);
}

void training_group::impl::update(const part& t) {
  const auto& p = t.pass;
  const auto r = t.first, all = size();
  const auto g = gradient_section(0, all);
  if (t.clips)
    gpu::gradient_norm(ctx, t.count, g, p.params, p.counters, norm_sums(), p.active);
  if (options.optimizer == optimizer_kind::sgd)
    sgd(ctx, t.count, section(r, 0, 0, all), section(r, at.first, 0, all), g, p.params, p.counters,
        low_section(r, 0, all), p.active);
  else
    adamw(ctx, t.count, section(r, 0, 0, all), section(r, at.first, 0, all), section(r, at.second, 0, all), g,
          p.params, p.counters, low_section(r, 0, all), p.active);
}

// -- the group
// -------------------------------------------------------------------------------------------------------

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

} // namespace troupe::gpu
