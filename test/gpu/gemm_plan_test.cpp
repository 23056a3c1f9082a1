#include "troupe/gpu/gemm_plan.hpp"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "cpu_gemm.hpp"
#include "matrix_libraries.hpp"
#include "slots_under_test.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/ops.hpp"

using namespace troupe;
using namespace troupe::gpu;
namespace fs = std::filesystem;

namespace {

constexpr gemm_shape shape{128, 10, 256, false, true, true};

slot_options planned_slot(std::shared_ptr<gemm_plan> plan) {
  auto o = cpu_slot();
  o.plan = std::move(plan);
  return o;
}

struct folder {
  fs::path path = fs::temp_directory_path() / ("troupe-plan-" + std::to_string(::getpid()));
  ~folder() { fs::remove_all(path); }
};

std::vector<float> draw(std::size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> u;
  std::vector<float> out(n);
  for (auto& x : out)
    x = u(rng);
  return out;
}

} // namespace

TEST_CASE("the first candidate stays unless another is over five percent faster") {
  using l = gemm_library;
  gemm_plan p;
  CHECK(p.decide({1}, {{l::onednn, 1.0}, {l::openblas, 0.96}}) == l::onednn);
  CHECK(p.decide({2}, {{l::onednn, 1.0}, {l::openblas, 0.94}}) == l::openblas);
  CHECK(p.decide({3}, {{l::onednn, 1.0}, {l::onednn_matmul, 0.9}, {l::openblas, 0.94}}) == l::onednn_matmul);
  CHECK(p.decide({4}, {{l::onednn, 1.0}}) == l::onednn);
  CHECK(p.decide({1}, {{l::onednn, 1.0}, {l::openblas, 0.1}}) == l::onednn); // whoever came first
  CHECK(p.find({2}) == l::openblas);
  CHECK_FALSE(p.find({5}));
  CHECK(p.size() == 4);
}

TEST_CASE("a plan survives its file and is replaced whole") {
  folder f;
  const auto path = (f.path / "deep" / "gemm.json").string();
  gemm_plan p;
  p.decide(shape, {{gemm_library::onednn, 1.0}, {gemm_library::openblas, 0.5}});
  REQUIRE(p.save(path));
  REQUIRE(p.save(path));
  std::string note;
  auto q = gemm_plan::load(path, gemm_plan::mode::frozen, &note);
  CHECK(note.empty());
  CHECK_FALSE(q->probing());
  CHECK(q->find(shape) == gemm_library::openblas);
  CHECK(std::distance(fs::directory_iterator(f.path / "deep"), fs::directory_iterator()) ==
        1); // no temporary left
}

TEST_CASE("a plan of another machine or a broken file is not used and the note says why") {
  folder f;
  const auto path = (f.path / "gemm.json").string();
  std::string note;
  CHECK(gemm_plan::load(path, gemm_plan::mode::probing, &note)->size() == 0);
  CHECK(note.find("no such file") != std::string::npos);
  fs::create_directories(f.path);
  std::ofstream(path) << "{\"format\": 1, \"machine\": {\"cpu\": \"other\"}, \"products\": []}";
  CHECK(gemm_plan::load(path, gemm_plan::mode::probing, &note)->size() == 0);
  CHECK(note.find("another CPU") != std::string::npos);
  std::ofstream(path) << "{\"form";
  CHECK(gemm_plan::load(path, gemm_plan::mode::probing, &note)->size() == 0);
  CHECK(note.find("no JSON object") != std::string::npos);
  CHECK_FALSE(gemm_plan().save(f.path.string())); // a folder is in the way
}

