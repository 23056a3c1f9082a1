#include "rig.hpp"

#include <cmath>
#include <numeric>

#include <doctest/doctest.h>

using namespace rig;

namespace {

wire_schedule every(std::uint64_t steps) {
  wire_schedule out;
  out.every_steps = steps;
  return out;
}

apply_decision decide(std::uint32_t sync, core::decision what, std::vector<state_ref> sources = {}, bool save = false) {
  apply_decision out;
  out.sync = sync;
  out.what = to_wire(what);
  out.sources = std::move(sources);
  out.save = save;
  return out;
}

double weight_of(const core::checkpoint& x) { return x.find("weights.sum")->as<double>()[0]; }

/// 1 + 2 + … + n: the weight after n steps with lr 1.
double sum_to(std::uint64_t n) { return static_cast<double>(n * (n + 1) / 2); }

constexpr std::uint64_t no_end = 1'000'000'000;

} // namespace

TEST_CASE("a trainer trains to its sync point and reports and goes on to its end") {
  process p;
  auto order = p.order(3, 10);
  order.schedule = every(4);
  auto t = p.host(order);
  CHECK(t.name == "t3");
  CHECK(t.step == 0);
  CHECK(t.next == next_sync{true, 0});
  CHECK(t.signature == "sum/1");
  p.tell(t, begin_training{});
  auto r = p.log->next<sync_report>();
  CHECK(r.from == order.who);
  CHECK(r.sync == 0);
  CHECK(r.next == next_sync{true, 1});
  auto m = from_wire(r.what);
  CHECK(m.trainer == 3);
  CHECK(m.step == 4);
  CHECK(m.accuracy == 0.5);
  CHECK(m.samples == 16);
  CHECK(m.loss == (1 + 3 + 6 + 10) / 4.0); // the mean of the four losses
  CHECK(m.number("weight") == 10);
  CHECK(m.memory_bytes == 8);
  CHECK(m.compute_seconds > 0);
  CHECK(m.hp == core::hyperparameters{{"lr", 1.0}});

  p.tell(t, decide(0, {}, {}, true));
  auto a = p.log->next<decision_applied>();
  CHECK_FALSE(a.failure);
  CHECK(a.step == 4);
  REQUIRE(a.state);
  auto saved = p.blobs->get(a.state.blob);
  CHECK(weight_of(*saved) == 10);
  CHECK(*saved->text("troupe.step") == "4");
  CHECK(*saved->text("troupe.sync") == "1");
  CHECK(*saved->text("troupe.hyperparameters") == R"({"lr":1.0})");
  CHECK(*saved->text("troupe.signature") == "sum/1");
  CHECK(*saved->text("troupe.incarnation") == "0");
  CHECK(saved->text("troupe.weights") == nullptr);

  p.tell(t, resume_sync{{}, 0});
  r = p.log->next<sync_report>();
  CHECK(r.sync == 1);
  CHECK(r.what.step == 8);
  CHECK_FALSE(r.next.any);
  CHECK(from_wire(r.what).loss == (15 + 21 + 28 + 36) / 4.0); // since the last report only
  CHECK(double{r.what.sync_seconds} > 0);
  p.tell(t, resume_sync{{}, 1});
  auto end = p.log->next<trainer_finished>();
  CHECK_FALSE(end.stopped);
  CHECK(end.what.step == 10);
  CHECK(weight_of(*p.blobs->get(end.state.blob)) == sum_to(10));
}

TEST_CASE("a paused trainer stops within a step and goes on where it stood") {
  process p{1, true};
  auto t = p.host(p.order(0, no_end));
  p.tell(t, begin_training{});
  p.the_gate->allow(5);
  p.the_gate->await_waiting(); // in its sixth step
  p.tell(t, pause_training{});
  caf::scoped_actor self{*p.sys};
  const auto status = [&] {
    trainer_status out;
    mail(self, query_status{t.from})
        .request(t.who, 20s)
        .receive([&](const trainer_status& x) { out = x; }, [](caf::error& e) { FAIL(error_text(e)); });
    return out;
  };
  auto s = status(); // the trainer answers while its step is held
  CHECK(s.paused);
  CHECK(s.phase == trainer_phase::running);
  CHECK(s.step <= 5);
  CHECK(s.stop_step == no_end);
  CHECK(p.log->count<trainer_paused>() == 0);
  p.the_gate->open();
  const auto paused_at = p.log->next<trainer_paused>().step;
  CHECK(paused_at >= 6);
  CHECK(status().step == paused_at);
  p.tell(t, resume_training{});
  CHECK(p.log->next<trainer_resumed>().step == paused_at);
  p.tell(t, stop_training{{}, true, ""});
  auto end = p.log->next<trainer_finished>();
  CHECK(end.what.step >= paused_at);
  CHECK(weight_of(*p.blobs->get(end.state.blob)) == sum_to(end.what.step));
}

