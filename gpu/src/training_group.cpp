#include "troupe/gpu/training_group.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace troupe::gpu {

std::string_view to_string(optimizer_kind x) noexcept {
  return x == optimizer_kind::sgd ? "sgd" : "adamw";
}

namespace {

constexpr std::int64_t norm_scratch = 256; // floats a member, see gradient_norm
constexpr std::int64_t evaluation_rows = 256;

/// "weights.dense0.weight" -> "momentum.dense0.weight"
std::string state_name(std::string_view prefix, const parameter& p) {
  return std::string(prefix) + p.name.substr(p.name.find('.'));
}

} // namespace

struct training_group::impl {
  context& ctx;
  optimizer_kind optimizer;
  std::int64_t batch;
  std::shared_ptr<const resident_data> data;
  network net;
  std::int64_t members, stride;
  std::vector<buffer> buffers;
  float* first = nullptr;    ///< SGD's momentum, AdamW's first moment
  float* second = nullptr;   ///< AdamW's second moment
  float* gradient = nullptr;
  float* scratch = nullptr;
  member_params* params = nullptr;
  member_params* plain_params = nullptr; ///< all zero: evaluation
  member_counters* counters = nullptr;
  member_counters* probe = nullptr;      ///< of passes that are not training
  std::uint8_t* active = nullptr;
  std::vector<member_params> host_params;
  std::vector<std::uint8_t> host_active;
  bool all_active = true;

  impl(context& c, network_spec spec, optimizer_kind o, std::int64_t k, std::int64_t b, std::shared_ptr<const resident_data> d)
    : ctx(c), optimizer(o), batch(b), data(std::move(d)), net(c, std::move(spec), k, std::max(b, evaluation_rows)), members(k),
      stride(net.stride()) {
    if (batch < 1 || batch > data->train().examples)
      throw std::invalid_argument("batch: " + std::to_string(batch) + " is not between 1 and the number of training examples, "
                                  + std::to_string(data->train().examples));
    if (net.spec().norm == norm_kind::batch && batch < 2)
      throw std::invalid_argument("batch: batch normalisation needs at least 2 examples in a batch");
    first = take<float>(stride);
    if (optimizer == optimizer_kind::adamw)
      second = take<float>(stride);
    gradient = take<float>(stride);
    scratch = take<float>(norm_scratch);
    params = take<member_params>(1);
    plain_params = take<member_params>(1);
    counters = take<member_counters>(1);
    probe = take<member_counters>(1);
    active = take<std::uint8_t>(1);
    host_params.resize(static_cast<std::size_t>(members));
    host_active.assign(static_cast<std::size_t>(members), 1);
    ctx.upload(active, std::span<const std::uint8_t>(host_active));
    const std::vector<member_params> zero(host_params.size());
    ctx.upload(plain_params, std::span<const member_params>(zero));
    ctx.upload(params, std::span<const member_params>(host_params));
  }

  /// Zeroed.
  template <class T>
  T* take(std::int64_t per_member) {
    buffers.push_back(ctx.allocate_of<T>(static_cast<std::size_t>(per_member * members)));
    ctx.zero(buffers.back().data(), buffers.back().size());
    return buffers.back().template as<T>();
  }

  /// Members first … first + count - 1, in a step together.
  struct range {
    std::int64_t first, count;
  };

  std::span<const member_params> params_of(range r) const {
    return std::span(host_params).subspan(static_cast<std::size_t>(r.first), static_cast<std::size_t>(r.count));
  }
  vec<float> part(float* base, range r, std::int64_t from, std::int64_t to) const {
    return {base + r.first * stride + from, to - from, stride};
  }
  vec<bf16> low_part(range r, std::int64_t from, std::int64_t to) const {
    return net.low() == nullptr ? vec<bf16>{} : vec<bf16>{net.low() + r.first * stride + from, to - from, stride};
  }

