#include "troupe/gpu/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "option_reader.hpp"
#include "troupe/core/random.hpp"

namespace troupe::gpu {

namespace {

constexpr std::int64_t max_floats = std::int64_t{1} << 28;

/// Near enough to a normal deviate for making data: four uniform numbers' sum, scaled to deviation 1. Exact arithmetic up to the
/// last product, unlike Box-Muller.
float cloud(core::random_stream& rng) {
  std::int64_t sum = 0;
  for (int i = 0; i < 4; ++i)
    sum += static_cast<std::int64_t>(rng.next_u32() >> 8) - (1 << 23);
  constexpr double unit = 1.7320508075688772 / (1 << 24); // a uniform number's variance is 1/12, so the sum's is 1/3
  return static_cast<float>(static_cast<double>(sum) * unit);
}

/// A centre for every (class, cluster); in images constant over 4 x 4 pixels, so that neighbouring pixels have something
/// in common for a convolution to find.
std::vector<float> make_centres(const data_spec& s) {
  const auto f = s.feature_count();
  std::vector<float> centres(static_cast<std::size_t>(s.classes * s.clusters * f));
  for (std::int64_t c = 0; c < s.classes * s.clusters; ++c) {
    core::random_stream rng(s.seed, "synthetic.centre", static_cast<std::uint64_t>(c));
    float* centre = centres.data() + c * f;
    if (!s.is_image()) {
      std::generate_n(centre, f, [&] { return cloud(rng); });
      continue;
    }
    const auto tiles_w = (s.width + 3) / 4, tiles_h = (s.height + 3) / 4;
    std::vector<float> tiles(static_cast<std::size_t>(tiles_w * tiles_h * s.channels));
    std::generate(tiles.begin(), tiles.end(), [&] { return cloud(rng); });
    for (std::int32_t y = 0; y < s.height; ++y)
      for (std::int32_t x = 0; x < s.width; ++x)
        for (std::int32_t ch = 0; ch < s.channels; ++ch)
          centre[(y * s.width + x) * s.channels + ch]
            = tiles[static_cast<std::size_t>(((y / 4) * tiles_w + x / 4) * s.channels + ch)];
  }
  return centres;
}

labelled_examples make_examples(const data_spec& s, const std::vector<float>& centres, std::int64_t n, std::string_view part) {
  labelled_examples out;
  const auto f = s.feature_count();
  const auto count = static_cast<std::size_t>(n * f);
  out.labels.resize(static_cast<std::size_t>(n));
  (s.is_image() ? out.images.resize(count) : out.floats.resize(count));
  const auto noise = static_cast<float>(s.noise);
  const auto unit = static_cast<float>(1 / std::sqrt(1 + s.noise * s.noise));
  for (std::int64_t i = 0; i < n; ++i) {
    core::random_stream rng(s.seed, part, static_cast<std::uint64_t>(i));
    const auto label = i % s.classes;
    const auto cluster = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(s.clusters)));
    const float* centre = centres.data() + (label * s.clusters + cluster) * f;
    out.labels[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(label);
    for (std::int64_t j = 0; j < f; ++j) {
      const float x = (centre[j] + noise * cloud(rng)) * unit;
      const auto at = static_cast<std::size_t>(i * f + j);
      if (s.is_image())
        out.images[at] = static_cast<std::uint8_t>(std::clamp(x * 32.0f + 128.5f, 0.0f, 255.0f));
      else
        out.floats[at] = x;
    }
  }
  return out;
}

core::result<labelled_examples> load_part(const std::string& folder, const std::string& prefix) {
  const auto images_path = folder + "/" + prefix + "-images-idx3-ubyte.gz";
  const auto labels_path = folder + "/" + prefix + "-labels-idx1-ubyte.gz";
  auto images = read_idx(images_path, 3);
  if (!images)
    return images.error();
  auto labels = read_idx(labels_path, 1);
  if (!labels)
    return labels.error();
  if (images->shape[1] != 28 || images->shape[2] != 28)
    return core::error{core::errc::io, images_path + ": its images are " + std::to_string(images->shape[1]) + " x "
                                         + std::to_string(images->shape[2]) + ", not 28 x 28"};
  if (images->shape[0] != labels->shape[0])
    return core::error{core::errc::io, labels_path + ": has " + std::to_string(labels->shape[0]) + " labels for the "
                                         + std::to_string(images->shape[0]) + " images of " + images_path};
  labelled_examples out;
  out.images = std::move(images->bytes);
  out.labels.assign(labels->bytes.begin(), labels->bytes.end());
  for (std::size_t i = 0; i < out.labels.size(); ++i)
    if (out.labels[i] > 9)
      return core::error{core::errc::io, labels_path + ": label " + std::to_string(out.labels[i]) + " at place "
                                           + std::to_string(i) + " is not 0 to 9"};
  return out;
}

constexpr std::int64_t longest_text = 4096;

void read_languages(internal::option_reader& in, data_spec& s) {
  s.path = in.text("path", "");
  if (const auto* list = in.raw("languages"); list != nullptr) {
    std::vector<std::string> names;
    if (list->is_array())
      for (const auto& x : *list)
        if (x.is_string())
          names.push_back(x.get<std::string>());
    std::set<std::string> distinct(names.begin(), names.end());
    const bool plain = std::none_of(names.begin(), names.end(), [](const std::string& n) {
      return n.empty() || n.front() == '.' || n.find('/') != std::string::npos;
    });
    if (!list->is_array() || names.size() != list->size() || distinct.size() != names.size() || names.size() < 2
        || names.size() > 1000 || !plain)
      in.fault("languages", "must be an array of 2 to 1000 different names of word lists such as \"french\"");
    else
      s.languages = std::move(names);
  }
  s.words = in.integer("words", s.words, 20, 1 << 22);
  s.length = in.integer("length", s.length, 1, longest_text);
  in.finish();
}

void read_synthetic_text(internal::option_reader& in, data_spec& s) {
  s.classes = in.integer("classes", 4, 2, 10000);
  s.vocabulary = in.integer("vocabulary", s.vocabulary, 3, 65536);
  s.length = in.integer("length", s.length, 1, longest_text);
  s.train = in.integer("train", s.train, 1, 1 << 24);
  s.test = in.integer("test", s.test, 1, 1 << 24);
  s.noise = in.number("noise", 0.2, 0, 1);
  s.seed = static_cast<std::uint64_t>(in.integer("seed", 1, 0, INT64_MAX));
  in.finish();
  if (const auto tokens = (s.train + s.test) * s.length + s.classes * s.vocabulary * 3; tokens > max_floats)
    in.fault("", "asks for " + std::to_string(tokens) + " tokens, more than " + std::to_string(max_floats)
                   + ": choose fewer or shorter examples");
}

} // namespace

