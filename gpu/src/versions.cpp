#include "troupe/gpu/versions.hpp"

#include "devices.hpp"
#include "matrix_libraries.hpp"

namespace troupe::gpu {

std::vector<library_version> library_versions() {
  std::vector<library_version> out;
  if (internal::onednn::available())
    out.push_back({"oneDNN", internal::onednn::version(), "matrix products on the CPU"});
  else
    out.push_back({"oneDNN", "", "not built in (Debian's libdnnl-dev)"});
  std::string why;
  if (auto blas = internal::openblas::load(&why))
    out.push_back({"OpenBLAS", blas->version(), "matrix products on the CPU where it is faster"});
  else
    out.push_back({"OpenBLAS", "", why});
  internal::add_cuda_versions(out);
  return out;
}

} // namespace troupe::gpu
