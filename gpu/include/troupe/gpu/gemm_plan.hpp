#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/core/result.hpp"

namespace troupe::gpu {

/// What can compute a product of fp32 matrices on the CPU.
enum class gemm_library : std::uint8_t {
  onednn,        ///< oneDNN's sgemm, the default where Troupe was built with it
  onednn_matmul, ///< oneDNN's matmul primitive
  openblas       ///< OpenBLAS's sgemm, loaded when it is first needed
};

std::string_view to_string(gemm_library x) noexcept;

/// A product as far as the choice of its library goes.
struct gemm_shape {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  bool accumulate = false; ///< beta is not 0
  auto operator<=>(const gemm_shape&) const = default;
};

/// Which library computes which product, so that all slots and processes of a run choose alike: libraries
/// differ in the order of their sums, so the same weights bit for bit need the same choice everywhere, now
/// and at a later resume.
///
/// A probing plan lets the first slot that meets a shape time the candidates (about 5 ms); the choice then
/// holds for everyone. A frozen plan never measures, a shape it does not know gets the default. The process
/// that leads a run loads or probes, saves, and sends `to_json()` to the others, which use it frozen.
/// Thread-safe.
class gemm_plan {
public:
  enum class mode : std::uint8_t { probing, frozen };

  explicit gemm_plan(mode m = mode::probing) : mode_(m) {}

  bool probing() const;
  void freeze();

  /// Null for a shape without a choice.
  std::optional<gemm_library> find(const gemm_shape& shape) const;
  /// Chooses from measured seconds: the first candidate, unless another is over 5% faster. Keeps and returns
  /// the choice of whoever came first. Precondition: `measured` is not empty.
  gemm_library decide(const gemm_shape& shape, const std::vector<std::pair<gemm_library, double>>& measured);
  std::size_t size() const;

  /// The choices, with CPU and library versions they were measured with.
  std::string to_json() const;
  /// Adds the choices of a text that `to_json` made; those that are there already stay. `where` is for error
  /// texts. Refused with a reason, and nothing added, if the text is malformed.
  core::result<void> merge_json(std::string_view text, std::string_view where);

  /// $XDG_CACHE_HOME/troupe/gemm-<cpu>.json, below ~/.cache without that variable; empty if neither is set.
  static std::string default_path();
  /// The plan in a file, or an empty one if there is no such file, if it cannot be read, or if it was
  /// measured on another CPU or with other library versions; `note`, where given, then says why.
  static std::shared_ptr<gemm_plan> load(const std::string& path, mode m = mode::probing,
                                         std::string* note = nullptr);
  /// Writes to a temporary file and renames it; makes the folder.
  core::result<void> save(const std::string& path) const;

private:
  mutable std::mutex mutex_;
  mode mode_;
  std::map<gemm_shape, gemm_library> choices_;
};

} // namespace troupe::gpu
