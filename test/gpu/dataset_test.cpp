#include "troupe/gpu/dataset.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <thread>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <zlib.h>

#include "gpu/model_support.hpp"

using namespace troupe;
using namespace troupe::gpu;
using namespace model_test;

namespace {

using bytes = std::vector<std::uint8_t>;

/// A folder that goes when the test ends.
struct temporary_folder {
  std::filesystem::path path;
  temporary_folder() {
    auto pattern = (std::filesystem::temp_directory_path() / "troupe-data-XXXXXX").string();
    REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~temporary_folder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
};

void write_gz(const std::string& path, const bytes& content) {
  gzFile f = gzopen(path.c_str(), "wb");
  REQUIRE(f != nullptr);
  REQUIRE(gzwrite(f, content.data(), static_cast<unsigned>(content.size())) == static_cast<int>(content.size()));
  REQUIRE(gzclose(f) == Z_OK);
}

bytes idx(std::vector<std::uint32_t> sizes, std::size_t payload, std::uint8_t fill = 3) {
  bytes out{0, 0, 8, static_cast<std::uint8_t>(sizes.size())};
  for (auto n : sizes)
    for (int shift = 24; shift >= 0; shift -= 8)
      out.push_back(static_cast<std::uint8_t>(n >> shift));
  out.insert(out.end(), payload, fill);
  return out;
}

void write_small_set(const temporary_folder& dir) {
  for (const auto* prefix : {"train", "t10k"}) {
    write_gz(dir.file(std::string(prefix) + "-images-idx3-ubyte.gz"), idx({5, 28, 28}, 5 * 784));
    write_gz(dir.file(std::string(prefix) + "-labels-idx1-ubyte.gz"), idx({5}, 5));
  }
}

std::vector<std::string> data_faults(const nlohmann::json& j) {
  std::vector<core::error> faults;
  data_spec::from_json(j, "/data", faults);
  std::vector<std::string> out;
  for (const auto& f : faults)
    out.push_back(f.text);
  return out;
}

} // namespace

TEST_CASE("Fashion-MNIST is read whole from the package dataset-fashion-mnist") {
  const auto folder = fashion_mnist_folder();
  if (const auto* asked = std::getenv("TROUPE_REQUIRE_DATA");
      !std::filesystem::exists(folder) && (asked == nullptr || std::string(asked) != "1")) {
    MESSAGE("not tested: there is no folder " << folder << "; TROUPE_REQUIRE_DATA=1 makes that a failure");
    return;
  }
  const auto data = load_fashion_mnist(folder);
  REQUIRE_MESSAGE(data, data.error().text);
  CHECK(data->train.size() == 60000);
  CHECK(data->test.size() == 10000);
  CHECK(data->train.images.size() == 60000u * 784u);
  CHECK(data->train.labels.front() == 9);
  std::map<int, int> per_class;
  for (auto label : data->test.labels)
    ++per_class[label];
  for (int c = 0; c < 10; ++c)
    CHECK(per_class[c] == 1000);
  // The mean and deviation that scale and shift are made of.
  double sum = 0, squares = 0;
  for (auto pixel : data->train.images) {
    const double x = static_cast<double>(pixel) * static_cast<double>(data->scale) + static_cast<double>(data->shift);
    sum += x;
    squares += x * x;
  }
  const auto n = static_cast<double>(data->train.images.size());
  CHECK(sum / n == doctest::Approx(0).epsilon(0.002).scale(1));
  CHECK(squares / n == doctest::Approx(1).epsilon(0.002));
}

TEST_CASE("absent images name the path and the Debian package") {
  const auto data = load_fashion_mnist("/nowhere/fashion-mnist");
  REQUIRE_FALSE(data);
  CHECK(data.error().code == core::errc::not_found);
  CHECK(mentions(data.error().text, "/nowhere/fashion-mnist/train-images-idx3-ubyte.gz"));
  CHECK(mentions(data.error().text, "dataset-fashion-mnist"));
}

TEST_CASE("TROUPE_DATA_DIR replaces the folder of the data sets") {
  CHECK(fashion_mnist_folder() == "/usr/share/datasets/fashion-mnist");
  ::setenv("TROUPE_DATA_DIR", "/elsewhere", 1);
  CHECK(fashion_mnist_folder() == "/elsewhere/fashion-mnist");
  ::unsetenv("TROUPE_DATA_DIR");
}

TEST_CASE("damaged idx files are refused with their name and fault") {
  const temporary_folder dir;
  const auto path = dir.file("x.gz");
  auto fault = [&](const bytes& content, std::size_t dimensions = 3) {
    write_gz(path, content);
    const auto read = read_idx(path, dimensions);
    REQUIRE_FALSE(read);
    CHECK(mentions(read.error().text, path));
    return read.error().text;
  };
  CHECK(mentions(fault({}), "ends too early"));
  CHECK(mentions(fault({0, 0, 8}), "ends too early"));
  CHECK(mentions(fault({0, 1, 8, 3, 0, 0, 0, 1}), "is not an idx file"));
  CHECK(mentions(fault({0, 0, 13, 3, 0, 0, 0, 1}), "is not an idx file"));
  CHECK(mentions(fault(idx({4}, 4)), "has 1 dimensions where 3 were expected"));
  CHECK(mentions(fault(idx({2, 2}, 0), 3), "dimensions"));
  CHECK(mentions(fault({0, 0, 8, 3, 0, 0, 0, 2, 0, 0}), "in the idx header"));
  CHECK(mentions(fault(idx({2, 2, 2}, 7)), "the header promises 8 bytes"));
  CHECK(mentions(fault(idx({2, 2, 2}, 9)), "is longer than the 8 bytes"));
  CHECK(mentions(fault(idx({2, 0, 2}, 0)), "zero"));
  CHECK(mentions(fault(idx({0xffffffff, 0xffffffff, 0xffffffff}, 8)), "larger than 1 GiB"));
  CHECK(mentions(fault(idx({1u << 20, 1u << 9, 2}, 8)), "ends too early"));
}

TEST_CASE("truncated and corrupted compressed data is noticed") {
  const temporary_folder dir;
  const auto path = dir.file("x.gz");
  bytes content = idx({10, 10, 10}, 0);
  for (int i = 0; i < 1000; ++i)
    content.push_back(static_cast<std::uint8_t>(i * i >> 3));
  write_gz(path, content);
  CHECK(read_idx(path, 3));
  std::ifstream in(path, std::ios::binary);
  const std::string packed((std::istreambuf_iterator<char>(in)), {});
  auto rewritten = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
    return read_idx(path, 3);
  };
  CHECK_FALSE(rewritten(packed.substr(0, packed.size() / 2)));
  CHECK_FALSE(rewritten(packed.substr(0, packed.size() - 6)));
  auto flipped = packed;
  flipped[packed.size() - 7] ^= 1; // gzip's checksum
  CHECK_FALSE(rewritten(flipped));
}

