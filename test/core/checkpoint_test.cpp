#include "troupe/core/checkpoint.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "temporary_folder.hpp"

using namespace troupe::core;

namespace {

template <class T>
std::span<const T> view(const std::vector<T>& xs) {
  return xs;
}

checkpoint sample() {
  checkpoint x;
  x.add("weights.0", dtype::f32, {2, 3}, view(std::vector<float>{1, 2, 3, 4, 5, 6}));
  x.add("empty", dtype::f64, {0, 4}, view(std::vector<double>{}));
  x.add("flags", dtype::u8, {3}, view(std::vector<std::uint8_t>{7, 8, 9}));
  x.add("a scalar \"quoted\" \xC3\xA9", dtype::i64, {}, view(std::vector<std::int64_t>{-5}));
  x.set_text("troupe.step", "120");
  x.set_text("note", "two\nlines, a tab\t, a \\ and a \x01");
  return x;
}

std::vector<std::byte> to_bytes(std::string_view s) {
  auto b = std::as_bytes(std::span{s.data(), s.size()});
  return {b.begin(), b.end()};
}

/// A file with this header and `data` zero bytes.
std::vector<std::byte> file_with(std::string header, std::size_t data) {
  std::string out(8, '\0');
  std::uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  return to_bytes(out + header + std::string(data, '\0'));
}

std::string fault_of(const std::vector<std::byte>& bytes) {
  auto x = decode_safetensors(bytes);
  return x ? "" : x.error().text;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

} // namespace

TEST_CASE("a checkpoint keeps its tensors and texts through encoding") {
  auto x = sample();
  auto y = decode_safetensors(encode_safetensors(x));
  REQUIRE(y);
  CHECK(*y == x);
  CHECK(content_hash(*y) == content_hash(x));
  CHECK(y->find("weights.0")->as<float>()[4] == 5.0f);
  CHECK(y->tensors()[0].name == "weights.0");
  CHECK(y->bytes() == 24 + 3 + 8);
}

TEST_CASE("an encoded checkpoint has the safetensors layout") {
  checkpoint x;
  x.add("w", dtype::bf16, {1, 2}, std::as_bytes(std::span{"abcd", 4}));
  auto bytes = encode_safetensors(x);
  std::uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  REQUIRE(bytes.size() == 8 + length + 4);
  std::string header{reinterpret_cast<const char*>(bytes.data()) + 8, length};
  CHECK(contains(header, R"("w":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]})"));
  CHECK(contains(header, R"({"__metadata__":{"troupe.format":"1","troupe.hash":")"));
  CHECK(std::memcmp(bytes.data() + 8 + length, "abcd", 4) == 0);
}

TEST_CASE("a foreign safetensors file without a hash is read") {
  auto y = decode_safetensors(file_with(R"( )", 0));
  CHECK_FALSE(y);
  y = decode_safetensors(file_with(R"({"b":{"shape":[2],"data_offsets":[4,12],"dtype":"I32"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}   )", 12));
  REQUIRE(y);
  CHECK(y->tensors()[0].name == "a");
  CHECK(y->tensors()[1].shape == std::vector<std::int64_t>{2});
  CHECK(y->texts().empty());
  REQUIRE(decode_safetensors(file_with("{}", 0)));
}

TEST_CASE("an empty checkpoint can be written and read") {
  auto y = decode_safetensors(encode_safetensors(checkpoint{}));
  REQUIRE(y);
  CHECK(*y == checkpoint{});
}

TEST_CASE("fault 43: a checkpoint cut off anywhere is refused") {
  auto bytes = encode_safetensors(sample());
  std::mt19937 random{1};
  for (int i = 0; i < 100; ++i) {
    auto cut = bytes;
    cut.resize(random() % bytes.size());
    CHECK_FALSE(decode_safetensors(cut));
  }
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    auto cut = bytes;
    cut.resize(n);
    REQUIRE_FALSE(decode_safetensors(cut));
  }
}

TEST_CASE("every single flipped bit of a checkpoint is found") {
  auto x = sample();
  auto bytes = encode_safetensors(x);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      auto bad = bytes;
      bad[i] ^= std::byte(1 << bit);
      auto y = decode_safetensors(bad);
      if (!y)
        continue;
      // Another spelling of the same content (\u001F for \u001f) would be no damage; this sample has none.
      CHECK(*y == x);
      CHECK_FALSE(y);
    }
}

TEST_CASE("random damage to a checkpoint never decodes to something else") {
  auto x = sample();
  auto bytes = encode_safetensors(x);
  std::mt19937 random{2};
  for (int i = 0; i < 3000; ++i) {
    auto bad = bytes;
    for (unsigned n = 1 + random() % 8; n > 0; --n)
      bad[random() % bad.size()] = std::byte(random());
    if (random() % 4 == 0)
      bad.resize(random() % (2 * bad.size()));
    if (auto y = decode_safetensors(bad))
      CHECK(*y == x);
  }
}

