/// Captured steps of a group: when they are captured anew, and when not.
#include "troupe/gpu/training_group.hpp"

#include <doctest/doctest.h>

#include "gpu/group_bench.hpp"
#include "troupe/gpu/slots.hpp"

using namespace group_test;

TEST_CASE("a model whose pass cannot be captured trains all the same and the reason is kept") {
  struct waiting final : model {
    network inner;
    waiting(context& c, const network_spec& s, std::int64_t lanes, std::int64_t rows)
      : model(c, network(c, s, 1, 1).layout(), lanes, rows), inner(c, s, lanes, rows) {}
    void load_input(const data_source& d, const member_counters* c, std::int64_t offset, std::int64_t n) override {
      inner.select(state(), members());
      inner.load_input(d, c, offset, n);
    }
    void forward(const pass& p) override {
      ctx().synchronize();
      inner.forward(p);
    }
    void loss(const pass& p) override { inner.loss(p); }
    void backward(const pass& p, const gradient_target& to) override { inner.backward(p, to); }
  };
  group_bench plain(dense(), optimizer_kind::sgd, small_data());
  group_bench b(dense(), optimizer_kind::sgd, small_data(), 1, false, 0, 0, capture_mode::always);
  b.options.make = [s = b.spec](context& c, std::int64_t lanes, std::int64_t rows) {
    return std::make_unique<waiting>(c, s, lanes, rows);
  };
  b.group = std::make_unique<training_group>(b.ctx, b.options);
  for (auto* x : {&plain, &b}) {
    x->group->join(3);
    x->group->set_active(std::vector<std::int64_t>{0});
    for (int i = 0; i < 5; ++i)
      x->group->step();
  }
  CHECK(plain.hash(0) == b.hash(0));
  CHECK(b.ctx.snapshot().captures == 0);
  CHECK(mentions(b.ctx.snapshot().capture_fault, "waiting cannot be captured"));
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("on an emulated GPU a push or a member that comes or goes needs no new capture") {
  network_spec tiny; // an emulated thread is slow
  tiny.hidden = {4};
  group_bench b(tiny, optimizer_kind::sgd, small_data(), 0, true, 0, 0, capture_mode::always);
  group_bench direct(tiny, optimizer_kind::sgd, small_data(), 0, true);
  std::vector<std::int64_t> all;
  const auto both = [&](auto&& f) {
    f(*b.group);
    f(*direct.group);
  };
  const auto steps = [&](training_group& g) {
    g.set_active(all);
    for (int i = 0; i < 2; ++i)
      g.step();
  };
  member_params other; // several momenta: no products into the momentum, as long as they differ
  other.momentum = 0.2F;
  for (std::uint64_t k = 0; k < 3; ++k) {
    all.push_back(static_cast<std::int64_t>(k));
    both([&](training_group& g) { g.join(k); });
  }
  both([&](training_group& g) { g.set_params(2, other); });
  both(steps);
  const auto captures = b.ctx.snapshot().captures;
  CHECK(captures == 1);
  member_params p;
  p.lr = 0.5F;
  p.momentum = 0.3F;
  p.label_smoothing = 0.1F;
  both([&](training_group& g) { g.set_params(2, p); });
  both(steps);
  both([&](training_group& g) { g.leave(1); });
  both([&](training_group& g) { CHECK(g.join(77) == 1); });
  both(steps);
  all.erase(all.begin()); // one rests
  both(steps);
  CHECK(b.ctx.snapshot().captures == captures);
  CHECK(b.ctx.snapshot().launches > captures);
  for (std::int64_t k = 0; k < 3; ++k)
    CHECK(b.hash(k) == direct.hash(k));
}

TEST_CASE("on an emulated GPU a slot that is told not to capture trains to the same bits with no captures") {
  network_spec tiny;
  tiny.hidden = {4};
  const auto trained = [&](bool capture) {
    std::vector<core::error> faults;
    const core::slot_request wanted{.capture = capture};
    auto mode = make_slots(find_devices(), {&wanted, 1}, math_mode::fp32, "/slots", faults).at(0).capture;
    if (mode == capture_mode::automatic) // as a GPU decides
      mode = capture_mode::always;
    group_bench b(tiny, optimizer_kind::sgd, small_data(), 0, true, 0, 0, mode);
    std::vector<std::int64_t> all;
    for (std::int64_t k = 0; k < 4; ++k) {
      all.push_back(b.group->join(static_cast<std::uint64_t>(k)));
      b.group->set_params(all.back(), params_of(k));
    }
    b.group->set_active(all);
    for (int i = 0; i < 5; ++i)
      b.group->step();
    std::vector<std::uint64_t> hashes;
    for (const auto k : all)
      hashes.push_back(b.hash(k));
    return std::pair(hashes, b.ctx.snapshot());
  };
  const auto [captured, with] = trained(true);
  const auto [direct, without] = trained(false);
  CHECK(captured == direct);
  CHECK(with.captures == 1);
  CHECK(with.launches == 4);
  CHECK(without.captures == 0);
  CHECK(without.launches == 0);
  CHECK(without.capture_fault.empty());
}

TEST_CASE("on an emulated GPU a captured group that fills no power of two computes what a direct one does bit for bit") {
  network_spec tiny;
  tiny.hidden = {4};
  for (const std::uint64_t members : {1, 3, 5}) {
    CAPTURE(members);
    group_bench b(tiny, optimizer_kind::sgd, small_data(), 0, true, 0, 0, capture_mode::always);
    group_bench direct(tiny, optimizer_kind::sgd, small_data(), 0, true);
    std::vector<std::int64_t> all;
    for (std::uint64_t k = 0; k < members; ++k)
      all.push_back(static_cast<std::int64_t>(k));
    for (auto* x : {&b, &direct}) {
      member_params p; // plain SGD with one momentum: products go into it
      p.momentum = 0.9F;
      for (std::uint64_t k = 0; k < members; ++k)
        x->group->set_params(x->group->join(k), p);
      x->group->set_active(all);
      for (int i = 0; i < 4; ++i)
        x->group->step();
    }
    CHECK(b.ctx.snapshot().launches > 0);
    for (const auto k : all)
      CHECK(b.hash(k) == direct.hash(k));
    // What products left where nobody was does not reach who comes there.
    for (auto* x : {&b, &direct}) {
      x->group->leave(0);
      CHECK(x->group->join(90) == 0);
      x->group->set_active(all);
      x->group->step();
    }
    for (const auto k : all)
      CHECK(b.hash(k) == direct.hash(k));
  }
}

TEST_CASE("on an emulated GPU a member that fills a group or rests beside it needs no new capture") {
  network_spec tiny;
  tiny.hidden = {4};
  group_bench b(tiny, optimizer_kind::adamw, small_data(), 0, true, 0, 0, capture_mode::always);
  auto& g = *b.group;
  std::vector<std::int64_t> all;
  for (std::uint64_t k = 0; k < 3; ++k)
    all.push_back(g.join(k));
  const auto steps = [&](std::vector<std::int64_t> who) {
    g.set_active(who);
    for (int i = 0; i < 3; ++i)
      g.step();
  };
  steps(all);
  CHECK(b.ctx.snapshot().captures == 1);
  all.push_back(g.join(3));
  steps(all);
  steps({0, 1, 3});
  steps(all);
  CHECK(b.ctx.snapshot().captures == 1);
  CHECK(b.ctx.snapshot().launches == 11);
  CHECK(g.counters(2).step == 9);
}
#endif

TEST_CASE("however many pushes ask for another sequence the newest is captured") {
  group_bench plain(dense(), optimizer_kind::sgd, small_data());
  group_bench b(dense(), optimizer_kind::sgd, small_data(), 1, false, 0, 0, capture_mode::always);
  for (auto* x : {&plain, &b}) {
    x->group->join(3);
    x->group->set_active(std::vector<std::int64_t>{0});
    for (int i = 0; i < 100; ++i) {
      member_params p;
      p.lr = 0.001F;
      p.momentum = static_cast<float>(i) / 128;
      x->group->set_params(0, p);
      for (int n = 0; n < 3; ++n)
        x->group->step();
    }
  }
  CHECK(plain.hash(0) == b.hash(0));
  CHECK(b.ctx.snapshot().captures == 100);
  CHECK(b.ctx.snapshot().launches == 200);
}
