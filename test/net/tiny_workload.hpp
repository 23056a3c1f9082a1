#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "troupe/core/random.hpp"
#include "troupe/gpu/basic_workload.hpp"

/// A model that costs nothing to train but depends on every step it took: the noise of step n is a function of seed and n. If
/// told so it sends its process a signal before step "at", once: unless the file "mark" is there, which it makes.
class tiny final : public troupe::gpu::basic_workload {
public:
  tiny(troupe::gpu::context&, const troupe::gpu::workload_config& cfg) : basic_workload("tiny", cfg) {
    x_.resize(static_cast<std::size_t>(integer_option("size", 4096, 1, 1 << 20)));
    mark_ = text_option("mark", "");
    at_ = static_cast<std::uint64_t>(integer_option("at", 0, 0, 1 << 30));
    signal_ = static_cast<int>(integer_option("signal", SIGKILL, 1, 64));
    weights("x", x_);
    state("mean", mean_);
    counter("steps", steps_);
    tunable("lr", lr_, 0, 1);
  }
  double step(troupe::gpu::context&) override {
    if (steps_ == at_ && !mark_.empty()) {
      const int fd = ::open(mark_.c_str(), O_CREAT | O_EXCL | O_CLOEXEC, 0600);
      if (fd >= 0) {
        ::close(fd);
        ::raise(signal_); // to this thread: sent to the process, others take it and this one makes steps meanwhile
      }
    }
    troupe::core::random_stream noise{seed(), "tiny", steps_++};
    double sum = 0;
    for (auto& x : x_) {
      x += static_cast<float>(lr_) * (static_cast<float>(noise.uniform(-1, 1)) - x);
      sum += x * x;
    }
    mean_[0] = 0.9F * mean_[0] + 0.1F * x_[0];
    return sum / static_cast<double>(x_.size());
  }
  troupe::gpu::evaluation evaluate(troupe::gpu::context&) override {
    troupe::gpu::evaluation e;
    e.accuracy = x_[0];
    return e;
  }

private:
  std::vector<float> x_, mean_{0.0F};
  std::uint64_t steps_ = 0, at_ = 0;
  std::string mark_;
  int signal_ = 0;
  double lr_ = 0.1;
};

inline std::shared_ptr<troupe::gpu::workload_registry> tiny_workloads() {
  auto r = std::make_shared<troupe::gpu::workload_registry>(troupe::gpu::builtin_workloads());
  r->add("tiny", troupe::gpu::basic_workload::factory<tiny>(), troupe::gpu::basic_workload::checker<tiny>());
  return r;
}
