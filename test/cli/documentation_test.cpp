/// What the documentation shows of experiment files is right, whole files and parts of them.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "temporary_folder.hpp"

using namespace troupe;
using namespace troupe::cli;
using nlohmann::json;

namespace {

/// The text between ```json and ```, each as it stands.
std::vector<std::string> json_blocks(const std::filesystem::path& page) {
  std::vector<std::string> out;
  std::ifstream in{page};
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```"))
      inside = !inside && line == "```json" && (out.emplace_back(), true);
    else if (inside)
      out.back() += line + "\n";
  }
  return out;
}

/// An experiment in which every part can be another one's.
json usual() {
  const json net{{"type", "mlp"}, {"data", {{"type", "synthetic"}}}};
  json out{{"search_space", {{"lr", {{"type", "log_uniform"}, {"low", 1e-4}, {"high", 1.0}}}}}, {"sync", {{"every_steps", 10}}}};
  for (auto name : {"slow", "fast", "small", "medium", "wide"})
    out["trainers"].push_back({{"name", name}, {"workload", net}, {"stop_step", 1000}});
  return out;
}

/// An experiment for each thing that the block shows.
std::vector<json> experiments_of(const std::string& block) {
  if (const auto whole = json::parse(block, nullptr, false); whole.is_object() && whole.contains("trainers"))
    return {whole};
  std::vector<json> out;
  const auto add = [&](const std::string& text) {
    if (text.starts_with("{")) { // an entry of "trainers"
      const auto entry = json::parse(text, nullptr, false);
      if (!entry.is_object())
        return false;
      auto x = usual();
      x["defaults"] = x["trainers"][0];
      x["defaults"].erase("name");
      x["trainers"] = json::array({entry});
      out.push_back(x);
    } else { // members of an experiment
      const auto members = json::parse("{" + text + "}", nullptr, false);
      if (!members.is_object())
        return false;
      auto x = usual();
      x.update(members);
      out.push_back(x);
    }
    return true;
  };
  if (add(block))
    return out;
  std::string part; // several of them, each on lines of its own
  std::istringstream in{block};
  for (std::string line; std::getline(in, line);)
    if (add(part += line + "\n"))
      part.clear();
  CHECK_MESSAGE(part.empty(), "no JSON: ", part);
  return out;
}

} // namespace

TEST_CASE("every experiment in the documentation is right") {
  temporary_folder folder;
  std::size_t n = 0;
  for (auto page : {"experiment.md", "policies.md", "recipes.md", "workloads.md"}) {
    const auto blocks = json_blocks(std::filesystem::path{TROUPE_SAMPLES} / "../docs" / page);
    CHECK(!blocks.empty());
    for (const auto& block : blocks)
      for (const auto& x : experiments_of(block)) {
        auto text = x.dump(1);
        // Its files need not be here.
        const std::string images = R"("fashion_mnist")";
        for (std::size_t at; (at = text.find(images)) != std::string::npos;)
          text.replace(at, images.size(), R"({"type": "synthetic", "image": [28, 28, 1]})");
        write_whole(folder / "e.json", text);
        std::ostringstream out, err;
        const auto status = check_experiment({folder / "e.json", false}, registries::builtin(), {out, err});
        INFO(page, ": ", block);
        CHECK_MESSAGE(status == exit_done, err.str());
        ++n;
      }
  }
  CHECK(n >= 15);
}