  /// Plain SGD needs no gradients of their own for matrices: products go straight into the momentum. The factor is an argument
  /// of the product, so it must be everyone's, and a member that rests must not be touched.
  bool products_into_momentum(range r) const {
    if (optimizer != optimizer_kind::sgd || !(all_active || r.count == 1))
      return false;
    const auto ps = params_of(r);
    return std::all_of(ps.begin(), ps.end(), [&](const member_params& p) {
      return p.clip_norm <= 0 && p.weight_decay == 0 && p.nesterov == 0 && p.momentum == ps.front().momentum;
    });
  }

  network::pass training_pass(range r) const {
    network::pass p;
    p.rows = batch;
    const auto ps = params_of(r);
    p.dropout = std::any_of(ps.begin(), ps.end(), [](const member_params& m) { return m.dropout > 0; });
    p.params = params + r.first;
    p.counters = counters + r.first;
    p.active = all_active || r.count == 1 ? nullptr : active + r.first;
    return p;
  }

  /// On the CPU members take turns within a step: each has the caches to itself and does exactly what it would do alone. A GPU
  /// needs all of them at once to be busy.
  void step() {
    if (ctx.kind() != device_kind::cpu)
      return step({0, members});
    for (std::int64_t k = 0; k < members; ++k)
      if (host_active[static_cast<std::size_t>(k)] != 0)
        step({k, 1});
  }

  void step(range r) {
    net.select(r.first, r.count);
    const auto p = training_pass(r);
    begin_step(ctx, r.count, p.params, p.counters, p.active);
    net.load_input(data->train(), p.counters, -1, batch);
    net.forward(p);
    const auto all = net.size(), matrices = net.matrix_size();
    auto* g = gradient + r.first * stride;
    if (products_into_momentum(r)) {
      net.backward(p, {first + r.first * stride, params_of(r).front().momentum, g});
      sgd_apply(ctx, r.count, part(net.weights(), r, 0, matrices), part(first, r, 0, matrices), p.counters,
                low_part(r, 0, matrices), p.active);
      sgd(ctx, r.count, part(net.weights(), r, matrices, all), part(first, r, matrices, all), part(gradient, r, matrices, all),
          p.params, p.counters, {}, p.active);
    } else {
      net.backward(p, {g, 0, g});
      update(r, p);
    }
    end_step(ctx, r.count, p.counters, p.active);
  }

  void update(range r, const network::pass& p) {
    const auto all = net.size();
    const auto w = part(net.weights(), r, 0, all), g = part(gradient, r, 0, all);
    const auto ps = params_of(r);
    if (std::any_of(ps.begin(), ps.end(), [](const member_params& m) { return m.clip_norm > 0; }))
      gradient_norm(ctx, r.count, g, p.params, p.counters, scratch_of(r), p.active);
    if (optimizer == optimizer_kind::sgd)
      sgd(ctx, r.count, w, part(first, r, 0, all), g, p.params, p.counters, low_part(r, 0, all), p.active);
    else
      adamw(ctx, r.count, w, part(first, r, 0, all), part(second, r, 0, all), g, p.params, p.counters, low_part(r, 0, all),
            p.active);
  }

  vec<float> scratch_of(range r) const { return {scratch + r.first * norm_scratch, norm_scratch, norm_scratch}; }

  std::vector<member_counters> read(const member_counters* from) {
    std::vector<member_counters> out(static_cast<std::size_t>(members));
    ctx.download(out.data(), from, out.size() * sizeof(member_counters));
    return out;
  }

  void forget_losses(member_counters& c) const {
    c.loss_sum = 0;
    c.loss_count = c.correct = c.not_finite = 0;
  }

  /// Every state tensor of a member: (checkpoint name, shape, device address).
  template <class F>
  void each_tensor(std::int64_t member, F&& f) {
    for (const auto& p : net.parameters())
      f(p.name, p.shape, net.weights() + member * stride + p.offset, p.size);
    for (const auto& p : net.statistics())
      f(p.name, p.shape, net.running() + member * net.statistics_stride() + p.offset, p.size);
    const bool sgd = optimizer == optimizer_kind::sgd;
    for (const auto& p : net.parameters())
      f(state_name(sgd ? "momentum" : "moment1", p), p.shape, first + member * stride + p.offset, p.size);
    if (!sgd)
      for (const auto& p : net.parameters())
        f(state_name("moment2", p), p.shape, second + member * stride + p.offset, p.size);
  }
};