TEST_CASE("a malformed plan is refused with the place of the fault and adds nothing") {
  gemm_plan p;
  const auto text = [&](const std::string& s) {
    auto r = p.merge_json(s, "plan.json");
    return r ? std::string() : r.error().text;
  };
  const std::string good =
      R"({"m":1,"n":2,"k":3,"trans_a":false,"trans_b":false,"accumulate":true,"library":"onednn"})";
  CHECK(text("[]").find("plan.json: this is not a gemm plan") == 0);
  CHECK(text(R"({"format":2,"products":[]})").find("/format") != std::string::npos);
  CHECK(text(R"({"format":1})").find("/products") != std::string::npos);
  CHECK(text(R"({"format":1,"products":[)" + good + R"(,{"m":1}]})").find("/products/1") !=
        std::string::npos);
  CHECK(text(R"({"format":1,"products":[)" + good +
             R"(,{"m":1,"n":2,"k":3,"trans_a":false,"trans_b":false,"accumulate":true,"library":"mkl"}]})")
            .find("/products/1/library: \"mkl\"") != std::string::npos);
  CHECK(p.size() == 0);
  CHECK(text(R"({"format":1,"products":[)" + good + "]}").empty());
  CHECK(p.find({1, 2, 3, false, false, true}) == gemm_library::onednn);
}

TEST_CASE("the default place is in the cache folder and names the CPU") {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("XDG_CACHE_HOME", "/some/cache", 1);
  const auto path = gemm_plan::default_path();
  CHECK(path.find("/some/cache/troupe/gemm-") == 0);
  CHECK(path.find(' ') == std::string::npos);
  CHECK(path.substr(path.size() - 5) == ".json");
  if (before == nullptr)
    ::unsetenv("XDG_CACHE_HOME");
  else
    ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
}

TEST_CASE("a probing plan learns each shape once and a frozen one learns nothing") {
  auto probing = std::make_shared<gemm_plan>(), frozen = std::make_shared<gemm_plan>(gemm_plan::mode::frozen);
  for (auto& plan : {probing, frozen}) {
    context ctx(planned_slot(plan));
    auto a = ctx.allocate_of<float>(32 * 64), b = ctx.allocate_of<float>(64 * 16),
         c = ctx.allocate_of<float>(32 * 16);
    ctx.zero(a.data(), a.size());
    ctx.zero(b.data(), b.size());
    ctx.zero(c.data(), c.size());
    const auto run = [&](float beta) {
      gemm(ctx, 1, false, false, 1, mat<const float>(mat<float>::dense(a.as<float>(), 32, 64)),
           mat<const float>(mat<float>::dense(b.as<float>(), 64, 16)), beta,
           mat<float>::dense(c.as<float>(), 32, 16));
    };
    run(0);
    run(0);
    CHECK(plan->size() == (plan->probing() ? 1 : 0));
    run(0.5f);
    CHECK(plan->size() == (plan->probing() ? 2 : 0));
  }
  probing->freeze();
  CHECK_FALSE(probing->probing());
}

TEST_CASE("slots that meet a shape at once through one plan choose alike") {
  auto plan = std::make_shared<gemm_plan>();
  const std::int64_t m = 64, n = 48, k = 80;
  const auto a = draw(m * k, 1), b = draw(k * n, 2);
  std::vector<std::vector<float>> results(3, std::vector<float>(m * n));
  std::vector<std::thread> slots;
  for (auto& c : results)
    slots.emplace_back([&] {
      context ctx(planned_slot(plan));
      gemm(ctx, 1, false, false, 1, mat<const float>{a.data(), m, k, k, 0},
           mat<const float>{b.data(), k, n, n, 0}, 0, mat<float>::dense(c.data(), m, n));
    });
  for (auto& t : slots)
    t.join();
  CHECK(plan->size() == 1);
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}