TEST_CASE("a damaged header is refused with the reason") {
  auto tensor = [](std::string fields) { return R"({"w":{)" + fields + "}}"; };
  auto good = tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])");
  CHECK(fault_of(file_with(good, 8)) == "");
  CHECK(contains(fault_of(file_with(good, 7)), "need 8 bytes of data, and there are 7"));
  CHECK(contains(fault_of(file_with(good, 9)), "there are 9"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4)), "does not match its 4"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F8","shape":[2],"data_offsets":[0,8])"), 8)), "unknown element type 'F8'"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[2])"), 8)), "without one of"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), 8)), "twice"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8)), "no range"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8)), "no range"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8)), "negative"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), 8)), "fraction"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[[2]],"data_offsets":[0,8])"), 8)), "a list"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":{},"data_offsets":[0,8])"), 8)), "an object"));
  CHECK(contains(fault_of(file_with(tensor(R"("dtype":"F32","shape":[2],"offset":[0,8])"), 8)), "unknown field 'offset'"));
  CHECK(contains(fault_of(file_with(
                     tensor(R"("dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,8])"), 8)),
                 "does not match"));
  CHECK(contains(fault_of(file_with(R"({"":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)), "without a name"));
  CHECK(contains(fault_of(file_with(R"({"__metadata__":{"a":1}})", 0)), "a number"));
  CHECK(contains(fault_of(file_with(R"({"__metadata__":{"a":"1","a":"2"}})", 0)), "'a' twice"));
  CHECK(contains(fault_of(file_with(R"({"__metadata__":{"troupe.step":"1"}})", 0)), "has no 'troupe.hash'"));
  CHECK(contains(fault_of(file_with(R"({"w":)", 0)), "not JSON"));
  CHECK(contains(fault_of(file_with(R"([])", 0)), "does not begin"));
  CHECK(contains(fault_of(to_bytes("short")), "fewer than the 8"));
  std::uint64_t huge = 1ull << 40;
  CHECK(contains(fault_of(to_bytes(std::string(reinterpret_cast<char*>(&huge), 8) + "{}")), "more than 100 MB"));
}

TEST_CASE("tensors that overlap or leave a gap are refused") {
  auto two = [](int a, int b, int c, int d) {
    auto t = [](int from, int to) {
      return R"({"dtype":"U8","shape":[)" + std::to_string(to - from) + R"(],"data_offsets":[)" + std::to_string(from) + "," +
             std::to_string(to) + "]}";
    };
    return R"({"a":)" + t(a, b) + R"(,"b":)" + t(c, d) + "}";
  };
  CHECK(fault_of(file_with(two(0, 4, 4, 8), 8)) == "");
  CHECK(fault_of(file_with(two(4, 8, 0, 4), 8)) == "");
  CHECK(contains(fault_of(file_with(two(0, 4, 2, 8), 8)), "begins at byte 2, not at 4"));
  CHECK(contains(fault_of(file_with(two(0, 4, 5, 8), 8)), "begins at byte 5, not at 4"));
  CHECK(contains(fault_of(file_with(two(1, 4, 4, 8), 8)), "begins at byte 1, not at 0"));
}

TEST_CASE("a deeply nested header does not exhaust the stack") {
  CHECK_FALSE(decode_safetensors(file_with("{\"a\":" + std::string(1'000'000, '['), 0)));
  CHECK_FALSE(decode_safetensors(file_with("{\"a\":{\"shape\":" + std::string(1'000'000, '['), 0)));
}

TEST_CASE("a checkpoint refuses tensors that do not match their shape") {
  checkpoint x;
  std::vector<float> two{1, 2};
  CHECK_THROWS_WITH_AS(x.add("w", dtype::f32, {3}, view(two)), "tensor 'w' has 8 bytes, which does not match F32[3]",
                       std::invalid_argument);
  CHECK_THROWS_AS(x.add("w", dtype::f32, {-2}, view(two)), std::invalid_argument);
  CHECK_THROWS_AS(x.add("__metadata__", dtype::f32, {2}, view(two)), std::invalid_argument);
  CHECK_THROWS_AS(x.add("\xFF", dtype::f32, {2}, view(two)), std::invalid_argument);
  CHECK(x.tensors().empty());
}

TEST_CASE("a tensor of the same name replaces the old one in its place") {
  checkpoint x;
  x.add("a", dtype::u8, {1}, view(std::vector<std::uint8_t>{1}));
  x.add("b", dtype::u8, {1}, view(std::vector<std::uint8_t>{2}));
  x.add("a", dtype::u8, {2}, view(std::vector<std::uint8_t>{3, 4}));
  CHECK(x.tensors().size() == 2);
  CHECK(x.tensors()[0].bytes.size() == 2);
}

TEST_CASE("expecting a tensor names what is missing or different") {
  auto x = sample();
  std::vector<std::int64_t> shape{2, 3}, other{3, 2};
  CHECK(x.expect("weights.0", dtype::f32, shape));
  CHECK(x.expect("weights.1", dtype::f32, shape).error().text == "the checkpoint has no tensor 'weights.1'");
  CHECK(x.expect("weights.0", dtype::f32, other).error().text ==
        "tensor 'weights.0' of the checkpoint is F32[2, 3], where F32[3, 2] is needed");
  CHECK_FALSE(x.expect("weights.0", dtype::i32, shape));
}

TEST_CASE("malformed UTF-8 in a text is replaced so that the file stays JSON") {
  checkpoint x;
  x.set_text("reason", "bad \xC0\x80 byte");
  CHECK(*x.text("reason") == "bad \xEF\xBF\xBD\xEF\xBF\xBD byte");
  CHECK(decode_safetensors(encode_safetensors(x)));
}

TEST_CASE("the content hash sees names and types and values") {
  auto hash = [](auto change) {
    auto x = sample();
    change(x);
    return content_hash(x);
  };
  auto base = hash([](auto&) {});
  CHECK(base == hash([](auto&) {}));
  CHECK(base != hash([](auto& x) { x.set_text("note", "other"); }));
  CHECK(base != hash([](auto& x) { x.add("flags", dtype::u8, {3}, view(std::vector<std::uint8_t>{7, 8, 10})); }));
  CHECK(base != hash([](auto& x) { x.add("flags", dtype::u8, {1, 3}, view(std::vector<std::uint8_t>{7, 8, 9})); }));
  // Sign flips of neighbouring numbers, which plain FNV over words would not see.
  checkpoint a, b;
  a.add("w", dtype::f64, {2}, view(std::vector<double>{1, 2}));
  b.add("w", dtype::f64, {2}, view(std::vector<double>{-1, -2}));
  CHECK(content_hash(a) != content_hash(b));
}

TEST_CASE("a checkpoint file is replaced whole and leaves no temporary file") {
  temporary_folder folder;
  auto path = folder / "a.safetensors";
  auto x = sample();
  REQUIRE(write_checkpoint(path, x));
  std::vector<float> large(200'000, 0.5f);
  x.add("large", dtype::f32, {200'000}, view(large));
  REQUIRE(write_checkpoint(path, x));
  auto y = read_checkpoint(path);
  REQUIRE(y);
  CHECK(*y == x);
  auto encoded = encode_safetensors(x);
  CHECK(to_bytes(read_whole(path)) == encoded);
  CHECK(std::distance(std::filesystem::directory_iterator{folder.path()}, {}) == 1);
}

TEST_CASE("fault 43: a damaged checkpoint file is refused with its name") {
  temporary_folder folder;
  auto path = folder / "a.safetensors";
  REQUIRE(write_checkpoint(path, sample()));
  auto whole = read_whole(path);
  write_whole(path, whole.substr(0, whole.size() - 1));
  auto y = read_checkpoint(path);
  REQUIRE_FALSE(y);
  CHECK(contains(y.error().text, path));
  auto flipped = whole;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  write_whole(path, flipped);
  CHECK(contains(read_checkpoint(path).error().text, "does not match its hash"));
  write_whole(path, "");
  CHECK_FALSE(read_checkpoint(path));
}

TEST_CASE("a checkpoint file that cannot be written or read is an error with its name") {
  temporary_folder folder;
  auto missing = folder / "no/such/folder/a.safetensors";
  auto written = write_checkpoint(missing, sample());
  REQUIRE_FALSE(written);
  CHECK(contains(written.error().text, missing));
  CHECK(read_checkpoint(missing).error().code == errc::not_found);
  CHECK_FALSE(read_checkpoint(folder.path()));
  // A rename that fails leaves the folder as it was.
  std::filesystem::create_directories(folder / "taken/inner");
  CHECK_FALSE(write_checkpoint(folder / "taken", sample()));
  CHECK(std::distance(std::filesystem::directory_iterator{folder.path()}, {}) == 1);
}

TEST_CASE("many checkpoint files are written together or not at all") {
  temporary_folder folder;
  std::filesystem::create_directories(folder / "one");
  std::filesystem::create_directories(folder / "two");
  auto x = std::make_shared<const checkpoint>(sample());
  for (std::size_t count : {3, 40}) {
    std::vector<std::pair<std::string, checkpoint_ptr>> files;
    for (std::size_t i = 0; i < count; ++i)
      files.emplace_back(folder / ((i % 2 ? "one/" : "two/") + std::to_string(i)), x);
    REQUIRE(write_checkpoints(files));
    for (auto& [path, ignored] : files)
      CHECK(*read_checkpoint(path) == *x);
    files.emplace_back(folder / "none/x", x);
    for (auto& [path, ignored] : files)
      path += "-again";
    auto failed = write_checkpoints(files);
    REQUIRE_FALSE(failed);
    CHECK(contains(failed.error().text, "none/x"));
    CHECK_FALSE(std::filesystem::exists(files.front().first));
    for (auto& entry : std::filesystem::recursive_directory_iterator{folder.path()})
      CHECK_FALSE(contains(entry.path().string(), ".tmp-"));
  }
  CHECK(write_checkpoints({}));
}
