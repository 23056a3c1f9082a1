#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

/// A socket under this name; nobody answers there once the result is gone.
raw::socket listen(const std::string& path) {
  raw::socket s{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  path.copy(a.sun_path, sizeof a.sun_path - 1);
  REQUIRE(::bind(s.fd(), reinterpret_cast<sockaddr*>(&a), sizeof a) == 0);
  REQUIRE(::listen(s.fd(), 1) == 0);
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

TEST_CASE("a run that goes on is not called dead when its socket is gone") {
  fixture f;
  const auto gone = f.sockets.path + "/troupe-4242-00.sock";
  std::ofstream{f.run.path + "/control.json"} << json{{"pid", 4242}, {"socket", gone}};
  const int lock = ::open((f.run.path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  REQUIRE(::flock(lock, LOCK_EX | LOCK_NB) == 0);
  auto x = control_call(f.run.path, {}, 1s);
  ::close(lock);
  REQUIRE_FALSE(x);
  CHECK(x.error().code == core::errc::io);
  CHECK(x.error().text == "the run in " + f.run.path + " is going on, but process 4242 cannot be reached: its control socket "
                            + gone + " is gone. It makes a new one within seconds: try again");
  x = control_call(f.run.path, {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find("is not live") != std::string::npos);
}

TEST_CASE("a socket left by a killed process is taken over and a live one is not") {
  fixture f;
  const auto stale = f.sockets.path + "/troupe-4242-00.sock";
  listen(stale);
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

TEST_CASE("FAULTS row 54 whatever control.json names but a run's own socket stays where it is") {
  fixture f;
  const auto file = f.sockets.path + "/troupe-1-ab.sock", elsewhere = f.run.path + "/troupe-2-ab.sock",
             link = f.sockets.path + "/troupe-3-ab.sock", folder = f.sockets.path + "/troupe-4-ab.sock",
             live = f.sockets.path + "/other.sock";
  std::ofstream{file} << "precious";
  listen(elsewhere);
  std::filesystem::create_symlink(elsewhere, link);
  std::filesystem::create_directory(folder);
  const auto other = listen(live); // of another program of this user
  const auto around = f.sockets.path + "/../" + std::filesystem::path{f.run.path}.filename().string() + "/troupe-2-ab.sock";
  for (const auto& named : {file, elsewhere, link, folder, around, live, std::string{"/dev/null"}, std::string{}}) {
    CAPTURE(named);
    std::ofstream{f.run.path + "/control.json"} << json{{"pid", 4242}, {"socket", named}};
    const auto server = f.start(echo);
    CHECK(control_call(f.run.path, {{"a", 1}}, 5s));
    for (const auto& kept : {file, elsewhere, link, folder, live})
      CHECK(std::filesystem::exists(std::filesystem::symlink_status(kept)));
  }
  std::string text;
  std::ifstream{file} >> text;
  CHECK(text == "precious");
}

TEST_CASE("FAULTS row 53 symbolic links in place of control.json are not followed") {
  fixture f;
  const auto victim = f.sockets.path + "/victim";
  std::ofstream{victim} << "precious";
  for (const char* name : {"control.json", "control.json.new"}) {
    std::filesystem::create_symlink(victim, f.run.path + "/" + name);
    const auto server = f.start(echo);
    CHECK(std::filesystem::is_regular_file(std::filesystem::symlink_status(f.run.path + "/control.json")));
    CHECK(control_call(f.run.path, {{"a", 1}}, 5s));
  }
  std::string text;
  std::ifstream{victim} >> text;
  CHECK(text == "precious");
  std::filesystem::create_symlink(victim, f.run.path + "/control.json");
  auto x = control_call(f.run.path, {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find("it is a symbolic link") != std::string::npos);
  std::filesystem::remove(f.run.path + "/control.json");
  REQUIRE(::mkfifo((f.run.path + "/control.json").c_str(), 0600) == 0); // whose opening waits for a writer
  x = control_call(f.run.path, {}, 1s);
  REQUIRE_FALSE(x);
  CHECK(x.error().text.find("damaged") != std::string::npos);
}

TEST_CASE("FAULTS row 56 a run stays reachable though its socket or control.json is removed") {
  fixture f;
  f.settings.check_interval = 1ms;
  const auto server = f.start(echo);
  const auto at_first = server->socket_path();
  const auto reached_again = [&](const std::string& run) {
    while (!control_call(run, {{"a", 1}}, 5s))
      std::this_thread::yield();
    struct stat s {};
    CHECK(::stat(server->socket_path().c_str(), &s) == 0);
    CHECK((s.st_mode & 0777) == 0600);
    CHECK(::stat((run + "/control.json").c_str(), &s) == 0);
    CHECK((s.st_mode & 0777) == 0600);
  };
  SUBCASE("the socket") {
    auto client = dial(at_first);
    std::filesystem::remove(at_first);
    reached_again(f.run.path);
    CHECK(server->socket_path() != at_first);
    send(client, "{\"n\": 1}\n"); // who was there before stays
    CHECK(read_line(client)["got"]["n"] == 1);
  }
  SUBCASE("the folder with it") {
    std::filesystem::remove_all(f.sockets.path);
    reached_again(f.run.path);
  }
  SUBCASE("another thing has its name") {
    std::filesystem::remove(at_first);
    const auto other = listen(at_first);
    while (server->socket_path() == at_first)
      std::this_thread::yield();
    reached_again(f.run.path);
    CHECK(std::filesystem::exists(at_first));
  }
  SUBCASE("control.json") {
    std::filesystem::remove(f.run.path + "/control.json");
    reached_again(f.run.path);
    CHECK(server->socket_path() == at_first);
  }
  SUBCASE("control.json is damaged") {
    std::ofstream{f.run.path + "/control.json"} << "nonsense";
    reached_again(f.run.path);
  }
  SUBCASE("the run directory is moved") {
    const auto moved = f.sockets.path + "/moved";
    std::filesystem::rename(f.run.path, moved);
    std::filesystem::remove(moved + "/control.json");
    reached_again(moved);
  }
  server->stop();
  CHECK_FALSE(std::filesystem::exists(f.run.path + "/control.json"));
  CHECK_FALSE(std::filesystem::exists(f.sockets.path + "/moved/control.json"));
  CHECK_FALSE(std::filesystem::exists(server->socket_path()));
}

TEST_CASE("a run whose directory has become another's leaves that alone") {
  fixture f;
  f.settings.check_interval = 1ms;
  const auto server = f.start(echo);
  std::filesystem::rename(f.run.path, f.sockets.path + "/moved");
  std::filesystem::create_directory(f.run.path);
  std::filesystem::remove(f.sockets.path + "/moved/control.json");
  while (!std::filesystem::exists(f.sockets.path + "/moved/control.json"))
    std::this_thread::yield();
  CHECK(std::filesystem::is_empty(f.run.path));
  server->stop();
  CHECK(std::filesystem::is_empty(f.run.path));
}

TEST_CASE("FAULTS row 53 one client too many is told that the run is busy") {
  fixture f;
  f.settings.max_clients = 2;
  const auto server = f.start(echo);
  auto a = dial(server->socket_path()), b = dial(server->socket_path());
  const auto x = control_call(f.run.path, {{"a", 1}}, 5s);
  REQUIRE_MESSAGE(x, x.error().text);
  CHECK((*x)["ok"] == false);
  CHECK((*x)["error"] == "busy: 2 other commands are with this run at the moment; try again");
  send(a, "{\"n\": 1}\n");
  CHECK(read_line(a)["got"]["n"] == 1);
}

TEST_CASE("FAULTS row 53 silent clients are closed and those that wait for an answer are not") {
  fixture f;
  f.settings.idle_timeout = 20ms;
  f.settings.max_clients = 3;
  std::promise<control_server::reply> asked;
  const auto server = f.start([&](json request, control_server::reply answer) {
    if (request.contains("slow"))
      asked.set_value(std::move(answer));
    else
      answer({{"ok", true}});
  });
  auto waiting = dial(server->socket_path());
  send(waiting, "{\"slow\": 1}\n");
  const auto answer = asked.get_future().get();
  auto silent = dial(server->socket_path()), half = dial(server->socket_path());
  send(half, "{\"n\": "); // never the rest
  CHECK(silent.receive_all().empty());
  CHECK(half.receive_all().empty());
  CHECK(control_call(f.run.path, {{"a", 1}}, 5s));
  answer({{"ok", true}});
  CHECK(read_line(waiting)["ok"] == true);
  CHECK(waiting.receive_all().empty()); // it asks for nothing more
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

TEST_CASE("another user who comes as far as the socket is not heard") {
  if (::geteuid() != 0) {
    MESSAGE("only root can be somebody else: not run");
    return;
  }
  fixture f;
  const auto server = f.start(echo);
  REQUIRE(::chmod(f.sockets.path.c_str(), 0755) == 0);
  REQUIRE(::chmod(server->socket_path().c_str(), 0666) == 0);
  std::thread{[&] {
    ::syscall(SYS_setresuid, -1, 65534, -1); // of this thread alone
    auto s = dial(server->socket_path());
    send(s, "{\"n\": 1}\n");
    CHECK(s.receive_all().empty());
  }}.join();
  CHECK(control_call(f.run.path, {{"a", 1}}, 5s));
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
