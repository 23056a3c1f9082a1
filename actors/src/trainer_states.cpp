#include "trainer_states.hpp"

#include <bit>
#include <charconv>
#include <memory>
#include <sstream>

#include <nlohmann/json.hpp>

namespace troupe::actors::internal {
namespace {

core::error wrong(std::string_view key, const std::string& what) {
  return {core::errc::invalid_argument, "the state's text \"" + std::string{key} + "\" " + what};
}

template <class T>
core::result<T> number(const core::checkpoint& x, std::string_view key) {
  const auto* text = x.text(key);
  if (text == nullptr)
    return wrong(key, "is missing: it was not saved by a trainer");
  T out{};
  const auto [end, fault] = std::from_chars(text->data(), text->data() + text->size(), out);
  if (fault != std::errc{} || end != text->data() + text->size())
    return wrong(key, "is \"" + *text + "\", not a number in range");
  return out;
}

} // namespace

core::checkpoint_ptr save_state(gpu::context& ctx, gpu::workload& w, const trainer_mark& mark, bool copied) {
  auto out = std::make_shared<core::checkpoint>();
  w.save(ctx, *out);
  out->set_text("troupe.step", std::to_string(mark.step));
  out->set_text("troupe.sync", std::to_string(mark.syncs_done));
  out->set_text("troupe.loss",
                std::to_string(std::bit_cast<std::uint64_t>(mark.loss_sum)) + " " + std::to_string(mark.loss_count));
  out->set_text("troupe.hyperparameters", core::to_json(mark.hp).dump());
  out->set_text("troupe.signature", mark.signature);
  out->set_text("troupe.incarnation", std::to_string(mark.incarnation));
  std::string weights;
  bool usual = true;
  for (const auto& t : out->tensors()) {
    const bool is = w.is_weight(t.name);
    usual = usual && is == t.name.starts_with("weights.");
    if (is)
      weights += (weights.empty() ? "" : " ") + t.name;
  }
  if (!usual)
    out->set_text("troupe.weights", weights);
  if (copied)
    out->attach(w.keep_on_device(ctx));
  return out;
}

core::result<trainer_mark> read_mark(const core::checkpoint& x) {
  trainer_mark out;
  const auto step = number<std::uint64_t>(x, "troupe.step");
  if (!step)
    return step.error();
  const auto syncs = number<core::sync_index>(x, "troupe.sync");
  if (!syncs)
    return syncs.error();
  const auto life = number<std::uint32_t>(x, "troupe.incarnation");
  if (!life)
    return life.error();
  const auto* signature = x.text("troupe.signature");
  if (signature == nullptr)
    return wrong("troupe.signature", "is missing: it was not saved by a trainer");
  const auto* hp = x.text("troupe.hyperparameters");
  if (hp == nullptr)
    return wrong("troupe.hyperparameters", "is missing: it was not saved by a trainer");
  const auto parsed = nlohmann::json::parse(*hp, nullptr, false);
  if (parsed.is_discarded())
    return wrong("troupe.hyperparameters", "is not JSON");
  auto values = core::hyperparameters_from_json(parsed, "");
  if (!values)
    return wrong("troupe.hyperparameters", "is wrong: " + values.error().text);
  if (const auto* loss = x.text("troupe.loss")) {
    std::uint64_t bits = 0;
    std::istringstream in(*loss);
    if (!(in >> bits >> out.loss_count))
      return wrong("troupe.loss", "is \"" + *loss + "\", not two numbers");
    out.loss_sum = std::bit_cast<double>(bits);
  }
  out.step = *step;
  out.syncs_done = *syncs;
  out.incarnation = *life;
  out.signature = *signature;
  out.hp = std::move(*values);
  return out;
}

core::result<void> check_signature(const core::checkpoint& x, std::string_view own) {
  const auto* theirs = x.text("troupe.signature");
  if (theirs != nullptr && *theirs == own)
    return {};
  return core::error{core::errc::refused, "the weights are of another architecture: theirs is \"" +
                                              (theirs != nullptr ? *theirs : std::string{"unknown"}) + "\", this one's \"" +
                                              std::string{own} + "\""};
}

} // namespace troupe::actors::internal
