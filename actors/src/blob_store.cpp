#include "troupe/actors/blob_store.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace troupe::actors {

void blob_store::set_address(std::string host, std::uint16_t port) {
  std::lock_guard lock(mutex_);
  host_ = std::move(host);
  port_ = port;
}

void blob_store::set_node(std::uint32_t node) {
  std::lock_guard lock(mutex_);
  node_ = node;
}

std::uint32_t blob_store::node() const {
  std::lock_guard lock(mutex_);
  return node_;
}

state_ref blob_store::put(core::checkpoint_ptr x) {
  if (x == nullptr)
    throw std::invalid_argument("blob_store::put needs a state");
  state_ref out;
  out.bytes = x->bytes();
  out.hash = core::content_hash(*x); // the long part, without the lock
  std::lock_guard lock(mutex_);
  out.blob = next_++;
  out.node = node_;
  out.host = host_;
  out.port = port_;
  entries_.emplace(out.blob, entry{std::move(x), out.bytes, 0, false});
  ++count_.put;
  count_.bytes += out.bytes;
  count_.peak_bytes = std::max(count_.peak_bytes, count_.bytes);
  return out;
}

core::checkpoint_ptr blob_store::get(std::uint64_t blob) const {
  std::lock_guard lock(mutex_);
  const auto i = entries_.find(blob);
  return i != entries_.end() ? i->second.state : nullptr;
}

bool blob_store::drop(std::uint64_t blob) {
  core::checkpoint_ptr last; // destroyed without the lock
  std::lock_guard lock(mutex_);
  const auto i = entries_.find(blob);
  if (i == entries_.end() || i->second.dropped)
    return false;
  ++count_.dropped;
  i->second.dropped = true;
  if (i->second.pins == 0)
    erase(i, last);
  return true;
}

void blob_store::erase(table::iterator i, core::checkpoint_ptr& last) {
  count_.bytes -= i->second.bytes;
  last = std::move(i->second.state);
  entries_.erase(i);
}

blob_store::pin blob_store::hold(std::uint64_t blob) {
  pin out;
  std::lock_guard lock(mutex_);
  const auto i = entries_.find(blob);
  if (i == entries_.end())
    return out;
  ++i->second.pins;
  out.owner_ = shared_from_this();
  out.state_ = i->second.state;
  out.blob_ = blob;
  return out;
}

void blob_store::pin::release() noexcept {
  if (owner_ == nullptr)
    return;
  {
    std::lock_guard lock(owner_->mutex_);
    const auto i = owner_->entries_.find(blob_);
    core::checkpoint_ptr last; // `state_` still holds it
    if (i != owner_->entries_.end() && --i->second.pins == 0 && i->second.dropped)
      owner_->erase(i, last);
  }
  owner_.reset();
  state_.reset();
}

blob_store::pin& blob_store::pin::operator=(pin&& other) noexcept {
  if (this != &other) {
    release();
    owner_ = std::move(other.owner_);
    state_ = std::move(other.state_);
    blob_ = other.blob_;
  }
  return *this;
}

blob_store::counters blob_store::snapshot() const {
  std::lock_guard lock(mutex_);
  auto out = count_;
  out.blobs = entries_.size();
  return out;
}

} // namespace troupe::actors
