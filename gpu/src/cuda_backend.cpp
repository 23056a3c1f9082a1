#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "copied_memory.hpp"
#include "cuda_blas.hpp"
#include "cuda_driver.hpp"
#include "cuda_support.hpp"
#include "devices.hpp"
#include "troupe/gpu/device.hpp"

namespace troupe::gpu::internal {

namespace {

/// The number that CUDA has for this device in this process: another process may have left a number that
/// means another GPU here, the UUID does not change.
int ordinal_of(const slot_options& options) {
  const auto report = find_devices();
  if (report.cuda_status != "ok")
    throw device_error("slot " + std::to_string(options.index) + " asks for the GPU " + options.device.id +
                           ", but no GPU can be used: " + report.cuda_status + "; use the device \"cpu\"",
                       false);
  auto found = options.device.id.empty()
                   ? find_device(report, "cuda:" + std::to_string(options.device.ordinal))
                   : find_device(report, options.device.id);
  if (!found)
    throw device_error("slot " + std::to_string(options.index) + ": " + found.error().text, false);
  return found->ordinal;
}

/// The queues and the memory pool behind them. Destroyed in the order of their use, with whatever is still
/// enqueued.
struct streams_and_pool {
  cudaStream_t stream = nullptr;
  cudaStream_t uploads = nullptr, downloads = nullptr; // a GPU copies in both directions at once
  cudaMemPool_t pool = nullptr;

  streams_and_pool(int ordinal, const std::string& label) {
    try {
      for (auto* s : {&stream, &uploads, &downloads})
        check_cuda(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking), label, "cudaStreamCreateWithFlags");
      cudaMemPoolProps props{};
      props.allocType = cudaMemAllocationTypePinned;
      props.handleTypes = cudaMemHandleTypeNone;
      props.location.type = cudaMemLocationTypeDevice;
      props.location.id = ordinal;
      check_cuda(cudaMemPoolCreate(&pool, &props), label, "cudaMemPoolCreate");
      auto keep = std::numeric_limits<std::uint64_t>::max(); // freed memory stays for the next allocation
      check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep), label,
                 "cudaMemPoolSetAttribute");
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~streams_and_pool() { destroy(); }
  streams_and_pool(const streams_and_pool&) = delete;
  streams_and_pool& operator=(const streams_and_pool&) = delete;

private:
  void destroy() noexcept { // errors here have been reported by whoever waited for the work
    for (auto s : {uploads, downloads, stream})
      if (s != nullptr) {
        (void)cudaStreamSynchronize(s);
        (void)cudaStreamDestroy(s);
      }
    if (pool != nullptr)
      (void)cudaMemPoolDestroy(pool);
    (void)cudaGetLastError();
  }
};

/// May go on any thread.
struct cuda_point final : point {
  const cuda_contexts& contexts;
  int ordinal;
  cudaEvent_t event = nullptr;
  cuda_point(const cuda_contexts& c, int device) : contexts(c), ordinal(device) {}
  ~cuda_point() override {
    if (event == nullptr)
      return;
    const device_scope scope(contexts, ordinal);
    (void)cudaEventDestroy(event); // work that waits for it is not disturbed
  }
};

struct cuda_graph final : captured_work {
  const cuda_contexts& contexts;
  int ordinal;
  cudaGraphExec_t exec = nullptr;
  cuda_graph(const cuda_contexts& c, int device, cudaGraphExec_t x) : contexts(c), ordinal(device), exec(x) {}
  ~cuda_graph() override {
    const device_scope scope(contexts, ordinal);
    (void)cudaGraphExecDestroy(exec); // if it is still running, its memory goes when it ends
    (void)cudaGetLastError();
  }
};

class cuda_backend final : public backend {
public:
  explicit cuda_backend(const slot_options& options) : backend(options), ordinal_(ordinal_of(options)) {
    check_cuda(cudaSetDevice(ordinal_), label(), "cudaSetDevice");
    check_cuda(cudaFree(nullptr), label(), "opening the CUDA context"); // the first call that needs it
    contexts_.emplace(label());
    cudaDeviceProp p{};
    check_cuda(cudaGetDeviceProperties(&p, ordinal_), label(), "cudaGetDeviceProperties");
    if (p.major * 10 + p.minor < 75)
      throw device_error(label() + ": compute capability " + std::to_string(p.major) + "." +
                             std::to_string(p.minor) + " is too old, Troupe needs 7.5 (Turing) or newer",
                         false);
    reads_host_tables_ = p.pageableMemoryAccessUsesHostPageTables != 0;
    if (p.memoryPoolsSupported == 0)
      throw device_error(label() + ": the device has no stream-ordered memory pools", false);
    device_.emplace(ordinal_, label());
    workspace_bytes_ = cublas_workspace_bytes(p.major);
    workspace_ = allocate(workspace_bytes_);
    if (workspace_ == nullptr)
      throw device_error(label() + ": the device has no room for cuBLAS's workspace of " +
                             std::to_string(workspace_bytes_) + " bytes" + memory_state(),
                         false);
    blas_.emplace(device_->stream, workspace_, workspace_bytes_, options.math, label());
  }

