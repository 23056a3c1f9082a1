// How long a checkpoint takes from one tensor server to one client over loopback, beside a bare Asio socket that moves as many
// bytes without names, checksums or time limits. All variants take turns in one run.
//
// Usage: bench_transport [MIB=16] [ROUNDS=30]

#include <utility>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include "troupe/net/tensor_transport.hpp"

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace troupe;

namespace {

const auto large = [](const boost::system::error_code& ec, std::size_t) { return ec ? 0 : std::size_t{4} << 20; };

/// One byte asks for the buffer, the buffer answers.
class bare_socket {
public:
  explicit bare_socket(std::size_t bytes)
    : data_(bytes, std::byte{1}), acceptor_(io_, tcp::endpoint{asio::ip::address_v4::loopback(), 0}), client_(io_) {
    client_.connect(acceptor_.local_endpoint());
    server_ = std::thread{[this, s = acceptor_.accept()]() mutable {
      s.set_option(tcp::no_delay(true));
      boost::system::error_code ec;
      for (char ask; asio::read(s, asio::buffer(&ask, 1), ec) == 1;)
        asio::write(s, asio::buffer(data_), large);
    }};
    client_.set_option(tcp::no_delay(true));
  }
  ~bare_socket() {
    client_.close();
    server_.join();
  }
  void fetch(std::vector<std::byte>& into) {
    const char ask = 1;
    asio::write(client_, asio::buffer(&ask, 1));
    asio::read(client_, asio::buffer(into), large);
  }

private:
  std::vector<std::byte> data_;
  asio::io_context io_;
  tcp::acceptor acceptor_;
  tcp::socket client_;
  std::thread server_;
};

struct variant {
  const char* name;
  std::function<void()> once;
  std::vector<double> ms{};
};

} // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = (argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 16) << 20;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 30;

  auto blob = std::make_shared<core::checkpoint>(); // as a network has it: a few large tensors, as many small ones
  const std::vector<std::byte> part(bytes / 4), bias(1024);
  for (int i = 0; i < 4; ++i) {
    blob->add("weights." + std::to_string(i), core::dtype::u8, {static_cast<std::int64_t>(part.size())}, part);
    blob->add("weights.bias" + std::to_string(i), core::dtype::u8, {1024}, bias);
  }
  net::tensor_server_settings s;
  s.secret = net::token::random();
  auto server = net::tensor_server::start(s, [&](std::uint64_t) { return blob; });
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().text.c_str());
    return 1;
  }
  net::tensor_client_settings c;
  c.secret = s.secret;
  net::tensor_client client{c};
  bare_socket bare{bytes};
  std::vector<std::byte> reused(bytes);

  std::vector<variant> all;
  all.push_back({"bare Asio, one buffer used again", [&] { bare.fetch(reused); }});
  all.push_back({"bare Asio, a new buffer each time", [&] {
                   std::vector<std::byte> fresh(bytes);
                   bare.fetch(fresh);
                 }});
  all.push_back({"tensor transport, a new checkpoint each time", [&] {
                   std::promise<bool> done;
                   client.fetch("127.0.0.1", (*server)->port(), 1, [&](const auto& x) { done.set_value(x.has_value()); });
                   if (!done.get_future().get())
                     std::abort();
                 }});
  for (int r = -3; r < rounds; ++r) // three to warm up
    for (auto& v : all) {
      const auto start = std::chrono::steady_clock::now();
      v.once();
      if (r >= 0)
        v.ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
  std::printf("%zu MiB over loopback, %d rounds, ms\n%-46s %8s %8s %8s %9s\n", bytes >> 20, rounds, "", "median", "best",
              "ratio", "MiB/s");
  const auto median = [](variant& v) {
    std::sort(v.ms.begin(), v.ms.end());
    return v.ms[v.ms.size() / 2];
  };
  const double base = median(all[0]);
  for (auto& v : all) {
    const double m = median(v);
    std::printf("%-46s %8.2f %8.2f %8.2f %9.0f\n", v.name, m, v.ms.front(), m / base,
                static_cast<double>(bytes >> 20) / m * 1000);
  }
}