data_spec data_spec::from_json(const nlohmann::json& j, std::string_view where, std::vector<core::error>& faults) {
  data_spec s;
  const auto object = j.is_string() ? nlohmann::json::object({{"type", j}}) : j;
  internal::option_reader in(object, std::string(where), faults);
  s.type = in.choice("type", "fashion_mnist", {"fashion_mnist", "synthetic", "languages", "synthetic_text"});
  if (s.type == "fashion_mnist") {
    s.path = in.text("path", "");
    in.finish();
    return s;
  }
  if (s.type == "languages") {
    read_languages(in, s);
    return s;
  }
  if (s.type == "synthetic_text") {
    read_synthetic_text(in, s);
    return s;
  }
  s.classes = in.integer("classes", s.classes, 2, 10000);
  if (const auto* image = in.raw("image"); image != nullptr) {
    const auto shape = in.integers("image", {8, 8, 1}, 1, 1024, 3, 3);
    s.height = static_cast<std::int32_t>(shape[0]);
    s.width = static_cast<std::int32_t>(shape[1]);
    s.channels = static_cast<std::int32_t>(shape[2]);
    if (in.has("features"))
      in.fault("features", "cannot be given with \"image\": an image's features are its pixels");
  }
  s.features = in.integer("features", s.features, 1, 1 << 20);
  s.train = in.integer("train", s.train, 1, 1 << 24);
  s.test = in.integer("test", s.test, 1, 1 << 24);
  s.clusters = in.integer("clusters", s.clusters, 1, 1000);
  s.noise = in.number("noise", s.noise, 0, 100);
  s.seed = static_cast<std::uint64_t>(in.integer("seed", 1, 0, INT64_MAX));
  in.finish();
  if (const auto floats = (s.train + s.test + s.classes * s.clusters) * s.feature_count(); floats > max_floats)
    in.fault("", "asks for " + std::to_string(floats) + " numbers, more than " + std::to_string(max_floats)
                   + ": choose fewer examples or features");
  return s;
}

