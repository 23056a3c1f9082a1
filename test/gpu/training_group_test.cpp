#include "troupe/gpu/training_group.hpp"

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

struct group_bench {
  context ctx{cpu_slot()};
  std::shared_ptr<const resident_data> data;
  std::unique_ptr<training_group> group;

  group_bench(network_spec spec, optimizer_kind optimizer, std::int64_t members, const nlohmann::json& options) {
    std::vector<core::error> faults;
    auto host = std::make_shared<const dataset>(make_synthetic(data_spec::from_json(options, "", faults)));
    data = std::make_shared<const resident_data>(ctx, host);
    spec.features = host->features;
    spec.classes = host->classes;
    spec.height = host->height;
    spec.width = host->width;
    spec.channels = host->channels;
    group = std::make_unique<training_group>(ctx, spec, optimizer, members, 16, data);
  }

  std::uint64_t hash(std::int64_t member) {
    core::checkpoint out;
    group->save(member, out);
    return core::content_hash(out);
  }
};

member_params params_of(std::int64_t member) {
  member_params p;
  p.lr = 0.02F * static_cast<float>(1 + member);
  p.momentum = member == 1 ? 0.5F : 0.9F;
  p.weight_decay = member == 2 ? 1e-3F : 0;
  p.clip_norm = member == 3 ? 0.5F : 0;
  p.dropout = member == 0 ? 0.1F : 0;
  return p;
}

} // namespace

TEST_CASE("members of a group train as they would alone whoever else takes part") {
  network_spec dense;
  dense.hidden = {24, 16};
  auto normed = dense;
  normed.norm = norm_kind::batch;
  auto low = dense;
  low.precision = precision_kind::bf16;
  network_spec images;
  images.conv = {{8, 3, 1, 1, 2}, {6, 3, 1, 1, 1}};
  for (const auto optimizer : {optimizer_kind::sgd, optimizer_kind::adamw})
    for (const auto& spec : {dense, normed, low, images}) {
      CAPTURE(spec.describe());
      const auto options = spec.conv.empty() ? small_data() : small_images();
      group_bench together(spec, optimizer, 4, options);
      for (std::int64_t k = 0; k < 4; ++k) {
        together.group->reset(k, 50 + static_cast<std::uint64_t>(k));
        together.group->set_params(k, params_of(k));
      }
      auto steps = [&](int n) {
        for (int i = 0; i < n; ++i)
          together.group->step();
      };
      steps(4);
      together.group->set_active(std::vector<std::uint8_t>{1, 0, 1, 1});
      const auto resting = together.hash(1);
      steps(3);
      CHECK(together.hash(1) == resting);
      together.group->evaluate();
      together.group->gradient_norms();
      together.group->set_active(std::vector<std::uint8_t>{1, 1, 1, 0});
      steps(2);
      const auto quality = together.group->evaluate();
      const auto norms = together.group->gradient_norms();
      for (std::int64_t k = 0; k < 4; ++k) {
        group_bench alone(spec, optimizer, 1, options);
        alone.group->reset(0, 50 + static_cast<std::uint64_t>(k));
        alone.group->set_params(0, params_of(k));
        const int n = k == 1 ? 6 : k == 3 ? 7 : 9;
        for (int i = 0; i < n; ++i)
          alone.group->step();
        CHECK(together.group->counters(k).step == static_cast<std::uint64_t>(n));
        CHECK(alone.hash(0) == together.hash(k));
        const auto at = static_cast<std::size_t>(k);
        CHECK(alone.group->evaluate().front().accuracy == quality[at].accuracy);
        CHECK(alone.group->evaluate().front().loss == quality[at].loss);
        CHECK(alone.group->gradient_norms().front() == norms[at]);
        CHECK(alone.group->take_losses(0).sum == together.group->take_losses(k).sum);
      }
    }
}

TEST_CASE("a member can be copied to another place of its group") {
  network_spec spec;
  spec.hidden = {24};
  spec.precision = precision_kind::bf16;
  group_bench b(spec, optimizer_kind::adamw, 2, small_data());
  for (std::int64_t k = 0; k < 2; ++k)
    b.group->reset(k, 1 + static_cast<std::uint64_t>(k));
  for (int i = 0; i < 5; ++i)
    b.group->step();
  core::checkpoint out;
  b.group->save(0, out);
  b.group->load(1, out, true);
  CHECK(b.hash(0) == b.hash(1));
  b.group->step();
  CHECK(b.hash(0) == b.hash(1)); // the bf16 copy went along
}

TEST_CASE("groups refuse batches and masks that do not fit") {
  network_spec spec;
  spec.hidden = {8};
  group_bench b(spec, optimizer_kind::sgd, 2, small_data());
  CHECK(b.group->batches_per_epoch() == 16);
  CHECK(mentions(thrown_text([&] { b.group->set_active(std::vector<std::uint8_t>{1}); }), "1 entries for 2 members"));
  auto fitting = b.group->net().spec();
  CHECK(mentions(thrown_text([&] { training_group(b.ctx, fitting, optimizer_kind::sgd, 1, 257, b.data); }), "256"));
  fitting.norm = norm_kind::batch;
  CHECK(mentions(thrown_text([&] { training_group(b.ctx, fitting, optimizer_kind::sgd, 1, 1, b.data); }), "at least 2"));
  CHECK(mentions(thrown_text([&] { b.group->net().select(1, 2); }), "no members 1 to 2 of 2"));
  CHECK(b.group->take_losses(0).count == 0);
}
