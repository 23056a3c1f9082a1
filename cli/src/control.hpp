#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "troupe/actors/run.hpp"
#include "troupe/core/result.hpp"

/// How commands talk to a run that is going on: requests and answers as JSON, carried by net's control channel.
///
/// A request: {"command": "status" | "pause" | "resume" | "push" | "stop" | "add", "trainer": NAME (absent: all),
/// "changes": {…} (push), "entry": TEXT (add)}. An answer: {"ok": true, …} or {"ok": false, "error": TEXT,
/// "code": the kind of error}; status adds what `status_to_json` says, add the "trainer"'s number, the others "acknowledged":
/// [{"trainer", "name", "step"}].
namespace troupe::cli {

nlohmann::json record_to_json(const actors::record_info& x);
nlohmann::json status_to_json(const actors::run_status& s);
core::result<actors::run_status> status_from_json(const nlohmann::json& j);

/// The exit status of a command whose request was refused: wrong use where the request itself is wrong, whatever the run does.
int status_of_refusal(core::errc code);
int status_of_refusal(const nlohmann::json& answer);

/// Answers requests about a run. Requests never block: answers that are not there yet are awaited on a thread of its own.
class control_desk {
public:
  using answer = std::function<void(nlohmann::json)>;

  /// Looks at an entry that is to be added before the run does; an error is the answer.
  using entry_check = std::function<core::result<void>(const std::string& entry)>;

  explicit control_desk(actors::run_control run, entry_check check = {});
  ~control_desk();

  /// The run is over: answers that are there are given, all other requests, later ones too, get "the run is over".
  void finish();

  /// Any thread.
  void handle(const nlohmann::json& request, answer reply);

private:
  struct pending {
    std::function<std::optional<nlohmann::json>()> poll; ///< the answer, once it is there
    answer reply;
  };
  template <class T, class F>
  void await(std::future<core::result<T>> future, answer reply, F as_json);
  void loop();

  actors::run_control run_;
  entry_check check_entry_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<pending> arrived_;
  bool stop_ = false;
  std::thread thread_;
};

} // namespace troupe::cli
