#include "codelets/cuda/context.h"
#include "codelets/cuda/devices.h"
#include "codelets/cuda/task_graphs.h"
#include "codelets/cuda/worker.h"
#include "codelets/runtime/gpu_kernels.h"

// The last one's PTX serves newer generations.
extern "C" [[gnu::visibility("default")]] constexpr sluice::GpuKernels sluice_gpu_kernels{
    .key = sluice::gpu_kernels_key(),
    .version = SLUICE_VERSION,
    .architectures = [] { return std::vector<int>{SLUICE_CUDA_ARCHITECTURE_LIST}; },
    .count_gpus = sluice::cuda::count_gpus,
    .find_gpus = sluice::cuda::find_gpus,
    .measure_copy_rates = sluice::cuda::measure_copy_rates,
    .measure_copy_rates_of = sluice::cuda::measure_copy_rates_of,
    .reserve_bytes = sluice::cuda::library_bytes,
    .blas_bytes = sluice::cuda::blas_bytes,
    .take_last_error = sluice::cuda::take_last_error,
    .make_worker = sluice::cuda::make_worker,
    .start_sublayers = sluice::cuda::start_sublayers,
    .end_of_sublayer = sluice::cuda::end_of_sublayer,
    .stage_memory = sluice::cuda::stage_memory,
    .run_in_graph = sluice::cuda::run_in_graph,
    .attention = sluice::attention_cuda,
    .attention_join = sluice::attention_join_cuda,
    .embedding = sluice::embedding_cuda,
    .expert_join = sluice::expert_join_cuda,
    .experts = sluice::experts_cuda,
    .fc1 = sluice::fc1_cuda,
    .kv_clear = sluice::kv_clear_cuda,
    .kv_move = sluice::kv_move_cuda,
    .kv_store = sluice::kv_store_cuda,
    .lm_head = sluice::lm_head_cuda,
    .logprobs = sluice::logprobs_cuda,
    .qk = sluice::qk_cuda,
    .qkv = sluice::qkv_cuda,
    .qkv_split = sluice::qkv_split_cuda,
    .residual = sluice::residual_cuda,
    .router = sluice::router_cuda,
    .sampling = sluice::sampling_cuda,
    .select_rows = sluice::select_rows_cuda,
    .shared_ffn = sluice::shared_ffn_cuda,
    .sv = sluice::sv_cuda,
};
