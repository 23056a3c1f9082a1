#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <unordered_map>

#include "troupe/core/random.hpp"
#include "troupe/gpu/dataset.hpp"

// Data sets of texts.
namespace troupe::gpu {

namespace {

constexpr std::uintmax_t largest_list = 256u << 20;

std::string list_path(const data_spec& spec, const std::string& name) {
  return (spec.path.empty() ? std::string("/usr/share/dict") : spec.path) + "/" + name;
}

/// Debian's package with this list; its name is enough where the package is not known.
std::string package_of(const std::string& list) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 18> packages{{
    {"american-english", "wamerican"}, {"british-english", "wbritish"}, {"bokmaal", "wnorwegian"}, {"nynorsk", "wnorwegian"},
    {"brazilian", "wbrazilian"}, {"bulgarian", "wbulgarian"}, {"catalan", "wcatalan"}, {"danish", "wdanish"},
    {"dutch", "wdutch"}, {"faroese", "wfaroese"}, {"french", "wfrench"}, {"italian", "witalian"}, {"ngerman", "wngerman"},
    {"ogerman", "wogerman"}, {"polish", "wpolish"}, {"portuguese", "wportuguese"}, {"spanish", "wspanish"},
    {"swedish", "wswedish"}}};
  for (const auto& [file, package] : packages)
    if (file == list)
      return std::string(package);
  return "that has the word list " + list;
}

std::string absent_text(const data_spec& spec, const std::vector<std::string>& lists) {
  std::string files, packages;
  for (const auto& name : lists) {
    files += (files.empty() ? "" : ", ") + list_path(spec, name);
    const auto package = package_of(name);
    if (packages.find(package) == std::string::npos)
      packages += " " + package;
  }
  return "no such word list: " + files + ". Install Debian's package" + (lists.size() > 1 ? "s" : "") + packages + " (apt-get install" + packages
         + "), or give the folder of the lists as \"path\"";
}

/// The code points of a text; false if it is no UTF-8.
bool decode(std::string_view text, std::vector<std::uint32_t>& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const int more = byte < 0x80 ? 0 : byte >= 0xc2 && byte < 0xe0 ? 1 : byte >= 0xe0 && byte < 0xf0 ? 2 : byte >= 0xf0 && byte < 0xf5 ? 3 : -1;
    if (more < 0 || i + static_cast<std::size_t>(more) >= text.size())
      return false;
    std::uint32_t c = more == 0 ? byte : byte & (0x3fu >> more);
    for (int k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + static_cast<std::size_t>(k)]);
      if ((next & 0xc0) != 0x80)
        return false;
      c = c << 6 | (next & 0x3fu);
    }
    out.push_back(c);
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

void encode(std::uint32_t c, std::string& out) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80)
    return put(c);
  if (c < 0x800)
    put(0xc0 | c >> 6);
  else if (c < 0x10000)
    put(0xe0 | c >> 12), put(0x80 | (c >> 6 & 0x3f));
  else
    put(0xf0 | c >> 18), put(0x80 | (c >> 12 & 0x3f)), put(0x80 | (c >> 6 & 0x3f));
  put(0x80 | (c & 0x3f));
}

/// Of the scripts that word lists are written in: Latin, Greek, Cyrillic.
std::uint32_t lower(std::uint32_t c) {
  const auto within = [c](std::uint32_t low, std::uint32_t high) { return c >= low && c <= high; };
  if (within('A', 'Z') || (within(0xc0, 0xde) && c != 0xd7) || within(0x391, 0x3a9) || within(0x410, 0x42f))
    return c + 32;
  if (within(0x400, 0x40f))
    return c + 80;
  if (c == 0x178)
    return 0xff;
  // Pairs, a capital before its small letter.
  if ((within(0x100, 0x137) || within(0x14a, 0x177)) && c % 2 == 0)
    return c + 1;
  if ((within(0x139, 0x148) || within(0x179, 0x17e)) && c % 2 == 1)
    return c + 1;
  return c;
}

bool is_letter(std::uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 0xc0 && c < 0x250 && c != 0xd7 && c != 0xf7) || (c >= 0x370 && c < 0x2000);
}

/// The words of a list as small letters in UTF-8, each once.
core::result<std::vector<std::string>> read_words(const std::string& path) {
  std::error_code ec;
  const auto size = std::filesystem::file_size(path, ec);
  std::ifstream file(path, std::ios::binary);
  if (ec || !file)
    return core::error{core::errc::io, path + ": cannot be read"};
  if (size > largest_list)
    return core::error{core::errc::io, path + ": has " + std::to_string(size) + " bytes, more than a word list may have, "
                                         + std::to_string(largest_list)};
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::vector<std::uint32_t> letters;
  if (!decode(text, letters)) { // then each byte is a letter of Latin-1
    letters.clear();
    for (char c : text)
      letters.push_back(static_cast<unsigned char>(c));
  }
  std::vector<std::string> words;
  std::string word;
  bool good = true;
  std::size_t length = 0;
  const auto end_word = [&] {
    if (good && length >= 2)
      words.push_back(word);
    word.clear();
    length = 0;
    good = true;
  };
  for (auto c : letters) {
    if (c == '\n' || c == '\r') {
      end_word();
      continue;
    }
    const auto small = lower(c);
    good = good && is_letter(small);
    encode(small, word);
    ++length;
  }
  end_word();
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  return words;
}

