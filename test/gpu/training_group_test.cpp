#include "troupe/gpu/training_group.hpp"

#include <doctest/doctest.h>

#include "gpu/group_bench.hpp"
#include "troupe/core/random.hpp"

using namespace group_test;

namespace {

std::vector<network_spec> architectures() {
  auto normed = dense(), low = dense();
  normed.norm = norm_kind::batch;
  low.precision = precision_kind::bf16;
  network_spec images;
  images.conv = {{8, 3, 1, 1, 2}, {6, 3, 1, 1, 1}};
  return {dense(), normed, low, images};
}

const nlohmann::json& data_for(const network_spec& s) {
  static const auto numbers = small_data(), images = small_images();
  return s.conv.empty() ? numbers : images;
}

/// What was done to a member, to be done again to one that trains alone.
struct history {
  enum class kind { steps, params, copied };
  struct entry {
    kind what;
    std::int64_t number = 0; ///< of steps, or of params_of
    core::checkpoint from;
  };
  std::uint64_t seed = 0;
  std::vector<entry> entries;

  void step() {
    if (entries.empty() || entries.back().what != kind::steps)
      entries.push_back({kind::steps, 0, {}});
    ++entries.back().number;
  }
  core::checkpoint alone(group_bench& b) const {
    const auto k = b.group->join(seed);
    b.group->set_active(std::vector{k});
    for (const auto& e : entries)
      switch (e.what) {
      case kind::steps:
        for (std::int64_t i = 0; i < e.number; ++i)
          b.group->step();
        break;
      case kind::params: b.group->set_params(k, params_of(e.number)); break;
      case kind::copied: b.group->load(k, e.from, false); break;
      }
    auto out = b.saved(k);
    b.group->leave(k);
    return out;
  }
};

bool equal(const core::checkpoint& a, const core::checkpoint& b) {
  return core::content_hash(a) == core::content_hash(b);
}

/// The largest difference of two states' floats, relative to the largest number of their tensor.
double difference(const core::checkpoint& a, const core::checkpoint& b) {
  double worst = 0;
  for (const auto& t : a.tensors()) {
    const auto* u = b.find(t.name);
    REQUIRE(u != nullptr);
    if (t.type != core::dtype::f32) {
      CHECK(*u == t);
      continue;
    }
    const auto x = t.as<float>(), y = u->as<float>();
    double top = 1e-3, off = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      top = std::max({top, std::abs(static_cast<double>(x[i])), std::abs(static_cast<double>(y[i]))});
      off = std::max(off, std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
    }
    worst = std::max(worst, off / top);
  }
  return worst;
}

/// How a group's context is made, and whether its data lies there.
struct company_slot {
  std::int64_t block = 1;
  bool emulated = false;
  std::uint64_t budget = 0;
  bool staged = false;
  capture_mode capture = capture_mode::never;
};

/// Members join, leave, rest, get other hyperparameters, copy each other and diverge at random; each ends as it would have alone.
/// Returns what the group's context did.
context::usage random_company(std::uint64_t seed, network_spec spec, optimizer_kind optimizer, const company_slot& slot,
                              int actions, double tolerance) {
  const auto block = slot.block;
  CAPTURE(seed);
  CAPTURE(spec.describe());
  CAPTURE(block);
  core::random_stream rng(seed, "company");
  const auto any = [&](std::size_t n) { return static_cast<std::size_t>(rng.uniform(0, 1) * static_cast<double>(n)) % n; };
  group_bench b(spec, optimizer, data_for(spec), block, slot.emulated, slot.budget, 0, slot.capture),
    solo(spec, optimizer, data_for(spec));
  if (slot.staged)
    b.stage_data();
  struct living {
    std::int64_t member;
    history past;
    bool active = true, lost = false; ///< lost: its loss is not finite
  };
  std::vector<living> all;
  std::vector<std::pair<core::checkpoint, history>> ended;
  std::uint64_t next_seed = seed * 1000;
  const auto push = [&](living& x, std::int64_t number) {
    b.group->set_params(x.member, params_of(number));
    x.past.entries.push_back({history::kind::params, number, {}});
  };
  const auto activate = [&] {
    std::vector<std::int64_t> who;
    for (const auto& x : all)
      if (x.active)
        who.push_back(x.member);
    b.group->set_active(who);
  };
  for (int i = 0; i < actions; ++i) {
    const auto what = rng.uniform(0, 1);
    if (all.empty() || what < 0.2) {
      living x{b.group->join(++next_seed), {}, true, false};
      x.past.seed = next_seed;
      all.push_back(std::move(x));
      push(all.back(), static_cast<std::int64_t>(any(40)));
    } else if (what < 0.3) {
      const auto k = any(all.size());
      if (!all[k].lost)
        ended.emplace_back(b.saved(all[k].member), all[k].past);
      b.group->leave(all[k].member);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(k));
    } else if (what < 0.45) {
      auto& x = all[any(all.size())];
      x.active = !x.active;
    } else if (what < 0.55) {
      push(all[any(all.size())], static_cast<std::int64_t>(any(40)));
    } else if (what < 0.65) {
      const auto from = any(all.size()), to = any(all.size());
      if (from != to && !all[from].lost && !all[to].lost) {
        all[to].past.entries.push_back({history::kind::copied, 0, b.saved(all[from].member)});
        b.group->copy(all[from].member, all[to].member, false);
      }
    } else if (what < 0.7) {
      auto& x = all[any(all.size())];
      x.lost = true;
      auto p = params_of(0);
      p.lr = 1e30F;
      b.group->set_params(x.member, p);
    } else {
      activate();
      const auto n = 1 + any(4);
      for (std::size_t s = 0; s < n; ++s)
        b.group->step();
      for (auto& x : all)
        for (std::size_t s = 0; x.active && s < n; ++s)
          x.past.step();
    }
    CHECK(b.group->members() == static_cast<std::int64_t>(all.size()));
    CHECK(b.group->members() <= b.group->capacity());
  }
  for (const auto& x : all)
    if (!x.lost)
      ended.emplace_back(b.saved(x.member), x.past);
  for (const auto& [state, past] : ended) {
    const auto alone = past.alone(solo);
    if (tolerance == 0)
      CHECK(equal(state, alone));
    else
      CHECK(difference(state, alone) < tolerance);
  }
  return b.ctx.snapshot();
}

