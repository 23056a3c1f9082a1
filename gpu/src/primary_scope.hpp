#pragma once

namespace troupe::gpu::internal {

/// For its life, calls of this thread go to the device `ordinal`; for what may run on a thread that is not the context's. `Driver` has
/// `current(ordinal)`, `enter(ordinal)` and `leave(ordinal)`.
///
/// The device's primary context is pushed and popped. Choosing the device and then the one before again is no way: a thread that
/// never chose one has the first GPU "before", and since CUDA 12 choosing that creates a context there, which costs about half a GiB of
/// its memory for the life of the process.
template <class Driver>
class primary_scope {
public:
  primary_scope(const Driver& driver, int ordinal) noexcept
      : driver_(driver), ordinal_(ordinal), entered_(!driver.current(ordinal) && driver.enter(ordinal)) {}
  ~primary_scope() {
    if (entered_)
      driver_.leave(ordinal_);
  }
  primary_scope(const primary_scope&) = delete;
  primary_scope& operator=(const primary_scope&) = delete;

private:
  const Driver& driver_;
  int ordinal_;
  bool entered_;
};

} // namespace troupe::gpu::internal