TEST_CASE("images and labels that do not belong together are refused") {
  const temporary_folder dir;
  write_small_set(dir);
  const auto good = load_fashion_mnist(dir.path.string());
  REQUIRE_MESSAGE(good, good.error().text);
  CHECK(good->train.size() == 5);
  write_gz(dir.file("t10k-labels-idx1-ubyte.gz"), idx({4}, 4));
  CHECK(mentions(load_fashion_mnist(dir.path.string()).error().text, "has 4 labels for the 5 images"));
  write_gz(dir.file("t10k-labels-idx1-ubyte.gz"), idx({5}, 5, 10));
  CHECK(mentions(load_fashion_mnist(dir.path.string()).error().text, "label 10 at place 0"));
  write_gz(dir.file("train-images-idx3-ubyte.gz"), idx({5, 14, 56}, 5 * 784));
  CHECK(mentions(load_fashion_mnist(dir.path.string()).error().text, "14 x 56"));
}

TEST_CASE("generated data is a function of its spec") {
  std::vector<core::error> faults;
  auto spec = data_spec::from_json(small_images(), "/data", faults);
  REQUIRE(faults.empty());
  const auto a = make_synthetic(spec), b = make_synthetic(spec);
  CHECK(a.train.images == b.train.images);
  CHECK(a.test.labels == b.test.labels);
  CHECK(a.features == 8 * 8 * 2);
  CHECK(a.train.images.size() == 256u * 128u);
  spec.seed = 2;
  CHECK(make_synthetic(spec).train.images != a.train.images);
  const auto flat = make_synthetic(data_spec::from_json(small_data(), "/data", faults));
  CHECK(flat.train.floats.size() == 256u * 16u);
  CHECK(flat.train.images.empty());
  std::map<int, int> per_class;
  for (auto label : flat.train.labels)
    ++per_class[label];
  CHECK(per_class.size() == 4);
  CHECK(per_class[3] == 64);
}

