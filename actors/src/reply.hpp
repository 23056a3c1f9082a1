#pragma once

#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "troupe/core/result.hpp"

namespace troupe::actors::internal {

/// Who asked from another thread, to be answered once. Copies are one; what is dropped unanswered says that
/// the run is over, so that nobody waits for an actor that is gone.
template <class T>
class reply {
public:
  reply() : box_(std::make_shared<box>()) {}

  std::future<core::result<T>> future() const { return box_->promise.get_future(); }
  void operator()(core::result<T> x) const { box_->answer(std::move(x)); }

private:
  struct box {
    std::promise<core::result<T>> promise;
    bool answered = false; // one actor at a time holds and answers it

    void answer(core::result<T> x) {
      if (std::exchange(answered, true))
        return;
      promise.set_value(std::move(x));
    }
    ~box() { answer(core::error{core::errc::refused, "the run is over"}); }
  };
  std::shared_ptr<box> box_;
};

} // namespace troupe::actors::internal
