#include <limits>
#include <memory>
#include <optional>

#include "backend.hpp"
#include "cuda_blas.hpp"
#include "cuda_support.hpp"
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

/// Sets a device for a scope; for what may run on a thread that is not the context's.
class device_scope {
public:
  explicit device_scope(int ordinal) noexcept {
    ok_ = cudaGetDevice(&before_) == cudaSuccess;
    if (ok_ && before_ != ordinal)
      (void)cudaSetDevice(ordinal);
  }
  ~device_scope() {
    if (ok_)
      (void)cudaSetDevice(before_);
  }
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

private:
  int before_ = 0;
  bool ok_ = false;
};

/// A stream and the memory pool behind it. Destroyed in the order of their use, with whatever is still
/// enqueued.
struct stream_and_pool {
  cudaStream_t stream = nullptr;
  cudaMemPool_t pool = nullptr;

  stream_and_pool(int ordinal, const std::string& label) {
    try {
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), label,
                 "cudaStreamCreateWithFlags");
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
  ~stream_and_pool() { destroy(); }
  stream_and_pool(const stream_and_pool&) = delete;
  stream_and_pool& operator=(const stream_and_pool&) = delete;

private:
  void destroy() noexcept { // errors here have been reported by whoever waited for the work
    if (stream != nullptr) {
      (void)cudaStreamSynchronize(stream);
      (void)cudaStreamDestroy(stream);
    }
    if (pool != nullptr)
      (void)cudaMemPoolDestroy(pool);
    (void)cudaGetLastError();
  }
};

class cuda_backend final : public backend {
public:
  explicit cuda_backend(const slot_options& options) : backend(options), ordinal_(ordinal_of(options)) {
    check_cuda(cudaSetDevice(ordinal_), label(), "cudaSetDevice");
    check_cuda(cudaFree(nullptr), label(), "opening the CUDA context"); // the first call that needs it
    cudaDeviceProp p{};
    check_cuda(cudaGetDeviceProperties(&p, ordinal_), label(), "cudaGetDeviceProperties");
    if (p.major * 10 + p.minor < 75)
      throw device_error(label() + ": compute capability " + std::to_string(p.major) + "." +
                             std::to_string(p.minor) + " is too old, Troupe needs 7.5 (Turing) or newer",
                         false);
    if (p.memoryPoolsSupported == 0)
      throw device_error(label() + ": the device has no stream-ordered memory pools", false);
    device_.emplace(ordinal_, label());
    workspace_bytes_ = p.major >= 9 ? 32u << 20 : 8u << 20; // what cuBLAS's manual advises
    workspace_ = allocate(workspace_bytes_);
    if (workspace_ == nullptr)
      throw device_error(label() + ": the device has no room for cuBLAS's workspace of " +
                             std::to_string(workspace_bytes_) + " bytes" + memory_state(),
                         false);
    blas_.emplace(device_->stream, workspace_, workspace_bytes_, options.math, label());
  }

  ~cuda_backend() override {
    const device_scope scope(ordinal_);
    blas_.reset();
    if (workspace_ != nullptr)
      (void)cudaFreeAsync(workspace_, device_->stream);
    device_.reset();
  }

  void bind() override {
    check_cuda(cudaSetDevice(ordinal_), label(), "cudaSetDevice");
    own();
  }
  void* stream() const noexcept override { return device_->stream; }
  /// cuBLAS's workspace: the stream's order keeps products and kernels apart.
  scratch_memory scratch() const noexcept override {
    return {static_cast<float*>(workspace_), static_cast<std::int64_t>(workspace_bytes_ / sizeof(float))};
  }

  void zero(void* dst, std::size_t bytes) override {
    check_cuda(cudaMemsetAsync(dst, 0, bytes, device_->stream), label(), "cudaMemsetAsync");
  }
  void copy(void* dst, const void* src, std::size_t bytes) override {
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, device_->stream), label(),
               "copy on the device");
  }
  void upload(void* dst, const void* src, std::size_t bytes) override {
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, device_->stream), label(),
               "copy to the device");
    // Ordinary memory has been staged when the call returns, pinned memory is still being read.
    cudaPointerAttributes where{};
    if (cudaPointerGetAttributes(&where, src) != cudaSuccess)
      (void)cudaGetLastError();
    else if (where.type == cudaMemoryTypeHost)
      synchronize();
  }
  void download(void* dst, const void* src, std::size_t bytes) override {
    check_cuda(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, device_->stream), label(),
               "copy from the device");
    synchronize();
  }
  void synchronize() override {
    check_cuda(cudaStreamSynchronize(device_->stream), label(), "work on the device");
  }
  void gemm(const gemm_call& call) override { blas_->gemm(call); }

protected:
  void* allocate(std::size_t bytes) override {
    void* p = nullptr;
    const auto rc = cudaMallocFromPoolAsync(&p, bytes, device_->pool, device_->stream);
    if (rc == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    check_cuda(rc, label(), "cudaMallocFromPoolAsync");
    return p;
  }
  void free(void* data, std::size_t) noexcept override {
    const device_scope scope(ordinal_);
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
    check_cuda(rc, label(), "cudaHostAlloc");
    return p;
  }
  void free_host(void* data, std::size_t) noexcept override {
    (void)cudaStreamSynchronize(device_->stream); // the device may still copy from it
    (void)cudaFreeHost(data);
    (void)cudaGetLastError();
  }
  void trim() noexcept override {
    (void)cudaStreamSynchronize(device_->stream); // what was freed in stream order is free only then
    (void)cudaMemPoolTrimTo(device_->pool, 0);
    (void)cudaGetLastError();
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
  int ordinal_;
  std::optional<stream_and_pool> device_;
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  std::optional<cuda_blas> blas_;
};

} // namespace

std::shared_ptr<backend> make_cuda_backend(const slot_options& options) {
  return std::make_shared<cuda_backend>(options);
}

} // namespace troupe::gpu::internal
