/// How a round goes, once events have come in (sync_engine.cpp), held trainers included.
#include <algorithm>
#include <cmath>
#include <utility>

#include "troupe/core/sync_engine.hpp"

namespace troupe::core {

namespace {

bool moves_weights(const decision& d) { return d.copy_from || !d.average_of.empty(); }

} // namespace

// -- the round
// ---------------------------------------------------------------------------------------------------------

void sync_engine::open(sync_index k) {
  index_ = k;
  phase_ = phase::collecting;
  missing_ = coming_back_;
  for (auto i = running_by_next_.begin(); i != running_by_next_.end() && i->first <= k; ++i)
    missing_ += i->second;
  reports_.clear();
}

void sync_engine::first_report(time_point now, actions& out) {
  if (deadline_ || options_.deadline_seconds <= 0)
    return;
  wait_until_deadline(now, out);
}

void sync_engine::wait_until_deadline(time_point now, actions& out) {
  deadline_ = now + std::chrono::duration_cast<time_point::duration>(
                        std::chrono::duration<double>(options_.deadline_seconds));
  out.push_back(wake_at{*deadline_});
}

bool sync_engine::quorum_reached() const {
  if (options_.quorum >= 1.0 || seated_ == 0)
    return false;
  const auto expected = static_cast<double>(seated_ + missing_);
  return static_cast<double>(seated_) >= std::ceil(options_.quorum * expected - 1e-9);
}

/// Goes through every transition that the present state allows.
void sync_engine::advance(time_point now, actions& out) {
  if (phase_ == phase::collecting) {
    if (seated_ == 0)
      deadline_.reset(); // it counts from the first report that is still there
    if (seated_ == 0 && missing_ == 0) {
      // Everyone it could wait for is gone. The sync point is not over: a replacement may still come to it.
      phase_ = phase::idle;
      open_early(now, out);
    } else if (missing_ == 0 || quorum_reached()) {
      close_collecting(false, out);
    }
  }
  if (phase_ == phase::exporting && owed_exports_ == 0)
    begin_applying(out);
  if (phase_ == phase::applying && owed_applies_ == 0)
    finish_round(now, out);
  if (phase_ == phase::idle)
    take_next(out);
  if (phase_ == phase::idle && only_held_left())
    last_call(out);
  if (phase_ == phase::idle && live_ == 0 && expected_.empty() && !members_.empty() && !done_said_) {
    done_said_ = true;
    out.push_back(all_done{});
  }
}

void sync_engine::close_collecting(bool at_deadline, actions& out) {
  deadline_.reset();
  if (missing_ > 0) {
    note n{index_,
           {},
           at_deadline ? "did not report before the deadline; "
                       : "had not reported when the sync point closed; "};
    const bool stop = options_.stragglers == straggler_treatment::stop;
    n.text += stop ? "stopped" : "the others go on without";
    for (const auto& [t, m] : members_)
      if (awaited(m))
        n.missing.push_back(t);
    std::sort(n.missing.begin(), n.missing.end());
    if (stop)
      for (const auto t : n.missing) {
        auto& m = members_[t];
        count(m, -1);
        m.stopping = true;
        count(m, +1);
        if (m.where == state::running)
          out.push_back(stop_straggler{index_, t, m.incarnation});
      }
    out.push_back(std::move(n));
  }
  missing_ = 0;
  phase_ = phase::deciding;
  std::erase_if(reports_, [this](const metadata& r) { return !seated({r.trainer, r.incarnation, r.sync}); });
  std::sort(reports_.begin(), reports_.end(),
            [](const metadata& a, const metadata& b) { return a.trainer < b.trainer; });
  seats_.clear();
  seats_.reserve(reports_.size());
  for (const auto& r : reports_)
    seats_.push_back({r.trainer, r.incarnation, index_});
  ask_about_held();
  decide d{index_, std::exchange(reports_, {}), {}, false};
  for (const auto& s : asked_)
    d.held.push_back(s.trainer);
  out.push_back(std::move(d));
}

void sync_engine::ask_about_held() {
  asked_.clear();
  if (held_ == 0)
    return;
  for (const auto& [t, m] : members_)
    if (m.where == state::held)
      asked_.push_back({t, m.incarnation, *m.held_at});
  std::sort(asked_.begin(), asked_.end(), [](const seat& a, const seat& b) { return a.trainer < b.trainer; });
}

/// Somebody has come to an earlier sync point, and that goes first: the open round's reports wait for it.
void sync_engine::take_aside() {
  deadline_.reset();
  for (auto& r : std::exchange(reports_, {})) {
    if (!seated({r.trainer, r.incarnation, index_}))
      continue;
    auto& m = members_[r.trainer];
    move_to(m, state::aside, m.next);
    early_[index_].push_back(std::move(r));
  }
}

/// One by one: the next report in the queue is a round of its own.
void sync_engine::take_next(actions& out) {
  while (phase_ == phase::idle && !queue_.empty()) {
    auto r = std::move(queue_.front());
    queue_.pop_front();
    auto& m = members_[r.trainer];
    if (m.where != state::aside || m.incarnation != r.incarnation)
      continue;
    index_ = r.sync;
    move_to(m, state::parked, m.next);
    reports_.clear();
    reports_.push_back(std::move(r));
    close_collecting(false, out);
  }
}

void sync_engine::last_call(actions& out) {
  ask_about_held();
  seats_.clear();
  last_call_ = true;
  phase_ = phase::deciding;
  decide d{0, {}, {}, true};
  for (const auto& s : asked_) {
    d.held.push_back(s.trainer);
    d.index = std::max(d.index, s.at);
  }
  index_ = d.index;
  out.push_back(std::move(d));
}

decision sync_engine::without_lost_donors(trainer_id t, decision d, actions& out) const {
  if (d.act != decision::action::go_on || !moves_weights(d))
    return d;
  const auto lost = [this](trainer_id x) { return !donors_.contains(x); };
  if (d.copy_from && lost(*d.copy_from)) {
    // New hyperparameters were meant for the donor's weights: without these the trainer stays as it is.
    out.push_back(
        note{index_, {*d.copy_from}, "gave no state; trainer " + std::to_string(t) + " goes on unchanged"});
    d = decision{decision::action::go_on, {}, std::nullopt, {}, "the donor was lost: unchanged"};
  }
  std::vector<trainer_id> gone;
  std::copy_if(d.average_of.begin(), d.average_of.end(), std::back_inserter(gone), lost);
  if (!gone.empty()) {
    out.push_back(
        note{index_, gone,
             "gave no state and is not in the average that trainer " + std::to_string(t) + " takes"});
    std::erase_if(d.average_of, lost);
  }
  return d;
}

void sync_engine::give(const seat& s, decision what, actions& out) {
  what = without_lost_donors(s.trainer, std::move(what), out);
  auto& m = members_[s.trainer];
  m.stopping = what.act == decision::action::stop;
  m.held_at.reset();
  m.owes_apply = true;
  m.apply_at = s.at;
  ++owed_applies_;
  out.push_back(apply{s.at, s.trainer, s.incarnation, std::move(what)});
}

void sync_engine::begin_applying(actions& out) {
  phase_ = phase::applying;
  for (const auto& s : seats_) {
    const auto d = decisions_.find(s.trainer);
    if (d == decisions_.end() || !seated(s))
      continue;
    if (d->second.act != decision::action::hold) {
      give(s, std::move(d->second), out);
      continue;
    }
    auto& m = members_[s.trainer];
    m.held_at = s.at;
    m.passed = s.at;
  }
  give_to_held(out);
}

void sync_engine::give_to_held(actions& out) {
  const auto decided_to = [this](const seat& s, decision::action what) {
    const auto d = decisions_.find(s.trainer);
    return d != decisions_.end() && d->second.act == what && still_held(s);
  };
  const bool alone = only_held_left(); // as when the policy was asked
  const bool anyone = std::any_of(asked_.begin(), asked_.end(), [&](const seat& s) {
    return decided_to(s, decision::action::go_on);
  });
  for (const auto& s : asked_) {
    if (decided_to(s, decision::action::go_on) || decided_to(s, decision::action::stop))
      give(s, std::move(decisions_.at(s.trainer)), out);
    else if (last_call_ && !anyone && alone && still_held(s))
      give(s, {decision::action::stop, {}, {}, {}, "stopped by policy: nothing can let it go on any more"}, out);
  }
}

void sync_engine::finish_round(time_point now, actions& out) {
  resume r{index_, {}};
  actions others;
  closed_ = std::max(closed_.value_or(index_), index_);
  const auto is_behind = [this](const member& m) { return !one_by_one_ && m.next && *m.next <= *closed_; };
  for (const auto& s : seats_) {
    if (!seated(s))
      continue;
    auto& m = members_[s.trainer];
    m.passed = index_;
    m.behind = m.behind && is_behind(m);
    if (m.held_at) {
      move_to(m, state::held, m.next);
      others.push_back(hold{index_, s.trainer, s.incarnation});
      continue;
    }
    move_to(m, state::running, m.next);
    if (!m.stopping)
      r.trainers.push_back(s.trainer);
  }
  for (const auto& s : asked_) {
    if (!still_held(s) || members_[s.trainer].held_at)
      continue;
    auto& m = members_[s.trainer];
    m.behind = is_behind(m);
    move_to(m, state::running, m.next);
    if (!m.stopping)
      others.push_back(promote{s.at, s.trainer, s.incarnation});
  }
  phase_ = phase::idle;
  rounds_ += last_call_ ? 0 : 1;
  last_call_ = false;
  seats_.clear();
  asked_.clear();
  decisions_.clear();
  donors_.clear();
  out.push_back(std::move(r));
  out.insert(out.end(), std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
  for (const auto& s : std::exchange(late_, {})) {
    const auto i = members_.find(s.trainer);
    if (i->second.where != state::aside || i->second.incarnation != s.incarnation)
      continue;
    move_to(i->second, state::running, i->second.next);
    out.push_back(release{index_, s.trainer, s.incarnation});
  }
  open_early(now, out);
}

/// Opens the round that members already wait for, if there is one.
void sync_engine::open_early(time_point now, actions& out) {
  while (phase_ == phase::idle && !early_.empty()) {
    auto node = early_.extract(early_.begin());
    std::erase_if(node.mapped(), [this](const metadata& r) {
      const auto i = members_.find(r.trainer);
      return i->second.where != state::aside || i->second.incarnation != r.incarnation;
    });
    if (node.mapped().empty())
      continue;
    open(node.key());
    for (auto& r : node.mapped()) {
      auto& m = members_[r.trainer];
      move_to(m, state::parked, m.next);
      reports_.push_back(std::move(r));
    }
    first_report(now, out);
  }
  if (phase_ == phase::collecting && (missing_ == 0 || quorum_reached()))
    close_collecting(false, out);
}

} // namespace troupe::core
