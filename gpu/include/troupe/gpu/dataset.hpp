#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/core/result.hpp"
#include "troupe/gpu/context.hpp"
#include "troupe/gpu/ops.hpp"

namespace troupe::gpu {

/// Examples with one label each, in host memory. One of `images`, `floats` and `tokens` is filled: examples x features, row-major.
struct labelled_examples {
  std::vector<std::uint8_t> images;
  std::vector<float> floats;
  std::vector<std::uint16_t> tokens; ///< texts; 0 is padding at the end
  std::vector<std::int32_t> labels; ///< 0 … classes - 1

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(labels.size()); }
};

/// A classification data set in host memory. Immutable once made; may be read from any thread.
struct dataset {
  std::string name;
  std::int64_t classes = 0;
  std::int64_t features = 0;                     ///< numbers per example; of texts, tokens
  std::int64_t vocabulary = 0;                   ///< texts: how many tokens there are, padding included; 0: not texts
  std::int32_t height = 0, width = 0, channels = 0; ///< of images (NHWC); 0: not images
  float scale = 1, shift = 0;                    ///< what a network sees of a byte: byte * scale + shift
  labelled_examples train, test;

  bool is_image() const noexcept { return height > 0; }
  bool is_text() const noexcept { return vocabulary > 0; }
};
using dataset_ptr = std::shared_ptr<const dataset>;

/// Which data set, as a workload's "data" option names it: "fashion_mnist", "synthetic", "languages", "synthetic_text", or an
/// object with "type".
struct data_spec {
  std::string type = "fashion_mnist";
  std::string path;              ///< the folder of fashion_mnist (empty: see `fashion_mnist_folder`) or of languages' word lists
  std::vector<std::string> languages = {"american-english", "french", "italian", "ngerman", "spanish"}; ///< word lists, a class each
  std::int64_t words = 20000;    ///< languages: the most of each
  std::int64_t length = 16;      ///< texts: tokens of the longest
  std::int64_t vocabulary = 24;  ///< synthetic_text: tokens there are, padding included
  std::int64_t classes = 10;     ///< synthetic, as all that follow
  std::int64_t features = 32;    ///< of examples that are not images
  std::int32_t height = 0, width = 0, channels = 1; ///< height > 0: images
  std::int64_t train = 4096, test = 1024; ///< examples
  std::int64_t clusters = 2;     ///< Gaussian clouds per class
  double noise = 1.0;            ///< deviation of a cloud; the centres have deviation 1 in each feature
  std::uint64_t seed = 1;

  /// Checks all keys, types and ranges; every fault's text begins with its JSON pointer (`where` and below). The
  /// result is usable only if no fault was added.
  static data_spec from_json(const nlohmann::json& j, std::string_view where, std::vector<core::error>& faults);
  std::int64_t feature_count() const; ///< without loading: features, or height * width * channels
  std::int64_t class_count() const;
  bool is_image() const;
  bool is_text() const;
  std::int64_t token_count() const;   ///< texts: the vocabulary's size
  std::int64_t most_examples() const; ///< for training; languages have fewer where their word lists do
  std::string key() const;            ///< equal for equal data
  /// Says which files are absent and which Debian packages have them; empty if all are there or none are needed.
  std::string missing_files() const;
};

/// Makes a relative path in the "data" of a workload's object absolute: it counts against `folder`. False: there is none.
bool anchor_data_path(nlohmann::ordered_json& workload, const std::string& folder);

/// Where Debian's package dataset-fashion-mnist puts its files; `TROUPE_DATA_DIR`, where set, replaces
/// /usr/share/datasets.
std::string fashion_mnist_folder();

/// Reads the four gzipped idx files of `folder`. An error names the file, what is wrong with it and, if it is
/// absent, Debian's package.
core::result<dataset> load_fashion_mnist(const std::string& folder);

/// Gaussian clouds: `clusters` centres per class, examples around them, every class equally often. A function of the spec
/// alone.
dataset make_synthetic(const data_spec& spec);

/// The words of several languages, each to be told by its letters: texts of UTF-8 bytes, so of 256 tokens, cut at `spec.length`. From
/// word lists with a word a line (Debian's wamerican, wfrench, …; UTF-8 or Latin-1), in lower case, without words that hold
/// anything but letters, and without those that are in several of the lists. Of each list the first `spec.words` in the order of
/// their FNV-1a hashes; the last tenth of these is for testing. An error names the file and, if it is absent, Debian's package.
core::result<dataset> load_languages(const data_spec& spec);

/// Texts that each class makes by a habit of its own: after each token follows one of three that the class and the token decide,
/// or, with probability `noise`, any. Lengths vary from half of `length` on. A function of the spec alone.
dataset make_synthetic_text(const data_spec& spec);

/// Loads or makes what `spec` names.
core::result<dataset> load_dataset(const data_spec& spec);

/// Where a context's operations find a data set.
enum class data_place : std::uint8_t {
  device,       ///< in device memory, or it is an error
  where_it_fits ///< there if it takes at most half of what is free, so that models have room; else on the host, see `staged`
};

/// A data set as one context's operations read it: on a GPU, and on a CPU slot with a memory budget, a copy in the slot's memory;
/// else the host's own bytes. Destroy it on the context's thread, before the context.
class resident_data {
public:
  /// Uploads where needed. Throws `out_of_memory`.
  resident_data(context& ctx, dataset_ptr host, data_place where = data_place::device);

  const dataset& host() const noexcept { return *host_; }
  /// The data stays on the host: `train` and `test` have sizes but no examples, and whoever trains sends batch by batch, as
  /// `training_group` does.
  bool staged() const noexcept { return staged_; }
  const data_source& train() const noexcept { return train_; }
  const data_source& test() const noexcept { return test_; }
  std::uint64_t memory_bytes() const noexcept; ///< of the device, beyond the host's copy

private:
  data_source place(context& ctx, const labelled_examples& x);

  dataset_ptr host_;
  bool staged_ = false;
  std::vector<buffer> buffers_;
  data_source train_, test_;
};

/// Data sets of a process, each loaded once and shared; resident copies, one per context. Made by whoever fills the
/// workload registry and held by its factories. All members are thread-safe.
class data_cache {
public:
  /// Loads at the first call for this spec; callers from other threads that want the same wait for it. Failures are not
  /// remembered.
  core::result<dataset_ptr> get(const data_spec& spec);
  /// The context's copy, made at the first call and kept as long as someone holds it. Call on the context's thread.
  std::shared_ptr<const resident_data> resident(context& ctx, const dataset_ptr& data, data_place where = data_place::device);

private:
  struct entry {
    std::mutex mutex; ///< held while it is read
    dataset_ptr data;
  };
  struct copy {
    context_watch owner; ///< another context may have the same address later
    std::weak_ptr<const resident_data> data;
  };
  std::mutex mutex_; ///< of the maps
  std::map<std::string, std::shared_ptr<entry>, std::less<>> loaded_;
  std::map<std::tuple<const context*, const dataset*, data_place>, copy> resident_;
};

/// The images or labels of one idx file (the format of MNIST: big-endian magic 00 00 08 n, n sizes, bytes), gzipped or not.
struct idx_bytes {
  std::vector<std::int64_t> shape;
  std::vector<std::uint8_t> bytes;
};
/// Trusts nothing: magic, `dimensions`, sizes (at most 1 GiB in all) and the length are checked before memory is taken for
/// them; gzip's checksum is verified. Errors name the file.
core::result<idx_bytes> read_idx(const std::string& path, std::size_t dimensions);

} // namespace troupe::gpu
