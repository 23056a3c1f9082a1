#include "training_group_impl.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <stdexcept>
#include <string>

namespace troupe::gpu {

namespace {

/// "weights.dense0.weight" -> "momentum.dense0.weight"
std::string state_name(std::string_view prefix, const parameter& p) {
  return std::string(prefix) + p.name.substr(p.name.find('.'));
}

} // namespace

/// Covers these members with passes that do not train: `f(first row, count, each)`, where each(g) calls
/// g(index, lane) for those of them that the pass computes.
template <class F>
void training_group::impl::in_passes(std::span<const std::int64_t> members, F&& f) {
  std::map<std::int64_t, std::vector<std::size_t>> by_page; // what computes together lies in one
  for (std::size_t i = 0; i < members.size(); ++i)
    by_page[records->page_of(row(members[i]))].push_back(i);
  for (const auto& [page, who] : by_page) {
    auto first = count(), end = std::int64_t{0};
    for (const auto i : who) {
      first = std::min(first, row(members[i]));
      end = std::max(end, row(members[i]) + 1);
    }
    // At once even if others in between are computed for nothing, as long as they are not most.
    if (at_once && end - first <= 4 * std::ssize(who))
      f(first, end - first, [&](auto&& g) {
        for (const auto i : who)
          g(i, row(members[i]) - first);
      });
    else
      for (const auto i : who)
        f(row(members[i]), 1, [&](auto&& g) { g(i, 0); });
  }
}

training_group::losses training_group::impl::taken(member_counters& c) {
  const losses out{static_cast<double>(c.loss_sum), c.loss_count, c.correct, c.step, c.not_finite != 0};
  c.loss_sum = 0;
  c.loss_count = c.correct = c.not_finite = 0;
  return out;
}

/// Every state tensor of a member: (checkpoint name, shape, where in its record, size).
template <class F>
void training_group::impl::each_tensor(F&& f) const {
  const auto& l = layout;
  for (const auto& p : l.weights)
    f(p.name, p.shape, p.offset, p.size);
  for (const auto& p : l.statistics)
    f(p.name, p.shape, at.statistics + p.offset, p.size);
  const bool sgd = options.optimizer == optimizer_kind::sgd;
  for (const auto& p : l.weights)
    f(state_name(sgd ? "momentum" : "moment1", p), p.shape, at.first + p.offset, p.size);
  if (!sgd)
    for (const auto& p : l.weights)
      f(state_name("moment2", p), p.shape, at.second + p.offset, p.size);
}

member_counters training_group::counters(std::int64_t member) {
  return impl_->read_counters(impl_->row(member));
}

training_group::losses training_group::take_losses(std::int64_t member) {
  losses out;
  take_losses({&member, 1}, {&out, 1});
  return out;
}

void training_group::take_losses(std::span<const std::int64_t> members, std::span<losses> out) {
  auto& m = *impl_;
  if (members.empty())
    return;
  auto first = m.row(members.front()), end = first + 1;
  for (const auto k : members) {
    first = std::min(first, m.row(k));
    end = std::max(end, m.row(k) + 1);
  }
  m.exchange.resize(static_cast<std::size_t>(end - first));
  const auto bytes = m.exchange.size() * sizeof(member_counters);
  m.ctx.download(m.exchange.data(), m.counters_at(first), bytes);
  for (std::size_t i = 0; i < members.size(); ++i)
    out[i] = impl::taken(m.exchange[static_cast<std::size_t>(m.row(members[i]) - first)]);
  m.ctx.upload(m.counters_at(first), m.exchange.data(), bytes);
}

training_group::quality training_group::evaluate(std::int64_t member) {
  quality out;
  evaluate({&member, 1}, {&out, 1});
  return out;
}

void training_group::evaluate(std::span<const std::int64_t> members, std::span<quality> out) {
  auto& m = *impl_;
  const impl::work_scope work(m);
  const auto& test = m.options.data->test();
  const auto rows = m.net->rows();
  auto* counters = m.lane.probe.as<member_counters>();
  model::pass p;
  p.training = false;
  p.params = m.lane.plain_params.as<member_params>();
  p.counters = counters;
  m.in_passes(members, [&](std::int64_t first, std::int64_t count, auto&& each) {
    m.net->select(m.state_of(first, false), count);
    each([&](std::size_t i, std::int64_t) { out[i] = {}; });
    // Whole batches, then the rest, each with counters of their own: losses are means over a batch's rows.
    const auto whole = test.examples / rows * rows;
    const std::array<std::pair<std::int64_t, std::int64_t>, 2> ranges{{{0, whole}, {whole, test.examples}}};
    for (const auto& [from, to] : ranges) {
      if (from == to)
        continue;
      m.exchange.assign(static_cast<std::size_t>(count), {});
      m.ctx.upload(counters, std::span<const member_counters>(m.exchange));
      p.rows = std::min(rows, to - from);
      for (auto offset = from; offset < to; offset += p.rows) {
        const auto source = m.feed.test(offset, p.rows);
        m.net->load_input(source.data, counters, source.offset, p.rows);
        m.feed.taken();
        m.net->forward(p);
        m.net->loss(p);
      }
      m.ctx.download(m.exchange.data(), counters, m.exchange.size() * sizeof(member_counters));
      each([&, rows_now = p.rows](std::size_t i, std::int64_t lane) {
        const auto& c = m.exchange[static_cast<std::size_t>(lane)];
        out[i].loss += static_cast<double>(c.loss_sum) * static_cast<double>(rows_now);
        out[i].accuracy += c.correct;
      });
    }
    each([&](std::size_t i, std::int64_t) {
      out[i].loss /= static_cast<double>(test.examples);
      out[i].accuracy /= static_cast<double>(test.examples);
    });
  });
}

double training_group::gradient_norm(std::int64_t member) {
  double out = 0;
  gradient_norm({&member, 1}, {&out, 1});
  return out;
}

void training_group::gradient_norm(std::span<const std::int64_t> members, std::span<double> out) {
  auto& m = *impl_;
  const impl::work_scope work(m);
  const auto all = m.size();
  auto* counters = m.lane.probe.as<member_counters>();
  m.in_passes(members, [&](std::int64_t first, std::int64_t count, auto&& each) {
    m.exchange.resize(static_cast<std::size_t>(count));
    const auto bytes = m.exchange.size() * sizeof(member_counters);
    m.ctx.download(m.exchange.data(), m.counters_at(first), bytes);
    for (auto& c : m.exchange) {
      // As the last step saw them: its batch, and its dropout mask.
      c.batch -= c.batch > 0 ? 1 : 0;
      c.step -= c.step > 0 ? 1 : 0;
      impl::taken(c);
    }
    m.ctx.upload(counters, m.exchange.data(), bytes);
    model::pass p;
    p.rows = m.options.batch;
    p.move_statistics = false;
    each([&](std::size_t, std::int64_t lane) {
      p.dropout = p.dropout || m.host_params[static_cast<std::size_t>(first + lane)].dropout > 0;
    });
    p.params = m.params_at(first);
    p.counters = counters;
    m.wanted.assign(static_cast<std::size_t>(count), {});
    each([&](std::size_t, std::int64_t lane) {
      const auto& c = m.exchange[static_cast<std::size_t>(lane)];
      m.wanted[static_cast<std::size_t>(lane)] = {c.seed, c.batch, true};
    });
    m.net->select(m.state_of(first, false), count);
    const auto source = m.feed.next(m.wanted);
    m.net->load_input(source.data, counters, source.offset, p.rows);
    m.feed.taken();
    m.net->forward(p);
    auto* g = m.lane.gradient.as<float>();
    m.net->backward(p, {g, all, 0, g, all});
    gpu::gradient_norm(m.ctx, count, m.gradient_section(0, all), p.params, counters, m.norm_sums(), nullptr);
    m.ctx.download(m.exchange.data(), counters, bytes);
    each([&](std::size_t i, std::int64_t lane) {
      out[i] = static_cast<double>(m.exchange[static_cast<std::size_t>(lane)].grad_norm);
    });
  });
}

void training_group::save(std::int64_t member, core::checkpoint& out) {
  auto& m = *impl_;
  const auto r = m.row(member);
  const impl::work_scope work(m, impl::work_scope::needs::states);
  std::vector<float> host(static_cast<std::size_t>(m.at.stride));
  m.records->read(r, host);
  m.each_tensor([&](const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t at,
                    std::int64_t size) {
    out.add(
        name, core::dtype::f32, shape,
        std::span<const float>(host).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(size)));
  });
  const auto c = m.read_counters(r);
  const std::array<std::uint64_t, 3> state{c.seed, c.step, c.batch};
  out.add("counters", core::dtype::u64, {3}, std::span<const std::uint64_t>(state));
  const std::array<std::uint64_t, 1> updates{c.updates};
  out.add("optimizer.updates", core::dtype::u64, {1}, std::span<const std::uint64_t>(updates));
}

