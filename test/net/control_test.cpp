#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "raw_peer.hpp"
#include "troupe/net/control.hpp"

using namespace troupe;
using namespace troupe::net;
using namespace std::chrono_literals;
using nlohmann::json;

namespace {

struct folder {
  std::string path = [] {
    char name[] = "/tmp/troupe-control-test-XXXXXX";
    return std::string{::mkdtemp(name)};
  }();
  ~folder() { std::filesystem::remove_all(path); }
};

struct fixture {
  folder run, sockets;
  control_server_settings settings;
  fixture() {
    settings.run_dir = run.path;
    settings.socket_dir = sockets.path;
    std::ofstream{run.path + "/experiment.json"} << "{}";
  }
  std::unique_ptr<control_server> start(control_server::handler h) {
    auto x = control_server::start(settings, std::move(h));
    REQUIRE_MESSAGE(x, x.error().text);
    return std::move(*x);
  }
};

void echo(json request, control_server::reply answer) {
  answer({{"ok", true}, {"got", std::move(request)}});
}

raw::socket dial(const std::string& path) {
  raw::socket s{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  path.copy(a.sun_path, sizeof a.sun_path - 1);
  REQUIRE(::connect(s.fd(), reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  return s;
}

void send(raw::socket& s, std::string_view text) {
  s.send({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

json read_line(raw::socket& s) {
  std::string line;
  for (;;) {
    const auto b = s.receive(1);
    if (b.empty() || b[0] == '\n')
      return json::parse(line, nullptr, false);
    line += static_cast<char>(b[0]);
  }
}

} // namespace

TEST_CASE("a control call reaches the run and brings its answer back") {
  fixture f;
  const auto server = f.start(echo);
  const auto x = control_call(f.run.path, {{"do", "status"}}, 5s);
  REQUIRE_MESSAGE(x, x.error().text);
  CHECK((*x)["got"]["do"] == "status");
}

TEST_CASE("several clients are served at once and each in its order") {
  fixture f;
  control_server::reply first;
  std::mutex mutex;
  const auto server = f.start([&](json request, control_server::reply answer) {
    if (request["n"] == 0) {
      std::lock_guard lock{mutex};
      first = answer; // answered later, from another thread
    } else {
      answer({{"n", request["n"]}});
    }
  });
  auto a = dial(server->socket_path()), b = dial(server->socket_path());
  send(a, "{\"n\": 0}\n{\"n\": 1}\n{\"n\": 2}\n");
  send(b, "{\"n\": 3}\n");
  CHECK(read_line(b)["n"] == 3);
  for (;;) {
    std::lock_guard lock{mutex};
    if (first)
      break;
  }
  first({{"n", 0}});
  first({{"n", 99}}); // only the first call counts
  for (int i = 0; i < 3; ++i)
    CHECK(read_line(a)["n"] == i);
}

TEST_CASE("what is no JSON object gets an error and the connection lives on") {
  fixture f;
  const auto server = f.start(echo);
  auto s = dial(server->socket_path());
  for (const std::string bad : {"", "not json", "[1, 2]", "3", "{\"a\": }", "{\"a\": \"\xff\xfe\"}"}) {
    send(s, bad + "\n");
    const auto j = read_line(s);
    CHECK(j["ok"] == false);
    CHECK_FALSE(j["error"].get<std::string>().empty());
  }
  send(s, "{\"a\": " + std::string(5000, '[') + std::string(5000, ']') + "}\n");
  CHECK(read_line(s)["error"].get<std::string>().find("nested") != std::string::npos);
  send(s, "{\"a\": \"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\"}\n");
  CHECK(read_line(s)["ok"] == true);
}

TEST_CASE("a line that is too long gets an error and ends the connection") {
  fixture f;
  f.settings.max_line_bytes = 1000;
  const auto server = f.start(echo);
  auto s = dial(server->socket_path());
  send(s, "{\"a\": \"" + std::string(2000, 'x'));
  CHECK(read_line(s)["error"].get<std::string>().find("1000") != std::string::npos);
  CHECK(s.receive_all().empty());
  CHECK(control_call(f.run.path, {{"a", 1}}, 5s));
}

TEST_CASE("a handler that throws or forgets to answer gives an error") {
  fixture f;
  const auto server = f.start([](json request, control_server::reply) {
    if (request.contains("throw"))
      throw std::runtime_error("no such trainer");
  });
  auto x = control_call(f.run.path, {{"throw", 1}}, 5s);
  REQUIRE(x);
  CHECK((*x)["error"].get<std::string>().find("no such trainer") != std::string::npos);
  x = control_call(f.run.path, {{"forget", 1}}, 5s);
  REQUIRE(x);
  CHECK((*x)["ok"] == false);
}

TEST_CASE("a call that is not answered in time is a timeout that names the process") {
  fixture f;
  std::vector<control_server::reply> kept;
  const auto server = f.start([&](json, control_server::reply answer) { kept.push_back(std::move(answer)); });
  const auto x = control_call(f.run.path, {{"a", 1}}, 30ms);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::timeout);
  CHECK(x.error().text.find(std::to_string(::getpid())) != std::string::npos);
}

TEST_CASE("calls to what is no live run say what is wrong") {
  fixture f;
  auto x = control_call(f.run.path + "/absent", {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::not_found);
  x = control_call(f.sockets.path, {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find("no run directory") != std::string::npos);
  x = control_call(f.run.path, {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::refused);
  CHECK(x.error().text.find("not live") != std::string::npos);
  std::ofstream{f.run.path + "/control.json"} << json{{"pid", 4242}, {"socket", f.sockets.path + "/gone.sock"}};
  x = control_call(f.run.path, {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find("4242") != std::string::npos);
  for (const char* damaged : {"", "nonsense", "{\"pid\": \"x\", \"socket\": 3}", "[]"}) {
    std::ofstream{f.run.path + "/control.json"} << damaged;
    x = control_call(f.run.path, {}, 1s);
    REQUIRE_FALSE(x);
    CHECK(x.error().code == core::errc::io);
  }
}

TEST_CASE("a run that a program leads without a control socket is said to be one") {
  fixture f;
  std::ofstream{f.run.path + "/experiment.json"} << "{}";
  const int lock = ::open((f.run.path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);
  auto x = control_call(f.run.path, {}, 1s);
  ::close(lock);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::refused);
  CHECK(x.error().text.find("no control socket") != std::string::npos);
  CHECK(x.error().text.find("run_control") != std::string::npos);
}

TEST_CASE("a socket left by a killed process is taken over and a live one is not") {
  fixture f;
  const auto stale = f.sockets.path + "/old.sock";
  {
    raw::socket s{::socket(AF_UNIX, SOCK_STREAM, 0)};
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    stale.copy(a.sun_path, sizeof a.sun_path - 1);
    REQUIRE(::bind(s.fd(), reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  }
  std::ofstream{f.run.path + "/control.json"} << json{{"pid", 4242}, {"socket", stale}};
  CHECK_FALSE(control_call(f.run.path, {}, 1s));
  const auto server = f.start(echo);
  CHECK_FALSE(std::filesystem::exists(stale));
  const auto second = control_server::start(f.settings, echo);
  REQUIRE_FALSE(second);
  CHECK(second.error().code == core::errc::refused);
  CHECK(second.error().text.find("live already") != std::string::npos);
  CHECK(control_call(f.run.path, {{"a", 1}}, 5s));
}

TEST_CASE("nobody else may reach the socket") {
  fixture f;
  const auto server = f.start(echo);
  struct stat s {};
  REQUIRE(::stat(server->socket_path().c_str(), &s) == 0);
  CHECK((s.st_mode & 0777) == 0600);
  REQUIRE(::stat((f.run.path + "/control.json").c_str(), &s) == 0);
  CHECK((s.st_mode & 0777) == 0600);
}

TEST_CASE("a folder that others may enter gets no control socket") {
  fixture f;
  REQUIRE(::chmod(f.sockets.path.c_str(), 0755) == 0);
  const auto open = control_server::start(f.settings, echo);
  REQUIRE_FALSE(open);
  CHECK(open.error().code == core::errc::refused);
  const auto link = f.run.path + "/link";
  std::filesystem::create_directory_symlink(f.sockets.path, link);
  f.settings.socket_dir = link;
  CHECK_FALSE(control_server::start(f.settings, echo));
  f.settings.socket_dir = f.run.path + "/" + std::string(120, 'x');
  const auto deep = control_server::start(f.settings, echo);
  REQUIRE_FALSE(deep);
  CHECK(deep.error().text.find("too long") != std::string::npos);
}

TEST_CASE("after a stop nothing is left and late answers do no harm") {
  fixture f;
  std::vector<control_server::reply> kept;
  auto server = f.start([&](json, control_server::reply answer) { kept.push_back(std::move(answer)); });
  const auto path = server->socket_path();
  auto s = dial(path);
  send(s, "{\"a\": 1}\n");
  CHECK_FALSE(control_call(f.run.path, {{"a", 2}}, 30ms));
  server->stop();
  server->stop();
  CHECK(s.receive_all().empty());
  server.reset();
  for (auto& answer : kept)
    answer({{"late", true}});
  CHECK_FALSE(std::filesystem::exists(path));
  CHECK_FALSE(std::filesystem::exists(f.run.path + "/control.json"));
}

TEST_CASE("a control server starts and stops a hundred times") {
  fixture f;
  for (int i = 0; i < 100; ++i) {
    const auto server = f.start(echo);
    if (i % 10 == 0)
      CHECK(control_call(f.run.path, {{"i", i}}, 5s));
  }
}

TEST_CASE("an answer given right before a stop still arrives") {
  for (int i = 0; i < 50; ++i) {
    fixture f;
    std::promise<control_server::reply> asked;
    auto server = f.start([&](json, control_server::reply answer) { asked.set_value(std::move(answer)); });
    auto s = dial(server->socket_path());
    send(s, "{\"do\": \"stop\"}\n");
    asked.get_future().get()({{"ok", true}});
    server->stop();
    REQUIRE(read_line(s) == json{{"ok", true}});
  }
}
