#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda_emulation.hpp"
#include "kernel_table.hpp"
#include "troupe/core/random.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/ops.hpp"

/// The conformance test of operations: each runs on every device and every CPU instruction set there is, against a naive
/// reference in doubles.
///
/// To add an operation: describe its inputs as slabs (members x rows x columns, with padding between rows and members),
/// write `run`, which places the chosen members on a device, calls the operation and returns what it wrote, and `expect`,
/// which computes the same for one member in doubles, and hand both to `conform`. It checks the values, that padding is
/// left alone, that a member's result does not depend on its neighbours (bit for bit on the CPU), and that all CPU tables
/// with FMA agree bit for bit. For gradients take `numeric_gradient` of the forward reference.
namespace ops_test {

using namespace troupe::gpu;
using i64 = std::int64_t;

inline float to_value(float x) { return x; }
inline float to_value(bf16 x) {
  const std::uint32_t u = std::uint32_t(x) << 16;
  float f;
  std::memcpy(&f, &u, sizeof f);
  return f;
}
inline float to_value(std::int32_t x) { return float(x); }
inline float to_value(std::uint8_t x) { return float(x); }

template <class T>
T canary() {
  return T(113);
}

/// Members x rows x columns on the host, with padding that no operation may touch.
template <class T>
struct slab {
  i64 members = 0, rows = 0, cols = 0, ld = 0, stride = 0;
  std::vector<T> data;

  slab() = default;
  slab(i64 members, i64 rows, i64 cols, i64 pad = 0)
      : members(members), rows(rows), cols(cols), ld(cols + pad), stride(rows * ld + 2 * pad),
        data(std::size_t(members * stride), canary<T>()) {}

  T& at(i64 k, i64 r, i64 c) { return data[std::size_t(k * stride + r * ld + c)]; }
  const T& at(i64 k, i64 r, i64 c) const { return data[std::size_t(k * stride + r * ld + c)]; }

  template <class F>
  slab& set(F f) {
    for (i64 k = 0; k < members; ++k)
      for (i64 r = 0; r < rows; ++r)
        for (i64 c = 0; c < cols; ++c)
          at(k, r, c) = T(f(k, r, c));
    return *this;
  }
  /// Random values, away from 0 where `hole` > 0 (kinks).
  slab& random(std::uint64_t seed, double lo = -2, double hi = 2, double hole = 0) {
    troupe::core::random_stream s(seed, "slab");
    return set([&](i64, i64, i64) {
      double v;
      do
        v = s.uniform(lo, hi);
      while (std::abs(v) < hole);
      return v;
    });
  }
  /// One member's numbers, row by row.
  std::vector<double> values(i64 k) const {
    std::vector<double> v;
    for (i64 r = 0; r < rows; ++r)
      for (i64 c = 0; c < cols; ++c)
        v.push_back(double(to_value(at(k, r, c))));
    return v;
  }
};

/// Which members of the slabs take part in a run.
using members_list = std::vector<i64>;

/// The chosen members of a slab, in device memory.
template <class T>
class placed {
public:
  placed(context& ctx, const slab<T>& from, const members_list& who) : ctx_(&ctx), host_(from) {
    host_.members = i64(who.size());
    host_.data.clear();
    for (i64 k : who)
      host_.data.insert(host_.data.end(), from.data.begin() + k * from.stride,
                        from.data.begin() + (k + 1) * from.stride);
    buffer_ = ctx.allocate(std::max<std::size_t>(host_.data.size() * sizeof(T), 64));
    ctx.upload(buffer_.data(), host_.data.data(), host_.data.size() * sizeof(T));
  }
  mat<T> m() const { return {buffer_.template as<T>(), host_.rows, host_.cols, host_.ld, host_.stride}; }
  vec<T> v() const { return {buffer_.template as<T>(), host_.cols, host_.stride}; }
  operator mat<T>() const { return m(); }
  operator vec<T>() const { return v(); }
  operator mat<const T>() const { return m(); }
  operator vec<const T>() const { return v(); }

  /// What is there now; checks that the padding is as it was.
  slab<T> back() const {
    slab<T> now = host_;
    ctx_->download(now.data.data(), buffer_.data(), now.data.size() * sizeof(T));
    slab<T> padding = now;
    padding.set([](i64, i64, i64) { return canary<T>(); });
    for (const T& x : padding.data)
      if (std::memcmp(&x, &padding_value_, sizeof(T)) != 0) {
        FAIL_CHECK("padding was written");
        break;
      }
    return now;
  }

private:
  context* ctx_;
  slab<T> host_;
  buffer buffer_;
  T padding_value_ = canary<T>();
};

/// Per-member structs in device memory.
template <class T>
class placed_structs {
public:
  placed_structs(context& ctx, const std::vector<T>& from, const members_list& who) : ctx_(&ctx), count_(who.size()) {
    std::vector<T> chosen;
    for (i64 k : who)
      chosen.push_back(from[std::size_t(k)]);
    buffer_ = ctx.allocate_of<T>(count_);
    ctx.upload(buffer_.data(), chosen.data(), count_ * sizeof(T));
  }
  T* get() const { return buffer_.as<T>(); }
  std::vector<T> back() const {
    std::vector<T> v(count_);
    ctx_->download(v.data(), buffer_.data(), count_ * sizeof(T));
    return v;
  }

private:
  context* ctx_;
  std::size_t count_;
  buffer buffer_;
};

/// What a run wrote, member by member.
struct outputs {
  std::vector<std::vector<double>> members;

