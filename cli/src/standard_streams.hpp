#pragma once

#include <array>
#include <functional>
#include <ostream>
#include <streambuf>
#include <string>

namespace troupe::cli {

/// Opens what of standard input, output and error was closed when the program began, so that no file of a run ever gets such a number
/// and is written over by what was meant for the screen. Reading and writing there fail as before. Call it before anything is opened.
void open_closed_standard_streams() noexcept;

/// "No space left on device" and the like.
std::string reason_of(int error);

/// What is written to a file descriptor. The first failure (the device is full, the reader has left, the terminal is gone) is told
/// once; nothing is written after it, and no write is tried again. Full or slow pipes are waited for.
class descriptor_buffer : public std::streambuf {
public:
  /// `why`: an errno. Called on the thread that wrote.
  using failure_handler = std::function<void(int why)>;

  /// Does not close `fd`.
  explicit descriptor_buffer(int fd, failure_handler on_failure = {});
  /// Writes what is left.
  ~descriptor_buffer() override;

  /// The errno of the failure; 0: none.
  int failure() const noexcept { return failure_; }

protected:
  int_type overflow(int_type c) override;
  int sync() override;

private:
  bool write_out() noexcept;

  int fd_;
  failure_handler on_failure_;
  int failure_ = 0;
  std::array<char, 1 << 16> block_;
};

} // namespace troupe::cli
