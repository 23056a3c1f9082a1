#include "troupe/actors/blob_store.hpp"

#include <stdexcept>

#include <doctest/doctest.h>

using namespace troupe;
using troupe::actors::blob_store;

namespace {

core::checkpoint_ptr state_of(std::int64_t floats) {
  auto out = std::make_shared<core::checkpoint>();
  std::vector<float> xs(static_cast<std::size_t>(floats), 1.5f);
  out->add("weights.x", core::dtype::f32, {floats}, std::span<const float>{xs});
  return out;
}

} // namespace

TEST_CASE("a store gives out numbered states and forgets dropped ones") {
  blob_store store{3};
  store.set_address("10.0.0.1", 77);
  auto x = state_of(4);
  auto a = store.put(x), b = store.put(state_of(8));
  CHECK(a.blob != b.blob);
  CHECK(a.node == 3);
  CHECK(a.host == "10.0.0.1");
  CHECK(a.port == 77);
  CHECK(a.bytes == 16);
  CHECK(a.hash == core::content_hash(*x));
  CHECK(store.get(a.blob) == x);
  CHECK(store.snapshot().bytes == 48);
  CHECK(store.drop(a.blob));
  CHECK_FALSE(store.drop(a.blob));
  CHECK(store.get(a.blob) == nullptr);
  CHECK(x->bytes() == 16); // who holds it keeps it
  auto c = store.snapshot();
  CHECK(c.blobs == 1);
  CHECK(c.bytes == 32);
  CHECK(c.peak_bytes == 48);
  CHECK(c.put == 2);
  CHECK(c.dropped == 1);
  CHECK_THROWS_AS(store.put(nullptr), std::invalid_argument);
}

TEST_CASE("a pinned state stays until the last pin is gone") {
  auto store = std::make_shared<blob_store>();
  auto a = store->put(state_of(4));
  CHECK_FALSE(store->hold(a.blob + 1));
  {
    auto first = store->hold(a.blob);
    auto second = store->hold(a.blob);
    CHECK(store->drop(a.blob));
    CHECK(store->get(a.blob) != nullptr);
    CHECK(store->snapshot().bytes == 16);
    auto moved = std::move(first);
    second = blob_store::pin{};
    CHECK(store->get(a.blob) != nullptr);
    CHECK(moved.state()->bytes() == 16);
  }
  CHECK(store->get(a.blob) == nullptr);
  CHECK(store->snapshot().bytes == 0);
}
