#include "standard_streams.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace troupe::cli;

namespace {

struct pipe_ends {
  int in = -1, out = -1;
  explicit pipe_ends(int flags) {
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    in = ends[0];
    out = ends[1];
    REQUIRE(::fcntl(out, F_SETFL, ::fcntl(out, F_GETFL) | flags) == 0);
  }
  ~pipe_ends() {
    close_in();
    ::close(out);
  }
  void close_in() {
    if (in >= 0)
      ::close(in);
    in = -1;
  }
};

} // namespace

TEST_CASE("output waits for a pipe that is full and loses nothing") {
  for (int flags : {0, O_NONBLOCK}) {
    pipe_ends p{flags};
    std::string told, line(99, 'x');
    for (int i = 0; i < 10'000; ++i)
      told += line + "\n";
    std::thread writing([&] {
      descriptor_buffer buffer{p.out};
      std::ostream out{&buffer};
      for (int i = 0; i < 10'000; ++i)
        out << line << "\n";
      out.flush();
      CHECK(out.good());
    });
    std::string got;
    std::vector<char> block(4096);
    while (got.size() < told.size()) {
      const auto n = ::read(p.in, block.data(), block.size());
      REQUIRE(n > 0);
      got.append(block.data(), static_cast<std::size_t>(n));
    }
    writing.join();
    CHECK(got == told);
  }
}

TEST_CASE("output that failed once is told of once and never tried again") {
  const auto before = std::signal(SIGPIPE, SIG_IGN);
  std::vector<int> reasons;
  {
    pipe_ends p{0};
    descriptor_buffer buffer{p.out, [&](int why) { reasons.push_back(why); }};
    std::ostream out{&buffer};
    out << "first" << std::flush;
    p.close_in();
    out << "second" << std::flush;
    CHECK_FALSE(out.good());
    out.clear();
    out << "third" << std::flush; // would be EPIPE again
    CHECK(buffer.failure() == EPIPE);
  }
  CHECK(reasons == std::vector{EPIPE});
  std::signal(SIGPIPE, before);
}

TEST_CASE("a terminal that was closed is a failure of output and nothing more") {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const int screen = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(screen >= 0);
  descriptor_buffer buffer{screen};
  std::ostream out{&buffer};
  out << "text" << std::flush;
  CHECK(out.good());
  ::close(terminal);
  out << "text" << std::flush;
  CHECK(buffer.failure() == EIO);
  CHECK(reason_of(EIO) == "Input/output error");
  ::close(screen);
}

TEST_CASE("no file that is opened later gets the number of a standard stream that was closed") {
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) { // only system calls from here on
    ::close(STDIN_FILENO);
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
    open_closed_standard_streams();
    char x = 0;
    const bool fails = ::write(STDOUT_FILENO, &x, 1) < 0 && ::write(STDERR_FILENO, &x, 1) < 0 && ::read(STDIN_FILENO, &x, 1) < 0;
    ::_exit(fails && ::open("/dev/null", O_RDWR) > STDERR_FILENO ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("what is left is written at the end") {
  pipe_ends p{0};
  {
    descriptor_buffer buffer{p.out};
    std::ostream{&buffer} << "text";
  }
  char block[16];
  CHECK(::read(p.in, block, sizeof block) == 4);
}
