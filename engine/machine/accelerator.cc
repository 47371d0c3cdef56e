#include "engine/machine/accelerator.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "base/units.h"

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// The GPU with so much of its memory as is asked for, or all that is free.
Accelerator use_gpu(const DeviceSettings& settings, GpuDevice gpu) {
  const std::uint64_t reserve_bytes = gpu_reserve_bytes();
  const std::uint64_t bytes = settings.hbm ? settings.hbm->bytes : gpu.free_bytes;
  if (bytes > gpu.free_bytes) {
    throw Error("--hbm {}: {} has {} free of {}", settings.hbm->text, gpu.name,
                format_bytes(gpu.free_bytes), format_bytes(gpu.memory_bytes));
  }
  return {.kind = Accelerator::Kind::cuda,
          .memory_bytes = (bytes - std::min(bytes, reserve_bytes)) / mebibyte * mebibyte,
          .gpu = std::move(gpu),
          .copies = measure_copy_rates(),
          .scratch = {},
          .graphs = settings.graphs};
}

}  // namespace

std::string Accelerator::name() const {
  return kind == Kind::cuda
             ? fmt::format("{} with {}", gpu.name, format_bytes(memory_bytes))
             : fmt::format("stand-in accelerator (a second process, for tests) of {}",
                           format_bytes(memory_bytes));
}

std::string Accelerator::calibration_name() const {
  if (kind == Kind::none) return "";
  return kind == Kind::cuda ? gpu.name : "stand-in";
}

std::uint64_t Accelerator::most_bytes() const {
  if (kind == Kind::stand_in) return total_memory_bytes() - 1;
  return gpu.free_bytes - std::min(gpu.free_bytes, gpu_reserve_bytes());
}

std::string Accelerator::option_for(std::uint64_t bytes) const {
  if (kind == Kind::cuda)
    return fmt::format("--hbm {}MiB", (bytes + gpu_reserve_bytes() + mebibyte - 1) / mebibyte);
  return fmt::format("--device standin:{}MiB", (bytes + mebibyte - 1) / mebibyte);
}

Accelerator Accelerator::sized_for(const ModelConfig& config, DType dtype,
                                   const LargestIteration& largest) const {
  Accelerator sized = *this;
  if (kind != Kind::cuda) return sized;
  sized.scratch = gpu_scratch(config, dtype, largest, gpu.num_multiprocessors, memory_bytes);
  // The planner sets a sixteenth aside (gpu_costs()).
  const std::uint64_t least_bytes = sized.scratch.total() + sized.scratch.total() / 15;
  if (least_bytes >= memory_bytes) {
    throw Error("{} is too little: the model's kernels alone need {}, CUDA and cuBLAS {} besides",
                name(), format_bytes(sized.scratch.total()), format_bytes(gpu_reserve_bytes()));
  }
  return sized;
}

RuntimeOptions Accelerator::runtime_options(RuntimeOptions options) const {
  if (kind == Kind::stand_in) options.stand_in_bytes = memory_bytes;
  if (kind == Kind::cuda) options.gpu_bytes = memory_bytes;
  if (!graphs && options.gpu_launches == GpuWorker::Launches::in_graphs)
    options.gpu_launches = GpuWorker::Launches::single;
  return options;
}

Accelerator find_accelerator(const DeviceSettings& settings) {
  using Kind = DeviceSettings::Kind;
  if (settings.kind == Kind::cpu) return {};
  if (settings.kind == Kind::stand_in) {
    return {.kind = Accelerator::Kind::stand_in,
            .memory_bytes = settings.stand_in_bytes,
            .gpu = {},
            .copies = {},
            .scratch = {}};
  }
  GpuList gpus = find_first_gpu();
  if (!gpus.devices.empty()) return use_gpu(settings, std::move(gpus.devices.front()));
  if (settings.kind == Kind::cuda) throw Error("--device cuda: {}", gpus.problem);
  if (settings.hbm) throw Error("--hbm needs a GPU: {}", gpus.problem);
  if (count_gpus() > 0 || has_gpu_driver())
    fmt::print(stderr, "sluice: computing on the CPU, as the GPU cannot be used: {}\n",
               gpus.problem);
  return {};
}

}  // namespace sluice
