#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "troupe/gpu/context.hpp"

namespace troupe::gpu::internal {

/// The records of a group's members, of one size, in pages of as many as compute together.
///
/// As long as the budget has room, every page lies in device memory and stays there. Once it has none, further pages take turns
/// with the others: each page has a place in pinned host memory too, and whichever was needed longest ago gives its device
/// memory (its frame) to the one that is needed now. Copies run on the context's queues for them, each direction on its own; the
/// computation waits for those it needs, on the device, so a page that is fetched ahead comes while others compute, and while another
/// one leaves. A page that is in use never moves.
///
/// The context's other groups take part: where their pages, or those here, were needed longest ago, these go first, and their
/// frames' memory is taken or given. A store may be left without a frame. Who takes memory that others wait for can give it back: it
/// has places in pinned memory for all of its pages then.
///
/// Nothing here decides what is computed: a group with paged records trains as one without, bit for bit. Belongs to a context
/// and its thread, like the group.
class record_pages {
public:
  /// `stride`: floats of a record.
  record_pages(context& ctx, std::int64_t stride, std::int64_t rows_per_page);
  record_pages(const record_pages&) = delete;
  record_pages& operator=(const record_pages&) = delete;

  std::int64_t rows() const noexcept { return std::ssize(pages_) * rows_per_page_; } ///< that there is room for
  std::int64_t rows_per_page() const noexcept { return rows_per_page_; }
  std::int64_t pages() const noexcept { return std::ssize(pages_); }
  std::int64_t page_of(std::int64_t row) const noexcept { return row / rows_per_page_; }
  std::uint64_t page_bytes() const noexcept { return static_cast<std::uint64_t>(rows_per_page_ * stride_) * sizeof(float); }
  bool paged() const noexcept { return std::ssize(frames_) < std::ssize(pages_); } ///< some take turns
  bool all_here() const noexcept; ///< every page has a frame now
  bool divided() const noexcept { return divided_; }
  std::uint64_t device_bytes() const noexcept;
  std::uint64_t swaps_of(std::int64_t row) const noexcept { return pages_[static_cast<std::size_t>(page_of(row))].swaps; }

  /// The next page. Throws `out_of_memory` if not even one fits on the device, or the pinned memory has no room; nothing has
  /// changed then.
  void add_page();
  /// Device memory beyond one place for each page goes back, and pinned memory where far fewer pages are left than took turns.
  void drop_last_page() noexcept;
  /// For a store of at most one page: its page now has `rows`, of which the first `kept` keep their contents, and is divided no
  /// longer. Throws `out_of_memory`, nothing has changed then.
  void resize(std::int64_t rows, std::int64_t kept);
  /// Makes several pages of the one there is, so that they can take turns; `rows` divides its rows.
  void divide(std::int64_t rows);
  /// Gives the device memory of one page back, behind whatever uses it; false if there is none to give: the last one, and what
  /// was divided, which lies in one piece. No row is in use then.
  bool give_up_frame();

  // -- giving way to others; no row is in use then --------------------------------------------------------------------

  /// When the piece of device memory that was needed longest ago was needed; `spillable::never`: none can go.
  std::uint64_t oldest() const noexcept;
  /// Gives it back, behind whatever uses it; returns its bytes, 0: there was none. Throws `out_of_memory` if the pinned memory
  /// has no room; nothing has changed then.
  std::uint64_t spill_oldest();
  /// Pinned memory is there for all pages, or its cap has room for it.
  bool can_spill() const noexcept;

  /// A row in device memory, for operations enqueued from now on; its page is in use until the next `row` of another page.
  /// `change`: whether they write to it. Throws `out_of_memory` only where there is no frame at all.
  float* row(std::int64_t r, bool change);
  bool is_here(std::int64_t r) const noexcept { return pages_[static_cast<std::size_t>(page_of(r))].frame >= 0; }
  /// Waits for it, and leaves it where it is.
  void read(std::int64_t r, std::span<float> out);
  /// `row` for a turn that writes to it and begins now, while `next` is brought as `fetch_ahead` does. What leaves for that waits for
  /// what was enqueued before this turn, but not for this turn's page to arrive.
  float* row_for_turn(std::int64_t r, std::int64_t next);
  /// Begins to bring a page, if another that is not in use can give way.
  void fetch_ahead(std::int64_t page);
  void copy_row(std::int64_t from, std::int64_t to);

private:
  struct page {
    std::int64_t frame = -1;
    buffer host;               ///< empty as long as there are frames for all
    bool host_is_current = false;
    bool host_has_contents = false;
    marker arrived;            ///< of the newest copy to the device
    bool arriving = false;     ///< the computation has not waited for it
    bool gave_way = false;     ///< to another group
    std::uint64_t needed = 0;  ///< when, last
    std::uint64_t swaps = 0;   ///< out and in
  };
  struct frame {
    float* data = nullptr;
    std::int64_t page = -1;
  };

  page& at(std::int64_t p) noexcept { return pages_[static_cast<std::size_t>(p)]; }
  /// A frame that is free, or of the page needed longest ago other than `in_use_`; -1: there is none. Those before `from` do not
  /// count.
  std::int64_t find_frame(std::int64_t from = 0) const noexcept;
  std::uint64_t needed(const frame& f) const noexcept { return f.page < 0 ? 0 : pages_[static_cast<std::size_t>(f.page)].needed; }
  /// The frame that goes next to others; -1: there is none. One of those that are shared stands for all.
  std::int64_t next_to_go(std::uint64_t& needed) const noexcept;
  out_of_memory no_turns(const std::string& no_room, const out_of_memory& why) const;
  buffer take_slab(std::size_t bytes, std::uint64_t before);
  std::int64_t new_frame(std::uint64_t before);
  std::int64_t frame_for_use();
  std::int64_t better_frame();
  void remove_shared_frames() noexcept;
  float* row_on_host(const page& p, std::int64_t r) const noexcept { return p.host.as<float>() + r % rows_per_page_ * stride_; }
  void copy_row_on_host(std::int64_t from, std::int64_t to);
  /// The end of all that may use the page of a frame which is not in use.
  const marker& used_until();
  const marker& vacate(std::int64_t f);
  void occupy(std::int64_t p, std::int64_t f);
  void use(std::int64_t p);
  std::uint64_t lacking_host_bytes() const noexcept;
  void check_hosts(std::uint64_t bytes);
  void take_hosts();
  void remove_frame(std::int64_t f) noexcept;
  void give_back() noexcept;

  context& ctx_;
  std::int64_t stride_, rows_per_page_;
  std::vector<page> pages_;
  std::vector<frame> frames_;
  std::vector<buffer> slabs_; ///< what frames lie in: one for those that came of dividing, and one each for all others
  std::int64_t shared_ = 0;   ///< so many frames lie in the first slab, if divided
  bool divided_ = false;
  std::int64_t hosted_ = 0;   ///< pages when the newest place in pinned memory was taken; 0: none has one
  bool hosting_ = false;      ///< these states will have their pinned memory
  std::int64_t in_use_ = -1;
  std::uint64_t refused_at_ = std::numeric_limits<std::uint64_t>::max(); ///< so much was used when the device had less than the budget
  marker computed_, turn_began_, departed_;
  bool between_turns_ = false; ///< nothing was enqueued since `turn_began_` but waiting for the page in use
};

} // namespace troupe::gpu::internal
