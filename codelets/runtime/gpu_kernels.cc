#include "codelets/runtime/gpu_kernels.h"

#include <dlfcn.h>
#include <starpu_config.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <system_error>

#include "base/error.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* file_name = "libsluice-cuda.so";

#ifdef STARPU_SIMGRID
constexpr bool simulates = true;
#else
constexpr bool simulates = false;
#endif

std::atomic<const GpuKernels*> used{nullptr};

/// Where it may lie: beside the program as it is installed, or as it is built.
std::vector<fs::path> folders() {
  std::error_code failed;
  const fs::path program = fs::read_symlink("/proc/self/exe", failed).parent_path();
  std::vector<fs::path> found;
  if (failed) return found;
  const std::string list = SLUICE_CUDA_FOLDERS;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    found.push_back((program / list.substr(begin, end - begin)).lexically_normal());
    begin = end + 1;
  }
  return found;
}

const GpuKernels* load(const fs::path& file, std::string& problem) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* why = dlerror();  // NOLINT(concurrency-mt-unsafe): see find_gpu_kernels()
    problem = fmt::format(
        "its kernels cannot be loaded: {}; CUDA's libraries are looked for on "
        "LD_LIBRARY_PATH",
        why);
    return nullptr;
  }
  const auto* kernels = static_cast<const GpuKernels*>(dlsym(library, "sluice_gpu_kernels"));
  problem = kernels == nullptr ? "it exports no kernels" : gpu_kernels_problem(*kernels);
  if (problem.empty()) return kernels;
  problem = fmt::format("{}: {}", file.string(), problem);
  return nullptr;
}

const GpuKernels* find(std::string& problem) {
  if (simulates) {
    problem = "a simulation runs no kernels";
    return nullptr;
  }
  for (const fs::path& folder : folders()) {
    std::error_code ignored;
    if (fs::exists(folder / file_name, ignored)) return load(folder / file_name, problem);
  }
  problem = fmt::format(
      "the CUDA kernels are not built: there is no {} beside the program; where nvcc is, "
      "SLUICE_CUDA=on ./run.sh builds it",
      file_name);
  return nullptr;
}

}  // namespace

std::string gpu_kernels_problem(const GpuKernels& kernels) {
  if (kernels.key == gpu_kernels_key()) return "";
  return fmt::format(
      "it was built with another Sluice (its version is {}, this program's is {}); build both "
      "from the same sources",
      kernels.version, SLUICE_VERSION);
}

const GpuKernels* find_gpu_kernels(std::string& problem) {
  static std::mutex mutex;
  static std::optional<std::string> known_problem;
  const std::scoped_lock lock(mutex);
  if (used == nullptr && !known_problem) {
    std::string why;
    used = find(why);
    known_problem = why;
  }
  if (used == nullptr) problem = *known_problem;
  return used;
}

const GpuKernels& gpu_kernels() {
  if (const GpuKernels* loaded = used) return *loaded;
  std::string problem;
  const GpuKernels* found = find_gpu_kernels(problem);
  if (found == nullptr) throw Error("{}", problem);
  return *found;
}

const GpuKernels* loaded_gpu_kernels() { return used; }

void use_gpu_kernels(const GpuKernels& kernels) { used = &kernels; }

}  // namespace sluice