TEST_CASE("FAULTS row 1: a thousand quick pairs of pause and resume change no result") {
  process p;
  auto t = p.host(p.order(0, 200000));
  p.tell(t, begin_training{});
  for (int i = 0; i < 1000; ++i) {
    p.tell(t, pause_training{});
    p.tell(t, resume_training{});
  }
  auto end = p.log->next<trainer_finished>();
  CHECK(end.what.step == 200000);
  CHECK(weight_of(*p.blobs->get(end.state.blob)) == sum_to(200000));
  CHECK(p.log->count<trainer_resumed>() == 1000);
}

TEST_CASE("a push takes effect at the next step boundary and says at which") {
  process p{1, true};
  auto t = p.host(p.order(0, no_end));
  p.tell(t, begin_training{});
  p.the_gate->allow(3);
  p.the_gate->await_waiting();
  p.tell(t, push_hyperparameters{{}, 41, to_wire(core::hyperparameters{{"lr", 3.0}})});
  p.the_gate->open();
  auto ack = p.log->next<push_ack>();
  CHECK(ack.request == 41);
  CHECK_FALSE(ack.failure);
  CHECK(ack.step >= 4);
  CHECK(from_wire(ack.hp) == core::hyperparameters{{"lr", 3.0}});
  p.tell(t, stop_training{{}, true, ""});
  auto end = p.log->next<trainer_finished>();
  CHECK(weight_of(*p.blobs->get(end.state.blob)) == sum_to(ack.step) + 3 * (sum_to(end.what.step) - sum_to(ack.step)));
}

TEST_CASE("a push is refused whole and a check changes nothing") {
  process p;
  auto order = p.order(0, 10);
  order.schedule = every(5);
  auto t = p.host(order);
  p.tell(t, push_hyperparameters{{}, 1, to_wire(core::hyperparameters{{"lr", 5.0}, {"depth", std::int64_t{3}}})});
  auto ack = p.log->next<push_ack>();
  CHECK(ack.failure.text == "there is no hyperparameter \"depth\"");
  CHECK(from_wire(ack.failure).code == core::errc::invalid_argument);
  CHECK(from_wire(ack.hp) == core::hyperparameters{{"lr", 1.0}});
  p.tell(t, push_hyperparameters{{}, 2, to_wire(core::hyperparameters{{"lr", -1.0}}), true});
  CHECK(p.log->next<push_ack>().failure.text == "lr must not be negative");
  p.tell(t, push_hyperparameters{{}, 3, to_wire(core::hyperparameters{{"lr", 5.0}}), true});
  ack = p.log->next<push_ack>();
  CHECK_FALSE(ack.failure);
  CHECK(from_wire(ack.hp) == core::hyperparameters{{"lr", 1.0}});
  p.tell(t, push_hyperparameters{{}, 4, to_wire(core::hyperparameters{{"lr", std::string(70000, 'x')}})});
  CHECK(p.log->next<push_ack>().failure.text.find("the hyperparameters of trainer t0 take") == 0);
  p.tell(t, begin_training{});
  CHECK(from_wire(p.log->next<sync_report>().what).number("weight") == sum_to(5));
}

