#include "safetensors.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include <fcntl.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "files.hpp"
#include "json_text.hpp"

namespace troupe::core {

namespace internal {

std::optional<std::uint64_t> tensor_bytes(dtype type, std::span<const std::int64_t> shape) noexcept {
  std::uint64_t product = size_of(type);
  if (shape.size() > max_dimensions || std::ranges::any_of(shape, [](auto n) { return n < 0; }))
    return std::nullopt;
  for (auto n : shape)
    if (__builtin_mul_overflow(product, static_cast<std::uint64_t>(n), &product) || product >> 63)
      return std::nullopt;
  return product;
}

namespace {

std::optional<dtype> dtype_from(std::string_view name) noexcept {
  for (auto x : {dtype::f32, dtype::f64, dtype::bf16, dtype::f16, dtype::i32, dtype::i64, dtype::u8, dtype::u32, dtype::u64})
    if (to_string(x) == name)
      return x;
  return std::nullopt;
}

/// Reads the header event by event and accepts exactly the format's structure, so that nothing unexpected is ever
/// stored and deep nesting costs nothing.
class header_reader : public nlohmann::json_sax<nlohmann::json> {
public:
  safetensors_header out;
  std::string fault;

  bool null() override { return refuse("a null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a number with a fraction"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }

  bool number_unsigned(number_unsigned_t x) override {
    if (state_ != state::in_list)
      return refuse("a number");
    if (x > static_cast<std::uint64_t>(INT64_MAX))
      return fail("a number that is too large");
    if (list_.size() == max_dimensions)
      return fail("more than 64 dimensions in tensor '" + current_.name + "'");
    list_.push_back(static_cast<std::int64_t>(x));
    return true;
  }

  bool string(string_t& x) override {
    if (state_ == state::in_metadata)
      return out.texts.emplace(key_, std::move(x)).second || fail("the text '" + key_ + "' twice");
    if (state_ != state::in_tensor || key_ != "dtype")
      return refuse("a text");
    auto type = dtype_from(x);
    if (!type)
      return fail("the unknown element type '" + x + "'");
    current_.type = *type;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == state::start)
      state_ = state::top;
    else if (state_ == state::top)
      state_ = key_ == metadata_key ? state::in_metadata : state::in_tensor;
    else
      return refuse("an object");
    return true;
  }

  bool key(string_t& x) override {
    key_ = std::move(x);
    if (state_ == state::top) {
      if (key_.empty())
        return fail("a tensor without a name");
      if (!names_.insert(key_).second)
        return fail("the name '" + key_ + "' twice");
      current_ = {};
      current_.name = key_;
      seen_.fill(false);
    } else if (state_ == state::in_tensor) {
      auto i = std::ranges::find(fields, key_);
      if (i == fields.end())
        return fail("the unknown field '" + key_ + "' of tensor '" + current_.name + "'");
      if (std::exchange(seen_[static_cast<std::size_t>(i - fields.begin())], true))
        return fail("the field '" + key_ + "' of tensor '" + current_.name + "' twice");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == state::in_metadata) {
      state_ = state::top;
    } else if (state_ == state::in_tensor) {
      state_ = state::top;
      if (std::ranges::find(seen_, false) != seen_.end())
        return fail("tensor '" + current_.name + "' without one of dtype, shape and data_offsets");
      out.entries.push_back(std::move(current_));
    } else {
      state_ = state::done;
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != state::in_tensor || key_ == "dtype")
      return refuse("a list");
    state_ = state::in_list;
    list_.clear();
    return true;
  }

  bool end_array() override {
    state_ = state::in_tensor;
    if (key_ == "shape") {
      current_.shape = list_;
      return true;
    }
    if (list_.size() != 2 || list_[0] > list_[1])
      return fail("data_offsets of tensor '" + current_.name + "' that are no range");
    current_.begin = static_cast<std::uint64_t>(list_[0]);
    current_.end = static_cast<std::uint64_t>(list_[1]);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (fault.empty())
      fault = "the header is not JSON (byte " + std::to_string(position) + ")";
    return false;
  }

private:
  enum class state { start, top, in_metadata, in_tensor, in_list, done };
  static constexpr std::array<std::string_view, 3> fields{"dtype", "shape", "data_offsets"};

  bool fail(const std::string& what) {
    fault = "the header has " + what;
    return false;
  }
  bool refuse(const char* what) { return fail(std::string{what} + " where the format allows none (near '" + key_ + "')"); }

