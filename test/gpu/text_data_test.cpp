#include "troupe/gpu/dataset.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

struct word_folder {
  std::filesystem::path path;
  word_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "troupe-words-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~word_folder() { std::filesystem::remove_all(path); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path / name, std::ios::binary) << text; }
  /// Twelve words that no other list has.
  void write_twelve(const std::string& name, const std::string& end) const {
    std::string text;
    for (char c = 'a'; c < 'a' + 12; ++c)
      text += std::string(1, c) + end + "\n";
    write(name, text);
  }
  data_spec spec(nlohmann::json options) const {
    options["type"] = "languages";
    options["path"] = path.string();
    std::vector<core::error> faults;
    auto s = data_spec::from_json(options, "/data", faults);
    REQUIRE(faults.empty());
    return s;
  }
};

std::vector<std::string> data_faults(const nlohmann::json& j) {
  std::vector<core::error> faults;
  data_spec::from_json(j, "/data", faults);
  std::vector<std::string> out;
  for (const auto& f : faults)
    out.push_back(f.text);
  return out;
}

std::set<std::string> texts_of(const dataset& d, const labelled_examples& part, std::int32_t label) {
  std::set<std::string> out;
  for (std::int64_t i = 0; i < part.size(); ++i) {
    std::string word;
    for (std::int64_t j = 0; j < d.features; ++j)
      if (const auto t = part.tokens[static_cast<std::size_t>(i * d.features + j)]; t != 0)
        word += static_cast<char>(t);
    if (part.labels[static_cast<std::size_t>(i)] == label)
      CHECK(out.insert(word).second);
  }
  return out;
}

} // namespace

TEST_CASE("languages are read as small letters and words of several lists are left out") {
  const word_folder dir;
  dir.write_twelve("french", "eau");
  dir.write_twelve("ngerman", "ung");
  std::ofstream(dir.path / "french", std::ios::app) << "\xc3\x89t\xc3\xa9\n" << "animal\r\n" << "l'an\nx\nhalf-way\n42nd\n\nanimal\n";
  std::ofstream(dir.path / "ngerman", std::ios::app) << "Animal\nlangeswort\n\xc3\x9c" "ber\n";
  const auto data = load_languages(dir.spec({{"languages", {"french", "ngerman"}}, {"length", 6}}));
  REQUIRE_MESSAGE(data, data.error().text);
  CHECK(data->classes == 2);
  CHECK(data->features == 6);
  CHECK(data->vocabulary == 256);
  CHECK(data->is_text());
  CHECK(data->train.size() == 25); // 13 and 14 words, one of each held out
  CHECK(data->test.size() == 2);
  auto french = texts_of(*data, data->train, 0), german = texts_of(*data, data->train, 1);
  french.merge(texts_of(*data, data->test, 0));
  german.merge(texts_of(*data, data->test, 1));
  CHECK(french.size() == 13);
  CHECK(german.size() == 14);
  CHECK(french.contains("\xc3\xa9t\xc3\xa9"));
  CHECK(french.contains("beau"));
  CHECK(german.contains("\xc3\xbc" "ber"));
  CHECK(german.contains("langes"));
}

TEST_CASE("lists in Latin-1 are read like those in UTF-8 and words follow their hashes") {
  const word_folder dir;
  std::string latin, utf;
  for (char c = 'a'; c < 'a' + 20; ++c) {
    latin += std::string(1, c) + "\xf1" "o\n";
    utf += std::string(1, c) + "\xc3\xb1" "o\n";
  }
  dir.write("spanish", latin);
  dir.write_twelve("italian", "zione");
  const auto a = load_languages(dir.spec({{"languages", {"spanish", "italian"}}, {"words", 20}}));
  dir.write("spanish", utf);
  const auto b = load_languages(dir.spec({{"languages", {"spanish", "italian"}}, {"words", 20}}));
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->train.tokens == b->train.tokens);
  CHECK(a->test.tokens == b->test.tokens);
  CHECK(a->train.size() == 18 + 11);
  // The first in FNV-1a's order, which any program can repeat.
  std::map<std::uint64_t, std::string> order;
  for (char c = 'a'; c < 'a' + 20; ++c) {
    const std::string word = std::string(1, c) + "\xc3\xb1" "o";
    std::uint64_t h = 14695981039346656037u;
    for (char x : word)
      h = (h ^ static_cast<unsigned char>(x)) * 1099511628211u;
    order[h] = word;
  }
  const auto& first = order.begin()->second;
  for (std::size_t i = 0; i < first.size(); ++i)
    CHECK(a->train.tokens[i] == static_cast<unsigned char>(first[i]));
}