TEST_CASE("each library gives the same bits at every address and thread and number of members") {
  struct size {
    std::int64_t m, n, k;
  };
  const size sizes[] = {{128, 256, 784}, {128, 10, 256}, {784, 256, 128},
                        {32, 64, 64},    {7, 33, 129},   {1, 10, 64}};
  for (auto library : {gemm_library::onednn, gemm_library::onednn_matmul, gemm_library::openblas}) {
    if (library != gemm_library::openblas && !internal::onednn::available())
      continue;
    if (library == gemm_library::openblas && internal::openblas::load() == nullptr) {
      MESSAGE("OpenBLAS is not installed: not tested");
      continue;
    }
    for (const auto& [m, n, k] : sizes)
      for (bool ta : {false, true})
        for (bool tb : {false, true})
          for (float beta : {0.f, 0.9f}) {
            CAPTURE(to_string(library));
            CAPTURE(m);
            CAPTURE(n);
            CAPTURE(k);
            CAPTURE(ta);
            CAPTURE(tb);
            CAPTURE(beta);
            auto plan = std::make_shared<gemm_plan>();
            plan->decide({m, n, k, ta, tb, beta != 0}, {{library, 1.0}});
            const auto a = draw(static_cast<std::size_t>(m * k), 1),
                       b = draw(static_cast<std::size_t>(k * n), 2),
                       c = draw(static_cast<std::size_t>(m * n), 3);
            // One product of `members` equal members, each operand `skew` floats behind a cache line.
            const auto run = [&](std::int64_t members, std::int64_t skew) {
              context ctx(planned_slot(plan));
              const auto place = [&](const std::vector<float>& x, buffer& into) {
                const auto stride = static_cast<std::int64_t>(x.size()) + skew;
                into = ctx.allocate_of<float>(static_cast<std::size_t>(members * stride + skew));
                for (std::int64_t i = 0; i < members; ++i)
                  std::memcpy(into.as<float>() + skew + i * stride, x.data(), x.size() * 4);
                return std::pair(into.as<float>() + skew, stride);
              };
              buffer ba, bb, bc;
              const auto [pa, sa] = place(a, ba);
              const auto [pb, sb] = place(b, bb);
              const auto [pc, sc] = place(c, bc);
              const auto ar = ta ? k : m, ac = ta ? m : k, br = tb ? n : k, bcols = tb ? k : n;
              gemm(ctx, members, ta, tb, 1, mat<const float>{pa, ar, ac, ac, sa},
                   mat<const float>{pb, br, bcols, bcols, sb}, beta, mat<float>{pc, m, n, n, sc});
              for (std::int64_t i = 1; i < members; ++i)
                CHECK(std::memcmp(pc, pc + i * sc, c.size() * 4) == 0);
              return std::vector<float>(pc, pc + c.size());
            };
            const auto want = run(1, 0);
            CHECK(run(3, 1) == want);
            CHECK(run(2, 13) == want);
            std::vector<float> other;
            std::thread([&] { other = run(1, 5); }).join();
            CHECK(other == want);
          }
  }
}

TEST_CASE("bf16 products agree with and without native bf16 and have the same bits at every address") {
  const std::int64_t m = 33, n = 17, k = 129;
  std::vector<bf16> a(m * k + 64), b(k * n + 64);
  std::mt19937 rng(1);
  for (auto* v : {&a, &b})
    for (auto& x : *v)
      x = static_cast<bf16>(0x3f00 + rng() % 256); // between 0.5 and 2
  for (bool ta : {false, true})
    for (bool tb : {false, true}) {
      const auto run = [&](bool native, std::size_t skew) {
        internal::cpu_gemm gemm(cpu_slot(), native);
        auto sa = a, sb = b;
        std::memmove(sa.data() + skew, a.data(), m * k * 2);
        std::memmove(sb.data() + skew, b.data(), k * n * 2);
        std::vector<float> c(m * n + skew, 1.f);
        internal::gemm_call call;
        call.m = m, call.n = n, call.k = k;
        call.trans_a = ta, call.trans_b = tb;
        call.low = true;
        call.alpha = 0.5f, call.beta = 0.25f;
        call.a = sa.data() + skew, call.b = sb.data() + skew, call.c = c.data() + skew;
        call.lda = ta ? m : k, call.ldb = tb ? k : n, call.ldc = n;
        gemm(call);
        return std::vector<float>(c.begin() + static_cast<std::ptrdiff_t>(skew), c.end());
      };
      const auto want = run(false, 0), native = run(internal::onednn::native_bf16(), 0);
      for (std::size_t i = 0; i < want.size(); ++i)
        CHECK(native[i] == doctest::Approx(want[i]).epsilon(1e-5));
      for (std::size_t skew : {1u, 7u, 32u}) {
        CHECK(run(internal::onednn::native_bf16(), skew) == native);
        CHECK(run(false, skew) == want);
      }
    }
}
