#include "troupe/core/checkpoint.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "json_text.hpp"
#include "safetensors.hpp"

namespace troupe::core {

std::string_view to_string(dtype x) noexcept {
  switch (x) {
  case dtype::f32: return "F32";
  case dtype::f64: return "F64";
  case dtype::bf16: return "BF16";
  case dtype::f16: return "F16";
  case dtype::i32: return "I32";
  case dtype::i64: return "I64";
  case dtype::u8: return "U8";
  case dtype::u32: return "U32";
  case dtype::u64: return "U64";
  }
  return "unknown";
}

std::size_t size_of(dtype x) noexcept {
  switch (x) {
  case dtype::u8: return 1;
  case dtype::bf16:
  case dtype::f16: return 2;
  case dtype::f32:
  case dtype::i32:
  case dtype::u32: return 4;
  case dtype::f64:
  case dtype::i64:
  case dtype::u64: return 8;
  }
  return 1;
}

namespace {

std::string describe(dtype type, std::span<const std::int64_t> shape) {
  std::string text{to_string(type)};
  text += '[';
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ']';
}

} // namespace

void checkpoint::add(tensor t) {
  if (t.name.empty() || t.name == internal::metadata_key || internal::valid_utf8_prefix(t.name) != t.name.size())
    throw std::invalid_argument("'" + t.name + "' cannot be a tensor's name");
  auto expected = internal::tensor_bytes(t.type, t.shape);
  if (!expected || *expected != t.bytes.size())
    throw std::invalid_argument("tensor '" + t.name + "' has " + std::to_string(t.bytes.size()) +
                                " bytes, which does not match " + describe(t.type, t.shape));
  attached_ = nullptr;
  for (auto& old : tensors_)
    if (old.name == t.name) {
      old = std::move(t);
      return;
    }
  tensors_.push_back(std::move(t));
}

void checkpoint::add(std::string name, dtype type, std::vector<std::int64_t> shape, std::span<const std::byte> bytes) {
  add(tensor{std::move(name), type, std::move(shape), {bytes.begin(), bytes.end()}});
}

void checkpoint::set_text(std::string_view key, std::string text) {
  if (internal::valid_utf8_prefix(text) != text.size())
    text = internal::repair_utf8(text); // the file is JSON: what cannot be written is not kept
  texts_.insert_or_assign(internal::repair_utf8(key), std::move(text));
}

const checkpoint::tensor* checkpoint::find(std::string_view name) const noexcept {
  for (auto& t : tensors_)
    if (t.name == name)
      return &t;
  return nullptr;
}

const std::string* checkpoint::text(std::string_view key) const noexcept {
  auto i = texts_.find(key);
  return i == texts_.end() ? nullptr : &i->second;
}

result<const checkpoint::tensor*> checkpoint::expect(std::string_view name, dtype type,
                                                     std::span<const std::int64_t> shape) const {
  auto* t = find(name);
  if (!t)
    return error{errc::not_found, "the checkpoint has no tensor '" + std::string{name} + "'"};
  if (t->type != type || !std::ranges::equal(t->shape, shape))
    return error{errc::invalid_argument, "tensor '" + t->name + "' of the checkpoint is " + describe(t->type, t->shape) +
                                             ", where " + describe(type, shape) + " is needed"};
  return t;
}

std::size_t checkpoint::bytes() const noexcept {
  std::size_t sum = 0;
  for (auto& t : tensors_)
    sum += t.bytes.size();
  return sum;
}

namespace {

/// FNV-1a (Fowler, Noll, Vo) over 64-bit words. The fold after each product carries the upper bits down, without
/// which two differences in the top bits of neighbouring words would cancel.
class word_hash {
public:
  void word(std::uint64_t x) noexcept {
    h_ = (h_ ^ x) * 0x100000001b3;
    h_ ^= h_ >> 32;
  }
  void bytes(std::span<const std::byte> xs) noexcept {
    word(xs.size());
    while (xs.size() >= 8) {
      std::uint64_t x;
      std::memcpy(&x, xs.data(), 8);
      word(x);
      xs = xs.subspan(8);
    }
    if (!xs.empty()) {
      std::uint64_t x = 0;
      std::memcpy(&x, xs.data(), xs.size());
      word(x);
    }
  }
  void text(std::string_view s) noexcept { bytes(std::as_bytes(std::span{s.data(), s.size()})); }
  std::uint64_t value() const noexcept { return h_; }

private:
  std::uint64_t h_ = 0xcbf29ce484222325;
};

static_assert(std::endian::native == std::endian::little, "safetensors files are little endian");

} // namespace

std::uint64_t content_hash(const checkpoint& x) noexcept {
  word_hash h;
  for (auto& [key, text] : x.texts())
    if (key != internal::hash_key && key != internal::format_key) {
      h.text(key);
      h.text(text);
    }
  for (auto& t : x.tensors()) {
    h.text(t.name);
    h.text(to_string(t.type));
    h.word(t.shape.size());
    for (auto n : t.shape)
      h.word(static_cast<std::uint64_t>(n));
    h.bytes(t.bytes);
  }
  return h.value();
}

} // namespace troupe::core
