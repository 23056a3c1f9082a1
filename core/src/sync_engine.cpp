#include "troupe/core/sync_engine.hpp"

#include <algorithm>

namespace troupe::core {

sync_engine::sync_engine(sync_options options, std::optional<sync_index> closed, bool one_by_one)
    : options_(std::move(options)), one_by_one_(one_by_one), closed_(closed) {}

void sync_engine::restore(trainer_id t, const past& x) {
  auto& m = members_[t];
  m.passed = x.passed;
  m.held_at = x.held_at;
  m.behind = x.behind;
}

// -- who is where
// ------------------------------------------------------------------------------------------------------

/// True if the open round cannot be complete without this member.
bool sync_engine::awaited(const member& m) const {
  if (excused(m))
    return false;
  return m.where == state::down || (m.where == state::running && m.next && *m.next <= index_);
}

/// True if nothing is decided about it at `k` any more.
bool sync_engine::over(const member& m, sync_index k) const {
  if (m.passed && k <= *m.passed)
    return true;
  return !one_by_one_ && !m.behind && closed_ && k <= *closed_;
}

void sync_engine::count(const member& m, int by) {
  const auto change = [by](std::size_t& n) { n = by > 0 ? n + 1 : n - 1; };
  if (m.where == state::ended)
    return;
  change(live_);
  if (m.where == state::parked || m.where == state::aside)
    change(parked_);
  if (m.where == state::parked)
    change(seated_);
  if (m.where == state::held)
    change(held_);
  if (m.where == state::down && !excused(m))
    change(coming_back_);
  if (m.where == state::running && m.next && !excused(m)) {
    auto& n = running_by_next_[*m.next];
    change(n);
    if (n == 0)
      running_by_next_.erase(*m.next);
  }
  if (phase_ == phase::collecting && awaited(m))
    change(missing_);
}

void sync_engine::move_to(member& m, state to, std::optional<sync_index> next) {
  count(m, -1);
  m.where = to;
  m.next = next;
  count(m, +1);
}

/// It is no longer what this incarnation was, whatever it owed.
void sync_engine::leave(member& m, bool coming_back) {
  if (m.owes_export) {
    m.owes_export = false;
    --owed_exports_;
  }
  if (m.owes_apply) {
    m.owes_apply = false;
    --owed_applies_;
  }
  move_to(m, coming_back ? state::down : state::ended, std::nullopt);
}

/// The member that an event of (t, incarnation) is about, or null if the event is stale. An incarnation that
/// was not announced yet (its news overtook the announcement) takes the place of the older one.
sync_engine::member* sync_engine::accept(trainer_id t, std::uint32_t incarnation) {
  expected_.erase(t);
  auto [i, is_new] = members_.try_emplace(t);
  auto& m = i->second;
  if (!is_new && incarnation < m.incarnation) {
    ++dropped_;
    return nullptr;
  }
  if (is_new || incarnation > m.incarnation) {
    leave(m, false);
    m.incarnation = incarnation;
    m.last_reported.reset();
    move_to(m, state::running, std::nullopt);
    done_said_ = false;
  }
  return &m;
}

bool sync_engine::seated(const seat& s) const {
  const auto i = members_.find(s.trainer);
  return i != members_.end() && i->second.where == state::parked && i->second.incarnation == s.incarnation;
}

bool sync_engine::still_held(const seat& s) const {
  const auto i = members_.find(s.trainer);
  return i != members_.end() && i->second.where == state::held && i->second.incarnation == s.incarnation;
}

// -- events
// ------------------------------------------------------------------------------------------------------------

void sync_engine::expected(trainer_id t) {
  if (members_.contains(t) || !expected_.insert(t).second)
    ++dropped_;
}

sync_engine::actions sync_engine::member_up(trainer_id t, std::uint32_t incarnation,
                                            std::optional<sync_index> next, time_point now) {
  actions out;
  const auto known = members_.find(t);
  if (known != members_.end() && incarnation <= known->second.incarnation) {
    ++dropped_;
    return out;
  }
  auto& m = *accept(t, incarnation);
  move_to(m, state::running, next);
  if (m.stopping)
    out.push_back(stop_straggler{index_, t, incarnation});
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::member_down(trainer_id t, std::uint32_t incarnation, bool coming_back,
                                              time_point now) {
  actions out;
  const auto known = members_.find(t);
  const bool repeated =
      known != members_.end() && known->second.incarnation == incarnation &&
      (known->second.where == state::ended || (known->second.where == state::down && coming_back));
  if (repeated) {
    ++dropped_;
    return out;
  }
  auto* m = accept(t, incarnation);
  if (!m)
    return out;
  leave(*m, coming_back);
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::member_finished(trainer_id t, std::uint32_t incarnation, time_point now) {
  actions out;
  auto* m = accept(t, incarnation);
  if (!m)
    return out;
  if (m->where == state::ended || m->where == state::down) {
    ++dropped_;
    return out;
  }
  leave(*m, false);
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::reported(metadata report, std::optional<sync_index> next, time_point now) {
  actions out;
  const auto t = report.trainer;
  const auto k = report.sync;
  auto* m = accept(t, report.incarnation);
  if (!m)
    return out;
  if (m->where != state::running || (m->last_reported && k <= *m->last_reported)) {
    ++dropped_;
    return out;
  }
  m->last_reported = k;
  if (options_.asynchronous && !one_by_one_) {
    move_to(*m, state::running, next);
    return out;
  }
  const bool is_open = phase_ != phase::idle;
  if (m->stopping) {
    out.push_back(stop_straggler{k, t, report.incarnation}); // it parked before the first one reached it
  } else if (m->held_at == k) {
    move_to(*m, state::held, next);
    out.push_back(hold{k, t, report.incarnation});
  } else if (over(*m, k) || (!one_by_one_ && is_open && k < index_ && !m->behind)) {
    move_to(*m, state::running, next);
    out.push_back(release{k, t, report.incarnation});
  } else if (one_by_one_) {
    move_to(*m, state::aside, next);
    queue_.push_back(std::move(report));
  } else if (is_open && (k > index_ || (k < index_ && phase_ != phase::collecting))) {
    move_to(*m, state::aside, next);
    early_[k].push_back(std::move(report));
  } else if (is_open && phase_ != phase::collecting) {
    move_to(*m, state::aside, next);
    late_.push_back({t, report.incarnation, k});
  } else {
    if (is_open && k < index_) {
      take_aside();
      open(k);
    }
    if (!is_open)
      open(k);
    move_to(*m, state::parked, next);
    reports_.push_back(std::move(report));
    first_report(now, out);
  }
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::called(sync_index k, time_point now) {
  actions out;
  if (options_.asynchronous)
    return out; // there are no rounds
  if (phase_ != phase::idle || (closed_ && k <= *closed_)) {
    ++dropped_;
    return out;
  }
  for (auto& [t, m] : members_)
    if (m.where == state::running && !excused(m) && (!m.next || *m.next > k))
      move_to(m, state::running, k);
  open(k);
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::tick(time_point now) {
  actions out;
  if (phase_ != phase::collecting || !deadline_)
    return out;
  if (now < *deadline_) {
    out.push_back(wake_at{*deadline_});
    return out;
  }
  if (options_.stragglers == straggler_treatment::wait) {
    note n{index_, {}, "the deadline is over; waiting on, as the experiment says"};
    for (const auto& [t, m] : members_)
      if (awaited(m))
        n.missing.push_back(t);
    std::sort(n.missing.begin(), n.missing.end());
    out.push_back(std::move(n));
    wait_until_deadline(now, out);
  } else {
    close_collecting(true, out);
    advance(now, out);
  }
  return out;
}

sync_engine::actions sync_engine::close_now(time_point now) {
  actions out;
  if (phase_ == phase::collecting && seated_ > 0) {
    close_collecting(false, out);
    advance(now, out);
  }
  return out;
}

sync_engine::actions sync_engine::decided(sync_index k, std::map<trainer_id, decision> decisions,
                                          time_point now) {
  actions out;
  if (phase_ != phase::deciding || k != index_) {
    ++dropped_;
    return out;
  }
  decisions_ = std::move(decisions);
  phase_ = phase::exporting;
  std::set<trainer_id> wanted, copied;
  for (const auto* takers : {&seats_, &asked_})
    for (const auto& s : *takers) {
      const auto d = decisions_.find(s.trainer);
      if (d == decisions_.end() || !(seated(s) || still_held(s)) || d->second.act != decision::action::go_on)
        continue;
      if (d->second.copy_from)
        copied.insert(*d->second.copy_from);
      wanted.insert(d->second.average_of.begin(), d->second.average_of.end());
    }
  wanted.insert(copied.begin(), copied.end());
  if (!wanted.empty())
    for (const auto& s : seats_)
      if (wanted.contains(s.trainer) && seated(s)) {
        members_[s.trainer].owes_export = true;
        ++owed_exports_;
        out.push_back(export_state{index_, s.trainer, s.incarnation, copied.contains(s.trainer)});
      }
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::exported(sync_index k, trainer_id t, std::uint32_t incarnation, bool ok,
                                           time_point now) {
  actions out;
  const auto i = members_.find(t);
  if (phase_ != phase::exporting || k != index_ || i == members_.end() ||
      i->second.incarnation != incarnation || !i->second.owes_export) {
    ++dropped_;
    return out;
  }
  i->second.owes_export = false;
  --owed_exports_;
  if (ok)
    donors_.insert(t);
  advance(now, out);
  return out;
}

sync_engine::actions sync_engine::applied(sync_index k, trainer_id t, std::uint32_t incarnation, bool ok,
                                          time_point now) {
  actions out;
  const auto i = members_.find(t);
  if (phase_ != phase::applying || i == members_.end() || i->second.apply_at != k ||
      i->second.incarnation != incarnation || !i->second.owes_apply) {
    ++dropped_;
    return out;
  }
  i->second.owes_apply = false;
  --owed_applies_;
  if (!ok) {
    i->second.stopping = false;
    out.push_back(note{k, {t}, "could not apply its decision and goes on unchanged"});
  }
  advance(now, out);
  return out;
}

// -- queries
// -----------------------------------------------------------------------------------------------------------

sync_engine::phase sync_engine::current_phase() const noexcept { return phase_; }
std::optional<sync_index> sync_engine::open_round() const noexcept {
  return phase_ == phase::idle ? std::nullopt : std::optional(index_);
}
std::size_t sync_engine::live() const noexcept { return live_; }
std::size_t sync_engine::parked() const noexcept { return parked_; }
std::size_t sync_engine::held() const noexcept { return held_; }
std::uint64_t sync_engine::dropped() const noexcept { return dropped_; }
std::uint64_t sync_engine::rounds() const noexcept { return rounds_; }
std::optional<sync_index> sync_engine::closed() const noexcept { return closed_; }

std::optional<std::uint32_t> sync_engine::incarnation_of(trainer_id t) const {
  const auto i = members_.find(t);
  return i == members_.end() ? std::nullopt : std::optional(i->second.incarnation);
}

bool sync_engine::in_round(trainer_id t) const {
  const auto i = members_.find(t);
  return i != members_.end() && i->second.where == state::parked;
}

std::string sync_engine::fingerprint(time_point now) const {
  std::string out;
  const auto put = [&out](std::uint64_t x) {
    out += std::to_string(x);
    out += ' ';
  };
  const auto put_index = [&put](std::optional<sync_index> x) { put(x ? *x + std::uint64_t{1} : 0); };
  const auto put_reports = [&](const std::vector<metadata>& rs) {
    put(rs.size());
    for (const auto& r : rs) {
      put(r.trainer);
      put(r.incarnation);
    }
  };
  put(static_cast<std::uint64_t>(phase_));
  put(phase_ == phase::idle ? 0 : index_);
  put_index(closed_);
  put(done_said_);
  put(deadline_ ? static_cast<std::uint64_t>((*deadline_ - now).count()) + 1 : 0);
  const std::map<trainer_id, member> sorted(members_.begin(), members_.end());
  for (const auto& [t, m] : sorted) {
    put(t);
    put(m.incarnation);
    put(static_cast<std::uint64_t>(m.where) * 16 + (m.behind ? 8u : 0u) + (m.stopping ? 4u : 0u) +
        (m.owes_export ? 2u : 0u) + (m.owes_apply ? 1u : 0u));
    for (const auto& k : {m.next, m.last_reported, m.held_at, m.passed})
      put_index(k);
    put_index(m.owes_apply ? m.apply_at : std::nullopt);
  }
  auto here = reports_;
  std::erase_if(here, [this](const metadata& r) { return !seated({r.trainer, r.incarnation, r.sync}); });
  std::sort(here.begin(), here.end(),
            [](const metadata& a, const metadata& b) { return a.trainer < b.trainer; });
  put_reports(here);
  put(last_call_);
  put_reports({queue_.begin(), queue_.end()});
  for (const auto* seats : {&seats_, &asked_, &late_}) {
    put(seats->size());
    for (const auto& x : *seats) {
      put(x.trainer);
      put(x.incarnation);
    }
  }
  for (const auto& [k, rs] : early_) {
    put(k);
    put_reports(rs);
  }
  for (const auto& [t, d] : decisions_) {
    put(t);
    put(static_cast<std::uint64_t>(d.act));
    put(d.copy_from ? *d.copy_from + std::uint64_t{1} : 0);
    put(d.average_of.size());
    for (const auto a : d.average_of)
      put(a);
    put(d.changes.size());
  }
  for (const auto* some : {&donors_, &expected_}) {
    put(some->size());
    for (const auto t : *some)
      put(t);
  }
  return out;
}

} // namespace troupe::core
