#pragma once

/// CAF as Troupe and its users see it: written once, in the shape of CAF 1.x, for 0.17.6 (Debian's) and 1.1 alike.
///
/// Include this instead of CAF's own headers. Code that keeps to it has no `#if` and none of the traps that cost others
/// most: raw reals in messages do not compile, actors do not starve each other, an exception keeps its text, and the
/// names of configuration keys are the same on both.
///
/// | CAF 1.x                            | here                                                     |
/// |------------------------------------|----------------------------------------------------------|
/// | `inspect(f, x)`                    | `TROUPE_INSPECT(type, field, …)`                          |
/// | `typed_actor<result<R>(A…)…>`      | the same, from this namespace                            |
/// | `self->mail(…).send(dst)`          | `mail(self, …).send(dst)`, also urgent, delay, request … |
/// | `self->state()`                    | `state(self)`                                            |
/// | `self->monitor(hdl, f)`            | `monitor_set::watch(self, hdl, f)`                        |
/// | clauses for exit_msg, error, all   | `on_exit_msg`, `on_error_msg`, `otherwise`               |

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ratio>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "caf/actor.hpp"
#include "caf/actor_addr.hpp"
#include "caf/actor_cast.hpp"
#include "caf/actor_ostream.hpp"
#include "caf/actor_registry.hpp"
#include "caf/actor_system.hpp"
#include "caf/actor_system_config.hpp"
#include "caf/behavior.hpp"
#include "caf/delegated.hpp"
#include "caf/error.hpp"
#include "caf/event_based_actor.hpp"
#include "caf/exit_reason.hpp"
#include "caf/expected.hpp"
#include "caf/message.hpp"
#include "caf/result.hpp"
#include "caf/scoped_actor.hpp"
#include "caf/sec.hpp"
#include "caf/send.hpp"
#include "caf/stateful_actor.hpp"
#include "caf/type_id.hpp"
#include "caf/typed_actor.hpp"
#include "caf/typed_event_based_actor.hpp"
#include "caf/typed_response_promise.hpp"

#include "troupe/actors/internal/preprocessor.hpp"
#include "troupe/actors/outside.hpp"

// CAF_VERSION is no guide: 1706 on 0.17.6, but octal 0100 on 1.1.0.
#if CAF_MAJOR_VERSION >= 1
#define TROUPE_CAF_MODERN 1
#include "caf/anon_mail.hpp"
#include "caf/default_enum_inspect.hpp"
#include "caf/init_global_meta_objects.hpp"
#else
#define TROUPE_CAF_MODERN 0
#if !defined(CAF_VERSION) || CAF_VERSION < 1706
#error "Troupe needs CAF 0.17.6 or CAF 1.1"
#endif
#include "caf/meta/type_name.hpp"
#endif

namespace troupe::actors {

// -- what may cross the wire -----------------------------------------------------------------------------------------

/// False for reals and for containers of them. CAF cannot carry reals: on 0.17.6 one infinity stops all remote traffic of
/// a process, and every version turns subnormals into huge numbers. Send `wire_real`.
template <class T>
struct wire_safe : std::negation<std::is_floating_point<T>> {};
template <class T, class A>
struct wire_safe<std::vector<T, A>> : wire_safe<T> {};
template <class A, class B>
struct wire_safe<std::pair<A, B>> : std::conjunction<wire_safe<A>, wire_safe<B>> {};
template <class K, class V, class C, class A>
struct wire_safe<std::map<K, V, C, A>> : std::conjunction<wire_safe<K>, wire_safe<V>> {};
template <class... Ts>
struct wire_safe<std::tuple<Ts...>> : std::conjunction<wire_safe<Ts>...> {};

template <class... Ts>
inline constexpr bool wire_safe_v = (wire_safe<std::decay_t<Ts>>::value && ...);

namespace internal {
/// Why a T must stay in its process; null: it need not. Known for what TROUPE_LOCAL_MESSAGE and TROUPE_INSPECT declared.
template <class T, class = void>
struct local_reason {
  static constexpr const char* value = nullptr;
};
template <class T>
struct local_reason<T, std::void_t<decltype(troupe_local_reason(static_cast<const T*>(nullptr)))>> {
  static constexpr const char* value = troupe_local_reason(static_cast<const T*>(nullptr));
};
template <class T, class A>
struct local_reason<std::vector<T, A>> : local_reason<T> {};

template <class... Ts>
constexpr const char* first_local_reason() {
  const char* out = nullptr;
  ((out = out != nullptr ? out : local_reason<Ts>::value), ...);
  return out;
}
} // namespace internal

} // namespace troupe::actors