  state state_ = state::start;
  std::string key_;
  safetensors_header::entry current_;
  std::array<bool, 3> seen_{};
  std::vector<std::int64_t> list_;
  std::unordered_set<std::string> names_;
};

error broken(std::string what) { return {errc::io, "broken checkpoint: " + std::move(what)}; }

} // namespace

result<safetensors_header> parse_safetensors_header(std::string_view json, std::uint64_t data_bytes) {
  if (json.empty() || json.front() != '{')
    return broken("the header does not begin with '{'");
  if (json.find('\0') != std::string_view::npos)
    return broken("the header has a zero byte"); // which the parser would take for the end
  header_reader reader;
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &reader))
    return broken(reader.fault.empty() ? "the header is not JSON" : reader.fault);
  auto& header = reader.out;
  // Stable: tensors without data keep the header's order.
  std::ranges::stable_sort(header.entries, {}, [](auto& e) { return std::pair{e.begin, e.end}; });
  std::uint64_t at = 0;
  for (auto& e : header.entries) {
    auto bytes = tensor_bytes(e.type, e.shape);
    if (!bytes || *bytes != e.end - e.begin)
      return broken("tensor '" + e.name + "' has a shape that does not match its " + std::to_string(e.end - e.begin) +
                    " bytes");
    if (e.begin != at)
      return broken("the data of tensor '" + e.name + "' begins at byte " + std::to_string(e.begin) + ", not at " +
                    std::to_string(at));
    at = e.end;
  }
  if (at != data_bytes)
    return broken("the tensors need " + std::to_string(at) + " bytes of data, and there are " + std::to_string(data_bytes));
  return std::move(header);
}

namespace {

std::string hex(std::uint64_t x) {
  std::array<char, 17> text;
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(x));
  return text.data();
}

} // namespace

std::string safetensors_prefix(const checkpoint& x) {
  auto texts = x.texts();
  texts.insert_or_assign(std::string{format_key}, "1");
  texts.insert_or_assign(std::string{hash_key}, hex(content_hash(x)));
  std::string out(8, '\0');
  out += '{';
  append_json_string(out, metadata_key);
  out += ":{";
  for (bool first = true; auto& [key, text] : texts) {
    if (!std::exchange(first, false))
      out += ',';
    append_json_string(out, key);
    out += ':';
    append_json_string(out, text);
  }
  out += '}';
  std::uint64_t at = 0;
  for (auto& t : x.tensors()) {
    out += ',';
    append_json_string(out, t.name);
    out += ":{\"dtype\":\"";
    out += to_string(t.type);
    out += "\",\"shape\":[";
    for (std::size_t i = 0; i < t.shape.size(); ++i) {
      if (i)
        out += ',';
      append_json(out, t.shape[i]);
    }
    out += "],\"data_offsets\":[";
    append_json(out, at);
    out += ',';
    append_json(out, at += t.bytes.size());
    out += "]}";
  }
  out += '}';
  out.resize((out.size() + 7) / 8 * 8, ' ');
  std::uint64_t length = out.size() - 8;
  if (length > max_header_bytes)
    throw std::invalid_argument("a checkpoint's names and texts exceed 100 MB");
  std::memcpy(out.data(), &length, 8);
  return out;
}

namespace {

} // namespace

struct checkpoint_builder {
  static std::vector<checkpoint::tensor>& tensors(checkpoint& x) { return x.tensors_; }
};

namespace {

/// Builds the checkpoint; `fill(begin, bytes)` provides a tensor's data. Verifies the hash of files that Troupe wrote.
template <class Fill>
result<checkpoint> assemble(safetensors_header header, Fill fill) {
  checkpoint out;
  std::optional<std::string> hash;
  bool ours = false;
  for (auto& [key, text] : header.texts) {
    ours = ours || key.starts_with("troupe.");
    if (key == hash_key)
      hash = text;
    else if (key != format_key)
      out.set_text(key, std::move(text));
    else if (text != "1")
      return error{errc::refused, "it has format '" + text + "', and this version of Troupe reads format 1: use the version that wrote it"};
  }
  if (ours && !hash)
    return broken("it has no '" + std::string{hash_key} + "'");
  auto& tensors = checkpoint_builder::tensors(out);
  tensors.reserve(header.entries.size());
  for (auto& e : header.entries) {
    checkpoint::tensor t{std::move(e.name), e.type, std::move(e.shape), std::vector<std::byte>(e.end - e.begin)};
    if (auto ok = fill(e.begin, std::span{t.bytes}); !ok)
      return ok.error();
    tensors.push_back(std::move(t));
  }
  if (hash && *hash != hex(content_hash(out)))
    return broken("its content does not match its hash: the file is damaged");
  return out;
}

/// The header's length from the first 8 bytes, checked against the size of the whole.
result<std::uint64_t> header_length(std::span<const std::byte> first, std::uint64_t total) {
  if (first.size() < 8)
    return broken("it has " + std::to_string(total) + " bytes, fewer than the 8 of the header's length");
  std::uint64_t length;
  std::memcpy(&length, first.data(), 8);
  if (length > max_header_bytes)
    return broken("its header claims " + std::to_string(length) + " bytes, more than 100 MB");
  if (length > total - 8)
    return broken("its header claims " + std::to_string(length) + " bytes, and " + std::to_string(total - 8) + " follow");
  return length;
}

} // namespace

} // namespace internal

