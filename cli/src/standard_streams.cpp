#include "standard_streams.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace troupe::cli {

void open_closed_standard_streams() noexcept {
  // In this order: the lowest free number is taken. Opened the wrong way round, so that using them is an error and no silent loss.
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0)
      (void)::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

std::string reason_of(int error) { return error == EBADF ? "it is closed" : std::generic_category().message(error); }

descriptor_buffer::descriptor_buffer(int fd, failure_handler on_failure) : fd_(fd), on_failure_(std::move(on_failure)) {
  setp(block_.data(), block_.data() + block_.size());
}

descriptor_buffer::~descriptor_buffer() { write_out(); }

descriptor_buffer::int_type descriptor_buffer::overflow(int_type c) {
  if (!write_out())
    return traits_type::eof();
  if (!traits_type::eq_int_type(c, traits_type::eof()))
    sputc(traits_type::to_char_type(c));
  return traits_type::not_eof(c);
}

int descriptor_buffer::sync() { return write_out() ? 0 : -1; }

bool descriptor_buffer::write_out() noexcept {
  const char* from = pbase();
  while (failure_ == 0 && from != pptr()) {
    const auto n = ::write(fd_, from, static_cast<std::size_t>(pptr() - from));
    if (n > 0) {
      from += n;
    } else if (n < 0 && errno == EAGAIN) { // somebody made it non-blocking
      pollfd p{fd_, POLLOUT, 0};
      ::poll(&p, 1, -1);
    } else if (n == 0 || errno != EINTR) {
      failure_ = n == 0 ? EIO : errno;
      if (on_failure_)
        on_failure_(failure_);
    }
  }
  setp(block_.data(), block_.data() + block_.size());
  return failure_ == 0;
}

} // namespace troupe::cli