// -- inspect ---------------------------------------------------------------------------------------------------------

#define TROUPE_WIRE_CHECK_(type, m)                                                                                    \
  static_assert(::troupe::actors::wire_safe_v<decltype(type::m)>, #type "::" #m " is a real: send a wire_real instead");

#define TROUPE_MEMBER_TYPE_(type, m) decltype(type::m)
#define TROUPE_LOCAL_REASON_(type, ...)                                                                                \
  constexpr const char* troupe_local_reason(const type*) {                                                             \
    return ::troupe::actors::internal::first_local_reason<TROUPE_PP_LIST(TROUPE_MEMBER_TYPE_, type, __VA_ARGS__)>();   \
  }

/// Makes an aggregate a message: place it in the aggregate's namespace. Up to 24 fields, none of them a real number.
#if TROUPE_CAF_MODERN
#define TROUPE_FIELD_(type, m) f.field(#m, x.m)
#define TROUPE_INSPECT(type, ...)                                                                                      \
  TROUPE_PP_EACH(TROUPE_WIRE_CHECK_, type, __VA_ARGS__)                                                                 \
  TROUPE_LOCAL_REASON_(type, __VA_ARGS__)                                                                              \
  template <class Inspector>                                                                                           \
  bool inspect(Inspector& f, type& x) {                                                                                \
    return f.object(x).fields(TROUPE_PP_LIST(TROUPE_FIELD_, type, __VA_ARGS__));                                       \
  }
#else
#define TROUPE_FIELD_(type, m) x.m
#define TROUPE_INSPECT(type, ...)                                                                                      \
  TROUPE_PP_EACH(TROUPE_WIRE_CHECK_, type, __VA_ARGS__)                                                                 \
  TROUPE_LOCAL_REASON_(type, __VA_ARGS__)                                                                              \
  template <class Inspector>                                                                                           \
  typename Inspector::result_type inspect(Inspector& f, type& x) {                                                     \
    return f(::caf::meta::type_name(#type), TROUPE_PP_LIST(TROUPE_FIELD_, type, __VA_ARGS__));                         \
  }
#endif

/// Makes an enum a message or a field of one: place it after `std::string to_string(type)`. `last` is its largest value;
/// all values from 0 to it are valid.
#if TROUPE_CAF_MODERN
#define TROUPE_ENUM(type, last)                                                                                        \
  inline bool from_integer(std::underlying_type_t<type> i, type& x) {                                                  \
    if (i > static_cast<std::underlying_type_t<type>>(last))                                                           \
      return false;                                                                                                    \
    x = static_cast<type>(i);                                                                                          \
    return true;                                                                                                       \
  }                                                                                                                    \
  inline bool from_string(std::string_view s, type& x) {                                                               \
    for (std::underlying_type_t<type> i = 0; i <= static_cast<std::underlying_type_t<type>>(last); ++i)                \
      if (s == to_string(static_cast<type>(i))) {                                                                      \
        x = static_cast<type>(i);                                                                                      \
        return true;                                                                                                   \
      }                                                                                                                \
    return false;                                                                                                      \
  }                                                                                                                    \
  template <class Inspector>                                                                                           \
  bool inspect(Inspector& f, type& x) {                                                                                \
    return ::caf::default_enum_inspect(f, x);                                                                          \
  }
#else
#define TROUPE_ENUM(type, last)                                                                                        \
  static_assert(static_cast<std::uint64_t>(last) < 256, #type " has too many values");
#endif

/// Makes a struct a message that never leaves its process (it may hold a shared_ptr or a function): place it in the struct's
/// namespace. Serializing one is an error, and `mail` sends none to another process: a request with one fails at once. (CAF alone
/// loses it without a word on 1.x and delivers it empty on 0.17.6, where another program may still send such a thing.)
#define TROUPE_LOCAL_MESSAGE(type) TROUPE_LOCAL_MESSAGE_BECAUSE(type, #type " cannot leave its process")
/// The same with the text of the error.
#if TROUPE_CAF_MODERN
#define TROUPE_LOCAL_MESSAGE_BECAUSE(type, text)                                                                       \
  constexpr const char* troupe_local_reason(const type*) { return text; }                                              \
  template <class Inspector>                                                                                           \
  bool inspect(Inspector& f, type& x) {                                                                                \
    if constexpr (std::is_base_of_v<::caf::detail::stringification_inspector, Inspector>) {                            \
      return f.object(x).fields();                                                                                     \
    } else {                                                                                                           \
      f.emplace_error(::caf::sec::unsafe_type, text);                                                                  \
      return false;                                                                                                    \
    }                                                                                                                  \
  }
#else
#define TROUPE_LOCAL_MESSAGE_BECAUSE(type, text)                                                                       \
  constexpr const char* troupe_local_reason(const type*) { return text; }                                              \
  template <class Inspector>                                                                                           \
  typename Inspector::result_type inspect([[maybe_unused]] Inspector& f, type&) {                                      \
    if constexpr (std::is_same_v<typename Inspector::result_type, ::caf::error>)                                       \
      return ::caf::make_error(::caf::sec::invalid_argument, text);                                                    \
    else                                                                                                               \
      return f(::caf::meta::type_name(#type));                                                                         \
  }
#endif

namespace troupe::actors {

// -- typed actors ----------------------------------------------------------------------------------------------------

namespace internal {
template <class Sig>
struct signature;
template <class... Out, class... In>
struct signature<caf::result<Out...>(In...)> {
  static_assert(wire_safe_v<In...> && wire_safe_v<std::conditional_t<std::is_void_v<Out>, int, Out>...>,
                "a typed actor's messages may hold no raw reals: send a wire_real instead");
#if TROUPE_CAF_MODERN
  using type = caf::result<Out...>(In...);
#else
  using type = typename caf::replies_to<In...>::template with<Out...>;
#endif
};
#if !TROUPE_CAF_MODERN
template <class Handle, class... Sigs>
struct extended;
template <class... Old, class... Sigs>
struct extended<caf::typed_actor<Old...>, Sigs...> {
  using type = caf::typed_actor<Old..., typename signature<Sigs>::type...>;
};
#endif
} // namespace internal

/// A handle that knows what its actor answers: `typed_actor<result<int>(add, int), result<void>(reset)>`. Keep it below 15
/// handlers: compile time grows with their square.
template <class... Sigs>
using typed_actor = caf::typed_actor<typename internal::signature<Sigs>::type...>;

/// `Handle` with more handlers; converts to `Handle`. For what only the actor itself and its helpers may send it.
#if TROUPE_CAF_MODERN
template <class Handle, class... Sigs>
using extend = typename Handle::template extend<typename internal::signature<Sigs>::type...>;
#else
template <class Handle, class... Sigs>
using extend = typename internal::extended<Handle, Sigs...>::type;
#endif

using caf::result;

/// The state of a stateful actor.
template <class Self>
auto& state(Self* self) {
#if TROUPE_CAF_MODERN
  return self->state();
#else
  return self->state;
#endif
}

/// True if `x` lives in another process.
bool is_remote(const caf::strong_actor_ptr& x);

// -- mail ------------------------------------------------------------------------------------------------------------

namespace internal {

/// Mail that must not leave its process: to another one it is not sent, and a request fails at once. Made in place, since CAF's
/// own mail cannot be moved.
template <class Inner>
class local_mail {
public:
  template <class Make>
  explicit local_mail(Make make) : inner_(make()) {}

  auto urgent() && {
    auto make = [this] { return std::move(inner_).urgent(); };
    return local_mail<decltype(make())>{make};
  }
  auto delay(caf::timespan d) && {
    auto make = [this, d] { return std::move(inner_).delay(d); };
    return local_mail<decltype(make())>{make};
  }
  template <class Handle>
  void send(const Handle& dst) && {
    if (dst && !leaves(dst))
      std::move(inner_).send(dst);
  }
  template <class Handle>
  auto delegate(const Handle& dst) && {
    return std::move(inner_).delegate(dst);
  }
  template <class Handle, class Timeout>
  auto request(const Handle& dst, Timeout timeout) && {
    return std::move(inner_).request(leaves(dst) ? Handle{} : dst, timeout); // to nobody: an error
  }

private:
  template <class Handle>
  static bool leaves(const Handle& dst) {
    return dst && is_remote(caf::actor_cast<caf::strong_actor_ptr>(dst));
  }
  Inner inner_;
};

/// What `make` makes, guarded if one of Ts is local.
template <class... Ts, class Make>
auto guard_mail(Make make) {
  if constexpr (first_local_reason<std::decay_t<Ts>...>() != nullptr)
    return local_mail<decltype(make())>{make};
  else
    return make();
}

} // namespace internal

#if TROUPE_CAF_MODERN

template <class Self, class... Ts>
auto mail(Self& self, Ts&&... xs) {
  static_assert(wire_safe_v<Ts...>, "a message may hold no raw reals: send a wire_real instead");
  return internal::guard_mail<Ts...>([&] { return self->mail(std::forward<Ts>(xs)...); });
}

template <class... Ts>
auto anon_mail(Ts&&... xs) {
  static_assert(wire_safe_v<Ts...>, "a message may hold no raw reals: send a wire_real instead");
  return internal::guard_mail<Ts...>([&] { return caf::anon_mail(std::forward<Ts>(xs)...); });
}

#else

namespace internal {

inline caf::blocking_actor* mail_source(caf::scoped_actor& x) { return x.ptr(); }
template <class T>
T* mail_source(T* x) {
  return x;
}

/// A callback for an answer, with `f`'s own signature: ends the request's timeout first.
template <class Self, class F, class Args = typename caf::detail::get_callable_trait<F>::arg_types>
struct answered;
template <class Self, class F, class... Args>
struct answered<Self, F, caf::detail::type_list<Args...>> {
  Self* self;
  caf::message_id id;
  F f;
  void operator()(Args... xs) {
    self->clock().cancel_request_timeout(self, id);
    f(static_cast<Args&&>(xs)...);
  }
};

/// A request of an actor. On 0.17.6 its timeout would keep the actor alive until it is over, though the answer has come
/// long before, and with the actor its system: a program would end a minute late.
template <class Self, class Output>
class pending_request {
public:
  explicit pending_request(caf::response_handle<Self, Output, false> handle) : handle_(std::move(handle)) {}

  template <class F>
  void then(F f) {
    handle_.then(over(std::move(f)), unhandled());
  }
  template <class F, class OnError>
  void then(F f, OnError e) {
    handle_.then(over(std::move(f)), over(std::move(e)));
  }
  template <class F>
  void await(F f) {
    handle_.await(over(std::move(f)), unhandled());
  }
  template <class F, class OnError>
  void await(F f, OnError e) {
    handle_.await(over(std::move(f)), over(std::move(e)));
  }
  caf::message_id id() const noexcept { return handle_.id(); }

private:
  template <class F>
  auto over(F f) {
    return answered<Self, F>{handle_.self(), handle_.id(), std::move(f)};
  }
  auto unhandled() {
    return over([self = handle_.self()](caf::error& e) { self->call_error_handler(e); });
  }
  caf::response_handle<Self, Output, false> handle_;
};

template <class Self, class Output>
auto end_timeout_with_answer(caf::response_handle<Self, Output, false> x) {
  return pending_request<Self, Output>{std::move(x)};
}
template <class Self, class Output>
auto end_timeout_with_answer(caf::response_handle<Self, Output, true> x) {
  return x;
}

template <caf::message_priority P, class Self, class... Ts>
class mail_builder {
public:
  mail_builder(Self* self, std::tuple<Ts...>&& xs) : self_(self), xs_(std::move(xs)) {}

  auto urgent() && {
    return mail_builder<caf::message_priority::high, Self, Ts...>{self_, std::move(xs_)};
  }
  auto delay(caf::timespan d) && {
    delay_ = d;
    return std::move(*this);
  }
  template <class Handle>
  void send(const Handle& dst) && {
    if (!dst)
      return;
    std::apply(
        [&](auto&&... xs) {
          if (delay_.count() > 0)
            self_->template delayed_send<P>(dst, delay_, std::move(xs)...);
          else
            self_->template send<P>(dst, std::move(xs)...);
        },
        std::move(xs_));
  }
  template <class Handle>
  auto delegate(const Handle& dst) && {
    return std::apply([&](auto&&... xs) { return self_->template delegate<P>(dst, std::move(xs)...); }, std::move(xs_));
  }
  template <class Handle, class Timeout>
  auto request(const Handle& dst, Timeout timeout) && {
    return std::apply(
        [&](auto&&... xs) {
          return end_timeout_with_answer(self_->template request<P>(dst, timeout_of(timeout), std::move(xs)...));
        },
        std::move(xs_));
  }

private:
  /// 0.17.6 knows no unit above minutes.
  template <class Rep, class Period>
  static auto timeout_of(std::chrono::duration<Rep, Period> x) {
    if constexpr (std::ratio_greater_v<Period, std::ratio<1>>)
      return std::chrono::duration_cast<std::chrono::seconds>(x);
    else
      return x;
  }
  template <class T>
  static T timeout_of(T x) {
    return x;
  }

  Self* self_;
  caf::timespan delay_{0};
  std::tuple<Ts...> xs_;
};

template <caf::message_priority P, class... Ts>
class anon_mail_builder {
public:
  explicit anon_mail_builder(std::tuple<Ts...>&& xs) : xs_(std::move(xs)) {}

  auto urgent() && { return anon_mail_builder<caf::message_priority::high, Ts...>{std::move(xs_)}; }
  template <class Handle>
  void send(const Handle& dst) && {
    if (dst)
      std::apply([&](auto&&... xs) { caf::anon_send<P>(dst, std::move(xs)...); }, std::move(xs_));
  }

private:
  std::tuple<Ts...> xs_;
};

} // namespace internal

/// Begins a message from `self` (an actor's pointer or a scoped_actor): `mail(self, pause{}).send(dst)`. On the way come
/// `.urgent()` (before everything queued; never on a request to another process: CAF 1.1 loses its reply) and `.delay(d)`; it
/// ends with `.send(dst)`, `.delegate(dst)` or `.request(dst, timeout)`.
template <class Self, class... Ts>
auto mail(Self& self, Ts&&... xs) {
  static_assert(wire_safe_v<Ts...>, "a message may hold no raw reals: send a wire_real instead");
  auto ptr = internal::mail_source(self);
  using builder =
      internal::mail_builder<caf::message_priority::normal, std::remove_pointer_t<decltype(ptr)>, std::decay_t<Ts>...>;
  return internal::guard_mail<Ts...>(
      [&] { return builder{ptr, std::tuple<std::decay_t<Ts>...>{std::forward<Ts>(xs)...}}; });
}

/// A message from nobody, from any thread.
template <class... Ts>
auto anon_mail(Ts&&... xs) {
  static_assert(wire_safe_v<Ts...>, "a message may hold no raw reals: send a wire_real instead");
  using builder = internal::anon_mail_builder<caf::message_priority::normal, std::decay_t<Ts>...>;
  return internal::guard_mail<Ts...>([&] { return builder{std::tuple<std::decay_t<Ts>...>{std::forward<Ts>(xs)...}}; });
}

#endif

// -- errors ----------------------------------------------------------------------------------------------------------

/// True if `x` says that something failed.
inline bool failed(const caf::error& x) {
#if TROUPE_CAF_MODERN
  return !x.empty();
#else
  return static_cast<bool>(x);
#endif
}

/// True if `why` means that the peer's process or its connection is gone.
bool is_node_loss(const caf::error& why);

/// An error for a reply, with its text for the reader.
caf::error make_error(std::string text);
/// The text of an error made by `make_error`, else what CAF prints.
std::string error_text(const caf::error& x);
/// The text of an exception in flight.
std::string exception_text(const std::exception_ptr& x);

// -- answers that come later ------------------------------------------------------------------------------------------

/// Promises the answer to the request at hand: `auto p = promise<int>{self}; …; return p;`, and later, in a turn of the same
/// actor, `p.deliver(7)` or `p.fail("why")`. Copies are alike. When the last one goes unanswered the requester is told so at once;
/// CAF 0.17.6 alone would leave it waiting for its timeout. Nothing is sent if the message was no request.
template <class R>
class promise {
public:
  template <class Self>
  explicit promise(Self* self) : state_(std::make_shared<state>()) {
    state_->request = self->current_mailbox_element() && self->current_mailbox_element()->mid.is_request();
    state_->inner = self->template make_response_promise<caf::typed_response_promise<R>>();
  }
  void fail(std::string text) const { state_->fail(std::move(text)); }
  template <class T = R>
  void deliver(std::enable_if_t<!std::is_void_v<T>, T> x) const {
    if (std::exchange(state_->open, false) && state_->request)
      state_->inner.deliver(std::move(x));
  }
  template <class T = R>
  std::enable_if_t<std::is_void_v<T>> deliver() const {
    if (!std::exchange(state_->open, false) || !state_->request)
      return;
#if TROUPE_CAF_MODERN
    state_->inner.deliver();
#else
    static_cast<caf::response_promise&>(state_->inner).deliver(caf::unit);
#endif
  }
  bool open() const noexcept { return state_->open; }
  bool is_request() const noexcept { return state_->request; }
  operator caf::result<R>() const { return state_->inner; }

private:
  struct state {
    caf::typed_response_promise<R> inner;
    bool request = false, open = true;
    void fail(std::string text) {
      if (std::exchange(open, false) && request)
        inner.deliver(make_error(std::move(text)));
    }
    ~state() { fail("the request was dropped without an answer"); }
  };
  std::shared_ptr<state> state_;
};

// -- monitors, exits, unexpected messages ----------------------------------------------------------------------------

/// The actors that one actor watches, with a callback for each one's end. Keep one per actor, in its state; at most one watch
/// per watched actor.
class monitor_set {
public:
  using callback = std::function<void(const caf::error& reason)>;

  template <class Self, class Handle>
  void watch(Self* self, const Handle& hdl, callback f) {
#if TROUPE_CAF_MODERN
    unwatch(self, hdl);
    subscriptions_[hdl.address()] = self->monitor(hdl, std::move(f));
#else
    if (!callbacks_) {
      callbacks_ = std::make_shared<map_type>();
      self->set_down_handler([cbs = callbacks_](caf::down_msg& x) {
        if (auto i = cbs->find(x.source); i != cbs->end()) {
          auto g = std::move(i->second);
          cbs->erase(i);
          g(x.reason);
        }
      });
    }
    if (!callbacks_->insert_or_assign(hdl.address(), std::move(f)).second)
      return;
    self->monitor(hdl);
#endif
  }

  template <class Self, class Handle>
  void unwatch([[maybe_unused]] Self* self, const Handle& hdl) {
#if TROUPE_CAF_MODERN
    if (auto i = subscriptions_.find(hdl.address()); i != subscriptions_.end()) {
      i->second.dispose();
      subscriptions_.erase(i);
    }
#else
    if (callbacks_ && callbacks_->erase(hdl.address()) > 0)
      self->demonitor(hdl.address());
#endif
  }

private:
#if TROUPE_CAF_MODERN
  std::map<caf::actor_addr, caf::disposable> subscriptions_;
#else
  using map_type = std::map<caf::actor_addr, callback>;
  std::shared_ptr<map_type> callbacks_; // shared with the handler, which may outlive the state by a message
#endif
};

namespace internal {
#if !TROUPE_CAF_MODERN
// On 0.17.6 these are handlers of the actor, set apart from its behavior; what stands in the behavior is never chosen.
struct system_clause {};
struct exit_clause : system_clause {
  void operator()(caf::exit_msg&) const {}
};
struct error_clause : system_clause {
  void operator()(caf::down_msg&) const {}
};
template <class F>
auto as_handlers(F&& f) {
  if constexpr (std::is_base_of_v<system_clause, std::decay_t<F>>)
    return std::tuple<>{};
  else
    return std::tuple<std::decay_t<F>>{std::forward<F>(f)};
}
#endif
} // namespace internal

/// A clause for a behavior: what to do when someone asks the actor to exit. `f(caf::exit_msg&)` must call `self->quit` itself.
template <class Self, class F>
auto on_exit_msg([[maybe_unused]] Self* self, F f) {
#if TROUPE_CAF_MODERN
  return [f](caf::exit_msg& x) { f(x); };
#else
  self->set_exit_handler([f](caf::exit_msg& x) { f(x); });
  return internal::exit_clause{};
#endif
}

/// A clause for a behavior: what to do with an error that answers a message sent without a request. Without it CAF ends the
/// actor: an actor that others may answer wrongly needs it.
template <class Self, class F>
auto on_error_msg([[maybe_unused]] Self* self, F f) {
#if TROUPE_CAF_MODERN
  return [f](caf::error& x) { f(x); };
#else
  self->set_error_handler([f](caf::error& x) { f(x); });
  return internal::error_clause{};
#endif
}

/// The behavior of a typed actor that has clauses for exit or error messages: `return make_behavior(self, handlers…, clauses…)`.
template <class Self, class... Fs>
typename Self::behavior_type make_behavior([[maybe_unused]] Self* self, Fs... fs) {
#if TROUPE_CAF_MODERN
  return {std::move(fs)...};
#else
  return std::apply([](auto&&... gs) { return typename Self::behavior_type{std::move(gs)...}; },
                    std::tuple_cat(internal::as_handlers(std::move(fs))...));
#endif
}

/// The last clause of an untyped behavior: takes every other message, given as text for the log. One that came as a request is
/// answered with an error; one that came without is dropped, since an answer would be an error that ends its sender.
template <class Self, class F>
auto otherwise([[maybe_unused]] Self* self, F f) {
#if TROUPE_CAF_MODERN
  return [self, f](caf::message& x) mutable -> caf::result<caf::message> {
    f(to_string(x));
    if (self->current_mailbox_element() && self->current_mailbox_element()->mid.is_request())
      return caf::make_error(caf::sec::unexpected_message);
    return caf::delegated<caf::message>{}; // no answer
  };
#else
  self->set_default_handler([f](caf::scheduled_actor* s, caf::message_view& x) mutable -> caf::result<caf::message> {
    f(to_string(x.content()));
    if (s->current_mailbox_element() && s->current_mailbox_element()->mid.is_request())
      return caf::make_error(caf::sec::unexpected_message);
    return caf::delegated<caf::message>{}; // no answer
  });
  return [](const caf::unit_t&) {};
#endif
}

namespace internal {

/// Messages that an actor does not know, and who sent them. The first of each process is worth a line, all are counted: nobody can
/// fill a log with them.
class unknown_messages {
public:
  using sink = std::function<void(const std::string& line)>;
  /// `who`: the actor. No `say`: standard error.
  explicit unknown_messages(std::string who, sink say = nullptr);
  unknown_messages(const unknown_messages&) = delete;
  /// Says how many there were, if there were more than lines.
  ~unknown_messages();
  void note(const caf::strong_actor_ptr& sender);

private:
  std::string who_;
  sink say_;
  std::set<std::string> senders_; ///< of the first ones
  std::uint64_t count_ = 0, told_ = 0;
};

} // namespace internal

/// A typed actor drops messages that it does not know, and answers such requests with an error. Call it before the behavior is
/// set. (CAF 0.17.6 alone prints every one of them to standard output; 1.x does not.)
template <class Self>
void drop_unknown([[maybe_unused]] Self* self, [[maybe_unused]] std::string who,
                  [[maybe_unused]] internal::unknown_messages::sink say = nullptr) {
#if !TROUPE_CAF_MODERN
  self->set_default_handler([log = std::make_shared<internal::unknown_messages>(std::move(who), std::move(say))](
                              caf::scheduled_actor* s, caf::message_view&) -> caf::result<caf::message> {
    log->note(s->current_sender());
    if (s->current_mailbox_element() && s->current_mailbox_element()->mid.is_request())
      return caf::make_error(caf::sec::unexpected_message);
    return caf::delegated<caf::message>{}; // no answer
  });
#endif
}

/// An exception that leaves a handler of `self` ends the actor with an error that keeps the exception's text, for those who
/// watch it, and answers a request at hand with it. `f(text)` runs before, for the actor's own last words.
template <class Self, class F>
void on_exception(Self* self, F f) {
  self->set_exception_handler([self, f](std::exception_ptr& x) -> caf::error {
    auto text = exception_text(x);
    f(text);
    return make_error(std::move(text));
  });
}
template <class Self>
void on_exception(Self* self) {
  on_exception(self, [](const std::string&) {});
}

// -- configuration ---------------------------------------------------------------------------------------------------

/// User programs' type ids begin here: CAF_BEGIN_TYPE_ID_BLOCK(name, troupe::actors::first_user_type_id).
inline constexpr caf::type_id_t first_user_type_id = caf::first_custom_type_id + 200;

/// "scheduler.x" on 0.17.6 is "caf.scheduler.x" on 1.x.
std::string caf_key(std::string_view x);

/// The configuration to start an actor system with: knows Troupe's messages and sets what CAF leaves dangerous. One message per
/// turn, so that an actor that mails itself starves nobody. `enable_network` (caf_io.hpp) adds heartbeats.
class system_config : public caf::actor_system_config {
public:
  system_config();
  /// Threads that run actors; 0: one per core. Handlers are short, so few do.
  void scheduler_threads(std::size_t n);
  /// What the end of a system waits for: see `outside`.
  const std::shared_ptr<internal::outside_count>& held_outside() const noexcept { return outside_; }

private:
  std::shared_ptr<internal::outside_count> outside_ = std::make_shared<internal::outside_count>();
};

/// Makes the message types of `Blocks` known, in ascending order of their ids; once per process and before the first actor
/// system (only CAF 1.x needs it). `config` does it.
template <class... Blocks>
void init_types() {
#if TROUPE_CAF_MODERN
  [[maybe_unused]] static const bool done = [] {
    (caf::init_global_meta_objects<Blocks>(), ...);
    return true;
  }();
#endif
}

/// `system_config` with the message types of a program: `config<caf::id_block::my_block>`.
template <class... Blocks>
class config : public system_config {
public:
  config() {
#if TROUPE_CAF_MODERN
    init_types<Blocks...>();
#else
    (add_message_types<Blocks>(), ...);
#endif
  }
};

// -- registry --------------------------------------------------------------------------------------------------------

/// Names an actor within its system; at most 10 characters of [A-Za-z0-9_ ] (0.17.6 stores no more; throws
/// std::invalid_argument). Erase it before the system ends: a registered actor keeps it alive. A name is no protection.
void registry_put(caf::actor_system& sys, const std::string& name, const caf::strong_actor_ptr& hdl);
template <class Handle>
void registry_put(caf::actor_system& sys, const std::string& name, const Handle& hdl) {
  registry_put(sys, name, caf::actor_cast<caf::strong_actor_ptr>(hdl));
}
void registry_erase(caf::actor_system& sys, const std::string& name);

// -- values on the wire ----------------------------------------------------------------------------------------------

/// A double as its bit pattern: carries infinities, NaNs, signed zeros and subnormals exactly.
struct wire_real {
  std::uint64_t bits = 0;

  wire_real() = default;
  wire_real(double x) noexcept;
  operator double() const noexcept;
  bool operator==(const wire_real&) const = default; ///< of the bits: a NaN equals itself
};
TROUPE_INSPECT(wire_real, bits)

// -- output ----------------------------------------------------------------------------------------------------------

/// One whole line on standard output, never mixed with other actors' lines.
template <class Self>
void print(Self* self, const std::string& line) {
#if TROUPE_CAF_MODERN
  self->println("{}", line);
#else
  caf::aout(self) << line << std::endl;
#endif
}

} // namespace troupe::actors
