#include "record_pages.hpp"

#include <algorithm>
#include <stdexcept>

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

void record_pages::add_page() {
  pages_.reserve(pages_.size() + 1);
  frames_.reserve(frames_.size() + 1);
  slabs_.reserve(slabs_.size() + 1);
  const bool none_waits = all_here();
  const auto is_free = [](const frame& f) { return f.page < 0; };
  auto free = std::find_if(frames_.begin(), frames_.end(), is_free);
  std::string no_room;
  if (free == frames_.end())
    try {
      auto slab = ctx_.allocate(page_bytes());
      frames_.push_back({slab.as<float>(), -1});
      slabs_.push_back(std::move(slab));
      free = frames_.end() - 1;
    } catch (const out_of_memory& e) {
      if (frames_.empty())
        throw;
      no_room = e.what();
    }
  pages_.emplace_back();
  if (none_waits && free != frames_.end()) {
    free->page = pages() - 1;
    pages_.back().frame = free - frames_.begin();
    return;
  }
  try {
    take_hosts();
  } catch (const out_of_memory& e) {
    pages_.pop_back();
    throw out_of_memory(no_room + (no_room.empty() ? "" : "; nor can states take turns: ") + e.what());
  } catch (...) {
    pages_.pop_back();
    throw;
  }
}

/// From now on any page may have to give way. All or none: a page that is refused leaves the others' pinned memory to others.
void record_pages::take_hosts() {
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

void record_pages::give_back() noexcept {
  for (auto f = std::ssize(frames_) - 1; f >= shared_ && frames_.size() > pages_.size(); --f)
    if (frames_[static_cast<std::size_t>(f)].page < 0)
      remove_frame(f);
  // Not at the first page that goes: taking pinned memory again is slow.
  if (hosted_ < 2 * pages() || !all_here())
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
  std::vector<buffer> slabs;
  slabs.push_back(ctx_.allocate(static_cast<std::size_t>(rows * stride_) * sizeof(float)));
  const auto& slab = slabs.front();
  ctx_.zero(slab.data(), slab.size());
  if (kept > 0)
    ctx_.copy(slab.data(), row(0, false), static_cast<std::size_t>(kept * stride_) * sizeof(float));
  std::vector<page> pages(1);
  std::vector<frame> frames{{slab.as<float>(), 0}};
  pages.front().frame = 0;
  if (!pages_.empty())
    pages.front().swaps = pages_.front().swaps;
  pages_ = std::move(pages);
  frames_ = std::move(frames);
  slabs_ = std::move(slabs);
  rows_per_page_ = rows;
  shared_ = hosted_ = 0;
  divided_ = false;
  in_use_ = -1;
}

void record_pages::divide(std::int64_t rows) {
  const auto n = rows_per_page_ / rows;
  if (pages() != 1 || n * rows != rows_per_page_)
    throw std::logic_error("record_pages: a page of " + std::to_string(rows_per_page_) + " rows cannot be divided into pages of "
                           + std::to_string(rows));
  std::vector<page> pages(static_cast<std::size_t>(n));
  std::vector<frame> frames;
  for (std::int64_t i = 0; i < n; ++i) {
    pages[static_cast<std::size_t>(i)].frame = i;
    frames.push_back({frames_.front().data + i * rows * stride_, i});
  }
  pages_ = std::move(pages);
  frames_ = std::move(frames);
  rows_per_page_ = rows;
  shared_ = n;
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
  vacate(f);
  remove_frame(f);
  return true;
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

/// The page of frame `f` goes to the host, unless what is there is the same.
void record_pages::vacate(std::int64_t f) {
  auto& frame = frames_[static_cast<std::size_t>(f)];
  // What is enqueued may still read or write the frame, even where its page was dropped; what comes onto it later is behind this
  // in the copies' order.
  ctx_.mark(computed_, work_queue::compute);
  ctx_.wait(computed_, work_queue::copies);
  if (frame.page < 0)
    return;
  auto& p = at(frame.page);
  if (!p.host_is_current) {
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
}

void record_pages::occupy(std::int64_t number, std::int64_t f) {
  vacate(f);
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
  // A page without contents waits too: the frame's last ones may still be on their way out.
  ctx_.mark(p.arrived, work_queue::copies);
  p.arriving = true;
}

void record_pages::use(std::int64_t number) {
  if (at(number).frame < 0) {
    auto f = find_frame();
    if (f < 0) { // there is but one, and what used it is enqueued: its page may go behind that
      in_use_ = -1;
      f = find_frame();
    }
    occupy(number, f);
  }
  auto& p = at(number);
  if (p.arriving) {
    ctx_.wait(p.arrived, work_queue::compute);
    p.arriving = false;
  }
  p.needed = ++clock_;
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

void record_pages::fetch_ahead(std::int64_t number) {
  if (!paged() || at(number).frame >= 0)
    return;
  const auto f = find_frame();
  if (f >= 0)
    occupy(number, f);
}

void record_pages::copy_row(std::int64_t from, std::int64_t to) {
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

} // namespace troupe::gpu::internal
