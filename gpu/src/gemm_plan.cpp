#include "troupe/gpu/gemm_plan.hpp"

#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "devices.hpp"
#include "matrix_libraries.hpp"

namespace troupe::gpu {

namespace {

constexpr std::string_view names[] = {"onednn", "onednn_matmul", "openblas"};
constexpr int format = 1;

std::string openblas_version() {
  const auto lib = internal::openblas::load();
  return lib == nullptr ? "none" : lib->version();
}

/// What a measurement is valid for.
nlohmann::json machine() {
  return {{"cpu", internal::cpu_name()},
          {"onednn", internal::onednn::version()},
          {"openblas", openblas_version()}};
}

} // namespace

std::string_view to_string(gemm_library x) noexcept { return names[static_cast<std::size_t>(x)]; }

bool gemm_plan::probing() const {
  std::lock_guard lock(mutex_);
  return mode_ == mode::probing;
}

void gemm_plan::freeze() {
  std::lock_guard lock(mutex_);
  mode_ = mode::frozen;
}

std::optional<gemm_library> gemm_plan::find(const gemm_shape& shape) const {
  std::lock_guard lock(mutex_);
  const auto at = choices_.find(shape);
  return at == choices_.end() ? std::nullopt : std::optional(at->second);
}

gemm_library gemm_plan::decide(const gemm_shape& shape,
                               const std::vector<std::pair<gemm_library, double>>& measured) {
  auto best = measured.front();
  for (const auto& x : measured)
    if (x.second < best.second && x.second < measured.front().second / 1.05)
      best = x;
  std::lock_guard lock(mutex_);
  return choices_.try_emplace(shape, best.first).first->second;
}

std::size_t gemm_plan::size() const {
  std::lock_guard lock(mutex_);
  return choices_.size();
}

std::string gemm_plan::to_json() const {
  auto out = nlohmann::json::object();
  out["format"] = format;
  out["machine"] = machine();
  auto& products = out["products"] = nlohmann::json::array();
  std::lock_guard lock(mutex_);
  for (const auto& [s, library] : choices_)
    products.push_back({{"m", s.m},
                        {"n", s.n},
                        {"k", s.k},
                        {"trans_a", s.trans_a},
                        {"trans_b", s.trans_b},
                        {"accumulate", s.accumulate},
                        {"library", to_string(library)}});
  return out.dump(1);
}

core::result<void> gemm_plan::merge_json(std::string_view text, std::string_view where) {
  const auto fault = [&](const std::string& what) -> core::error {
    return {core::errc::invalid_argument, std::string(where) + ": " + what};
  };
  const auto j = nlohmann::json::parse(text, nullptr, false);
  if (j.is_discarded() || !j.is_object())
    return fault("this is not a gemm plan: no JSON object");
  if (j.value("format", nlohmann::json()) != format)
    return fault("/format: expected " + std::to_string(format));
  const auto products = j.find("products");
  if (products == j.end() || !products->is_array())
    return fault("/products: expected an array");
  std::map<gemm_shape, gemm_library> read;
  for (std::size_t i = 0; i < products->size(); ++i) {
    const auto& p = (*products)[i];
    const auto path = "/products/" + std::to_string(i);
    gemm_shape s;
    try {
      s = {p.at("m").get<std::int64_t>(), p.at("n").get<std::int64_t>(), p.at("k").get<std::int64_t>(),
           p.at("trans_a").get<bool>(),   p.at("trans_b").get<bool>(),   p.at("accumulate").get<bool>()};
      const auto name = p.at("library").get<std::string>();
      std::size_t n = 0;
      while (n < std::size(names) && names[n] != name)
        ++n;
      if (n == std::size(names))
        return fault(path + "/library: \"" + name + "\" is none of onednn, onednn_matmul, openblas");
      read.emplace(s, static_cast<gemm_library>(n));
    } catch (const nlohmann::json::exception& e) {
      return fault(path + ": " + e.what());
    }
  }
  std::lock_guard lock(mutex_);
  choices_.merge(read);
  return {};
}

std::string gemm_plan::default_path() {
  std::string folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/')
    folder = cache;
  else if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/')
    folder = std::string(home) + "/.cache";
  else
    return {};
  std::string cpu;
  for (char c : internal::cpu_name())
    if (std::isalnum(static_cast<unsigned char>(c)))
      cpu += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!cpu.empty() && cpu.back() != '-')
      cpu += '-';
  while (!cpu.empty() && cpu.back() == '-')
    cpu.pop_back();
  return folder + "/troupe/gemm-" + cpu + ".json";
}

std::shared_ptr<gemm_plan> gemm_plan::load(const std::string& path, mode m, std::string* note) {
  auto plan = std::make_shared<gemm_plan>(m);
  const auto say = [note](std::string text) {
    if (note != nullptr)
      *note = std::move(text);
  };
  std::ifstream in(path);
  if (!in) {
    say(path + ": there is no such file yet");
    return plan;
  }
  std::stringstream text;
  text << in.rdbuf();
  const auto j = nlohmann::json::parse(text.str(), nullptr, false);
  if (j.is_object() && j.value("machine", nlohmann::json()) != machine())
    say(path + ": measured on another CPU or with other libraries, not used");
  else if (auto ok = plan->merge_json(text.str(), path); !ok)
    say(ok.error().text + "; not used");
  return plan;
}

core::result<void> gemm_plan::save(const std::string& path) const {
  namespace fs = std::filesystem;
  const auto fault = [&](const std::string& what) -> core::error {
    return {core::errc::io, "the gemm plan cannot be written to " + path + ": " + what};
  };
  std::error_code ec;
  if (const auto folder = fs::path(path).parent_path(); !folder.empty())
    fs::create_directories(folder, ec);
  if (ec)
    return fault(ec.message());
  const auto temporary = path + "." + std::to_string(::getpid()) + ".tmp"; // another process may save too
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << to_json() << "\n";
    out.close();
    if (!out) {
      fs::remove(temporary, ec);
      return fault("is the disk full, or the folder read-only?");
    }
  }
  fs::rename(temporary, path, ec);
  if (ec) {
    const auto why = ec.message();
    fs::remove(temporary, ec);
    return fault(why);
  }
  return {};
}

} // namespace troupe::gpu