std::vector<std::byte> encode_safetensors(const checkpoint& x) {
  auto prefix = internal::safetensors_prefix(x);
  std::vector<std::byte> out;
  out.reserve(prefix.size() + x.bytes());
  auto append = [&](std::span<const std::byte> bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); };
  append(std::as_bytes(std::span{prefix}));
  for (auto& t : x.tensors())
    append(t.bytes);
  return out;
}

result<checkpoint> decode_safetensors(std::span<const std::byte> bytes) {
  auto length = internal::header_length(bytes, bytes.size());
  if (!length)
    return length.error();
  auto data = bytes.subspan(8 + *length);
  std::string_view json{reinterpret_cast<const char*>(bytes.data()) + 8, *length};
  auto header = internal::parse_safetensors_header(json, data.size());
  if (!header)
    return header.error();
  return internal::assemble(*std::move(header), [&](std::uint64_t begin, std::span<std::byte> into) -> result<void> {
    std::ranges::copy(data.subspan(begin, into.size()), into.begin());
    return {};
  });
}

namespace {

result<void> write_to(internal::atomic_file& file, const checkpoint& x) {
  auto prefix = internal::safetensors_prefix(x);
  auto pending = std::vector<std::byte>(std::as_bytes(std::span{prefix}).begin(), std::as_bytes(std::span{prefix}).end());
  constexpr std::size_t block = 1 << 18; // small tensors share a system call, large ones are written from where they lie
  auto flush = [&]() -> result<void> {
    auto ok = file.write(pending);
    pending.clear();
    return ok;
  };
  for (auto& t : x.tensors()) {
    bool large = t.bytes.size() >= block;
    if (large || pending.size() + t.bytes.size() > block)
      if (auto ok = flush(); !ok)
        return ok;
    if (!large)
      pending.insert(pending.end(), t.bytes.begin(), t.bytes.end());
    else if (auto ok = file.write(t.bytes); !ok)
      return ok;
  }
  return flush();
}

} // namespace

result<void> write_checkpoint(const std::string& path, const checkpoint& x) {
  auto file = internal::atomic_file::create(path);
  if (!file)
    return file.error();
  if (auto ok = write_to(*file, x); !ok)
    return ok;
  return file->commit();
}

result<void> write_checkpoints(std::span<const std::pair<std::string, checkpoint_ptr>> files) {
  // Each fsync waits for the disk by itself; one syncfs waits for whatever else the machine writes.
  constexpr std::size_t few = 8;
  std::vector<internal::atomic_file> written;
  written.reserve(files.size());
  std::set<std::string> folders;
  for (auto& [path, x] : files) {
    auto file = internal::atomic_file::create(path);
    if (!file)
      return file.error();
    if (auto ok = write_to(*file, *x); !ok)
      return ok;
    if (files.size() <= few)
      if (auto ok = file->sync(); !ok)
        return ok;
    file->close(); // there may be more of them than a process may have open
    folders.insert(internal::parent_folder(path));
    written.push_back(*std::move(file));
  }
  if (files.size() > few)
    for (auto& folder : folders)
      if (auto ok = internal::sync_file_system(folder); !ok)
        return ok;
  for (auto& file : written)
    if (auto ok = file.publish(); !ok)
      return ok;
  for (auto& folder : folders)
    if (auto ok = internal::sync_parent_folder(folder + "/."); !ok)
      return ok;
  return {};
}

result<checkpoint> read_checkpoint(const std::string& path) {
  using namespace internal;
  auto in_file = [&](error e) {
    if (e.text.find(path) == std::string::npos)
      e.text = "'" + path + "': " + e.text;
    return e;
  };
  unique_fd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  struct stat st {};
  if (!fd || ::fstat(fd.get(), &st) != 0)
    return file_error("read", path, errno);
  if (!S_ISREG(st.st_mode))
    return error{errc::invalid_argument, "'" + path + "' is not a file"};
  auto total = static_cast<std::uint64_t>(st.st_size);
  std::vector<std::byte> first(std::min<std::uint64_t>(total, 8));
  if (auto ok = read_exactly(fd.get(), 0, first, path); !ok)
    return ok.error();
  auto length = header_length(first, total);
  if (!length)
    return in_file(length.error());
  std::string json(*length, '\0');
  if (auto ok = read_exactly(fd.get(), 8, std::as_writable_bytes(std::span{json}), path); !ok)
    return ok.error();
  auto data_begin = 8 + *length;
  auto header = parse_safetensors_header(json, total - data_begin);
  if (!header)
    return in_file(header.error());
  auto out = assemble(*std::move(header), [&](std::uint64_t begin, std::span<std::byte> into) {
    return read_exactly(fd.get(), data_begin + begin, into, path);
  });
  if (!out)
    return in_file(out.error());
  return out;
}

} // namespace troupe::core