/// Bytes that a group of `members` takes beside its data.
std::uint64_t size_of_group(const network_spec& spec, optimizer_kind optimizer, std::int64_t block, bool emulated, int members) {
  group_bench b(spec, optimizer, data_for(spec), block, emulated);
  for (int k = 0; k < members; ++k)
    b.group->join(static_cast<std::uint64_t>(k));
  return b.ctx.memory_peak();
}

} // namespace

TEST_CASE("members of a group train as they would alone whoever else takes part") {
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : architectures())
      for (const std::int64_t block : {1, 3}) {
        CAPTURE(spec.describe());
        group_bench together(spec, optimizer, data_for(spec), block);
        auto& g = *together.group;
        for (std::int64_t k = 0; k < 5; ++k) {
          REQUIRE(g.join(50 + static_cast<std::uint64_t>(k)) == k);
          g.set_params(k, params_of(k == 4 ? 1 : k));
        }
        auto steps = [&](std::vector<std::int64_t> who, int n) {
          g.set_active(who);
          for (int i = 0; i < n; ++i)
            g.step();
        };
        steps({0, 1, 2, 3, 4}, 4);
        const auto resting = together.hash(1);
        steps({4, 0, 2, 3}, 3);
        CHECK(together.hash(1) == resting);
        g.evaluate(0);
        g.gradient_norm(2);
        steps({0, 1, 2, 4}, 2);
        for (std::int64_t k = 0; k < 5; ++k) {
          group_bench alone(spec, optimizer, data_for(spec));
          auto& a = *alone.group;
          a.join(50 + static_cast<std::uint64_t>(k));
          a.set_params(0, params_of(k == 4 ? 1 : k));
          a.set_active(std::vector<std::int64_t>{0});
          const int n = k == 1 ? 6 : k == 3 ? 7 : 9;
          for (int i = 0; i < n; ++i)
            a.step();
          CHECK(g.counters(k).step == static_cast<std::uint64_t>(n));
          CHECK(alone.hash(0) == together.hash(k));
          CHECK(a.evaluate(0).accuracy == g.evaluate(k).accuracy);
          CHECK(a.evaluate(0).loss == g.evaluate(k).loss);
          CHECK(a.gradient_norm(0) == g.gradient_norm(k));
          CHECK(a.take_losses(0).sum == g.take_losses(k).sum);
        }
      }
}

