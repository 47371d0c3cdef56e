#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codelets/attention/attention.h"
#include "codelets/attention_parts/attention_parts.h"
#include "codelets/embedding/embedding.h"
#include "codelets/expert_join/expert_join.h"
#include "codelets/experts/experts.h"
#include "codelets/fc1/fc1.h"
#include "codelets/kv_move/kv_move.h"
#include "codelets/kv_store/kv_store.h"
#include "codelets/lm_head/lm_head.h"
#include "codelets/logprobs/logprobs.h"
#include "codelets/qk/qk.h"
#include "codelets/qkv/qkv.h"
#include "codelets/residual/residual.h"
#include "codelets/router/router.h"
#include "codelets/runtime/gpu.h"
#include "codelets/runtime/stage_memory.h"
#include "codelets/runtime/task_key.h"
#include "codelets/sampling/sampling.h"
#include "codelets/select_rows/select_rows.h"
#include "codelets/shared_ffn/shared_ffn.h"
#include "codelets/sv/sv.h"

namespace sluice {

/// All that the program calls of CUDA. It stands in a shared object of its own, libsluice-cuda.so,
/// which is loaded when a GPU is looked for: the program starts without CUDA's libraries, and is
/// built without nvcc. What throws, throws Error when CUDA refuses.
struct GpuKernels {
  /// Which program it was built with: see gpu_kernels_key(). These two never move.
  std::uint64_t key = 0;
  const char* version = "";

  std::vector<int> (*architectures)() = nullptr;
  int (*count_gpus)() = nullptr;
  GpuList (*find_gpus)(int most) = nullptr;
  CopyRates (*measure_copy_rates)() = nullptr;
  CopyRates (*measure_copy_rates_of)(const Buffer& host) = nullptr;
  std::uint64_t (*reserve_bytes)() = nullptr;
  std::uint64_t (*blas_bytes)(std::uint64_t memory_bytes) = nullptr;
  /// What CUDA last refused on this thread, in words; forgets it.
  const char* (*take_last_error)() = nullptr;
  std::unique_ptr<GpuWorker> (*make_worker)(GpuWorker::Launches launches) = nullptr;

  void (*start_sublayers)(const cuda::Context& gpu) = nullptr;
  void (*end_of_sublayer)(const cuda::Context& gpu, Phase phase, Sublayer sublayer) = nullptr;
  decltype(&cuda::stage_memory) stage_memory = nullptr;
  void (*run_in_graph)(const cuda::Context& gpu, TaskKey key,
                       const std::function<void()>& launch_kernels) = nullptr;

  decltype(&attention_cuda) attention = nullptr;
  decltype(&attention_join_cuda) attention_join = nullptr;
  decltype(&embedding_cuda) embedding = nullptr;
  decltype(&expert_join_cuda) expert_join = nullptr;
  decltype(&experts_cuda) experts = nullptr;
  decltype(&fc1_cuda) fc1 = nullptr;
  decltype(&kv_clear_cuda) kv_clear = nullptr;
  decltype(&kv_move_cuda) kv_move = nullptr;
  decltype(&kv_store_cuda) kv_store = nullptr;
  decltype(&lm_head_cuda) lm_head = nullptr;
  decltype(&logprobs_cuda) logprobs = nullptr;
  decltype(&qk_cuda) qk = nullptr;
  decltype(&qkv_cuda) qkv = nullptr;
  decltype(&qkv_split_cuda) qkv_split = nullptr;
  decltype(&residual_cuda) residual = nullptr;
  decltype(&router_cuda) router = nullptr;
  decltype(&sampling_cuda) sampling = nullptr;
  decltype(&select_rows_cuda) select_rows = nullptr;
  decltype(&shared_ffn_cuda) shared_ffn = nullptr;
  decltype(&sv_cuda) sv = nullptr;
};

/// Differs between programs whose calls do not fit: of another version, or whose operands have
/// other sizes.
constexpr std::uint64_t gpu_kernels_key() {
  std::uint64_t key = 0xcbf29ce484222325ULL;
  const auto add = [&](std::uint64_t value) { key = (key ^ value) * 0x100000001b3ULL; };
  for (const char* c = SLUICE_VERSION; *c != '\0'; ++c) add(static_cast<unsigned char>(*c));
  for (const std::size_t bytes : {sizeof(GpuKernels),
                                  sizeof(GpuDevice),
                                  sizeof(KernelTimes),
                                  sizeof(BatchSequence),
                                  sizeof(BatchRow),
                                  sizeof(DecoderShape),
                                  sizeof(TaskTag),
                                  sizeof(TaskKey),
                                  sizeof(AttentionArgs),
                                  sizeof(AttentionOperands),
                                  sizeof(AttentionJoinArgs),
                                  sizeof(EmbeddingArgs),
                                  sizeof(EmbeddingOperands),
                                  sizeof(Fc1Args),
                                  sizeof(Fc1Operands),
                                  sizeof(KvClearArgs),
                                  sizeof(ResidualArgs),
                                  sizeof(ResidualOperands),
                                  sizeof(KvStoreArgs),
                                  sizeof(KvStoreOperands),
                                  sizeof(LmHeadArgs),
                                  sizeof(LmHeadOperands),
                                  sizeof(QkOperands),
                                  sizeof(QkvArgs),
                                  sizeof(QkvOperands),
                                  sizeof(QkvSplitArgs),
                                  sizeof(QkvSplitOperands),
                                  sizeof(SamplingArgs),
                                  sizeof(SamplingOperands),
                                  sizeof(SelectRowsArgs),
                                  sizeof(SelectRowsOperands),
                                  sizeof(LogprobsArgs),
                                  sizeof(LogprobsOperands),
                                  sizeof(SvOperands),
                                  sizeof(RouterArgs),
                                  sizeof(RouterOperands),
                                  sizeof(ExpertJoinArgs),
                                  sizeof(ExpertJoinOperands),
                                  sizeof(SharedFfnArgs),
                                  sizeof(SharedFfnOperands),
                                  sizeof(ExpertsArgs),
                                  sizeof(ExpertsOperands)})
    add(bytes);
  return key;
}

/// The kernels. Throws Error that says why there are none.
const GpuKernels& gpu_kernels();
/// The same; null, and why in words, when there are none.
const GpuKernels* find_gpu_kernels(std::string& problem);
/// Those that were asked for so far, or that are linked into the program; else null.
const GpuKernels* loaded_gpu_kernels();
/// For programs that link kernels, real or emulated: before anybody asks.
void use_gpu_kernels(const GpuKernels& kernels);

/// Whether `kernels` fit this program; empty, or why not.
std::string gpu_kernels_problem(const GpuKernels& kernels);

}  // namespace sluice

/// What libsluice-cuda.so exports.
extern "C" const sluice::GpuKernels sluice_gpu_kernels;
