#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "troupe/core/result.hpp"

namespace troupe::actors::internal {

/// Who asked from another thread, to be answered once. Copies are one; what is dropped unanswered says that
/// the run is over, so that nobody waits for an actor that is gone.
template <class T>
class reply {
public:
  using callback = std::function<void(core::result<T>)>;

  reply() = default; ///< answers nobody
  explicit reply(callback then) : box_(std::make_shared<box>(std::move(then))) {}

  void operator()(core::result<T> x) const {
    if (box_)
      box_->answer(std::move(x));
  }

private:
  struct box {
    callback then;
    bool answered = false; // one actor at a time holds and answers it

    explicit box(callback f) : then(std::move(f)) {}

    void answer(core::result<T> x) {
      if (std::exchange(answered, true))
        return;
      then(std::move(x));
    }
    ~box() { answer(core::error{core::errc::refused, "the run is over"}); }
  };
  std::shared_ptr<box> box_;
};

} // namespace troupe::actors::internal