TEST_CASE("whatever happens to its neighbours a member trains as it would alone bit for bit") {
  std::uint64_t seed = 1;
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : architectures())
      for (const std::int64_t block : {1, 2, 4})
        random_company(seed++, spec, optimizer, {.block = block}, 60, 0);
}

#if !defined(__SANITIZE_THREAD__) // which does not know coroutines
TEST_CASE("on an emulated GPU all active members step at once and each as it would alone within rounding") {
  std::uint64_t seed = 100;
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : architectures()) {
      if (!spec.conv.empty() && optimizer == optimizer_kind::adamw)
        continue; // slow, and told apart by the optimizer alone
      const bool low = spec.precision == precision_kind::bf16;
      random_company(seed++, spec, optimizer, {.block = 0, .emulated = true}, 24, low ? 0.05 : 1e-3);
    }
}

TEST_CASE("on an emulated GPU one that rests is not touched and a group grows and shrinks by powers of two") {
  auto spec = dense();
  spec.norm = norm_kind::batch;
  group_bench b(spec, optimizer_kind::adamw, small_data(), 0, true);
  auto& g = *b.group;
  std::vector<std::int64_t> all;
  for (std::uint64_t k = 0; k < 5; ++k)
    all.push_back(g.join(k));
  CHECK(g.capacity() == 8);
  g.set_active(all);
  g.step();
  CHECK(g.turns() == 1);
  CHECK(g.turn(0).size() == 5);
  const auto rests = b.hash(2);
  const auto steps = b.hash(3);
  g.set_active(std::vector<std::int64_t>{1, 3, 4});
  g.step();
  CHECK(b.hash(2) == rests);
  CHECK(b.hash(3) != steps);
  const auto kept = b.hash(4);
  for (const std::int64_t k : {0, 1, 2})
    g.leave(k);
  CHECK(g.capacity() == 4);
  CHECK(b.hash(4) == kept);
  g.leave(3);
  CHECK(g.capacity() == 2);
  CHECK(b.hash(4) == kept);
}
#endif

TEST_CASE("a member that does not fit the budget is refused with the numbers and the others do not notice") {
  for (const bool emulated : {false, true}) {
    if (emulated && !cuda_emulation::available)
      continue;
    CAPTURE(emulated);
    group_bench sized(dense(), optimizer_kind::sgd, small_data(), 1, emulated);
    for (std::uint64_t k = 0; k < 3; ++k)
      sized.group->join(k);
    // Nor is there pinned memory in which states could wait.
    group_bench b(dense(), optimizer_kind::sgd, small_data(), 1, emulated, sized.ctx.memory_peak() + 100, 1);
    auto& g = *b.group;
    std::vector<std::int64_t> all;
    std::string text;
    for (std::uint64_t k = 0; k < 64 && text.empty(); ++k)
      text = thrown_text([&] { all.push_back(g.join(k)); });
    CHECK(mentions(text, "bytes of the slot's memory budget are in use"));
    if (!emulated)
      CHECK(mentions(text, "pinned host memory"));
    REQUIRE(all.size() >= 3);
    CHECK(g.members() == static_cast<std::int64_t>(all.size()));
    g.set_active(all);
    g.step();
    const auto held = b.ctx.memory_used();
    CHECK(!thrown_text([&] { g.join(99); }).empty());
    CHECK(b.ctx.memory_used() == held);
    g.step();
    group_bench alone(dense(), optimizer_kind::sgd, small_data(), 1, emulated);
    alone.group->join(0);
    alone.group->set_active(std::vector<std::int64_t>{0});
    alone.group->step();
    alone.group->step();
    CHECK(difference(alone.saved(0), b.saved(all[0])) < 1e-5);
    g.leave(all[1]);
    g.leave(all[0]);
    if (!emulated)
      CHECK(g.join(7) == all[0]);
  }
}

