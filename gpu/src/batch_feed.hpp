#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "troupe/gpu/dataset.hpp"

namespace troupe::gpu::internal {

/// What passes over a data set read. Where the device has a copy, they gather from it. Where that would not fit, batches are
/// gathered here, on the host, by the same permutation, and sent to one of two places on the device while the step before
/// computes; a pass then finds its examples in a row. The bytes are the same, so training is, bit for bit. Belongs to a context and
/// its thread.
class batch_feed {
public:
  /// Where a member is in the data; those that are not active get no examples.
  struct place {
    std::uint64_t seed = 0, batch = 0;
    bool active = false;
    bool operator==(const place&) const = default;
  };
  /// Arguments of `model::load_input`.
  struct source {
    data_source data;
    std::int64_t offset;
  };

  batch_feed(context& ctx, std::shared_ptr<const resident_data> data, std::int64_t batch, std::int64_t test_rows);

  const resident_data& data() const noexcept { return *data_; }
  bool staged() const noexcept { return data_->staged(); }
  std::uint64_t memory_bytes() const noexcept;
  /// Batches of so many members fit from now on. Throws `out_of_memory`; nothing has changed then.
  void make_room(std::int64_t members);
  void give_up_room() noexcept; ///< on the device, until `make_room` or whatever needs it

  /// The next batch of each; call `taken` after the operation that reads it was enqueued.
  source next(std::span<const place> who);
  /// Rows offset, offset + 1, … of the examples held out; then `taken`.
  source test(std::int64_t offset, std::int64_t rows);
  void taken();
  /// Sends what `who` will ask for next, if it is known and there is room.
  void ahead(std::span<const place> who);

private:
  struct stage {
    buffer pinned, device; ///< no device memory: it was given up
    std::vector<place> who; ///< whose batches it holds; empty: others
    marker arrived, used;
  };

  std::size_t example_bytes() const noexcept;
  std::size_t labels_at() const noexcept; ///< in a stage
  stage& other() noexcept { return stages_[1 - last_]; }
  void fill(stage& s, std::span<const place> who);
  void copy_example(const labelled_examples& from, std::int64_t example, stage& s, std::int64_t row) const;
  void send(stage& s, std::int64_t rows);
  source view(const stage& s, std::int64_t rows, std::int64_t per_member) const;

  context& ctx_;
  std::shared_ptr<const resident_data> data_;
  std::int64_t batch_, test_rows_;
  std::int64_t rows_ = 0; ///< that a stage holds
  std::array<stage, 2> stages_;
  std::size_t last_ = 0;
};

} // namespace troupe::gpu::internal
