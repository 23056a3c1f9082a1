#include "gate.hpp"

#include <algorithm>

#include "proof.hpp"

namespace troupe::net {

namespace {

constexpr std::size_t max_pending = 256, max_nonce = 128;

core::error refused(std::string text) {
  return {core::errc::refused, std::move(text)};
}

std::string versions_text(std::string_view what, const std::string& worker, const std::string& head) {
  return std::string{what} + " differs: the worker has " + worker + ", the head " + head
         + "; run the same build on both sides";
}

} // namespace

build_versions build_versions::current() {
  build_versions v;
  v.troupe = TROUPE_VERSION;
  return v;
}

gate::gate(token secret, std::vector<worker> workers)
  : secret_(secret), workers_(std::move(workers)), taken_(workers_.size(), false) {}

void gate::expect_process(std::uint32_t worker, std::uint64_t process_id) {
  workers_.at(worker - 1).process_id = process_id;
}

core::result<challenge> gate::on_knock(const std::string& who, const knock& x) {
  if (x.format != versions_.format)
    return refused(versions_text("the message format", std::to_string(x.format), std::to_string(versions_.format)));
  if (x.troupe_version != versions_.troupe)
    return refused(versions_text("Troupe's version", x.troupe_version.substr(0, 32), versions_.troupe));
  if (x.caf_version != versions_.caf)
    return refused(versions_text("CAF's version", std::to_string(x.caf_version), std::to_string(versions_.caf)));
  if (x.worker == 0 || x.worker > workers_.size())
    return refused("this run has no worker " + std::to_string(x.worker));
  const auto& w = workers_[x.worker - 1];
  if (w.process_id != 0 && w.process_id != x.process_id)
    return refused("worker " + std::to_string(x.worker) + " is process " + std::to_string(w.process_id) + ", not "
                   + std::to_string(x.process_id));
  if (taken_[x.worker - 1])
    return refused("worker " + std::to_string(x.worker) + " has joined already");
  if (std::any_of(sessions_.begin(), sessions_.end(), [&](const auto& s) { return s.second.in && s.second.who == who; }))
    return refused("this process has joined already");
  if (x.nonce.empty() || x.nonce.size() > max_nonce)
    return refused("a nonce must have 1 to " + std::to_string(max_nonce) + " characters");
  if (sessions_.size() >= max_pending + workers_.size()) // whoever knocks and never answers must not keep others out
    sessions_.erase(std::find_if(sessions_.begin(), sessions_.end(), [](const auto& s) { return !s.second.in; }));
  pending p{who, x.worker, token::random().to_hex(), x.nonce, false};
  challenge c{next_++, p.head_nonce, proof_of(secret_, "head", x.worker, p.head_nonce, x.nonce).to_hex()};
  sessions_.emplace(c.session, std::move(p));
  return c;
}

core::result<admission> gate::on_answer(const std::string& who, const answer& x) {
  const auto i = sessions_.find(x.session);
  if (i == sessions_.end() || i->second.who != who || i->second.in)
    return refused("knock first");
  const auto& p = i->second;
  const auto shown = token::from_hex(x.proof);
  const bool right = shown && proof_of(secret_, "worker", p.worker, p.head_nonce, p.worker_nonce).matches(*shown);
  if (!right || taken_[p.worker - 1]) {
    const auto number = std::to_string(p.worker);
    sessions_.erase(i); // one try per challenge
    return refused(right ? "worker " + number + " has joined already" : "wrong token: worker " + number
                                                                          + " does not belong to this run");
  }
  i->second.in = true;
  taken_[p.worker - 1] = true;
  return workers_[p.worker - 1].terms;
}

core::result<std::uint32_t> gate::admitted(const std::string& who, std::uint64_t session) const {
  const auto i = sessions_.find(session);
  if (i == sessions_.end() || i->second.who != who || !i->second.in)
    return refused("not admitted");
  return i->second.worker;
}

void gate::gone(const std::string& who) {
  std::erase_if(sessions_, [&](const auto& s) { return s.second.who == who && !s.second.in; });
}

} // namespace troupe::net
