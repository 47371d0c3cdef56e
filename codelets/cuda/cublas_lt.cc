#include "codelets/cuda/cublas_lt.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace sluice::cuda {
namespace {

const std::string& file_name() {
  static const std::string name = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  return name;
}

/// Where CUDA's runtime was loaded from.
std::filesystem::path runtime_folder() {
  Dl_info runtime{};
  if (dladdr(reinterpret_cast<const void*>(&cudaRuntimeGetVersion), &runtime) == 0) return {};
  return std::filesystem::path(runtime.dli_fname).parent_path();
}

void* open_library() {
  // Stays loaded: what it has registered with CUDA's runtime must not vanish before that.
  void* library = dlopen(file_name().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const std::string why = dlerror();
  library = dlopen((runtime_folder() / file_name()).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  throw Error("a GPU needs cuBLASLt: {} (add the folder of CUDA's libraries to LD_LIBRARY_PATH)",
              why);
}

template <typename Function>
void look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw Error("{} has no {}", file_name(), name);
}

CublasLt load() {
  void* library = open_library();
  CublasLt lt{};
  look_up(library, "cublasLtCreate", lt.create);
  look_up(library, "cublasLtDestroy", lt.destroy);
  look_up(library, "cublasLtGetStatusString", lt.status_string);
  look_up(library, "cublasLtMatmul", lt.matmul);
  look_up(library, "cublasLtMatmulAlgoGetHeuristic", lt.find_algorithm);
  look_up(library, "cublasLtMatmulDescCreate", lt.create_operation);
  look_up(library, "cublasLtMatmulDescDestroy", lt.destroy_operation);
  look_up(library, "cublasLtMatmulDescSetAttribute", lt.set_operation);
  look_up(library, "cublasLtMatrixLayoutCreate", lt.create_layout);
  look_up(library, "cublasLtMatrixLayoutDestroy", lt.destroy_layout);
  look_up(library, "cublasLtMatmulPreferenceCreate", lt.create_preference);
  look_up(library, "cublasLtMatmulPreferenceDestroy", lt.destroy_preference);
  look_up(library, "cublasLtMatmulPreferenceSetAttribute", lt.set_preference);
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt loaded = load();
  return loaded;
}

}  // namespace sluice::cuda