TEST_CASE("faults of a data option are named with their place") {
  using nlohmann::json;
  CHECK(data_faults("fashion_mnist").empty());
  CHECK(data_faults("synthetic").empty());
  CHECK(mentions(data_faults("mnist").at(0), "/data/type: must be one of \"fashion_mnist\", \"synthetic\""));
  CHECK(mentions(data_faults(3).at(0), "/data: must be an object"));
  CHECK(mentions(data_faults({{"type", "fashion_mnist"}, {"classes", 3}}).at(0), "/data/classes: unknown key"));
  CHECK(mentions(data_faults({{"type", "synthetic"}, {"image", {8, 8}}}).at(0), "/data/image: must be an array of 3"));
  CHECK(mentions(data_faults({{"type", "synthetic"}, {"image", {8, 0, 1}}}).at(0), "/data/image/1: must be a whole number"));
  CHECK(mentions(data_faults({{"type", "synthetic"}, {"noise", -1}}).at(0), "/data/noise"));
  CHECK(mentions(data_faults({{"type", "synthetic"}, {"train", 1 << 24}, {"features", 1 << 20}}).at(0), "choose fewer"));
  const auto several = data_faults({{"type", "synthetic"}, {"classes", 1}, {"clusters", 0.5}, {"a/b~c", 1}});
  REQUIRE(several.size() == 3);
  CHECK(mentions(several[2], "/data/a~1b~0c: unknown key"));
}

TEST_CASE("a cache loads a data set once for all threads") {
  data_cache cache;
  std::vector<core::error> faults;
  const auto spec = data_spec::from_json(small_data(), "", faults);
  std::vector<dataset_ptr> seen(4);
  std::vector<std::thread> threads;
  for (auto& s : seen)
    threads.emplace_back([&] { s = *cache.get(spec); });
  for (auto& t : threads)
    t.join();
  for (const auto& s : seen)
    CHECK(s == seen.front());
  data_spec absent;
  absent.path = "/nowhere";
  CHECK_FALSE(cache.get(absent));
  CHECK_FALSE(cache.get(absent));
}

TEST_CASE("a context's copy of a data set is shared and costs nothing on the CPU") {
  context ctx(cpu_slot()), other(cpu_slot());
  data_cache cache;
  std::vector<core::error> faults;
  const auto data = *cache.get(data_spec::from_json(small_data(), "", faults));
  const auto a = cache.resident(ctx, data);
  CHECK(a == cache.resident(ctx, data));
  CHECK(a != cache.resident(other, data));
  CHECK(a->memory_bytes() == 0);
  CHECK(a->train().floats == data->train.floats.data());
  CHECK(a->train().examples == 256);
}

TEST_CASE("a copy that outlives its context is not taken for that of the next one at its address") {
  data_cache cache;
  std::vector<core::error> faults;
  const auto data = *cache.get(data_spec::from_json(small_data(), "", faults));
  auto o = cpu_slot();
  o.memory_budget = 1 << 20;
  std::optional<context> ctx;
  ctx.emplace(o);
  const auto old = cache.resident(*ctx, data);
  ctx.emplace(o);
  const auto copy = cache.resident(*ctx, data);
  CHECK(copy != old);
  CHECK(ctx->memory_used() == copy->memory_bytes());
  CHECK(cache.resident(*ctx, data) == copy);
}

TEST_CASE("while a data set is read others are to be had") {
  const temporary_folder dir;
  const auto pipe = dir.file("train-images-idx3-ubyte.gz");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  data_cache cache;
  std::vector<core::error> faults;
  const auto quick = data_spec::from_json(small_data(), "", faults);
  const auto held = *cache.get(quick);
  data_spec slow;
  slow.path = dir.path.string();
  bool refused = false;
  std::thread reader([&] { refused = !cache.get(slow); });
  {
    std::ofstream writer(pipe); // comes back when the reader has opened it, and reads
    CHECK(*cache.get(quick) == held);
    context ctx(cpu_slot());
    CHECK(cache.resident(ctx, held)->train().examples == 256);
  }
  reader.join();
  CHECK(refused); // an empty file
}

TEST_CASE("a relative path of data is made absolute and nothing else is touched") {
  const auto anchored = [](const char* text) {
    auto j = nlohmann::ordered_json::parse(text);
    const bool changed = anchor_data_path(j, "/home/me");
    CHECK(changed == (j != nlohmann::ordered_json::parse(text)));
    return j.dump();
  };
  CHECK(anchored(R"({"data":{"type":"languages","path":"lists"}})") == R"({"data":{"type":"languages","path":"/home/me/lists"}})");
  CHECK(anchored(R"({"data":{"path":"../lists"}})") == R"({"data":{"path":"/home/me/../lists"}})");
  for (auto text : {R"({"data":{"path":"/lists"}})", R"({"data":{"path":""}})", R"({"data":{"path":3}})", R"({"data":"fashion_mnist"})",
                    R"({"path":"lists"})", R"({})", R"([])", R"("data")"})
    CHECK(anchored(text) == text);
}