std::int64_t data_spec::feature_count() const {
  if (type == "fashion_mnist")
    return 784;
  if (is_text())
    return length;
  return height > 0 ? std::int64_t{height} * width * channels : features;
}

std::int64_t data_spec::class_count() const {
  if (type == "languages")
    return static_cast<std::int64_t>(languages.size());
  return type == "fashion_mnist" ? 10 : classes;
}

bool data_spec::is_image() const {
  return type == "fashion_mnist" || (type == "synthetic" && height > 0);
}

bool data_spec::is_text() const {
  return type == "languages" || type == "synthetic_text";
}

std::int64_t data_spec::token_count() const {
  return type == "languages" ? 256 : vocabulary;
}

std::int64_t data_spec::most_examples() const {
  if (type == "languages")
    return class_count() * (words - words / 10);
  return type == "fashion_mnist" ? 60000 : train;
}

std::string data_spec::key() const {
  if (type == "fashion_mnist")
    return type + ":" + path;
  if (type == "languages")
    return nlohmann::json{type, path, languages, words, length}.dump();
  if (type == "synthetic_text")
    return nlohmann::json{type, classes, vocabulary, length, train, test, noise, seed}.dump();
  return nlohmann::json{type, classes, features, height, width, channels, train, test, clusters, noise, seed}.dump();
}

std::string fashion_mnist_folder() {
  const char* dir = std::getenv("TROUPE_DATA_DIR");
  return (dir != nullptr && *dir != '\0' ? std::string(dir) : "/usr/share/datasets") + "/fashion-mnist";
}

core::result<dataset> load_fashion_mnist(const std::string& folder) {
  dataset out;
  out.name = "fashion_mnist";
  out.classes = 10;
  out.features = 784;
  out.height = out.width = 28;
  out.channels = 1;
  // Mean 0.2860 and deviation 0.3530 of the training set's pixels, as fractions of 255.
  out.scale = 1 / (255 * 0.3530F);
  out.shift = -0.2860F / 0.3530F;
  for (auto [part, prefix] : {std::pair{&out.train, "train"}, std::pair{&out.test, "t10k"}}) {
    auto loaded = load_part(folder, prefix);
    if (!loaded) {
      auto e = loaded.error();
      if (e.code == core::errc::not_found)
        e.text = "Fashion-MNIST is not there: " + e.text + ". Install Debian's package dataset-fashion-mnist (apt-get install "
                 "dataset-fashion-mnist), or set TROUPE_DATA_DIR to the folder that holds fashion-mnist/";
      return e;
    }
    *part = std::move(*loaded);
  }
  return out;
}

