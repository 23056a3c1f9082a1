#include "record_pages.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "backend.hpp"

namespace troupe::gpu::internal {

namespace {

void add(std::atomic<std::uint64_t>& x, std::uint64_t n) noexcept { // by the context's thread alone
  x.store(x.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

} // namespace

record_pages::record_pages(context& ctx, std::int64_t stride, std::int64_t rows_per_page)
  : ctx_(ctx), stride_(stride), rows_per_page_(rows_per_page) {
}

std::uint64_t record_pages::device_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& s : slabs_)
    sum += s.size();
  return sum;
}

bool record_pages::all_here() const noexcept {
  return std::all_of(pages_.begin(), pages_.end(), [](const page& p) { return p.frame >= 0; });
}

/// `no_room`: why it has no device memory; empty: it has, but who lent it could not have it back.
out_of_memory record_pages::no_turns(const std::string& no_room, const out_of_memory& why) const {
  return out_of_memory((no_room.empty() ? ctx_.impl().memory_in_use() + " and trainers take turns in it"
                                        : no_room + "; nor can states take turns")
                       + ": " + why.what());
}

/// Nobody gives way to it who was needed after `before`.
buffer record_pages::take_slab(std::size_t bytes, std::uint64_t before) {
  const lent_scope lent(ctx_.impl(), before);
  return ctx_.allocate(bytes);
}

std::int64_t record_pages::new_frame(std::uint64_t before) {
  frames_.reserve(frames_.size() + 1);
  slabs_.reserve(slabs_.size() + 1);
  auto slab = take_slab(page_bytes(), before);
  frames_.push_back({slab.as<float>(), -1});
  slabs_.push_back(std::move(slab));
  return std::ssize(frames_) - 1;
}

void record_pages::add_page() {
  const auto& all = *ctx_.impl().spills();
  const bool none_waits = all_here(), anyone_waits = all.anyone_waits();
  const auto frames_before = std::ssize(frames_);
  std::int64_t free = -1;
  for (std::int64_t f = 0; free < 0 && f < frames_before; ++f)
    if (frames_[static_cast<std::size_t>(f)].page < 0)
      free = f;
  std::string no_room;
  if (free < 0)
    try {
      free = new_frame(0);
    } catch (const out_of_memory& e) {
      if (frames_.empty() && all.oldest() == spillable::never)
        throw;
      no_room = e.what();
    }
  pages_.emplace_back();
  const auto undo = [&] {
    pages_.pop_back();
    if (std::ssize(frames_) > frames_before)
      remove_frame(frames_before);
  };
  try {
    const bool at_once = none_waits && free >= 0;
    if (!at_once || anyone_waits) {
      check_hosts(lacking_host_bytes());
      take_hosts();
    }
    if (at_once) {
      frames_[static_cast<std::size_t>(free)].page = pages() - 1;
      pages_.back().frame = free;
    } else if (frames_.empty()) {
      (void)new_frame(spillable::never); // for whichever page is needed first
    }
  } catch (const out_of_memory& e) {
    undo();
    throw no_turns(no_room, e);
  } catch (...) {
    undo();
    throw;
  }
}

std::uint64_t record_pages::lacking_host_bytes() const noexcept {
  const auto n = std::count_if(pages_.begin(), pages_.end(), [](const page& p) { return !p.host; });
  return static_cast<std::uint64_t>(n) * page_bytes();
}

bool record_pages::can_spill() const noexcept { return hosting_ || ctx_.impl().has_host_room(lacking_host_bytes()); }

/// Whether so much may be pinned for them: others may need it to make room for those who wait.
void record_pages::check_hosts(std::uint64_t bytes) {
  hosting_ = true;
  try {
    ctx_.impl().check_pinned(bytes);
  } catch (...) {
    hosting_ = false;
    throw;
  }
  hosting_ = false;
}

/// From now on any page may have to give way. All or none: a page that is refused leaves the others' pinned memory to others.
void record_pages::take_hosts() {
  const states_go unchecked(ctx_.impl());
  std::vector<buffer> made;
  const auto lacks = [](const page& p) { return !p.host; };
  made.reserve(static_cast<std::size_t>(std::count_if(pages_.begin(), pages_.end(), lacks)));
  while (made.size() < made.capacity())
    made.push_back(ctx_.allocate_host(page_bytes()));
  for (auto& p : pages_)
    if (lacks(p)) {
      p.host = std::move(made.back());
      made.pop_back();
    }
  hosted_ = pages();
}

/// A free one with a slab of its own.
void record_pages::remove_frame(std::int64_t f) noexcept {
  const auto i = static_cast<std::size_t>(f), last = frames_.size() - 1;
  const auto slab = i + slabs_.size() - frames_.size(); // those that are shared come first
  if (i != last) {
    std::swap(frames_[i], frames_[last]);
    std::swap(slabs_[slab], slabs_.back());
    if (frames_[i].page >= 0)
      at(frames_[i].page).frame = f;
  }
  frames_.pop_back();
  slabs_.pop_back();
}

/// All of what was divided, free.
void record_pages::remove_shared_frames() noexcept {
  frames_.erase(frames_.begin(), frames_.begin() + static_cast<std::ptrdiff_t>(shared_));
  slabs_.erase(slabs_.begin());
  for (auto& p : pages_)
    if (p.frame >= 0)
      p.frame -= shared_;
  shared_ = 0;
}

void record_pages::give_back() noexcept {
  for (auto f = std::ssize(frames_) - 1; f >= shared_ && frames_.size() > pages_.size(); --f)
    if (frames_[static_cast<std::size_t>(f)].page < 0)
      remove_frame(f);
  // Not at the first page that goes: taking pinned memory again is slow.
  if (hosted_ < 2 * pages() || !all_here() || ctx_.impl().spills()->anyone_waits())
    return;
  for (auto& p : pages_) {
    p.host = {};
    p.host_is_current = p.host_has_contents = false;
  }
  hosted_ = 0;
}

void record_pages::drop_last_page() noexcept {
  auto& last = pages_.back();
  const auto f = last.frame;
  if (last.arriving) // who has the frame next does not write to it before that
    try {
      ctx_.wait(last.arrived, work_queue::compute);
    } catch (const device_error&) { // the device is lost, as the next operation will tell
    }
  if (in_use_ == pages() - 1)
    in_use_ = -1;
  pages_.pop_back();
  if (f < 0)
    return give_back();
  frames_[static_cast<std::size_t>(f)].page = -1;
  give_back();
}

void record_pages::resize(std::int64_t rows, std::int64_t kept) {
  if (pages() > 1)
    throw std::logic_error("record_pages: only a store of one page can be resized");
  const auto bytes = static_cast<std::size_t>(rows * stride_) * sizeof(float);
  const auto& all = *ctx_.impl().spills();
  std::vector<page> pages(1);
  std::string no_room;
  const auto take_host = [&] {
    try {
      if (pages.front().host)
        return;
      check_hosts(bytes);
      const states_go unchecked(ctx_.impl());
      pages.front().host = ctx_.allocate_host(bytes);
    } catch (const out_of_memory& e) {
      throw no_turns(no_room, e);
    }
  };
  std::vector<buffer> slabs(1);
  if (all.anyone_waits())
    take_host();
  try {
    slabs.front() = take_slab(bytes, 0);
  } catch (const out_of_memory& e) {
    if (all.oldest() == spillable::never)
      throw;
    no_room = e.what();
    take_host();
    slabs.front() = take_slab(bytes, spillable::never);
  }
  const auto& slab = slabs.front();
  ctx_.zero(slab.data(), slab.size());
  if (kept > 0)
    ctx_.copy(slab.data(), row(0, false), static_cast<std::size_t>(kept * stride_) * sizeof(float));
  std::vector<frame> frames{{slab.as<float>(), 0}};
  pages.front().frame = 0;
  pages.front().needed = ctx_.impl().spills()->tick();
  if (!pages_.empty())
    pages.front().swaps = pages_.front().swaps;
  pages_ = std::move(pages);
  frames_ = std::move(frames);
  slabs_ = std::move(slabs);
  rows_per_page_ = rows;
  shared_ = 0;
  hosted_ = pages_.front().host ? 1 : 0;
  divided_ = false;
  in_use_ = -1;
}

void record_pages::divide(std::int64_t rows) {
  const auto n = rows_per_page_ / rows;
  if (pages() != 1 || n * rows != rows_per_page_)
    throw std::logic_error("record_pages: a page of " + std::to_string(rows_per_page_) + " rows cannot be divided into pages of "
                           + std::to_string(rows));
  (void)row(0, true); // it may have given way
  std::vector<page> pages(static_cast<std::size_t>(n));
  std::vector<frame> frames;
  for (std::int64_t i = 0; i < n; ++i) {
    pages[static_cast<std::size_t>(i)].frame = i;
    pages[static_cast<std::size_t>(i)].needed = pages_.front().needed;
    frames.push_back({frames_.front().data + i * rows * stride_, i});
  }
  pages_ = std::move(pages);
  frames_ = std::move(frames);
  rows_per_page_ = rows;
  shared_ = n;
  hosted_ = 0;
  divided_ = true;
  in_use_ = -1;
}

bool record_pages::give_up_frame() {
  if (frames_.size() < 2)
    return false;
  auto f = find_frame(shared_);
  if (f < 0) { // what used the page in it is enqueued, as in `use`
    in_use_ = -1;
    f = find_frame(shared_);
  }
  if (f < 0)
    return false;
  take_hosts();
  between_turns_ = false;
  vacate(f);
  remove_frame(f);
  return true;
}

std::int64_t record_pages::next_to_go(std::uint64_t& when) const noexcept {
  std::int64_t best = -1;
  when = spillable::never;
  std::uint64_t shared = 0;
  for (std::int64_t f = 0; f < shared_; ++f)
    shared = std::max(shared, needed(frames_[static_cast<std::size_t>(f)]));
  if (shared_ > 0) {
    best = 0;
    when = shared;
  }
  for (auto f = shared_; f < std::ssize(frames_); ++f)
    if (const auto n = needed(frames_[static_cast<std::size_t>(f)]); n < when) {
      best = f;
      when = n;
    }
  return best;
}

std::uint64_t record_pages::oldest() const noexcept {
  std::uint64_t when = spillable::never;
  if (can_spill())
    (void)next_to_go(when);
  return when;
}

std::uint64_t record_pages::spill_oldest() {
  std::uint64_t when = 0;
  const auto f = next_to_go(when);
  if (f < 0)
    return 0;
  take_hosts();
  in_use_ = -1; // what used it is enqueued, as in `use`
  between_turns_ = false; // it may be this one that goes
  const auto before = device_bytes();
  const auto end = f < shared_ ? shared_ : f + 1;
  for (auto i = f; i < end; ++i) {
    if (const auto p = frames_[static_cast<std::size_t>(i)].page; p >= 0)
      at(p).gave_way = true;
    vacate(i);
  }
  if (f < shared_)
    remove_shared_frames();
  else
    remove_frame(f);
  return before - device_bytes();
}

std::int64_t record_pages::find_frame(std::int64_t from) const noexcept {
  std::int64_t best = -1;
  std::uint64_t oldest = 0;
  for (auto i = static_cast<std::size_t>(from); i < frames_.size(); ++i) {
    const auto p = frames_[i].page;
    if (p < 0)
      return static_cast<std::int64_t>(i);
    if (p == in_use_)
      continue;
    const auto needed = pages_[static_cast<std::size_t>(p)].needed;
    if (best < 0 || needed < oldest) {
      best = static_cast<std::int64_t>(i);
      oldest = needed;
    }
  }
  return best;
}

const marker& record_pages::used_until() {
  if (between_turns_)
    return turn_began_;
  ctx_.mark(computed_, work_queue::compute);
  return computed_;
}

/// The page of frame `f` goes to the host, unless what is there is the same. Returns until when what is enqueued may read or write the
/// frame, even where its page was dropped.
const marker& record_pages::vacate(std::int64_t f) {
  auto& frame = frames_[static_cast<std::size_t>(f)];
  const auto& used = used_until();
  if (frame.page < 0)
    return used;
  auto& p = at(frame.page);
  if (!p.host_is_current) {
    ctx_.wait(used, work_queue::downloads);
    ctx_.download_async(p.host.data(), frame.data, page_bytes());
    p.host_is_current = p.host_has_contents = true;
    ++p.swaps;
    auto& t = ctx_.impl().traffic();
    add(t.swaps_out, 1);
    add(t.swapped_bytes, page_bytes());
  }
  p.frame = -1;
  p.arriving = false;
  frame.page = -1;
  return used;
}

void record_pages::occupy(std::int64_t number, std::int64_t f) {
  // What comes into the frame is behind what used it, and behind what leaves it; the page itself may just have left another one.
  ctx_.wait(vacate(f), work_queue::uploads);
  ctx_.mark(departed_, work_queue::downloads);
  ctx_.wait(departed_, work_queue::uploads);
  auto& p = at(number);
  auto& frame = frames_[static_cast<std::size_t>(f)];
  p.frame = f;
  frame.page = number;
  if (p.host_has_contents) {
    ctx_.upload_async(frame.data, p.host.data(), page_bytes());
    ++p.swaps;
    auto& t = ctx_.impl().traffic();
    add(t.swaps_in, 1);
    add(t.swapped_bytes, page_bytes());
  }
  if (std::exchange(p.gave_way, false))
    ctx_.impl().add_moved(page_bytes());
  // A page without contents waits too: the frame's last ones may still be on their way out.
  ctx_.mark(p.arrived, work_queue::uploads);
  p.arriving = true;
}

/// A frame that is free, or new, or was needed longer ago than any of another group; -1: only that of the page in use, or
/// none at all.
std::int64_t record_pages::better_frame() {
  const auto own = find_frame();
  if (own >= 0 && frames_[static_cast<std::size_t>(own)].page < 0)
    return own;
  const auto& all = *ctx_.impl().spills();
  const auto before = own >= 0 ? needed(frames_[static_cast<std::size_t>(own)]) : spillable::never;
  try {
    if (ctx_.memory_free() >= page_bytes() && ctx_.memory_used() < refused_at_)
      return new_frame(0);
  } catch (const out_of_memory&) {
    refused_at_ = ctx_.memory_used();
  }
  if (all.oldest() < before)
    try {
      return new_frame(before);
    } catch (const out_of_memory&) {
      if (frames_.empty())
        throw;
    }
  return own;
}

std::int64_t record_pages::frame_for_use() {
  if (const auto f = better_frame(); f >= 0)
    return f;
  if (frames_.empty())
    return new_frame(0); // throws, with the numbers
  in_use_ = -1; // there is but one, and what used it is enqueued: its page may go behind that
  return find_frame();
}

void record_pages::use(std::int64_t number) {
  if (at(number).frame < 0)
    occupy(number, frame_for_use());
  auto& p = at(number);
  if (p.arriving) {
    ctx_.wait(p.arrived, work_queue::compute);
    p.arriving = false;
  }
  p.needed = ctx_.impl().spills()->tick();
  in_use_ = number;
  if (hosted_ > 0)
    give_back(); // it may have been the last that waited
}

float* record_pages::row(std::int64_t r, bool change) {
  const auto number = page_of(r);
  auto& p = at(number);
  if (number != in_use_ || p.frame < 0 || p.arriving)
    use(number);
  if (change)
    p.host_is_current = false;
  return frames_[static_cast<std::size_t>(p.frame)].data + r % rows_per_page_ * stride_;
}

void record_pages::read(std::int64_t r, std::span<float> out) {
  const auto& p = at(page_of(r));
  if (p.frame >= 0 || !p.host_has_contents) {
    ctx_.download(out.data(), row(r, false), out.size_bytes());
    return;
  }
  ctx_.synchronize(); // it may be on its way
  std::copy_n(row_on_host(p, r), out.size(), out.data());
}

float* record_pages::row_for_turn(std::int64_t r, std::int64_t next) {
  if (!paged())
    return row(r, true);
  ctx_.mark(turn_began_, work_queue::compute);
  auto* const data = row(r, true);
  between_turns_ = true;
  try {
    fetch_ahead(next);
  } catch (...) {
    between_turns_ = false;
    throw;
  }
  between_turns_ = false;
  return data;
}

void record_pages::fetch_ahead(std::int64_t number) {
  if (!paged() || at(number).frame >= 0)
    return;
  const auto f = better_frame();
  if (f >= 0)
    occupy(number, f);
}

void record_pages::copy_row(std::int64_t from, std::int64_t to) {
  if (frames_.empty())
    return copy_row_on_host(from, to);
  const auto bytes = static_cast<std::size_t>(stride_) * sizeof(float);
  const float* source = row(from, false);
  if (page_of(from) == page_of(to) || frames_.size() > 1) {
    ctx_.copy(row(to, true), source, bytes); // using another page leaves the one used last where it is
    return;
  }
  std::vector<float> between(static_cast<std::size_t>(stride_));
  ctx_.download(between.data(), source, bytes);
  ctx_.upload(row(to, true), between.data(), bytes);
}

void record_pages::copy_row_on_host(std::int64_t from, std::int64_t to) {
  const auto& source = at(page_of(from));
  auto& target = at(page_of(to));
  if (!source.host_has_contents) // nobody has written there yet
    return;
  ctx_.synchronize(); // they may be on their way
  std::copy_n(row_on_host(source, from), stride_, row_on_host(target, to));
  target.host_has_contents = target.host_is_current = true;
}

} // namespace troupe::gpu::internal
