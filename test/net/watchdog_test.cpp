#include <doctest/doctest.h>

#include "asio.hpp"
#include "silent_one.hpp"

#include <boost/asio/local/connect_pair.hpp>

using namespace troupe::net;
using namespace std::chrono_literals;

TEST_CASE("a watchdog closes what takes too long but not because its own process stood still") {
  asio::io_context io;
  asio::local::stream_protocol::socket a{io}, b{io};
  asio::local::connect_pair(a, b);
  watchdog<asio::local::stream_protocol::socket> watch{a};
  watch.expect(10ms);
  outlast(150ms); // and nobody runs what is due meanwhile
  io.poll();
  CHECK_FALSE(watch.expired());
  CHECK(a.is_open());
  while (!watch.expired())
    io.run_one();
  CHECK_FALSE(a.is_open());
}