  template <class T>
  outputs& add(const slab<T>& s) {
    members.resize(std::size_t(s.members));
    for (i64 k = 0; k < s.members; ++k)
      for (double v : s.values(k))
        members[std::size_t(k)].push_back(v);
    return *this;
  }
  template <class T>
  outputs& add(const placed<T>& p) {
    return add(p.back());
  }
};

struct device_under_test {
  std::string name;
  bool cpu = true, fma = false, emulated = false;
  std::unique_ptr<context> ctx;
};

/// One context for each CPU table, one for the CUDA kernels run on the CPU, and one for the first GPU.
inline std::vector<device_under_test> make_devices() {
  std::vector<device_under_test> all;
  const device_report report = find_devices();
  bool gpu = false;
  for (const device_info& d : report.devices) {
    if (d.kind == device_kind::cpu)
      for (const internal::kernel_table* table : internal::cpu_kernel_tables()) {
        slot_options o;
        o.device = d;
        device_under_test x{table->name, true, all.size() > 0, false, std::make_unique<context>(o)};
        internal::kernel_override::use(*x.ctx, *table);
        all.push_back(std::move(x));
      }
    else if (!gpu) {
      slot_options o;
      o.device = d;
      all.push_back({d.name, false, false, false, std::make_unique<context>(o)});
      gpu = true;
    }
  }
#if !defined(__SANITIZE_THREAD__) // which does not know coroutines
  slot_options o;
  o.device = report.devices.front();
  all.push_back({"emulated cuda", false, false, true, std::make_unique<context>(o)});
  internal::kernel_override::use(*all.back().ctx, cuda_emulation::table());
#endif
  if (!gpu) {
    const char* required = std::getenv("TROUPE_REQUIRE_CUDA");
    if (required != nullptr && std::string(required) == "1")
      FAIL("no GPU took part, but TROUPE_REQUIRE_CUDA=1: " << report.cuda_status);
  }
  return all;
}

/// The same in all cases of a process: a GPU's context costs more than most of them. Never destroyed, since at the end of the
/// process CUDA may be gone first.
inline std::vector<device_under_test>& devices() {
  static auto* const all = new std::vector<device_under_test>(make_devices());
  return *all;
}

/// Adds a test case that says so where no GPU takes part; used once.
inline void report_missing_gpu() {
  const device_report report = find_devices();
  if (report.devices.size() < 2)
    MESSAGE("did not run on a GPU: " << report.cuda_status);
}

inline members_list everyone(i64 members) {
  members_list who;
  for (i64 k = 0; k < members; ++k)
    who.push_back(k);
  return who;
}

using run_function = std::function<outputs(context&, const members_list&)>;
using expect_function = std::function<std::vector<double>(i64 member)>;

/// True when a and b differ by at most `tolerance` relative to the larger of 1 and |b|, or are both not a number.
inline bool near(double a, double b, double tolerance) {
  if (std::isnan(b) || std::isinf(b))
    return std::isnan(b) ? std::isnan(a) : a == b;
  return std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b));
}

inline void check_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (!near(got[i], want[i], tolerance)) {
      FAIL_CHECK("number " << i << " of " << got.size() << " is " << got[i] << ", expected " << want[i]);
      return;
    }
}

/// Equal bit for bit, but for the bits of a NaN.
inline bool same(const std::vector<double>& a, const std::vector<double>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i)
    equal = (std::isnan(a[i]) && std::isnan(b[i])) || std::memcmp(&a[i], &b[i], sizeof(double)) == 0;
  return equal;
}

inline void conform(const std::string& what, i64 members, double tolerance, const run_function& run,
                    const expect_function& expect) {
  CAPTURE(what);
  std::vector<std::vector<double>> wanted;
  for (i64 k = 0; k < members; ++k)
    wanted.push_back(expect(k));
  std::vector<std::vector<double>> first_with_fma;
  for (device_under_test& device : devices()) {
    CAPTURE(device.name);
    const outputs together = run(*device.ctx, everyone(members));
    REQUIRE(i64(together.members.size()) == members);
    for (i64 k = 0; k < members; ++k) {
      CAPTURE(k);
      const std::vector<double>& mine = together.members[std::size_t(k)];
      check_near(mine, wanted[std::size_t(k)], tolerance);
      if (members == 1 || device.emulated)
        continue;
      const outputs alone = run(*device.ctx, {k});
      if (device.cpu)
        CHECK(same(alone.members[0], mine));
      else
        check_near(alone.members[0], mine, 1e-5);
    }
    if (!device.fma)
      continue;
    if (first_with_fma.empty())
      first_with_fma = together.members;
    for (std::size_t k = 0; k < first_with_fma.size(); ++k)
      CHECK(same(first_with_fma[k], together.members[k]));
  }
}

struct shape {
  i64 members, rows, cols, pad;
  std::string text() const {
    return std::to_string(members) + " members of " + std::to_string(rows) + " x " + std::to_string(cols) +
           ", padding " + std::to_string(pad);
  }
};

/// One element, single rows and columns, primes, powers of two and their neighbours, more rows and columns than any tile.
inline std::vector<shape> awkward_shapes() {
  return {{1, 1, 1, 0},  {1, 1, 17, 0},  {2, 7, 1, 3},   {5, 3, 5, 2},   {1, 13, 31, 0},
          {3, 8, 16, 0}, {2, 16, 33, 5}, {3, 128, 10, 0}, {2, 131, 257, 3}};
}
inline std::vector<shape> small_shapes() { return {{1, 1, 1, 0}, {1, 1, 7, 0}, {2, 7, 1, 3}, {5, 3, 5, 2}, {2, 5, 19, 1}}; }

} // namespace ops_test