TEST_CASE("an exploit takes the weights as they were parked and its own hyperparameters") {
  process p{2};
  auto good = p.order(0, 10), bad = p.order(1, 10);
  good.schedule = bad.schedule = every(5);
  good.hp = to_wire(core::hyperparameters{{"lr", 10.0}});
  bad.slot = 1;
  auto g = p.host(good), b = p.host(bad);
  p.tell(g, begin_training{});
  p.tell(b, begin_training{});
  p.log->next<sync_report>(0);
  p.log->next<sync_report>(1);
  p.tell(g, export_state{{}, 0});
  auto state = p.log->next<state_exported>();
  CHECK(state.sync == 0);
  REQUIRE_FALSE(state.failure);
  core::decision d;
  d.copy_from = 0;
  d.changes = {{"lr", 2.0}};
  p.tell(b, decide(0, d, {state.state}));
  auto a = p.log->next<decision_applied>();
  CHECK_FALSE(a.failure);
  CHECK(from_wire(a.hp) == core::hyperparameters{{"lr", 2.0}});
  p.tell(b, resume_sync{{}, 0});
  auto end = p.log->next<trainer_finished>(1);
  // The donor's weights after five steps, then its own steps 6 to 10: counters were not copied.
  CHECK(weight_of(*p.blobs->get(end.state.blob)) == 10 * sum_to(5) + 2 * (sum_to(10) - sum_to(5)));
  CHECK(end.what.step == 10);
}

TEST_CASE("only a state that is asked for to be copied brings its copy on the device") {
  for (const bool copied : {false, true}) {
    process p;
    auto donor = p.order(0, 10, R"({"keeps": true})"), taker = p.order(1, 10);
    donor.schedule = taker.schedule = every(5);
    auto d = p.host(donor), t = p.host(taker);
    p.tell(d, begin_training{});
    p.tell(t, begin_training{});
    p.log->next<sync_report>(0);
    p.log->next<sync_report>(1);
    p.tell(d, export_state{{}, 0, copied});
    const auto state = p.log->next<state_exported>().state;
    core::decision copy;
    copy.copy_from = 0;
    p.tell(t, decide(0, copy, {state}));
    CHECK(p.log->next<decision_applied>().failure.text.empty());
    p.tell(t, resume_sync{{}, 0});
    const auto end = p.log->next<trainer_finished>(1);
    CHECK(weight_of(*p.blobs->get(end.state.blob)) == (copied ? 1e6 : sum_to(5)) + sum_to(10) - sum_to(5));
  }
}

TEST_CASE("FAULTS row 15: weights of another architecture are refused and training goes on") {
  process p;
  auto wide = p.order(0, 10, R"({"width": 2})"), narrow = p.order(1, 10);
  wide.schedule = narrow.schedule = every(5);
  auto w = p.host(wide), n = p.host(narrow);
  p.tell(w, begin_training{});
  p.tell(n, begin_training{});
  p.log->next<sync_report>(0);
  p.log->next<sync_report>(1);
  p.tell(w, export_state{{}, 0});
  auto state = p.log->next<state_exported>().state;
  core::decision d;
  d.copy_from = 0;
  d.changes = {{"lr", 7.0}};
  p.tell(n, decide(0, d, {state}));
  auto a = p.log->next<decision_applied>();
  CHECK(a.failure.text == "the weights are of another architecture: theirs is \"sum/2\", this one's \"sum/1\"");
  CHECK(from_wire(a.hp) == core::hyperparameters{{"lr", 1.0}}); // refused whole
  p.tell(n, resume_sync{{}, 0});
  CHECK(weight_of(*p.blobs->get(p.log->next<trainer_finished>(1).state.blob)) == sum_to(10));
}

TEST_CASE("decisions that cannot be followed are refused with the reason") {
  process p;
  auto order = p.order(0, 10);
  order.schedule = every(5);
  auto t = p.host(order);
  p.tell(t, begin_training{});
  p.log->next<sync_report>();
  core::decision copy;
  copy.copy_from = 4;
  p.tell(t, decide(0, copy));
  CHECK(p.log->next<decision_applied>().failure.text == "a decision to copy came without a state");
  p.tell(t, resume_sync{{}, 0});
  p.log->next<trainer_finished>();

  auto again = p.order(1, 10);
  again.schedule = every(5);
  t = p.host(again);
  p.tell(t, begin_training{});
  p.log->next<sync_report>();
  state_ref gone;
  gone.blob = 999;
  p.tell(t, decide(0, copy, {gone}));
  CHECK(p.log->next<decision_applied>().failure.text == "state 999 is not held by this process any more");
  p.tell(t, resume_sync{{}, 0});
  p.log->next<trainer_finished>();

  auto third = p.order(2, 10);
  third.schedule = every(5);
  t = p.host(third);
  p.tell(t, begin_training{});
  p.log->next<sync_report>();
  gone.node = 5;
  p.tell(t, decide(0, copy, {gone}));
  CHECK(p.log->next<decision_applied>().failure.text.find("the state lies on node 5") == 0);
}

