#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "temporary_folder.hpp"
#include "troupe/core/checkpoint.hpp"
#include "troupe/core/run_writer.hpp"

/// Run directories for tests.
namespace troupe::core {

using nlohmann::json;

inline experiment two_trainers() {
  experiment x;
  x.name = "two";
  x.trainers.resize(2);
  x.trainers[0].name = "a";
  x.trainers[1].name = "b";
  x.text = R"({"name": "two"})";
  return x;
}

inline metadata report(trainer_id t, sync_index k, std::uint64_t step) {
  metadata m;
  m.trainer = t;
  m.name = t == 0 ? "a" : "b, the \"second\"";
  m.sync = k;
  m.step = step;
  m.loss = 0.5;
  m.hp = {{"lr", 0.1}};
  m.numbers = {{"f1", 0.25}};
  return m;
}

inline std::vector<json> lines_of(const std::string& path) {
  std::vector<json> out;
  std::istringstream in{read_whole(path)};
  for (std::string line; std::getline(in, line);)
    out.push_back(json::parse(line));
  return out;
}

inline std::size_t count_lines(const std::string& text) { return static_cast<std::size_t>(std::ranges::count(text, '\n')); }

/// Writes a small checkpoint for each trainer and records the set.
inline checkpoint_set save_set(run_writer& writer, const std::string& run, sync_index k, std::uint64_t step) {
  auto number = begin_checkpoint_set(run);
  REQUIRE(number);
  checkpoint_set set{*number, k, {}};
  for (trainer_id t : {0u, 1u}) {
    std::string name = t == 0 ? "a" : "b";
    saved_trainer saved{t, name, 0, step, checkpoint_file(*number, name)};
    checkpoint x;
    x.set_text("troupe.step", std::to_string(step));
    REQUIRE(write_checkpoint(run + "/" + saved.file, x));
    set.trainers.push_back(std::move(saved));
  }
  REQUIRE(writer.checkpoint_set(set));
  return set;
}

} // namespace troupe::core