TEST_CASE("a member can be copied to another place of its group") {
  network_spec spec;
  spec.hidden = {24};
  spec.precision = precision_kind::bf16;
  group_bench b(spec, optimizer_kind::adamw, small_data());
  auto& g = *b.group;
  for (std::uint64_t k = 0; k < 3; ++k)
    g.join(1 + k);
  g.set_active(std::vector<std::int64_t>{0, 1, 2});
  for (int i = 0; i < 5; ++i)
    g.step();
  g.load(1, b.saved(0), true);
  g.copy(0, 2, true);
  CHECK(b.hash(0) == b.hash(1));
  CHECK(b.hash(0) == b.hash(2));
  g.step();
  CHECK(b.hash(0) == b.hash(1)); // the bf16 copy went along
  CHECK(b.hash(0) == b.hash(2));
}

TEST_CASE("groups refuse batches and members that do not fit") {
  network_spec spec;
  spec.hidden = {8};
  group_bench b(spec, optimizer_kind::sgd, small_data());
  CHECK(b.group->batches_per_epoch() == 16);
  b.group->join(1);
  CHECK(mentions(thrown_text([&] { b.group->set_active(std::vector<std::int64_t>{1}); }), "no member 1"));
  auto o = b.options;
  o.batch = 257;
  CHECK(mentions(thrown_text([&] { training_group(b.ctx, o); }), "256"));
  auto fitting = b.spec;
  fitting.norm = norm_kind::batch;
  o.make = network::factory(fitting);
  o.batch = 1;
  CHECK(mentions(thrown_text([&] { training_group(b.ctx, o); }), "at least 2"));
  network lone(b.ctx, b.spec, 1, 4);
  CHECK(mentions(thrown_text([&] { lone.select({}, 2); }), "1 lanes"));
  CHECK(b.group->take_losses(0).count == 0);
}

TEST_CASE("a neighbour's dropout does not lead a member another way") {
  // An activation that is a number as fp32 and 0 as bf16: backward must read the same one whoever shares the turn.
  auto low = dense();
  low.precision = precision_kind::bf16;
  const auto with_tiny_biases = [](const core::checkpoint& from) {
    core::checkpoint out;
    for (auto t : from.tensors()) {
      if (t.name.starts_with("weights.dense0.")) {
        const std::vector<float> x(t.bytes.size() / sizeof(float), t.name.ends_with("bias") ? 1e-41F : 0);
        out.add(t.name, t.type, t.shape, std::span<const float>(x));
      } else {
        out.add(std::move(t));
      }
    }
    return out;
  };
  group_bench alone(low, optimizer_kind::sgd, small_data(), 2), together(low, optimizer_kind::sgd, small_data(), 2);
  member_params plain, drops;
  drops.dropout = 0.5F;
  for (auto* b : {&alone, &together}) {
    auto& g = *b->group;
    g.set_params(g.join(1), plain);
    if (b == &together)
      g.set_params(g.join(2), drops);
    g.load(0, with_tiny_biases(b->saved(0)), true);
    b == &together ? g.set_active(std::vector<std::int64_t>{0, 1}) : g.set_active(std::vector<std::int64_t>{0});
    for (int i = 0; i < 3; ++i)
      g.step();
  }
  CHECK(alone.hash(0) == together.hash(0));
}