dataset make_synthetic(const data_spec& spec) {
  dataset out;
  out.name = "synthetic";
  out.classes = spec.classes;
  out.features = spec.feature_count();
  if (spec.is_image()) {
    out.height = spec.height;
    out.width = spec.width;
    out.channels = spec.channels;
    out.scale = 1.0F / 32;
    out.shift = -4;
  }
  const auto centres = make_centres(spec);
  out.train = make_examples(spec, centres, spec.train, "synthetic.train");
  out.test = make_examples(spec, centres, spec.test, "synthetic.test");
  return out;
}

core::result<dataset> load_dataset(const data_spec& spec) {
  if (spec.type == "synthetic")
    return make_synthetic(spec);
  if (spec.type == "synthetic_text")
    return make_synthetic_text(spec);
  if (spec.type == "languages")
    return load_languages(spec);
  return load_fashion_mnist(spec.path.empty() ? fashion_mnist_folder() : spec.path);
}

namespace {

std::uint64_t bytes_of(const labelled_examples& x) {
  return x.images.size() + x.floats.size() * sizeof(float) + x.tokens.size() * sizeof(std::uint16_t)
         + x.labels.size() * sizeof(std::int32_t);
}

/// On the CPU a budget stands for a GPU's memory.
bool reads_host(const context& ctx) {
  return ctx.kind() == device_kind::cpu && ctx.memory_budget() == 0;
}

} // namespace

resident_data::resident_data(context& ctx, dataset_ptr host, data_place where) : host_(std::move(host)) {
  staged_ = where == data_place::where_it_fits && !reads_host(ctx)
            && bytes_of(host_->train) + bytes_of(host_->test) > ctx.memory_free() / 2;
  train_ = place(ctx, host_->train);
  test_ = place(ctx, host_->test);
}

data_source resident_data::place(context& ctx, const labelled_examples& x) {
  data_source out;
  out.examples = x.size();
  out.features = host_->features;
  out.scale = host_->scale;
  out.shift = host_->shift;
  auto on_device = [&](const auto& v) {
    using element = typename std::decay_t<decltype(v)>::value_type;
    if (v.empty() || staged_)
      return static_cast<const element*>(nullptr);
    if (reads_host(ctx))
      return v.data();
    buffers_.push_back(ctx.allocate_of<element>(v.size()));
    ctx.upload(buffers_.back().data(), v.data(), v.size() * sizeof(element));
    return static_cast<const element*>(buffers_.back().data());
  };
  out.images = on_device(x.images);
  out.floats = on_device(x.floats);
  out.tokens = on_device(x.tokens);
  out.labels = on_device(x.labels);
  return out;
}

std::uint64_t resident_data::memory_bytes() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& b : buffers_)
    sum += b.size();
  return sum;
}

core::result<dataset_ptr> data_cache::get(const data_spec& spec) {
  const auto wanted = [&] {
    const std::lock_guard lock(mutex_);
    auto& known = loaded_[spec.key()];
    if (!known)
      known = std::make_shared<entry>();
    return known;
  }();
  const std::lock_guard lock(wanted->mutex);
  if (!wanted->data) {
    auto made = load_dataset(spec);
    if (!made)
      return made.error();
    wanted->data = std::make_shared<const dataset>(std::move(*made));
  }
  return wanted->data;
}

std::shared_ptr<const resident_data> data_cache::resident(context& ctx, const dataset_ptr& data, data_place where) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto place : {data_place::device, where}) // what lies on the device does for both
      if (const auto at = resident_.find({&ctx, data.get(), place}); at != resident_.end() && at->second.owner.here())
        if (auto known = at->second.data.lock())
          return known;
    std::erase_if(resident_, [](const auto& x) { return x.second.data.expired(); });
  }
  // Without the lock: a context's copies are made on its thread alone, and other slots need not wait for this one.
  auto made = std::make_shared<const resident_data>(ctx, data, where);
  const std::lock_guard lock(mutex_);
  resident_.insert_or_assign({&ctx, data.get(), made->staged() ? data_place::where_it_fits : data_place::device},
                             copy{ctx.watch(), made});
  return made;
}

} // namespace troupe::gpu