std::vector<internal::device_record::part> training_group::impl::record_parts() const {
  std::vector<internal::device_record::part> out{{"", 0, at.stride}};
  each_tensor([&](const std::string& name, const std::vector<std::int64_t>&, std::int64_t from, std::int64_t n) {
    out.push_back({name, from, n});
  });
  return out;
}

std::shared_ptr<const core::checkpoint::attachment> training_group::keep_on_device(std::int64_t member) {
  auto& m = *impl_;
  const auto r = m.row(member);
  const auto bytes = static_cast<std::uint64_t>(m.at.stride) * sizeof(float);
  if (!m.at_once || !m.records->is_here(r) || m.ctx.memory_free() / 2 < bytes)
    return nullptr;
  const impl::work_scope work(m, impl::work_scope::needs::states);
  auto out = std::make_shared<internal::device_record>();
  try {
    out->data = m.ctx.allocate(bytes);
  } catch (const out_of_memory&) {
    return nullptr; // the device has less than the budget says
  }
  out->parts = m.record_parts();
  m.ctx.copy(out->data.data(), m.record_of(r, false), bytes);
  m.ctx.synchronize(); // other slots take it
  return out;
}

void training_group::load(std::int64_t member, const core::checkpoint& in, bool with_counters) {
  auto& m = *impl_;
  const auto r = m.row(member);
  const impl::work_scope work(m, impl::work_scope::needs::states);
  auto require = [&](const std::string& name, core::dtype type, std::span<const std::int64_t> shape) {
    auto t = in.expect(name, type, shape);
    if (!t)
      throw std::invalid_argument(t.error().text);
    return *t;
  };
  m.each_tensor([&](const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t,
                    std::int64_t) { require(name, core::dtype::f32, shape); });
  constexpr std::array<std::int64_t, 1> three{3}, one{1};
  const auto* state = require("counters", core::dtype::u64, three);
  const auto* updates = require("optimizer.updates", core::dtype::u64, one);

  const auto* near = dynamic_cast<const internal::device_record*>(in.attached());
  if (near == nullptr || near->parts != m.record_parts() || !m.ctx.copy_from_slot(m.record_of(r), near->data)) {
    std::vector<float> host(static_cast<std::size_t>(m.at.stride), 0.0F);
    m.each_tensor(
        [&](const std::string& name, const std::vector<std::int64_t>&, std::int64_t at, std::int64_t) {
          const auto values = in.find(name)->as<float>();
          std::copy(values.begin(), values.end(), host.begin() + at);
        });
    m.ctx.upload(m.record_of(r), std::span<const float>(host));
  }
  m.weights_changed(r);
  auto c = m.read_counters(r);
  c.updates = updates->as<std::uint64_t>().front(); // goes with the moments
  if (with_counters) {
    const auto values = state->as<std::uint64_t>();
    c.seed = values[0];
    c.step = values[1];
    c.batch = values[2];
  }
  m.places[static_cast<std::size_t>(r)] = {c.seed, c.batch, false};
  impl::taken(c);
  m.ctx.upload(m.counters_at(r), &c, sizeof c);
}

} // namespace troupe::gpu
