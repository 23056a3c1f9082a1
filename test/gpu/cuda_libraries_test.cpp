/// Where libraries that are loaded at run time are looked for.
#include <algorithm>
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include "gpu/model_support.hpp"
#include "gpu/variable.hpp"
#include "temporary_folder.hpp"
#include "shared_library.hpp"
#include "troupe/gpu/cuda_source.hpp"
#include "troupe/gpu/versions.hpp"
#if defined(TROUPE_WITH_CUDA)
#include "cuda_libraries.hpp"
#endif

using namespace troupe::gpu;
using model_test::mentions;

TEST_CASE("a list of folders is taken apart and empty ones are left out") {
  using texts = std::vector<std::string>;
  CHECK(internal::split_folders(nullptr) == texts{});
  CHECK(internal::split_folders("") == texts{});
  CHECK(internal::split_folders(":") == texts{});
  CHECK(internal::split_folders("/a") == texts{"/a"});
  CHECK(internal::split_folders(":/a::b c:") == texts{"/a", "b c"});
}

TEST_CASE("the first library of a list that loads is taken and says its file") {
  std::string why;
  const auto lib = internal::shared_library::open({"/nowhere/libc.so.6", "libc.so.6", "/nowhere/else"}, why);
  REQUIRE_MESSAGE(lib, why);
  CHECK(lib->path().front() == '/'); // not the name by which the loader found it
  CHECK(mentions(lib->path(), "libc.so.6"));
  int (*f)() = nullptr;
  CHECK(lib->get(f, "getpid", why));
  CHECK_FALSE(lib->get(f, "no_such_function", why));
  CHECK(mentions(why, lib->path() + " has no no_such_function"));
  CHECK_FALSE(internal::shared_library::open({"/nowhere/liba.so", "/nowhere/libb.so"}, why));
  CHECK(mentions(why, "/nowhere/liba.so"));
  CHECK(mentions(why, "/nowhere/libb.so"));
}

#if defined(TROUPE_WITH_CUDA)
TEST_CASE("CUDA libraries are looked for by the loader and in the toolkit or only in TROUPE_CUDA_LIBRARIES") {
  using internal::cuda_library_paths;
  const variable home("CUDA_HOME", "/opt/other");
  {
    const variable none("TROUPE_CUDA_LIBRARIES", "");
    const auto paths = cuda_library_paths("libcublas");
    CHECK(mentions(paths[0], "libcublas.so."));
    CHECK(paths[0].find('/') == std::string::npos); // the loader's way first
    CHECK(paths[1] == "libcublas.so");
    CHECK(paths[2] == "/opt/other/lib64/" + paths[0]);
    CHECK(std::count(paths.begin(), paths.end(), "/usr/local/cuda/lib64/" + paths[0]) > 0);
  }
  const variable two("TROUPE_CUDA_LIBRARIES", "/site/nvidia/cublas/lib:/site/nvidia/cu13/lib");
  const auto paths = cuda_library_paths("libnvrtc");
  REQUIRE(paths.size() == 4);
  CHECK(mentions(paths[0], "/site/nvidia/cublas/lib/libnvrtc.so."));
  CHECK(paths[1] == "/site/nvidia/cublas/lib/libnvrtc.so");
  CHECK(paths[3] == "/site/nvidia/cu13/lib/libnvrtc.so");
}

TEST_CASE("CUDA headers are looked for beside its libraries") {
  temporary_folder site;
  std::filesystem::create_directories(site / "cu13/include");
  std::filesystem::create_directories(site / "other/include");
  write_whole(site / "cu13/include/cuda_fp16.h", "");
  const variable there("TROUPE_CUDA_LIBRARIES", (site / "other/lib:" + (site / "cu13/lib/") + ":" + (site / "cu13/lib")).c_str());
  const auto folders = internal::cuda_include_folders();
  REQUIRE_FALSE(folders.empty());
  CHECK(folders.front() == site / "cu13/include");
  CHECK(std::count(folders.begin(), folders.end(), site / "cu13/include") == 1);
  CHECK(std::count(folders.begin(), folders.end(), site / "other/include") == 0);
}

TEST_CASE("a CUDA library that is not in TROUPE_CUDA_LIBRARIES is named with its folder and what to do") {
  const variable nowhere("TROUPE_CUDA_LIBRARIES", "/nowhere/at/all");
  const auto r = compile_cuda({"", {}, {}, "x.cu"}, 9, 0);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == troupe::core::errc::device);
  CHECK(mentions(r.error().text, "/nowhere/at/all/libnvrtc.so"));
  CHECK(mentions(r.error().text, "name the folders that have CUDA's libraries in TROUPE_CUDA_LIBRARIES"));
  int found = 0;
  for (const auto& x : library_versions())
    if (x.name == "cuBLAS" || x.name == "NVRTC") {
      ++found;
      CHECK(x.version.empty());
      CHECK(mentions(x.note, "/nowhere/at/all/lib"));
      CHECK(mentions(x.note, "TROUPE_CUDA_LIBRARIES"));
    }
  CHECK(found == 2);
}

TEST_CASE("a CUDA library in TROUPE_CUDA_LIBRARIES is found there and its file is told") {
  std::string folder;
  {
    std::string why;
    const auto lib = internal::shared_library::open(internal::cuda_library_paths("libnvrtc"), why);
    if (!lib) {
      MESSAGE("not tested, there is no NVRTC: " << why);
      return;
    }
    folder = lib->path().substr(0, lib->path().rfind('/'));
  }
  const variable there("TROUPE_CUDA_LIBRARIES", ("/nowhere:" + folder).c_str());
  for (const auto& x : library_versions())
    if (x.name == "NVRTC") {
      CHECK_FALSE(x.version.empty());
      CHECK(x.note.starts_with(folder));
    }
}
#endif
