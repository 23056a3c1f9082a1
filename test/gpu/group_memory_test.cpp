/// Groups of different architectures in one budget.
#include <thread>

#include <doctest/doctest.h>

#include "backend.hpp"
#include "gpu/group_bench.hpp"
#include "troupe/core/random.hpp"

using namespace group_test;

namespace {

network_spec hidden(std::vector<std::int64_t> layers) {
  network_spec s;
  s.hidden = std::move(layers);
  return s;
}

/// Groups on one context, and each member's twin in a group of its own kind where all have room.
struct mixed_bench {
  struct kind {
    network_spec spec;
    optimizer_kind optimizer;
    std::int64_t block = 1;
  };
  struct trainer {
    std::size_t kind;
    std::int64_t member, twin;
    bool active = true;
  };
  std::vector<kind> kinds;
  group_bench b; // its context and data
  std::vector<std::unique_ptr<group_bench>> twins;
  std::vector<std::unique_ptr<training_group>> groups;
  std::vector<trainer> all;

  explicit mixed_bench(std::vector<kind> k, bool emulated = false, std::uint64_t budget = 0, std::uint64_t pinned = 0,
                       capture_mode capture = capture_mode::never, bool staged = false)
    : kinds(std::move(k)),
      b(kinds.front().spec, kinds.front().optimizer, small_data(), kinds.front().block, emulated, budget, pinned, capture) {
    if (staged)
      b.stage_data();
    b.group.reset();
    for (const auto& x : kinds) {
      twins.push_back(std::make_unique<group_bench>(x.spec, x.optimizer, small_data(), x.block, emulated));
      groups.push_back(nullptr);
    }
  }

  training_group& group(std::size_t k) {
    if (groups[k] == nullptr) {
      auto how = twins[k]->options;
      how.data = b.data;
      groups[k] = std::make_unique<training_group>(b.ctx, how);
    }
    return *groups[k];
  }
  void join(std::size_t k, std::uint64_t seed) {
    const auto member = group(k).join(seed);
    all.push_back({k, member, twins[k]->group->join(seed), true});
    push(all.back(), static_cast<std::int64_t>(seed));
  }
  void push(const trainer& x, std::int64_t number) {
    groups[x.kind]->set_params(x.member, params_of(number));
    twins[x.kind]->group->set_params(x.twin, params_of(number));
  }
  void leave(std::size_t i) {
    groups[all[i].kind]->leave(all[i].member);
    twins[all[i].kind]->group->leave(all[i].twin);
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
  }
  void train(std::size_t k, int steps) {
    std::vector<std::int64_t> who, same;
    for (const auto& x : all)
      if (x.kind == k && x.active) {
        who.push_back(x.member);
        same.push_back(x.twin);
      }
    if (who.empty())
      return;
    groups[k]->set_active(who);
    twins[k]->group->set_active(same);
    for (int i = 0; i < steps; ++i) {
      groups[k]->step();
      twins[k]->group->step();
    }
  }
  core::checkpoint saved(const trainer& x) {
    core::checkpoint out;
    groups[x.kind]->save(x.member, out);
    return out;
  }
  void check(const trainer& x) {
    CAPTURE(x.kind);
    CHECK(core::content_hash(saved(x)) == twins[x.kind]->hash(x.twin));
  }
  /// Bytes that all states and their tables take.
  std::uint64_t states() const {
    std::uint64_t sum = 0;
    for (const auto& t : twins)
      sum += t->group->memory_bytes();
    return sum;
  }
};

std::vector<mixed_bench::kind> three_kinds(std::int64_t block) {
  return {{hidden({24, 16}), optimizer_kind::sgd, block},
          {hidden({40}), optimizer_kind::adamw, block},
          {hidden({12, 12, 12}), optimizer_kind::adamw, block}};
}

/// The least budget with which each kind's first member joins while nobody else is there, and a little.
std::uint64_t room_for_one(const std::vector<mixed_bench::kind>& kinds, bool emulated) {
  std::uint64_t most = 0;
  for (const auto& k : kinds) {
    group_bench one(k.spec, k.optimizer, small_data(), k.block, emulated);
    one.group->join(1);
    one.group->join(2);
    most = std::max(most, one.ctx.memory_peak());
  }
  return most;
}

} // namespace