TEST_CASE("commands of another life or a sync point that is over change nothing") {
  process p;
  auto order = p.order(0, 10);
  order.schedule = every(5);
  auto t = p.host(order);
  p.tell(t, begin_training{});
  p.log->next<sync_report>();
  anon_mail(stop_training{{7, 0, 9}, false, "another life"}).send(t.who);
  anon_mail(resume_sync{{7, 1, 0}, 0}).send(t.who);
  p.tell(t, resume_sync{{}, 3});
  p.tell(t, decide(2, {}));
  p.tell(t, export_state{{}, 0}); // the answer comes after all of them
  p.log->next<state_exported>();
  CHECK(p.log->count<decision_applied>() == 0);
  CHECK(p.log->count<trainer_finished>() == 0);
  CHECK(p.log->count<sync_report>() == 0);
}

TEST_CASE("a trainer resumes from a state bit for bit") {
  process p;
  auto order = p.order(0, 20);
  order.schedule = every(6);
  auto t = p.host(order);
  p.tell(t, push_hyperparameters{{}, 1, to_wire(core::hyperparameters{{"lr", 0.1}})});
  p.tell(t, begin_training{});
  p.log->next<sync_report>();
  p.tell(t, decide(0, {}, {}, true));
  auto state = p.log->next<decision_applied>().state;
  p.tell(t, resume_sync{{}, 0});
  for (std::uint32_t k : {1u, 2u}) {
    CHECK(p.log->next<sync_report>().sync == k);
    p.tell(t, resume_sync{{}, k});
  }
  auto first = p.log->next<trainer_finished>();

  order.who.incarnation = 1;
  order.state = state;
  t = p.host(order);
  CHECK(t.step == 6);
  CHECK(t.next == next_sync{true, 1}); // sync point 0 is behind it
  CHECK(from_wire(t.hp) == core::hyperparameters{{"lr", 0.1}}); // the state's, not the order's
  p.tell(t, begin_training{});
  for (std::uint32_t k : {1u, 2u}) {
    CHECK(p.log->next<sync_report>().sync == k);
    p.tell(t, resume_sync{{}, k});
  }
  auto second = p.log->next<trainer_finished>();
  const auto a = p.blobs->get(first.state.blob), b = p.blobs->get(second.state.blob);
  CHECK(a->tensors() == b->tensors());
  CHECK(*b->text("troupe.incarnation") == "1");
}

TEST_CASE("failures keep their text and end the trainer alone") {
  process p{2};
  auto healthy = p.order(9, 1000);
  auto h = p.host(healthy);
  auto t = p.host(p.order(0, 10, R"({"fail_at": 4})"));
  p.tell(t, begin_training{});
  auto f = p.log->next<trainer_failed>();
  CHECK(f.from == t.from);
  CHECK(f.failure.text == "step 4 went wrong");
  CHECK(from_wire(f.failure).code == core::errc::failed);
  CHECK_FALSE(f.device_lost);

  t = p.host(p.order(1, 10, R"({"nan_at": 3})"));
  p.tell(t, begin_training{});
  CHECK(p.log->next<trainer_failed>().failure.text.find("nan") != std::string::npos);

  anon_mail(p.order(2, 10, R"({"refuse": "no such layer"})")).send(p.agent);
  CHECK(p.log->next<trainer_failed>(2).failure.text.find("t2 cannot be built: no such layer") != std::string::npos);

  auto unknown = p.order(3, 10);
  unknown.workload_type = "rnn";
  anon_mail(unknown).send(p.agent);
  CHECK(p.log->next<trainer_failed>(3).failure.text.find("sum") != std::string::npos); // it lists what there is

  anon_mail(p.order(4, 10, "{not json")).send(p.agent);
  CHECK(p.log->next<trainer_failed>(4).failure.text == "the options of workload \"sum\" are not JSON: {not json");

  auto evaluated = p.order(5, 10, R"({"fail_evaluation": true})");
  evaluated.schedule = every(5);
  t = p.host(evaluated);
  p.tell(t, begin_training{});
  f = p.log->next<trainer_failed>(5);
  CHECK(f.failure.text == "no held-out data");
  CHECK(f.step == 5);

  p.tell(h, begin_training{});
  CHECK(p.log->next<trainer_finished>(9).what.step == 1000);
}