  ~cuda_backend() override {
    const device_scope scope(*contexts_, ordinal_);
    blas_.reset();
    for (auto e : {allocated_, copies_end_})
      if (e != nullptr)
        (void)cudaEventDestroy(e);
    if (workspace_ != nullptr)
      (void)cudaFreeAsync(workspace_, device_->stream);
    device_.reset();
  }

  void bind() override {
    check(cudaSetDevice(ordinal_), "cudaSetDevice");
    own();
  }
  void* stream() const noexcept override { return device_->stream; }
  /// cuBLAS's workspace: the stream's order keeps products and kernels apart.
  scratch_memory scratch() const noexcept override {
    return {static_cast<float*>(workspace_), static_cast<std::int64_t>(workspace_bytes_ / sizeof(float))};
  }

  void zero(void* dst, std::size_t bytes) override {
    touch();
    check(cudaMemsetAsync(dst, 0, bytes, device_->stream), "cudaMemsetAsync");
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    touch();
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, device_->stream), "copy on the device");
  }
  bool copy_from(backend& from, void* dst, const void* src, std::size_t bytes) override {
    auto* other = dynamic_cast<cuda_backend*>(&from);
    if (other == nullptr)
      return false;
    touch();
    if (other->ordinal_ == ordinal_) {
      check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, device_->stream), "copy from a slot");
    } else {
      other->let_in(ordinal_);
      check(cudaMemcpyPeerAsync(dst, ordinal_, src, other->ordinal_, bytes, device_->stream), "copy from another device");
    }
    check(cudaStreamSynchronize(device_->stream), "work on the device");
    return true;
  }
  void upload(void* dst, const void* src, std::size_t bytes) override {
    touch();
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, device_->stream), "copy to the device");
    // Ordinary memory has been staged when the call returns, unless the device reads it where it lies; pinned and managed memory is
    // still being read.
    cudaPointerAttributes where{};
    if (cudaPointerGetAttributes(&where, src) != cudaSuccess) {
      (void)cudaGetLastError();
      where.type = cudaMemoryTypeUnregistered;
    }
    if (reads_host_tables_ || where.type != cudaMemoryTypeUnregistered)
      check(cudaStreamSynchronize(device_->stream), "work on the device");
  }
  void download(void* dst, const void* src, std::size_t bytes) override {
    touch();
    check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, device_->stream), "copy from the device");
    check(cudaStreamSynchronize(device_->stream), "work on the device");
  }
  void synchronize() override {
    for (auto s : {device_->uploads, device_->downloads})
      check(cudaStreamSynchronize(s), "copies beside the computation");
    check(cudaStreamSynchronize(device_->stream), "work on the device");
  }
  void gemm(const gemm_call& call) override {
    touch();
    blas_->gemm(call);
  }

  void upload_async(void* dst, const void* pinned, std::size_t bytes) override {
    touch();
    begin_copies(work_queue::uploads);
    copied_.note(dst);
    check(cudaMemcpyAsync(dst, pinned, bytes, cudaMemcpyHostToDevice, device_->uploads), "copy to the device");
  }
  void download_async(void* pinned, const void* src, std::size_t bytes) override {
    touch();
    begin_copies(work_queue::downloads);
    copied_.note(src);
    check(cudaMemcpyAsync(pinned, src, bytes, cudaMemcpyDeviceToHost, device_->downloads), "copy from the device");
  }
  void mark(std::unique_ptr<point>& at, work_queue q) override {
    touch();
    if (at == nullptr) {
      auto made = std::make_unique<cuda_point>(*contexts_, ordinal_);
      check(cudaEventCreateWithFlags(&made->event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      at = std::move(made);
    }
    check(cudaEventRecord(event_of(*at), stream_of(q)), "cudaEventRecord");
  }
  void wait(const point& at, work_queue who) override {
    check(cudaStreamWaitEvent(stream_of(who), event_of(at), 0), "cudaStreamWaitEvent");
  }
  void wait_on_host(const point& at) override {
    check(cudaEventSynchronize(event_of(at)), "work on the device");
  }
  bool passed(const point& at) override {
    const auto rc = cudaEventQuery(event_of(at));
    if (rc == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    check(rc, "work on the device");
    return true;
  }

  void begin_capture() override {
    touch();
    // Of this thread alone: other slots' threads allocate and wait meanwhile.
    check(cudaStreamBeginCapture(device_->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    set_capturing(true);
  }
  std::unique_ptr<captured_work> end_capture(std::string& why) override {
    set_capturing(false);
    cudaGraph_t graph = nullptr;
    auto rc = cudaStreamEndCapture(device_->stream, &graph);
    const char* call = "cudaStreamEndCapture";
    cudaGraphExec_t exec = nullptr;
    if (rc == cudaSuccess) {
      rc = cudaGraphInstantiateWithFlags(&exec, graph, 0);
      call = "cudaGraphInstantiate";
    }
    if (graph != nullptr)
      (void)cudaGraphDestroy(graph);
    if (rc == cudaSuccess)
      return std::make_unique<cuda_graph>(*contexts_, ordinal_, exec);
    (void)cudaGetLastError();
    why = label() + ": " + call + " failed: " + cudaGetErrorString(rc) + " (" + cudaGetErrorName(rc) + ")";
    cudaError_t waited = cudaSuccess;
    if (is_device_lost(rc, device_->stream, waited))
      throw device_error(why, true);
    return nullptr;
  }
  void launch(captured_work& work) override {
    check(cudaGraphLaunch(static_cast<cuda_graph&>(work).exec, device_->stream), "cudaGraphLaunch");
  }

  std::uint64_t reserved() const noexcept override { return reserved_.load(std::memory_order_relaxed); }

protected:
  void settle() noexcept override {
    const device_scope scope(*contexts_, ordinal_);
    wait_for_all();
    (void)cudaGetLastError();
  }
  bool on_own_device() noexcept override {
    int now = ordinal_;
    if (cudaGetDevice(&now) == cudaSuccess && now == ordinal_)
      return true;
    (void)cudaSetDevice(ordinal_);
    return false;
  }
  void* allocate(std::size_t bytes) override {
    touch();
    void* p = nullptr;
    const auto rc = cudaMallocFromPoolAsync(&p, bytes, device_->pool, device_->stream);
    if (rc == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check(rc, "cudaMallocFromPoolAsync");
    note_reserved();
    if (copies_end_ != nullptr)
      note_allocated();
    return p;
  }
  void free(void* data, std::size_t bytes) noexcept override {
    const device_scope scope(*contexts_, ordinal_);
    if (copied_.forget(data, bytes)) // a copy beside the computation may still be on its way from it or to it
      for (auto s : {device_->uploads, device_->downloads}) {
        (void)cudaEventRecord(copies_end_, s);
        (void)cudaStreamWaitEvent(device_->stream, copies_end_, 0);
      }
    (void)cudaFreeAsync(data,
                        device_->stream); // after a sticky error it fails, and there is nothing left to free
    (void)cudaGetLastError();
  }
  void* allocate_host(std::size_t bytes) override {
    void* p = nullptr;
    const auto rc = cudaHostAlloc(&p, bytes, cudaHostAllocDefault);
    if (rc == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check(rc, "cudaHostAlloc");
    return p;
  }
  void free_host(void* data, std::size_t) noexcept override {
    const device_scope scope(*contexts_, ordinal_);
    wait_for_all(); // the device may still copy from it
    (void)cudaFreeHost(data);
    (void)cudaGetLastError();
  }
  void trim() noexcept override {
    (void)cudaStreamSynchronize(device_->stream); // what was freed in stream order is free only then
    (void)cudaMemPoolTrimTo(device_->pool, 0);
    note_reserved();
  }
  std::string memory_state() const override {
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      (void)cudaGetLastError();
      return {};
    }
    return " (" + std::to_string(free) + " of " + std::to_string(total) + " bytes are free)";
  }

private:
  void check(cudaError_t rc, const char* call) const { check_cuda(rc, label(), call, device_->stream); }
  /// The pool's size changes when it is asked and when it is trimmed. Noted by the owner, for status displays of other threads: a
  /// call of theirs would open a context on whatever device is current there.
  void note_reserved() noexcept {
    std::uint64_t bytes = 0;
    if (cudaMemPoolGetAttribute(device_->pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess)
      bytes = used() + workspace_bytes_;
    (void)cudaGetLastError();
    // The workspace goes with the context's own memory.
    reserved_.store(bytes > workspace_bytes_ ? bytes - workspace_bytes_ : 0, std::memory_order_relaxed);
  }
  /// From now on memory that is freed may be in use by one. And memory that was allocated since the newest one is, until the
  /// first queue comes to its allocation, still its last user's.
  void begin_copies(work_queue q) {
    if (copies_end_ == nullptr) {
      for (auto* e : {&allocated_, &copies_end_})
        if (*e == nullptr)
          check(cudaEventCreateWithFlags(e, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      note_allocated();
    }
    if (std::exchange(q == work_queue::uploads ? uploads_behind_ : downloads_behind_, false))
      check(cudaStreamWaitEvent(stream_of(q), allocated_, 0), "cudaStreamWaitEvent");
  }
  void wait_for_all() noexcept {
    for (auto s : {device_->uploads, device_->downloads, device_->stream})
      (void)cudaStreamSynchronize(s);
  }
  void note_allocated() noexcept { // where it fails the device is lost, as the next call tells
    (void)cudaEventRecord(allocated_, device_->stream);
    uploads_behind_ = downloads_behind_ = true;
  }
  /// Makes the pool's memory readable by another device, where the two are linked; elsewhere the driver copies through the host.
  /// Any thread.
  void let_in(int peer) noexcept {
    std::lock_guard lock(peers_mutex_);
    if (std::find(peers_.begin(), peers_.end(), peer) != peers_.end())
      return;
    peers_.push_back(peer);
    int can = 0;
    if (cudaDeviceCanAccessPeer(&can, peer, ordinal_) == cudaSuccess && can != 0) {
      cudaMemAccessDesc access{};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = peer;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      (void)cudaMemPoolSetAccess(device_->pool, &access, 1);
    }
    (void)cudaGetLastError();
  }
  cudaStream_t stream_of(work_queue q) const noexcept {
    return q == work_queue::compute ? device_->stream : q == work_queue::uploads ? device_->uploads : device_->downloads;
  }
  static cudaEvent_t event_of(const point& at) noexcept { return static_cast<const cuda_point&>(at).event; }

  int ordinal_;
  std::optional<cuda_contexts> contexts_;
  std::atomic<std::uint64_t> reserved_{0};
  std::optional<streams_and_pool> device_;
  cudaEvent_t copies_end_ = nullptr; // for `free`, once there were copies beside the computation
  cudaEvent_t allocated_ = nullptr;  // the newest allocation's place on the first queue
  bool uploads_behind_ = false, downloads_behind_ = false; // they have not waited for it
  copied_memory copied_;
  bool reads_host_tables_ = false; // it copies from ordinary memory itself, as Grace Hopper does
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  std::optional<cuda_blas> blas_;
  std::mutex peers_mutex_; // guards the next one
  std::vector<int> peers_; // devices that were let in, or cannot be
};

} // namespace

std::shared_ptr<backend> make_cuda_backend(const slot_options& options) {
  return std::make_shared<cuda_backend>(options);
}

} // namespace troupe::gpu::internal