TEST_CASE("absent word lists are named with their packages") {
  const word_folder dir;
  dir.write_twelve("french", "eau");
  const auto spec = dir.spec({{"languages", {"french", "ngerman", "dutch", "klingon"}}});
  const auto data = load_languages(spec);
  REQUIRE_FALSE(data);
  CHECK(data.error().code == core::errc::not_found);
  CHECK(data.error().text == spec.missing_files());
  CHECK(mentions(data.error().text, dir.path.string() + "/ngerman, "));
  CHECK(mentions(data.error().text, "apt-get install wngerman wdutch that has the word list klingon"));
  CHECK_FALSE(mentions(data.error().text, "wfrench"));
}

TEST_CASE("a word list with too few words of its own is refused") {
  const word_folder dir;
  dir.write_twelve("french", "eau");
  dir.write("ngerman", "beau\nceau\neins\nzwei\n");
  const auto data = load_languages(dir.spec({{"languages", {"french", "ngerman"}}}));
  REQUIRE_FALSE(data);
  CHECK(mentions(data.error().text, "/ngerman: has only 2 words"));
}

TEST_CASE("made texts are a function of their spec and differ by class") {
  std::vector<core::error> faults;
  const auto spec = data_spec::from_json({{"type", "synthetic_text"}, {"classes", 3}, {"length", 9}, {"train", 300}, {"test", 30},
                                          {"noise", 0}, {"vocabulary", 40}},
                                         "", faults);
  REQUIRE(faults.empty());
  const auto a = make_synthetic_text(spec), b = make_synthetic_text(spec);
  CHECK(a.train.tokens == b.train.tokens);
  CHECK(a.train.size() == 300);
  CHECK(a.test.size() == 30);
  CHECK(a.vocabulary == 40);
  std::map<std::pair<int, int>, std::set<int>> followers; // of (class, token)
  for (std::size_t i = 0; i < 300; ++i) {
    int length = 0;
    for (std::size_t j = 0; j < 9; ++j) {
      const int token = a.train.tokens[i * 9 + j];
      CHECK(token < 40);
      if (token == 0)
        break;
      if (++length > 1)
        followers[{a.train.labels[i], a.train.tokens[i * 9 + j - 1]}].insert(token);
    }
    CHECK(length >= 5);
    for (std::size_t j = static_cast<std::size_t>(length); j < 9; ++j)
      CHECK(a.train.tokens[i * 9 + j] == 0);
  }
  for (const auto& [key, after] : followers)
    CHECK(after.size() <= 3);
  auto other = spec;
  other.seed = 2;
  CHECK(make_synthetic_text(other).train.tokens != a.train.tokens);
  CHECK(other.key() != spec.key());
}

TEST_CASE("options of text data are checked") {
  CHECK(data_faults("languages").empty());
  CHECK(data_faults("synthetic_text").empty());
  CHECK(mentions(data_faults({{"type", "languages"}, {"languages", {"french"}}}).at(0), "/data/languages: must be an array of 2 to"));
  CHECK(mentions(data_faults({{"type", "languages"}, {"languages", {"french", "french"}}}).at(0), "different names"));
  CHECK(mentions(data_faults({{"type", "languages"}, {"languages", {"french", "../etc"}}}).at(0), "/data/languages"));
  CHECK(mentions(data_faults({{"type", "languages"}, {"words", 5}}).at(0), "/data/words: must be a whole number from 20"));
  CHECK(mentions(data_faults({{"type", "languages"}, {"vocabulary", 5}}).at(0), "/data/vocabulary: unknown key"));
  CHECK(mentions(data_faults({{"type", "synthetic_text"}, {"vocabulary", 2}}).at(0), "/data/vocabulary"));
  CHECK(mentions(data_faults({{"type", "synthetic_text"}, {"train", 1 << 24}, {"length", 4096}}).at(0), "tokens, more than"));
}