TEST_CASE("a state that no trainer saved is refused by name") {
  process p;
  auto foreign = std::make_shared<core::checkpoint>();
  foreign->set_text("format", "pt");
  auto order = p.order(0, 10);
  order.state = p.blobs->put(foreign);
  anon_mail(order).send(p.agent);
  CHECK(p.log->next<trainer_failed>().failure.text == "the state's text \"troupe.step\" is missing: it was not saved by a trainer");
}

TEST_CASE("a lost device fails its trainers and its slot and nothing else") {
  process p{2};
  p.log->next<node_up>();
  auto other = p.order(2, 50);
  other.slot = 1;
  auto o = p.host(other);
  auto t = p.host(p.order(0, 10, R"({"lose_at": 3})"));
  auto neighbour = p.host(p.order(1, 10));
  p.tell(t, begin_training{});
  auto f = p.log->next<trainer_failed>(0);
  CHECK(f.device_lost);
  CHECK(f.failure.text == "cudaLaunchKernel: illegal address");
  auto lost = p.log->next<slot_lost>();
  CHECK(lost.slot == 0);
  CHECK(lost.reason == "cudaLaunchKernel: illegal address");
  p.tell(neighbour, begin_training{});
  f = p.log->next<trainer_failed>(1);
  CHECK(f.device_lost);
  CHECK(f.failure.text.find("slot 0 (cpu) is lost: cudaLaunchKernel: illegal address") == 0);
  anon_mail(p.order(3, 10)).send(p.agent);
  CHECK(p.log->next<trainer_failed>(3).device_lost);
  p.tell(o, begin_training{});
  CHECK(p.log->next<trainer_finished>(2).what.step == 50);
}

TEST_CASE("a stopped trainer finishes its step and saves if asked to") {
  process p{1, true};
  auto t = p.host(p.order(0, no_end));
  p.tell(t, begin_training{});
  p.the_gate->allow(2);
  p.the_gate->await_waiting();
  p.tell(t, stop_training{{}, true, "on request"});
  p.the_gate->open();
  auto end = p.log->next<trainer_finished>();
  CHECK(end.stopped);
  CHECK(end.reason == "on request");
  CHECK(end.what.step >= 3);
  CHECK(weight_of(*p.blobs->get(end.state.blob)) == sum_to(end.what.step));

  t = p.host(p.order(1, no_end));
  p.tell(t, stop_training{{}, false, ""});
  end = p.log->next<trainer_finished>();
  CHECK(end.what.step == 0);
  CHECK_FALSE(end.state);
}

TEST_CASE("a decision to stop ends the trainer with the decision's reason") {
  process p;
  auto order = p.order(0, 10);
  order.schedule = every(5);
  auto t = p.host(order);
  p.tell(t, begin_training{});
  p.log->next<sync_report>();
  core::decision d;
  d.act = core::decision::action::stop;
  d.reason = "worst of three";
  p.tell(t, decide(0, d));
  CHECK_FALSE(p.log->next<decision_applied>().failure);
  auto end = p.log->next<trainer_finished>();
  CHECK(end.stopped);
  CHECK(end.reason == "worst of three");
  CHECK(end.what.step == 5);
}