TEST_CASE("over thousands of joins and leaves a group holds no more memory than its members need") {
  for (const bool swaps : {false, true}) {
    CAPTURE(swaps);
    const auto room = size_of_group(dense(), optimizer_kind::adamw, 1, false, 8) + 20'000;
    group_bench b(dense(), optimizer_kind::adamw, small_data(), 1, false, swaps ? room : std::uint64_t{64} << 20);
    auto& g = *b.group;
    core::random_stream rng(7, "joins");
    std::vector<std::int64_t> all;
    const auto rounds = [&](int n) {
      for (int i = 0; i < n; ++i) {
        if (all.size() < 2 || (all.size() < 24 && rng.uniform(0, 1) < 0.55)) {
          all.push_back(g.join(static_cast<std::uint64_t>(i)));
        } else {
          std::swap(all[static_cast<std::size_t>(i) % all.size()], all.back());
          g.leave(all.back());
          all.pop_back();
        }
        if (i % 40 == 0) {
          g.set_active(all);
          g.step();
        }
      }
      while (all.size() > 2) {
        g.leave(all.back());
        all.pop_back();
      }
      g.set_active(all);
      g.step();
      return std::pair{b.ctx.memory_used(), b.ctx.snapshot().pinned_used};
    };
    const auto early = rounds(500), late = rounds(2000);
    CHECK(early == late);
    CHECK(late.second == 0);
    CHECK((b.ctx.snapshot().swaps_out > 0) == swaps);
    CHECK(b.ctx.snapshot().pinned_held == 0);
    // No more than two members have who never had others: their records, and small tables of 24 rows.
    group_bench two(dense(), optimizer_kind::adamw, small_data(), 1, false, std::uint64_t{64} << 20);
    two.group->join(1);
    two.group->join(2);
    CHECK(late.first <= two.ctx.memory_used() + 32 * 256);
  }
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("on an emulated GPU a group that was divided for want of room is whole again when few are left") {
  const auto budget = size_of_group(dense(), optimizer_kind::sgd, 0, true, 8) + 3000;
  group_bench b(dense(), optimizer_kind::sgd, small_data(), 0, true, budget), two(dense(), optimizer_kind::sgd, small_data(), 0, true, budget);
  two.group->join(1);
  two.group->join(2);
  auto& g = *b.group;
  std::vector<std::int64_t> all;
  for (int round = 0; round < 3; ++round) {
    for (std::uint64_t k = all.size(); k < 11; ++k)
      all.push_back(g.join(k));
    g.set_active(all);
    CHECK(g.turns() > 1);
    g.step();
    const auto kept = b.hash(all[0]);
    while (all.size() > 1) {
      g.leave(all.back());
      all.pop_back();
    }
    CHECK(b.hash(all[0]) == kept);
    CHECK(g.capacity() == 2);
    CHECK(b.ctx.memory_used() == two.ctx.memory_used());
    CHECK(b.ctx.snapshot().pinned_used == 0);
    g.set_active(all);
    g.step();
    CHECK(b.hash(all[0]) != kept);
  }
  CHECK(b.ctx.memory_peak() <= b.ctx.memory_budget());
}
#endif

TEST_CASE("members whose states take turns in the budget train as they would alone bit for bit") {
  std::uint64_t seed = 300, swaps = 0;
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : architectures())
      for (const std::int64_t block : {1, 3}) {
        // Room for one page or two.
        const auto one = size_of_group(spec, optimizer, block, false, 1), two = size_of_group(spec, optimizer, block, false, int(block) + 1);
        const auto pages = block == 1 ? 1 + seed / 2 % 2 : 1;
        const auto did = random_company(seed++, spec, optimizer, {.block = block, .budget = one + (pages - 1) * (two - one) + 9000}, 60, 0);
        CHECK((did.swaps_out > 0) == (did.swapped_bytes > 0));
        swaps += did.swaps_in;
      }
  CHECK(swaps > 200);
}

TEST_CASE("members whose batches come from the host train as they would alone bit for bit") {
  std::uint64_t seed = 400;
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : architectures())
      for (const bool swaps : {false, true}) {
        const auto budget = swaps ? size_of_group(spec, optimizer, 1, false, 2) + 40'000 : std::uint64_t{16} << 20;
        const auto did = random_company(seed++, spec, optimizer, {.block = 1, .budget = budget, .staged = true}, 40, 0);
        CHECK(did.staged_bytes > 0);
      }
}