TEST_CASE("members of several architectures at many times the budget train as they would without one bit for bit") {
  for (const std::int64_t block : {1, 3}) {
    CAPTURE(block);
    const auto kinds = three_kinds(block);
    mixed_bench m(kinds, false, room_for_one(kinds, false) + 20'000);
    for (std::uint64_t i = 0; i < (block == 1 ? 36U : 99U); ++i)
      m.join(i % 3, i);
    REQUIRE(m.states() > 3 * (m.b.ctx.memory_budget() - m.b.data->memory_bytes()));
    for (int round = 0; round < 4; ++round)
      for (std::size_t k = 0; k < 3; ++k)
        m.train(k, 3);
    for (std::size_t i = 0; i < m.all.size(); ++i)
      m.check(m.all[i * 7 % m.all.size()]);
    CHECK(m.b.ctx.memory_peak() <= m.b.ctx.memory_budget());
    CHECK(m.b.ctx.snapshot().swaps_in > 36);
    for (const auto& x : m.all) { // measures too
      CHECK(m.groups[x.kind]->evaluate(x.member).loss == m.twins[x.kind]->group->evaluate(x.twin).loss);
      CHECK(m.groups[x.kind]->gradient_norm(x.member) == m.twins[x.kind]->group->gradient_norm(x.twin));
    }
    while (!m.all.empty())
      m.leave(m.all.size() / 2);
    m.groups.clear();
    CHECK(m.b.ctx.memory_used() == m.b.data->memory_bytes());
    CHECK(m.b.ctx.snapshot().pinned_held == 0);
  }
}

TEST_CASE("states and workspace of a group that rests make room and what stays is refused with the numbers once it could not come back") {
  const auto kinds = three_kinds(1);
  mixed_bench m(kinds, false, room_for_one(kinds, false) + 60'000);
  auto& ctx = m.b.ctx;
  for (std::uint64_t i = 0; i < 4; ++i)
    m.join(0, i);
  m.train(0, 2);
  CHECK(ctx.snapshot().swaps_out == 0); // all have room
  const auto floor = ctx.memory_used() - m.b.data->memory_bytes();
  auto taken = ctx.allocate(ctx.memory_free() + 10'000); // of no group's
  CHECK(ctx.snapshot().swaps_out > 0);
  CHECK(m.groups[0]->swaps());
  CHECK(ctx.memory_used() <= ctx.memory_budget());
  const auto text = thrown_text([&] { (void)ctx.allocate(ctx.memory_free() + floor / 2); });
  CHECK(mentions(text, "bytes of the slot's memory budget are in use, and of what can give way "));
  CHECK(mentions(text, " must stay for the trainers that take turns in it; place fewer trainers on this slot"));
  m.train(0, 2); // in what is left
  for (const auto& x : m.all)
    m.check(x);
  taken = {};
  m.train(0, 2);
  for (const auto& x : m.all)
    m.check(x);
}

TEST_CASE("trainers of which each has an architecture of its own take turns in room for little more than one") {
  std::vector<mixed_bench::kind> kinds;
  for (std::int64_t i = 0; i < 8; ++i)
    kinds.push_back({hidden({20 + 3 * i, 16}), i % 2 == 0 ? optimizer_kind::sgd : optimizer_kind::adamw, 1});
  for (const auto capture : {capture_mode::never, capture_mode::always}) {
    mixed_bench m(kinds, false, room_for_one(kinds, false) + 5000, 0, capture);
    for (std::uint64_t i = 0; i < 8; ++i)
      m.join(i, i);
    REQUIRE(m.states() > 4 * (m.b.ctx.memory_budget() - m.b.data->memory_bytes()));
    for (int round = 0; round < 3; ++round)
      for (std::size_t k = 0; k < 8; ++k)
        m.train(k * 3 % 8, 4);
    const auto before = m.b.ctx.snapshot();
    for (const auto& x : m.all)
      m.check(x);
    CHECK(m.b.ctx.snapshot().swaps_in == before.swaps_in); // what is saved is read where it is
    CHECK(m.b.ctx.memory_peak() <= m.b.ctx.memory_budget());
    CHECK((before.launches > 0) == (capture == capture_mode::always));
  }
}

TEST_CASE("without pinned memory groups do not give way to each other and the refusal says so") {
  const auto kinds = three_kinds(1);
  mixed_bench m(kinds, false, room_for_one(kinds, false) + 9000, 100);
  auto& ctx = m.b.ctx;
  std::string text;
  for (std::uint64_t i = 0; i < 64 && text.empty(); ++i)
    text = thrown_text([&] { m.join(0, i); });
  REQUIRE(m.all.size() >= 2);
  m.train(0, 1);
  text = thrown_text([&] { m.join(1, 7); });
  CHECK(mentions(text, "bytes of the slot's memory budget are in use"));
  CHECK(mentions(text, "of the slot's 100 bytes"));
  CHECK(mentions(thrown_text([&] { (void)ctx.allocate(ctx.memory_free() + 4000); }),
                 " by states that cannot wait on the host (0 of the slot's 100 bytes of pinned memory are in use); place fewer trainers on "
                 "this slot, make model or batch smaller, or raise its budget or its pinned_bytes"));
  m.groups[1].reset();
  m.train(0, 2);
  for (const auto& x : m.all)
    m.check(x);
  CHECK(ctx.snapshot().swaps_out == 0);
}

TEST_CASE("a group may end on another thread while others make room") {
  const auto kinds = three_kinds(1);
  mixed_bench m(kinds, false, room_for_one(kinds, false) + 20'000);
  for (int round = 0; round < 5; ++round) {
    for (std::uint64_t i = 0; i < 9; ++i)
      m.join(i % 3, i);
    std::thread other([group = std::move(m.groups[0])]() mutable { group.reset(); });
    std::erase_if(m.all, [&](const auto& x) {
      if (x.kind == 0)
        m.twins[0]->group->leave(x.twin);
      return x.kind == 0;
    });
    for (int i = 0; i < 4; ++i)
      m.train(1 + static_cast<std::size_t>(i % 2), 1);
    other.join();
    for (const auto& x : m.all)
      m.check(x);
    while (!m.all.empty())
      m.leave(0);
  }
}

namespace {

/// Members of several architectures join, leave, rest, copy each other and load at random; each ends as its twin.
context::usage random_mix(std::uint64_t seed, mixed_bench& m, int actions, std::size_t most) {
  CAPTURE(seed);
  core::random_stream rng(seed, "mix");
  const auto any = [&](std::size_t n) { return static_cast<std::size_t>(rng.uniform(0, 1) * static_cast<double>(n)) % n; };
  for (int i = 0; i < actions; ++i) {
    const auto what = rng.uniform(0, 1);
    if (m.all.empty() || (what < 0.3 && m.all.size() < most)) {
      m.join(any(m.kinds.size()), seed * 1000 + static_cast<std::uint64_t>(i));
    } else if (what < 0.36) {
      const auto k = any(m.all.size());
      m.check(m.all[k]);
      m.leave(k);
    } else if (what < 0.46) {
      auto& x = m.all[any(m.all.size())];
      x.active = !x.active;
    } else if (what < 0.54) {
      m.push(m.all[any(m.all.size())], static_cast<std::int64_t>(any(40)));
    } else if (what < 0.62) {
      const auto &from = m.all[any(m.all.size())], &to = m.all[any(m.all.size())];
      if (from.kind == to.kind && &from != &to) {
        m.groups[to.kind]->copy(from.member, to.member, true);
        m.twins[to.kind]->group->copy(from.twin, to.twin, true);
      }
    } else if (what < 0.7) {
      const auto &from = m.all[any(m.all.size())], &to = m.all[any(m.all.size())];
      if (from.kind == to.kind) {
        const auto state = m.saved(from);
        m.groups[to.kind]->load(to.member, state, false);
        m.twins[to.kind]->group->load(to.twin, state, false);
      }
    } else if (what < 0.74) {
      const auto& x = m.all[any(m.all.size())];
      m.groups[x.kind]->reset(x.member, seed + static_cast<std::uint64_t>(i));
      m.twins[x.kind]->group->reset(x.twin, seed + static_cast<std::uint64_t>(i));
    } else if (what < 0.78) {
      const auto& x = m.all[any(m.all.size())];
      CHECK(m.groups[x.kind]->evaluate(x.member).loss == m.twins[x.kind]->group->evaluate(x.twin).loss);
    } else {
      m.train(any(m.kinds.size()), 1 + static_cast<int>(any(3)));
    }
  }
  for (const auto& x : m.all)
    m.check(x);
  CHECK(m.b.ctx.memory_peak() <= m.b.ctx.memory_budget());
  return m.b.ctx.snapshot();
}

} // namespace

TEST_CASE("members of several architectures that come and go in one budget end as each would alone bit for bit") {
  std::uint64_t seed = 1, swaps = 0, staged = 0, launches = 0;
  for (const std::int64_t block : {1, 2, 4})
    for (const auto capture : {capture_mode::never, capture_mode::always})
      for (const bool stage : {false, true}) {
        const auto kinds = three_kinds(block);
        mixed_bench m(kinds, false, room_for_one(kinds, false) + (stage ? 60'000 : 20'000), 0, capture, stage);
        const auto did = random_mix(seed++, m, 150, 20);
        swaps += did.swaps_in;
        staged += did.staged_bytes;
        launches += did.launches;
      }
  CHECK(swaps > 300);
  CHECK(staged > 0);
  CHECK(launches > 100);
}

#if !defined(__SANITIZE_THREAD__) // which does not know coroutines
TEST_CASE("on an emulated GPU captured members of several architectures in one budget end as each would alone") {
  // SGD goes into the momentum where all of a page may: within rounding only.
  const std::vector<mixed_bench::kind> kinds{{hidden({4}), optimizer_kind::adamw}, {hidden({6}), optimizer_kind::adamw}};
  std::uint64_t seed = 50;
  for (const bool stage : {false, true}) {
    mixed_bench m(kinds, true, room_for_one(kinds, true) + (stage ? 12'500 : 2000), 0, capture_mode::always, stage);
    const auto did = random_mix(seed++, m, 55, 7);
    CHECK(did.swaps_in > 5);
    CHECK(did.launches > 0);
    CHECK(did.capture_fault.empty());
  }
}
#endif

TEST_CASE("what stays is refused where room for it would leave states that can no longer go no room to come back") {
  const std::vector<mixed_bench::kind> kinds{{hidden({24, 16}), optimizer_kind::sgd, 1}, {hidden({24, 17}), optimizer_kind::sgd, 1}};
  mixed_bench m(kinds, false, 1 << 20);
  std::uint64_t states = 0;
  for (const std::size_t k : {0U, 1U}) {
    m.join(k, k);
    const auto one = m.group(k).memory_bytes();
    for (std::uint64_t i = 1; i < 8; ++i)
      m.join(k, 10 * k + i);
    if (k == 1)
      states = m.group(k).memory_bytes() - one;
  }
  const auto used = m.b.ctx.memory_used(), pinned = states / 7 * 8 + 4096; // one kind may go, not both
  mixed_bench t(kinds, false, used + 1000, pinned);
  for (const std::size_t k : {0U, 1U})
    for (std::uint64_t i = 0; i < 8; ++i)
      t.join(k, 10 * k + i);
  REQUIRE(t.b.ctx.snapshot().swaps_out == 0);
  t.train(0, 1);
  t.train(1, 1);
  buffer taken; // for good, as much as is given
  for (auto bytes = used; !taken && bytes > 1000; bytes -= 1000)
    (void)thrown_text([&] { taken = t.b.ctx.allocate(bytes); });
  CHECK(t.b.ctx.snapshot().swaps_out > 0);
  for (int round = 0; round < 3; ++round) {
    t.train(0, 1);
    t.train(1, 1);
  }
  for (const auto& x : t.all)
    t.check(x);
}

TEST_CASE("pinned memory is refused that states need to make room for those who wait") {
  const std::vector<mixed_bench::kind> kinds{{hidden({24, 16}), optimizer_kind::sgd, 1}, {hidden({24, 17}), optimizer_kind::sgd, 1}};
  mixed_bench m(kinds, false, 1 << 20);
  for (const std::size_t k : {0U, 1U})
    for (std::uint64_t i = 0; i < 8; ++i)
      m.join(k, 10 * k + i);
  const auto used = m.b.ctx.memory_used(), pinned = std::uint64_t{16 * 8300};
  mixed_bench t(kinds, false, used + 1000, pinned);
  for (const std::size_t k : {0U, 1U})
    for (std::uint64_t i = 0; i < 8; ++i)
      t.join(k, 10 * k + i);
  auto& ctx = t.b.ctx;
  REQUIRE(ctx.snapshot().swaps_out == 0);
  t.train(0, 1);
  t.train(1, 1);
  const auto taken = ctx.allocate(ctx.memory_free() + t.group(0).memory_bytes() - 2500);
  CHECK(t.group(0).swaps());
  CHECK_FALSE(t.group(1).swaps());
  // So much is left that the second kind can't go beside it.
  const auto left = pinned - ctx.snapshot().pinned_used;
  const auto text = thrown_text([&] { (void)ctx.allocate_host(left - 30'000); });
  CHECK(mentions(text, "bytes are in use, and what is left must stay for "));
  CHECK(mentions(text, " bytes of states that make room for others; place fewer trainers on this slot, or raise its pinned_bytes"));
  CHECK(ctx.allocate_host(1000));
  for (int round = 0; round < 3; ++round) {
    t.train(0, 1);
    t.train(1, 1);
  }
  for (const auto& x : t.all)
    t.check(x);
}