TEST_CASE("trainers meet when called by the clock") {
  process p{1, true};
  auto t = p.host(p.order(0, no_end));
  CHECK_FALSE(t.next.any);
  p.tell(t, begin_training{});
  p.the_gate->allow(7);
  p.the_gate->await_waiting();
  p.tell(t, call_sync{{}, 0});
  p.the_gate->open();
  auto r = p.log->next<sync_report>();
  CHECK(r.sync == 0);
  CHECK(r.what.step >= 8);
  CHECK(from_wire(r.what).number("weight") == sum_to(r.what.step));
  p.tell(t, call_sync{{}, 1});
  p.tell(t, resume_sync{{}, 0});
  auto next = p.log->next<sync_report>();
  CHECK(next.sync == 1);
  CHECK(next.what.step == r.what.step + 1); // called before it went on: one step, so that there is a loss
}

TEST_CASE("an asynchronous trainer does not wait for its decision") {
  process p{1, true};
  auto order = p.order(0, no_end);
  order.schedule.at_steps = {4};
  order.asynchronous = true;
  auto t = p.host(order);
  p.tell(t, begin_training{});
  p.the_gate->allow(5);
  CHECK(p.log->next<sync_report>().what.step == 4);
  p.the_gate->await_waiting(); // in its sixth step
  core::decision d;
  d.changes = {{"lr", 0.0}};
  p.tell(t, decide(0, d));
  p.the_gate->open();
  auto a = p.log->next<decision_applied>();
  CHECK(a.step >= 6);
  p.tell(t, stop_training{{}, true, ""});
  CHECK(weight_of(*p.blobs->get(p.log->next<trainer_finished>().state.blob)) == sum_to(a.step));
}

TEST_CASE("metadata too large for a control message leaves its numbers out and says so") {
  process p;
  auto order = p.order(0, 10, R"({"big": 2000})");
  order.schedule = every(5);
  auto t = p.host(order);
  p.tell(t, begin_training{});
  auto m = from_wire(p.log->next<sync_report>().what);
  CHECK(m.number("numbers_left_out") == 2001);
  CHECK(m.numbers.size() == 1);
  CHECK(m.accuracy == 0.5);
}

TEST_CASE("a state of another process is fetched and what goes wrong there is told") {
  // Donor and taker in two processes, with a transport that is a function call.
  process donor;
  fetch_state fetch = [&donor](const state_ref& x, std::function<void(core::result<core::checkpoint_ptr>)> done) {
    std::thread([&donor, x, done = std::move(done)] {
      if (auto state = donor.blobs->get(x.blob))
        done(std::move(state));
      else
        done(core::error{core::errc::not_found, "no such state on " + x.host});
    }).detach();
  };
  donor.blobs->set_node(4);
  donor.blobs->set_address("127.0.0.1", 99);
  auto order = donor.order(0, 10);
  order.schedule = every(5);
  auto d = donor.host(order);
  donor.tell(d, begin_training{});
  donor.log->next<sync_report>();
  donor.tell(d, export_state{{}, 0});
  auto state = donor.log->next<state_exported>().state;
  CHECK(state.node == 4);
  CHECK(state.port == 99);
  CHECK(state.bytes == 16);

  process taker{1, false, fetch};
  auto moved = taker.order(0, 10);
  moved.who.incarnation = 1;
  moved.schedule = every(5);
  moved.state = state;
  auto t = taker.host(moved);
  CHECK(t.step == 5);
  CHECK(t.next == next_sync{true, 0}); // saved undecided, so it comes to that sync point again
  taker.tell(t, begin_training{});
  CHECK(taker.log->next<sync_report>().what.step == 5);
  taker.tell(t, resume_sync{{}, 0});
  CHECK(weight_of(*taker.blobs->get(taker.log->next<trainer_finished>().state.blob)) == sum_to(10));
  moved.who.trainer = 1;
  moved.state.blob = 12345;
  anon_mail(moved).send(taker.agent);
  CHECK(taker.log->next<trainer_failed>().failure.text == "its state could not be had: no such state on 127.0.0.1");
}

TEST_CASE("an exception in a trainer's own handler becomes its failure with the text kept") {
  process p{1, false, [](const state_ref&, auto) { throw std::runtime_error{"the transport broke"}; }};
  auto order = p.order(0, 10);
  order.state.blob = 1;
  order.state.node = 3;
  order.state.host = "127.0.0.1";
  anon_mail(order).send(p.agent);
  auto f = p.log->next<trainer_failed>();
  CHECK(f.from == order.who);
  CHECK(f.failure.text == "the transport broke");
}