TEST_CASE("data that stays on the host gives the same measures as data on the device") {
  for (const auto& spec : architectures()) {
    CAPTURE(spec.describe());
    group_bench here(spec, optimizer_kind::sgd, data_for(spec)), staged(spec, optimizer_kind::sgd, data_for(spec), 1, false, 8 << 20);
    staged.stage_data();
    CHECK(staged.data->staged());
    CHECK(staged.data->memory_bytes() == 0);
    for (auto* b : {&here, &staged}) {
      b->group->join(7);
      b->group->set_active(std::vector<std::int64_t>{0});
      for (int i = 0; i < 20; ++i) // beyond an epoch
        b->group->step();
    }
    CHECK(here.hash(0) == staged.hash(0));
    CHECK(here.group->evaluate(0).loss == staged.group->evaluate(0).loss);
    CHECK(here.group->evaluate(0).accuracy == staged.group->evaluate(0).accuracy);
    CHECK(here.group->gradient_norm(0) == staged.group->gradient_norm(0));
    CHECK(here.group->take_losses(0).sum == staged.group->take_losses(0).sum);
  }
}

TEST_CASE("captured steps compute what direct ones do") {
  std::uint64_t seed = 500;
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : architectures()) {
      const auto did = random_company(seed++, spec, optimizer, {.block = 2, .capture = capture_mode::always}, 60, 0);
      CHECK(did.captures > 0);
      CHECK(did.launches > did.captures);
    }
  const auto both = random_company(seed, dense(), optimizer_kind::sgd,
                                   {.block = 2, .budget = size_of_group(dense(), optimizer_kind::sgd, 2, false, 3) + 40'000,
                                    .staged = true, .capture = capture_mode::always}, 80, 0);
  CHECK(both.launches > 0);
}

#if !defined(__SANITIZE_THREAD__)
TEST_CASE("on an emulated GPU members whose states take turns train as they would alone") {
  network_spec tiny;
  tiny.hidden = {4};
  group_bench b(tiny, optimizer_kind::sgd, small_data(), 0, true, 1 << 20, 0, capture_mode::always);
  std::vector<std::int64_t> all;
  buffer taken; // leaves room for a state or two more
  for (std::uint64_t k = 0; k < 6; ++k) {
    all.push_back(b.group->join(k));
    if (k == 1)
      taken = b.ctx.allocate(b.ctx.memory_free() - 3000);
  }
  CHECK(b.group->swaps());
  b.group->set_active(all);
  CHECK(b.group->turns() == 6);
  for (int i = 0; i < 4; ++i)
    b.group->step();
  CHECK(b.ctx.memory_peak() <= b.ctx.memory_budget());
  CHECK(b.ctx.snapshot().swaps_in > 12);
  CHECK(b.ctx.snapshot().launches > 0);
  for (const std::int64_t k : {0, 3, 5}) {
    group_bench alone(tiny, optimizer_kind::sgd, small_data(), 0, true);
    alone.group->join(static_cast<std::uint64_t>(k));
    alone.group->set_active(std::vector<std::int64_t>{0});
    for (int i = 0; i < 4; ++i)
      alone.group->step();
    CHECK(alone.hash(0) == b.hash(k));
  }
}

TEST_CASE("on an emulated GPU members divided and swapped and staged and captured train as each would alone") {
  network_spec tiny; // an emulated thread is slow
  tiny.hidden = {12};
  std::uint64_t seed = 600;
  for (const bool staged : {false, true}) {
    const auto budget = size_of_group(tiny, optimizer_kind::sgd, 0, true, 1) + (staged ? 12'500 : 4000);
    const auto did = random_company(seed, tiny, optimizer_kind::sgd, {.block = 0, .emulated = true, .budget = budget, .staged = staged,
                                                                      .capture = capture_mode::always}, 40, 1e-3);
    seed += 2;
    CHECK(did.swaps_in > 10);
    CHECK(did.launches > did.captures);
    CHECK((did.staged_bytes > 0) == staged);
  }
}
#endif
