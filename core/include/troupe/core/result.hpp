#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace troupe::core {

/// What kind of failure an error is; decides exit codes and whether a retry makes sense.
enum class errc : std::uint8_t {
  invalid_argument, ///< the caller's input is wrong; repeating it cannot help
  not_found,        ///< a file, device, trainer or key that does not exist
  refused,          ///< valid input that the present state does not allow
  out_of_memory,    ///< a memory budget would be exceeded
  stale,            ///< a message of an older sync point or incarnation
  timeout,          ///< no answer in time
  cancelled,        ///< given up on request
  io,               ///< a file or socket operation failed
  device,           ///< a GPU or driver reported an error
  failed,           ///< the work itself failed (an exception in a workload, a loss that is not finite)
  internal          ///< a defect of Troupe
};

std::string_view to_string(errc code) noexcept;

/// An expected failure: what was wrong, where, and what to do about it, in words for the reader.
struct error {
  errc code = errc::internal;
  std::string text;

  bool operator==(const error&) const = default;
};

/// Either a `T` or the error that kept it from being made. `T` may be `void`.
template <class T>
class [[nodiscard]] result {
public:
  result(T value) : data_(std::in_place_index<0>, std::move(value)) {}
  result(core::error err) : data_(std::in_place_index<1>, std::move(err)) {}

  explicit operator bool() const noexcept { return data_.index() == 0; }
  bool has_value() const noexcept { return data_.index() == 0; }

  /// Precondition: `has_value()`; throws `std::bad_variant_access` otherwise.
  T& value() & { return std::get<0>(data_); }
  const T& value() const& { return std::get<0>(data_); }
  T&& value() && { return std::get<0>(std::move(data_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  /// Precondition: `!has_value()`.
  const core::error& error() const { return std::get<1>(data_); }

private:
  std::variant<T, core::error> data_;
};

template <>
class [[nodiscard]] result<void> {
public:
  result() = default;
  result(core::error err) : data_(std::move(err)) {}

  explicit operator bool() const noexcept { return data_.index() == 0; }
  bool has_value() const noexcept { return data_.index() == 0; }
  const core::error& error() const { return std::get<1>(data_); }

private:
  std::variant<std::monostate, core::error> data_;
};

} // namespace troupe::core