training_group::training_group(context& ctx, network_spec spec, optimizer_kind optimizer, std::int64_t members,
                               std::int64_t batch, std::shared_ptr<const resident_data> data)
  : impl_(std::make_unique<impl>(ctx, std::move(spec), optimizer, members, batch, std::move(data))) {
}

training_group::~training_group() = default;

network& training_group::net() noexcept {
  return impl_->net;
}
const network& training_group::net() const noexcept {
  return impl_->net;
}
optimizer_kind training_group::optimizer() const noexcept {
  return impl_->optimizer;
}
std::int64_t training_group::members() const noexcept {
  return impl_->members;
}
std::int64_t training_group::batch() const noexcept {
  return impl_->batch;
}
const resident_data& training_group::data() const noexcept {
  return *impl_->data;
}
std::int64_t training_group::batches_per_epoch() const noexcept {
  return impl_->data->train().examples / impl_->batch;
}

void training_group::reset(std::int64_t member, std::uint64_t seed) {
  auto& m = *impl_;
  m.net.initialise(member, seed);
  const auto bytes = static_cast<std::size_t>(m.stride) * sizeof(float);
  m.ctx.zero(m.first + member * m.stride, bytes);
  if (m.second != nullptr)
    m.ctx.zero(m.second + member * m.stride, bytes);
  member_counters c;
  c.seed = seed;
  m.ctx.upload(m.counters + member, &c, sizeof c);
}

void training_group::set_params(std::int64_t member, const member_params& params) {
  impl_->host_params.at(static_cast<std::size_t>(member)) = params;
  impl_->ctx.upload(impl_->params + member, &params, sizeof params);
}

const member_params& training_group::params(std::int64_t member) const {
  return impl_->host_params.at(static_cast<std::size_t>(member));
}

void training_group::set_active(std::span<const std::uint8_t> active) {
  auto& m = *impl_;
  if (active.size() != m.host_active.size())
    throw std::invalid_argument("training_group: the active mask has " + std::to_string(active.size()) + " entries for "
                                + std::to_string(m.members) + " members");
  m.host_active.assign(active.begin(), active.end());
  m.all_active = std::all_of(active.begin(), active.end(), [](auto x) { return x != 0; });
  m.ctx.upload(m.active, active);
}

void training_group::step() {
  impl_->step();
}

member_counters training_group::counters(std::int64_t member) {
  member_counters out;
  impl_->ctx.download(&out, impl_->counters + member, sizeof out);
  return out;
}

training_group::losses training_group::take_losses(std::int64_t member) {
  auto c = counters(member);
  losses out;
  out.sum = static_cast<double>(c.loss_sum);
  out.count = c.loss_count;
  out.correct = c.correct;
  out.not_finite = c.not_finite != 0;
  impl_->forget_losses(c);
  impl_->ctx.upload(impl_->counters + member, &c, sizeof c);
  return out;
}

std::vector<training_group::quality> training_group::evaluate() {
  auto& m = *impl_;
  const auto& test = m.data->test();
  network::pass p;
  m.net.select(0, m.members);
  p.training = false;
  p.params = m.plain_params;
  p.counters = m.probe;
  std::vector<quality> out(static_cast<std::size_t>(m.members));
  // Whole batches, then the rest, each with counters of their own: losses are means over a batch's rows.
  const auto whole = test.examples / m.net.rows() * m.net.rows();
  const std::array<std::pair<std::int64_t, std::int64_t>, 2> ranges{{{0, whole}, {whole, test.examples}}};
  for (const auto& [from, to] : ranges) {
    if (from == to)
      continue;
    const std::vector<member_counters> fresh(out.size());
    m.ctx.upload(m.probe, std::span<const member_counters>(fresh));
    p.rows = std::min(m.net.rows(), to - from);
    for (auto at = from; at < to; at += p.rows) {
      m.net.load_input(test, m.probe, at, p.rows);
      m.net.forward(p);
      m.net.loss(p);
    }
    const auto counted = m.read(m.probe);
    for (std::size_t k = 0; k < out.size(); ++k) {
      out[k].loss += static_cast<double>(counted[k].loss_sum) * static_cast<double>(p.rows);
      out[k].accuracy += counted[k].correct;
    }
  }
  for (auto& q : out) {
    q.loss /= static_cast<double>(test.examples);
    q.accuracy /= static_cast<double>(test.examples);
  }
  return out;
}

