#include "wire.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace troupe::net::wire {

static_assert(std::endian::native == std::endian::little, "tensors travel as they lie in memory: little endian");

namespace {

constexpr std::uint64_t p1 = 0x9E3779B185EBCA87u, p2 = 0xC2B2AE3D27D4EB4Fu, p3 = 0x165667B19E3779F9u,
                        p4 = 0x85EBCA77C2B2AE63u, p5 = 0x27D4EB2F165667C5u;

template <class T>
T load(const std::byte* p) noexcept {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t x) noexcept {
  return std::rotl(lane + x * p2, 31) * p1;
}

void stripes(std::array<std::uint64_t, 4>& lane, const std::byte* p, std::size_t n) noexcept {
  auto [a, b, c, d] = lane;
  for (; n > 0; --n, p += 32) {
    a = round(a, load<std::uint64_t>(p));
    b = round(b, load<std::uint64_t>(p + 8));
    c = round(c, load<std::uint64_t>(p + 16));
    d = round(d, load<std::uint64_t>(p + 24));
  }
  lane = {a, b, c, d};
}

} // namespace

checksum::checksum(std::uint64_t seed) noexcept : seed_(seed), lane_{seed + p1 + p2, seed + p2, seed, seed - p1} {}

void checksum::add(std::span<const std::byte> bytes) noexcept {
  total_ += bytes.size();
  if (tail_size_ > 0) {
    const auto n = std::min(bytes.size(), tail_.size() - tail_size_);
    std::copy_n(bytes.begin(), n, tail_.begin() + static_cast<std::ptrdiff_t>(tail_size_));
    tail_size_ += n;
    bytes = bytes.subspan(n);
    if (tail_size_ < tail_.size())
      return;
    stripes(lane_, tail_.data(), 1);
    tail_size_ = 0;
  }
  stripes(lane_, bytes.data(), bytes.size() / 32);
  const auto rest = bytes.last(bytes.size() % 32);
  std::copy(rest.begin(), rest.end(), tail_.begin());
  tail_size_ = rest.size();
}

std::uint64_t checksum::value() const noexcept {
  std::uint64_t h = seed_ + p5;
  if (total_ >= 32) {
    h = std::rotl(lane_[0], 1) + std::rotl(lane_[1], 7) + std::rotl(lane_[2], 12) + std::rotl(lane_[3], 18);
    for (const auto lane : lane_)
      h = (h ^ round(0, lane)) * p1 + p4;
  }
  h += total_;
  const std::byte* p = tail_.data();
  std::size_t n = tail_size_;
  for (; n >= 8; n -= 8, p += 8)
    h = std::rotl(h ^ round(0, load<std::uint64_t>(p)), 27) * p1 + p4;
  for (; n >= 4; n -= 4, p += 4)
    h = std::rotl(h ^ (load<std::uint32_t>(p) * p1), 23) * p2 + p3;
  for (; n > 0; --n, ++p)
    h = std::rotl(h ^ (static_cast<std::uint64_t>(*p) * p5), 11) * p1;
  h = (h ^ (h >> 33)) * p2;
  h = (h ^ (h >> 29)) * p3;
  return h ^ (h >> 32);
}

void writer::text(std::string_view x) {
  number(static_cast<std::uint32_t>(x.size()));
  const auto b = std::as_bytes(std::span{x.data(), x.size()});
  out_.insert(out_.end(), b.begin(), b.end());
}

std::span<const std::byte> reader::take(std::size_t n) {
  if (!good_ || n > in_.size()) {
    good_ = false;
    return {};
  }
  const auto b = in_.first(n);
  in_ = in_.subspan(n);
  return b;
}

std::string reader::text() {
  const auto b = take(number<std::uint32_t>());
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

std::vector<std::byte> encode_header(const core::checkpoint& x) {
  std::vector<std::byte> out;
  writer w{out};
  w.number(static_cast<std::uint32_t>(x.texts().size()));
  for (const auto& [key, text] : x.texts()) {
    w.text(key);
    w.text(text);
  }
  w.number(static_cast<std::uint32_t>(x.tensors().size()));
  for (const auto& t : x.tensors()) {
    w.text(t.name);
    w.number(static_cast<std::uint8_t>(t.type));
    w.number(static_cast<std::uint8_t>(t.shape.size()));
    for (const auto d : t.shape)
      w.number(static_cast<std::uint64_t>(d));
  }
  return out;
}

core::result<blob_header> decode_header(std::span<const std::byte> bytes, std::uint64_t data_bytes) {
  const auto bad = [](const std::string& what) { return core::error{core::errc::io, "a damaged blob header: " + what}; };
  blob_header out;
  reader r{bytes};
  const auto texts = r.number<std::uint32_t>();
  for (std::uint32_t i = 0; i < texts && r.good(); ++i) {
    auto key = r.text();
    out.texts.emplace_back(std::move(key), r.text());
  }
  const auto tensors = r.number<std::uint32_t>();
  if (!r.good() || tensors > max_tensors)
    return bad("it ends early or names too many tensors");
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < tensors; ++i) {
    core::checkpoint::tensor t;
    t.name = r.text();
    const auto type = r.number<std::uint8_t>();
    const auto rank = r.number<std::uint8_t>();
    if (!r.good() || type > static_cast<std::uint8_t>(core::dtype::u64) || rank > max_rank)
      return bad("tensor " + std::to_string(i) + " has no valid name, type or rank");
    t.type = static_cast<core::dtype>(type);
    for (unsigned d = 0; d < rank; ++d)
      t.shape.push_back(static_cast<std::int64_t>(r.number<std::uint64_t>()));
    std::uint64_t size = core::size_of(t.type);
    const bool empty = std::find(t.shape.begin(), t.shape.end(), 0) != t.shape.end();
    for (const auto extent : t.shape) {
      if (extent < 0 || (!empty && size > data_bytes / static_cast<std::uint64_t>(extent)))
        return bad("tensor " + t.name + " is larger than the blob");
      size = empty ? 0 : size * static_cast<std::uint64_t>(extent);
    }
    if (!r.good() || size > data_bytes - sum)
      return bad("tensor " + t.name + " is larger than the blob");
    sum += size;
    out.tensors.push_back(std::move(t));
    out.sizes.push_back(size);
  }
  if (!r.good() || r.left() != 0 || sum != data_bytes)
    return bad("its tensors have " + std::to_string(sum) + " bytes, the blob has " + std::to_string(data_bytes));
  return out;
}

} // namespace troupe::net::wire
