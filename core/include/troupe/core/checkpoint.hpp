#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/core/result.hpp"

namespace troupe::core {

namespace internal {
struct checkpoint_builder; // of the decoder, which has checked names and sizes
}

/// Element types of checkpoints; names as in the safetensors format.
enum class dtype : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8, u32, u64 };

std::string_view to_string(dtype x) noexcept; ///< "F32", "BF16", …
std::size_t size_of(dtype x) noexcept;        ///< bytes per element

/// A trainer's whole state in host memory: named tensors and named texts, as a safetensors file holds them.
///
/// Texts are the file's `__metadata__`. Names that begin with "troupe." are Troupe's own: step, sync index,
/// hyperparameters, counters. Tensors keep the order in which they were added. A checkpoint is built once and then
/// shared as `std::shared_ptr<const checkpoint>`; it may be read from any thread.
class checkpoint {
public:
  struct tensor {
    std::string name;
    dtype type = dtype::f32;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes; ///< row-major, little endian

    template <class T>
    std::span<const T> as() const {
      return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
    bool operator==(const tensor&) const = default;
  };

  /// Adds a tensor; replaces one of the same name. Precondition: bytes match shape and type, the name is UTF-8 and neither
  /// empty nor "__metadata__", and there are at most 64 dimensions (checked; throws `std::invalid_argument` with the name).
  void add(tensor t);
  void add(std::string name, dtype type, std::vector<std::int64_t> shape, std::span<const std::byte> bytes);
  template <class T>
  void add(std::string name, dtype type, std::vector<std::int64_t> shape, std::span<const T> xs) {
    add(std::move(name), type, std::move(shape), std::as_bytes(xs));
  }
  /// Malformed UTF-8 is replaced by U+FFFD. "troupe.format" and "troupe.hash" belong to the file format and are not kept in
  /// files.
  void set_text(std::string_view key, std::string text);

  const std::vector<tensor>& tensors() const noexcept { return tensors_; }
  const std::map<std::string, std::string, std::less<>>& texts() const noexcept { return texts_; }
  /// Null if absent.
  const tensor* find(std::string_view name) const noexcept;
  const std::string* text(std::string_view key) const noexcept;
  /// The tensor, or an error that names it if it is absent or of another type or shape.
  result<const tensor*> expect(std::string_view name, dtype type, std::span<const std::int64_t> shape) const;

  std::size_t bytes() const noexcept; ///< of all tensors

  /// What the process that made a checkpoint knows of its tensors besides, such as a copy in device memory. Not a part of the value:
  /// not compared, hashed, written or sent; gone as soon as a tensor is added.
  class attachment {
  public:
    virtual ~attachment() = default;
  };
  void attach(std::shared_ptr<const attachment> x) noexcept { attached_ = std::move(x); }
  const attachment* attached() const noexcept { return attached_.get(); } ///< null: nothing

  bool operator==(const checkpoint& other) const { return tensors_ == other.tensors_ && texts_ == other.texts_; }

private:
  friend struct internal::checkpoint_builder;

  std::vector<tensor> tensors_;
  std::map<std::string, std::string, std::less<>> texts_;
  std::shared_ptr<const attachment> attached_;
};

using checkpoint_ptr = std::shared_ptr<const checkpoint>;

/// The safetensors format (8 bytes length, JSON header, data). `encode` adds two texts, "troupe.format" and "troupe.hash" (the
/// content hash in hex), which `decode` verifies and removes. `decode` trusts nothing: lengths, offsets, overlaps, types and
/// sizes are checked against the bytes at hand before anything is allocated; a file of another program, without any text
/// named "troupe.…", is taken without a hash. `encode` throws `std::invalid_argument` if names and texts exceed 100 MB.
std::vector<std::byte> encode_safetensors(const checkpoint& x);
result<checkpoint> decode_safetensors(std::span<const std::byte> bytes);

/// Writes to a temporary name in the same folder, syncs file and folder, and renames: after a crash at any moment
/// the name holds either the old file or the whole new one. Throws as `encode_safetensors`.
result<void> write_checkpoint(const std::string& path, const checkpoint& x);
/// The same for many (path, checkpoint) at once, with the waiting for the disk shared: none gets its name before all are on
/// disk. After an error some may have theirs.
result<void> write_checkpoints(std::span<const std::pair<std::string, checkpoint_ptr>> files);
result<checkpoint> read_checkpoint(const std::string& path);

/// 64-bit hash of names, types, shapes, data and texts (FNV-1a's scheme over 64-bit words), for comparing runs
/// and for finding damage. Not a defence against forgery.
std::uint64_t content_hash(const checkpoint& x) noexcept;

} // namespace troupe::core