std::vector<double> training_group::gradient_norms() {
  auto& m = *impl_;
  auto last = m.read(m.counters);
  for (auto& c : last) {
    // As the last step saw them: its batch, and its dropout mask.
    c.batch -= c.batch > 0 ? 1 : 0;
    c.step -= c.step > 0 ? 1 : 0;
    m.forget_losses(c);
  }
  m.ctx.upload(m.probe, std::span<const member_counters>(last));
  const impl::range everyone{0, m.members};
  m.net.select(0, m.members);
  auto p = m.training_pass(everyone);
  p.counters = m.probe;
  p.move_statistics = false;
  p.active = nullptr;
  m.net.load_input(m.data->train(), m.probe, -1, m.batch);
  m.net.forward(p);
  m.net.backward(p, {m.gradient, 0, m.gradient});
  gradient_norm(m.ctx, m.members, m.part(m.gradient, everyone, 0, m.net.size()), m.params, m.probe, m.scratch_of(everyone),
                nullptr);
  std::vector<double> out;
  for (const auto& c : m.read(m.probe))
    out.push_back(static_cast<double>(c.grad_norm));
  return out;
}

void training_group::save(std::int64_t member, core::checkpoint& out) {
  auto& m = *impl_;
  m.each_tensor(member, [&](const std::string& name, const std::vector<std::int64_t>& shape, float* at, std::int64_t size) {
    std::vector<float> host(static_cast<std::size_t>(size));
    m.ctx.download(host.data(), at, host.size() * sizeof(float));
    out.add(name, core::dtype::f32, shape, std::span<const float>(host));
  });
  const auto c = counters(member);
  const std::array<std::uint64_t, 3> state{c.seed, c.step, c.batch};
  out.add("counters", core::dtype::u64, {3}, std::span<const std::uint64_t>(state));
  const std::array<std::uint64_t, 1> updates{c.updates};
  out.add("optimizer.updates", core::dtype::u64, {1}, std::span<const std::uint64_t>(updates));
}

void training_group::load(std::int64_t member, const core::checkpoint& in, bool with_counters) {
  auto& m = *impl_;
  auto require = [&](const std::string& name, core::dtype type, std::span<const std::int64_t> shape) {
    auto t = in.expect(name, type, shape);
    if (!t)
      throw std::invalid_argument(t.error().text);
    return *t;
  };
  m.each_tensor(member, [&](const std::string& name, const std::vector<std::int64_t>& shape, float*, std::int64_t) {
    require(name, core::dtype::f32, shape);
  });
  constexpr std::array<std::int64_t, 1> three{3}, one{1};
  const auto* state = require("counters", core::dtype::u64, three);
  const auto* updates = require("optimizer.updates", core::dtype::u64, one);

  m.each_tensor(member, [&](const std::string& name, const std::vector<std::int64_t>&, float* at, std::int64_t) {
    const auto values = in.find(name)->as<float>();
    m.ctx.upload(at, values);
  });
  m.net.weights_changed();
  auto c = counters(member);
  c.updates = updates->as<std::uint64_t>().front(); // goes with the moments
  if (with_counters) {
    const auto values = state->as<std::uint64_t>();
    c.seed = values[0];
    c.step = values[1];
    c.batch = values[2];
  }
  m.forget_losses(c);
  m.ctx.upload(m.counters + member, &c, sizeof c);
}

std::uint64_t training_group::memory_bytes() const noexcept {
  std::uint64_t sum = impl_->net.memory_bytes();
  for (const auto& b : impl_->buffers)
    sum += b.size();
  return sum;
}

} // namespace troupe::gpu
