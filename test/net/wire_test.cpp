#include <doctest/doctest.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "wire.hpp"

using namespace troupe;
using namespace troupe::net::wire;

namespace {

std::uint64_t sum_of(std::string_view text, std::uint64_t seed = 0) {
  checksum c{seed};
  c.add(std::as_bytes(std::span{text.data(), text.size()}));
  return c.value();
}

std::vector<std::byte> header_of(std::size_t size) {
  core::checkpoint x;
  const std::vector<std::byte> bytes(size);
  x.add("a", core::dtype::u8, {static_cast<std::int64_t>(size)}, bytes);
  x.set_text("k", "v");
  return encode_header(x);
}

} // namespace

TEST_CASE("the checksum gives the values that XXH64's authors publish") {
  CHECK(sum_of("") == 0xef46db3751d8e999u);
  CHECK(sum_of("abc") == 0x44bc2cf5ad770999u);
  CHECK(sum_of("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1u);
}

TEST_CASE("the checksum does not depend on how its bytes are divided") {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  checksum whole{3};
  whole.add(bytes);
  for (std::size_t step = 1; step < 100; step += 3) {
    checksum parts{3};
    for (std::size_t at = 0; at < bytes.size(); at += step)
      parts.add(std::span{bytes}.subspan(at, std::min(step, bytes.size() - at)));
    CHECK(parts.value() == whole.value());
  }
}

TEST_CASE("a blob header is read back as it was written") {
  const auto x = decode_header(header_of(10), 10);
  REQUIRE(x);
  REQUIRE(x->tensors.size() == 1);
  CHECK(x->tensors[0].name == "a");
  CHECK(x->sizes[0] == 10);
  CHECK(x->texts == std::vector<std::pair<std::string, std::string>>{{"k", "v"}});
}

TEST_CASE("a blob header that is cut or longer than it should be is refused") {
  auto h = header_of(10);
  for (std::size_t n = 0; n < h.size(); ++n)
    CHECK_FALSE(decode_header(std::span{h}.first(n), 10));
  h.push_back(std::byte{0});
  CHECK_FALSE(decode_header(h, 10));
}

TEST_CASE("a blob header whose sizes do not add up is refused") {
  CHECK_FALSE(decode_header(header_of(10), 9));
  CHECK_FALSE(decode_header(header_of(10), 11));
  CHECK(decode_header(header_of(0), 0));
}

TEST_CASE("extents that overflow are refused") {
  std::vector<std::byte> h;
  writer w{h};
  w.number(std::uint32_t{0});
  w.number(std::uint32_t{1});
  w.text("a");
  w.number(static_cast<std::uint8_t>(core::dtype::f64));
  w.number(std::uint8_t{3});
  for (const std::uint64_t extent : {std::uint64_t{1} << 32, std::uint64_t{1} << 32, std::uint64_t{2}})
    w.number(extent);
  CHECK_FALSE(decode_header(h, 0));
  CHECK_FALSE(decode_header(h, 1u << 20));
  std::fill(h.end() - 8, h.end(), std::byte{0}); // the last extent: the tensor is empty
  CHECK(decode_header(h, 0));
  h[h.size() - 9] = std::byte{0xff}; // a negative one
  CHECK_FALSE(decode_header(h, 0));
}
