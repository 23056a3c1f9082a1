#include "digits.hpp"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>

#include "troupe/core/random.hpp"

namespace svm_search {

namespace core = troupe::core;

core::result<examples> load_csv(const std::string& path) {
  if (!std::filesystem::exists(path)) {
    std::string text = path + " does not exist";
    if (path == digits_file)
      text += ": install Debian's python3-sklearn, which has it, or use --generated";
    return core::error{core::errc::not_found, text};
  }
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file{gzopen(path.c_str(), "rb"), gzclose};
  if (!file)
    return core::error{core::errc::io, path + " cannot be read"};

  examples out;
  std::vector<char> buffer(1 << 16);
  for (std::size_t line = 1; gzgets(file.get(), buffer.data(), static_cast<int>(buffer.size())) != nullptr;
       ++line) {
    std::vector<double> values;
    for (const char* at = buffer.data(); *at != '\0' && *at != '\n' && *at != '\r';) {
      char* end = nullptr;
      values.push_back(std::strtod(at, &end));
      const bool number = end != at && std::isfinite(values.back()) && (*end == ',' || *end <= ' ');
      if (!number)
        return core::error{core::errc::invalid_argument, path + ":" + std::to_string(line) + ": field " +
                                                             std::to_string(values.size()) + " is no number"};
      at = *end == ',' ? end + 1 : end;
    }
    if (out.y.empty())
      out.features = values.empty() ? 0 : values.size() - 1;
    if (values.size() < 2 || values.size() != out.features + 1)
      return core::error{core::errc::invalid_argument,
                         path + ":" + std::to_string(line) + ": " + std::to_string(values.size()) +
                             " fields, where " + std::to_string(std::max<std::size_t>(out.features + 1, 2)) +
                             " are needed"};
    if (std::abs(values.back()) > 1e9 || values.back() != std::floor(values.back()))
      return core::error{core::errc::invalid_argument,
                         path + ":" + std::to_string(line) +
                             ": the class, which comes last, must be a whole number"};
    out.y.push_back(static_cast<int>(values.back()));
    out.x.insert(out.x.end(), values.begin(), values.end() - 1);
  }
  int fault = Z_OK;
  const char* why = gzerror(file.get(), &fault);
  if (fault != Z_OK && fault != Z_STREAM_END)
    return core::error{core::errc::io, path + " cannot be read: " + why};
  if (out.y.empty())
    return core::error{core::errc::invalid_argument, path + " is empty"};
  return out;
}

examples generated_digits(std::size_t count, std::uint64_t seed) {
  constexpr std::size_t side = 8, classes = 10;
  core::random_stream rng{seed, "pictures"};
  std::array<std::array<double, side * side>, classes> patterns;
  for (auto& pattern : patterns)
    for (auto& pixel : pattern)
      pixel = rng.uniform(0, 16);
  examples out;
  out.features = side * side;
  for (std::size_t i = 0; i < count; ++i) {
    out.y.push_back(static_cast<int>(i % classes));
    for (const double pixel : patterns[i % classes])
      out.x.push_back(std::clamp(std::round(pixel + 6 * rng.normal()), 0.0, 16.0));
  }
  return out;
}

core::result<std::vector<int>> stratified_folds(const std::vector<int>& labels, int folds) {
  // Classes are numbered as they first appear. The sorted list of all examples' numbers is dealt out like
  // cards: that says how many examples of each class go into each fold.
  std::map<int, int> number;
  std::vector<int> count, of(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    of[i] = number.try_emplace(labels[i], static_cast<int>(number.size())).first->second;
    count.resize(number.size());
    ++count[static_cast<std::size_t>(of[i])];
  }
  for (const auto& [label, n] : number)
    if (count[static_cast<std::size_t>(n)] < folds)
      return core::error{core::errc::invalid_argument,
                         "class " + std::to_string(label) + " has " +
                             std::to_string(count[static_cast<std::size_t>(n)]) + " examples, too few for " +
                             std::to_string(folds) + " folds"};
  std::vector<std::vector<int>> share(count.size(), std::vector<int>(static_cast<std::size_t>(folds)));
  std::size_t card = 0;
  for (std::size_t c = 0; c < count.size(); ++c)
    for (int i = 0; i < count[c]; ++i)
      ++share[c][card++ % static_cast<std::size_t>(folds)];

  // Within a class the first examples go to the first fold, the next to the second, …
  std::vector<int> out(labels.size());
  std::vector<std::size_t> fold(count.size());
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const auto c = static_cast<std::size_t>(of[i]);
    while (share[c][fold[c]] == 0)
      ++fold[c];
    --share[c][fold[c]];
    out[i] = static_cast<int>(fold[c]);
  }
  return out;
}

} // namespace svm_search
