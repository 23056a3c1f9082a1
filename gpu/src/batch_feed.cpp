#include "batch_feed.hpp"

#include <algorithm>
#include <cstring>

#include "backend.hpp"
#include "troupe/gpu/counter_random.hpp"

namespace troupe::gpu::internal {

namespace {

/// The numbers of an example, whatever they are, as bytes.
struct raw_examples {
  const unsigned char* data;
  std::size_t element;
};

raw_examples raw(const labelled_examples& x) noexcept {
  const auto view = [](const auto& v) { return raw_examples{reinterpret_cast<const unsigned char*>(v.data()), sizeof v[0]}; };
  if (!x.images.empty())
    return view(x.images);
  return !x.tokens.empty() ? view(x.tokens) : view(x.floats);
}

} // namespace

batch_feed::batch_feed(context& ctx, std::shared_ptr<const resident_data> data, std::int64_t batch, std::int64_t test_rows)
  : ctx_(ctx), data_(std::move(data)), batch_(batch), test_rows_(test_rows) {
}

std::uint64_t batch_feed::memory_bytes() const noexcept {
  return stages_[0].device.size() + stages_[1].device.size();
}

std::size_t batch_feed::example_bytes() const noexcept {
  return static_cast<std::size_t>(data_->host().features) * raw(data_->host().train).element;
}

std::size_t batch_feed::labels_at() const noexcept {
  return (static_cast<std::size_t>(rows_) * example_bytes() + 63) / 64 * 64;
}

void batch_feed::make_room(std::int64_t members) {
  const auto rows = std::max({members * batch_, test_rows_, rows_});
  if (!staged() || (rows <= rows_ && stages_[0].device))
    return;
  const lent_scope lent(ctx_.impl());
  const auto before = std::exchange(rows_, rows);
  try {
    std::array<stage, 2> made;
    const auto bytes = labels_at() + static_cast<std::size_t>(rows) * sizeof(std::int32_t);
    if (rows == before) { // it was given up: pinned memory, which others may need by now, stayed
      std::array<buffer, 2> device{ctx_.allocate(bytes), ctx_.allocate(bytes)};
      for (std::size_t i = 0; i < 2; ++i) {
        stages_[i].device = std::move(device[i]);
        ctx_.zero(stages_[i].device.data(), bytes);
        ctx_.mark(stages_[i].used, work_queue::compute);
      }
      return;
    }
    for (auto& s : made) {
      s.pinned = ctx_.allocate_host(bytes);
      s.device = ctx_.allocate(bytes);
      std::memset(s.pinned.data(), 0, bytes);
      ctx_.zero(s.device.data(), bytes); // rows of members at rest are read, though nothing comes of them
      ctx_.mark(s.used, work_queue::compute);
    }
    stages_ = std::move(made);
  } catch (...) {
    rows_ = before;
    throw;
  }
}

void batch_feed::give_up_room() noexcept {
  for (auto& s : stages_) {
    s.device = {};
    s.who.clear();
  }
}

batch_feed::source batch_feed::next(std::span<const place> who) {
  if (!staged())
    return {data_->train(), -1};
  make_room(std::ssize(who));
  const auto holds = [&](const stage& s) { return std::equal(s.who.begin(), s.who.end(), who.begin(), who.end()); };
  if (!holds(stages_[last_])) {
    if (!holds(other()))
      fill(other(), who);
    last_ = 1 - last_;
  }
  auto& s = stages_[last_];
  ctx_.wait(s.arrived, work_queue::compute);
  return view(s, std::ssize(who) * batch_, batch_);
}

void batch_feed::ahead(std::span<const place> who) {
  if (staged() && stages_[0].device && std::ssize(who) * batch_ <= rows_ && !std::equal(other().who.begin(), other().who.end(), who.begin(), who.end()))
    fill(other(), who);
}

batch_feed::source batch_feed::test(std::int64_t offset, std::int64_t rows) {
  if (!staged())
    return {data_->test(), offset};
  make_room(1);
  last_ = 1 - last_;
  auto& s = stages_[last_];
  s.who.clear();
  ctx_.wait_on_host(s.arrived);
  const auto& from = data_->host().test;
  for (std::int64_t r = 0; r < rows; ++r)
    copy_example(from, std::min(offset + r, from.size() - 1), s, r);
  send(s, rows);
  ctx_.wait(s.arrived, work_queue::compute);
  return view(s, rows, 0);
}

void batch_feed::taken() {
  if (staged())
    ctx_.mark(stages_[last_].used, work_queue::compute);
}

void batch_feed::fill(stage& s, std::span<const place> who) {
  ctx_.wait_on_host(s.arrived); // its last contents have left the pinned memory
  const auto& from = data_->host().train;
  const auto n = static_cast<std::uint64_t>(from.size()), rows = static_cast<std::uint64_t>(batch_), per_epoch = n / rows;
  s.who.clear(); // until it has them
  for (std::size_t k = 0; k < who.size(); ++k) {
    if (!who[k].active)
      continue;
    const auto epoch = who[k].batch / per_epoch, first = who[k].batch % per_epoch * rows;
    for (std::uint64_t r = 0; r < rows; ++r)
      copy_example(from, static_cast<std::int64_t>(permute(who[k].seed, epoch, first + r, n)), s,
                   static_cast<std::int64_t>(k * rows + r));
  }
  send(s, std::ssize(who) * batch_);
  s.who.assign(who.begin(), who.end());
}

void batch_feed::copy_example(const labelled_examples& from, std::int64_t example, stage& s, std::int64_t row) const {
  const auto bytes = example_bytes();
  auto* base = s.pinned.as<unsigned char>();
  std::memcpy(base + static_cast<std::size_t>(row) * bytes, raw(from).data + static_cast<std::size_t>(example) * bytes, bytes);
  reinterpret_cast<std::int32_t*>(base + labels_at())[row] = from.labels[static_cast<std::size_t>(example)];
}

void batch_feed::send(stage& s, std::int64_t rows) {
  ctx_.wait(s.used, work_queue::uploads); // who reads its last contents is ahead
  const auto examples = static_cast<std::size_t>(rows) * example_bytes();
  const auto labels = static_cast<std::size_t>(rows) * sizeof(std::int32_t);
  ctx_.upload_async(s.device.data(), s.pinned.data(), examples);
  ctx_.upload_async(s.device.as<unsigned char>() + labels_at(), s.pinned.as<unsigned char>() + labels_at(), labels);
  ctx_.mark(s.arrived, work_queue::uploads);
  auto& sum = ctx_.impl().traffic().staged_bytes;
  sum.store(sum.load(std::memory_order_relaxed) + examples + labels, std::memory_order_relaxed);
}

batch_feed::source batch_feed::view(const stage& s, std::int64_t rows, std::int64_t per_member) const {
  source out{data_->train(), 0};
  auto& d = out.data;
  const auto& from = data_->host().train;
  d.examples = rows;
  d.member_stride = per_member;
  if (!from.images.empty())
    d.images = s.device.as<std::uint8_t>();
  else if (!from.tokens.empty())
    d.tokens = s.device.as<std::uint16_t>();
  else
    d.floats = s.device.as<float>();
  d.labels = reinterpret_cast<const std::int32_t*>(s.device.as<unsigned char>() + labels_at());
  return out;
}

} // namespace troupe::gpu::internal