/// FNV-1a, 64 bits: an order of words that any program can repeat.
std::uint64_t hash_of(std::string_view word) {
  std::uint64_t h = 0xcbf29ce484222325u;
  for (char c : word)
    h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

void add_text(labelled_examples& to, std::string_view word, std::int32_t label, std::int64_t length) {
  const auto n = std::min(word.size(), static_cast<std::size_t>(length));
  for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i)
    to.tokens.push_back(i < n ? static_cast<unsigned char>(word[i]) : std::uint16_t{0});
  to.labels.push_back(label);
}

} // namespace

std::string data_spec::missing_files() const {
  std::error_code ignored;
  if (type == "fashion_mnist") {
    const auto folder = path.empty() ? fashion_mnist_folder() : path;
    for (const auto* name : {"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz",
                             "t10k-labels-idx1-ubyte.gz"})
      if (!std::filesystem::exists(folder + "/" + name, ignored))
        return folder + "/" + name + " is not there: "
               + (path.empty() ? "install Debian's package dataset-fashion-mnist, or set TROUPE_DATA_DIR to the folder that holds "
                                 "fashion-mnist/"
                               : "\"path\" must name the folder that holds the four files of Debian's package dataset-fashion-mnist");
  }
  if (type == "languages") {
    std::vector<std::string> absent;
    for (const auto& name : languages)
      if (!std::filesystem::exists(list_path(*this, name), ignored))
        absent.push_back(name);
    if (!absent.empty())
      return absent_text(*this, absent);
  }
  return {};
}

core::result<dataset> load_languages(const data_spec& spec) {
  if (auto text = spec.missing_files(); !text.empty())
    return core::error{core::errc::not_found, std::move(text)};
  std::vector<std::vector<std::string>> lists;
  std::unordered_map<std::string_view, int> seen;
  for (const auto& name : spec.languages) {
    auto words = read_words(list_path(spec, name));
    if (!words)
      return words.error();
    lists.push_back(std::move(*words));
  }
  for (const auto& list : lists)
    for (const auto& word : list)
      ++seen[word];

  dataset out;
  out.name = "languages";
  for (const auto& name : spec.languages)
    out.name += " " + name;
  out.classes = spec.class_count();
  out.features = spec.length;
  out.vocabulary = spec.token_count();
  for (std::size_t label = 0; label < lists.size(); ++label) {
    std::vector<std::pair<std::uint64_t, std::string_view>> own;
    for (const auto& word : lists[label])
      if (seen[word] == 1)
        own.emplace_back(hash_of(word), word);
    std::sort(own.begin(), own.end());
    const auto n = std::min(own.size(), static_cast<std::size_t>(spec.words)), tested = n / 10;
    if (tested == 0)
      return core::error{core::errc::io, list_path(spec, spec.languages[label]) + ": has only " + std::to_string(n)
                                           + " words of letters that are in none of the other lists, at least 10 are needed"};
    for (std::size_t i = 0; i < n; ++i)
      add_text(i + tested < n ? out.train : out.test, own[i].second, static_cast<std::int32_t>(label), spec.length);
  }
  return out;
}

dataset make_synthetic_text(const data_spec& spec) {
  dataset out;
  out.name = "synthetic_text";
  out.classes = spec.classes;
  out.features = spec.length;
  out.vocabulary = spec.vocabulary;
  constexpr std::int64_t choices = 3;
  const auto tokens = spec.vocabulary - 1; // 1 … vocabulary - 1
  std::vector<std::uint16_t> next(static_cast<std::size_t>(spec.classes * spec.vocabulary * choices));
  core::random_stream habits(spec.seed, "synthetic_text.habits");
  const auto any = [tokens](core::random_stream& rng) {
    return static_cast<std::uint16_t>(1 + rng.below(static_cast<std::uint64_t>(tokens)));
  };
  std::generate(next.begin(), next.end(), [&] { return any(habits); });
  const auto fill = [&](labelled_examples& to, std::int64_t n, std::string_view part) {
    for (std::int64_t i = 0; i < n; ++i) {
      core::random_stream rng(spec.seed, part, static_cast<std::uint64_t>(i));
      const auto label = i % spec.classes;
      const auto shortest = (spec.length + 1) / 2;
      const auto length = shortest + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(spec.length - shortest + 1)));
      auto token = any(rng);
      for (std::int64_t j = 0; j < spec.length; ++j) {
        to.tokens.push_back(j < length ? token : std::uint16_t{0});
        const bool strays = rng.uniform(0, 1) < spec.noise;
        const auto choice = static_cast<std::int64_t>(rng.below(choices));
        token = strays ? any(rng) : next[static_cast<std::size_t>((label * spec.vocabulary + token) * choices + choice)];
      }
      to.labels.push_back(static_cast<std::int32_t>(label));
    }
  };
  fill(out.train, spec.train, "synthetic_text.train");
  fill(out.test, spec.test, "synthetic_text.test");
  return out;
}

} // namespace troupe::gpu
