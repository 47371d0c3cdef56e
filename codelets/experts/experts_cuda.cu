#include <algorithm>

#include "codelets/cuda/block.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/neighbours.h"
#include "codelets/cuda/stamps.h"
#include "codelets/experts/expert_products_cuda.h"
#include "codelets/experts/experts.h"
#include "codelets/kernels/simd.h"

namespace sluice {
namespace {

/// Rows that are computed together, and where all that lies of them; in device memory.
struct ExpertRows {
  const ExpertChoice* routing;  ///< [rows, per_row]
  const std::int32_t* places;   ///< null: a place is an expert's number
  std::int64_t num_choices;
  std::int32_t per_row;
  std::int32_t num_experts;   ///< of the layer
  std::int32_t first_place;   ///< of the task
  std::int32_t task_experts;  ///< of the task
  std::int64_t tile_rows;
  std::int64_t num_tiles;
  ExpertTile* tiles;
  std::int32_t* row_of;
  std::int32_t* entry_of;

  __device__ bool is_there(std::int64_t choice) const {
    return static_cast<std::uint32_t>(routing[choice].expert) <
           static_cast<std::uint32_t>(num_experts);
  }
  /// Counted from the task's first one; beyond its last for one of another task, or of none.
  __device__ std::uint32_t expert_of(std::int64_t choice) const {
    if (!is_there(choice)) return ~0U;
    const std::int32_t expert = routing[choice].expert;
    const std::int32_t place = places == nullptr ? expert : places[expert];
    return static_cast<std::uint32_t>(place) - static_cast<std::uint32_t>(first_place);
  }
  __device__ bool is_of_task(std::uint32_t expert) const {
    return expert < static_cast<std::uint32_t>(task_experts);
  }
};

constexpr int sorting_threads = 512;

/// Entries by expert, and their tiles; an expert's entries in any order, as a row's values do not
/// depend on its place. One block: others would have to wait for its counts.
__global__ void sort_rows(ExpertRows of, std::int64_t first_row, std::int64_t layer,
                          cuda::DeviceFailure* failure) {
  auto* next = cuda::dynamic_shared<std::int32_t>();  // of each of the task's experts
  const int thread = static_cast<int>(threadIdx.x);
  for (int e = thread; e < of.task_experts; e += sorting_threads) next[e] = 0;
  __syncthreads();
  for (std::int64_t i = thread; i < of.num_choices; i += sorting_threads) {
    const std::uint32_t expert = of.expert_of(i);
    if (of.is_of_task(expert)) {
      atomicAdd(next + expert, 1);
    } else if (!of.is_there(i)) {
      // It may come from another device, whose router has failed.
      cuda::record(failure, cuda::DeviceFailure::expert_outside_mixture, first_row + i / of.per_row,
                   layer);
    }
  }
  __syncthreads();
  int entries = 0;  // of the experts before
  int tiles = 0;
  for (int begin = 0; begin < of.task_experts; begin += sorting_threads) {
    const int e = begin + thread;
    const int rows = e < of.task_experts ? next[e] : 0;
    const int tile_rows = static_cast<int>(of.tile_rows);
    int all_entries = 0;
    int all_tiles = 0;
    const int first = entries + cuda::block_exclusive_sum(rows, &all_entries);
    const int first_tile =
        tiles + cuda::block_exclusive_sum((rows + tile_rows - 1) / tile_rows, &all_tiles);
    if (e < of.task_experts) next[e] = first;
    for (int row = 0; row < rows; row += tile_rows) {
      of.tiles[first_tile + row / tile_rows] = {e, first + row,
                                                rows - row < tile_rows ? rows - row : tile_rows};
    }
    entries += all_entries;
    tiles += all_tiles;
  }
  for (std::int64_t i = tiles + thread; i < of.num_tiles; i += sorting_threads)
    of.tiles[i] = {0, 0, 0};
  for (std::int64_t i = entries + thread; i < of.num_choices; i += sorting_threads)
    of.row_of[i] = -1;
  __syncthreads();
  for (std::int64_t i = thread; i < of.num_choices; i += sorting_threads) {
    const std::uint32_t expert = of.expert_of(i);
    const bool is_of_task = of.is_of_task(expert);
    const int entry = is_of_task ? atomicAdd(next + expert, 1) : -1;
    of.entry_of[i] = entry;
    if (is_of_task) of.row_of[entry] = static_cast<std::int32_t>(i / of.per_row);
  }
}

constexpr int row_threads = 128;

/// A block an entry: its row, `words` of T wide.
template <typename T>
__global__ void gather_rows(const std::int32_t* row_of, const T* rows, std::int64_t words, T* to) {
  const std::int32_t row = row_of[blockIdx.x];
  if (row < 0) return;
  const T* from = rows + row * words;
  to += static_cast<std::int64_t>(blockIdx.x) * words;
  for (std::int64_t i = threadIdx.x; i < words; i += row_threads) to[i] = from[i];
}

/// A block a row, a thread some of its columns: its experts' outputs y, by their weights, one after
/// the other.
__global__ void add_outputs(ExpertRows of, const float* y, std::int64_t hidden_size,
                            ExpertsArgs::Sum use, float* sum) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * of.per_row;
  for (std::int64_t column = threadIdx.x; column < hidden_size; column += row_threads) {
    float* to = sum + static_cast<std::int64_t>(blockIdx.x) * hidden_size + column;
    float total = use == ExpertsArgs::Sum::written ? 0 : *to;
    for (std::int64_t i = first; i < first + of.per_row; ++i) {
      const std::int64_t entry = of.entry_of[i];
      if (entry >= 0) total += of.routing[i].weight * y[entry * hidden_size + column];
    }
    *to = total;
  }
}

/// One task's experts, for some rows at a time.
class TaskOfExperts {
 public:
  TaskOfExperts(const cuda::Context& gpu, const ExpertsOperands& operands)
      : gpu_(gpu), operands_(operands), args_(*operands.args) {}

  void run(std::int64_t first_row, std::int64_t rows) const {
    const ExpertsGpuMemory memory(args_.shape, args_.mixture, args_.experts_of_task(), rows);
    std::byte* workspace = gpu_.workspace.reserve(memory.layout.bytes());
    const bool by_strips = cuda::expert_strips_serve(gpu_, first_product(workspace, memory)) &&
                           cuda::expert_strips_serve(gpu_, second_product(workspace, memory));
    const std::int64_t tile_rows =
        by_strips ? strip_tile_rows() : ExpertsGpuMemory::fewest_tile_rows;
    const ExpertRows of{.routing = operands_.routing + first_row * args_.mixture.experts_per_token,
                        .places = operands_.places,
                        .num_choices = memory.num_choices,
                        .per_row = args_.mixture.experts_per_token,
                        .num_experts = args_.mixture.num_experts,
                        .first_place = args_.first_place(),
                        .task_experts = args_.experts_of_task(),
                        .tile_rows = tile_rows,
                        .num_tiles = ExpertsGpuMemory::most_tiles(
                            memory.num_choices, args_.experts_of_task(), tile_rows),
                        .tiles = reinterpret_cast<ExpertTile*>(workspace + memory.tiles),
                        .row_of = reinterpret_cast<std::int32_t*>(workspace + memory.row_of),
                        .entry_of = reinterpret_cast<std::int32_t*>(workspace + memory.entry_of)};
    cuda::launch(
        "sort_rows", sort_rows,
        {.threads = dim3(sorting_threads),
         .dynamic_bytes = static_cast<std::size_t>(of.task_experts) * sizeof(std::int32_t)},
        gpu_.stream, of, first_row, std::int64_t{args_.tag.layer}, gpu_.failure);
    gather(of, first_row, workspace + memory.x);
    multiply(of, first_product(workspace, memory), by_strips);
    cuda::end_of_sublayer(gpu_, args_.tag.phase, Sublayer::fc1);
    multiply(of, second_product(workspace, memory), by_strips);
    cuda::launch("add_outputs", add_outputs,
                 {.blocks = dim3(static_cast<unsigned>(rows)), .threads = dim3(row_threads)},
                 gpu_.stream, of, reinterpret_cast<const float*>(workspace + memory.y),
                 args_.shape.hidden_size, args_.sum,
                 operands_.sum + first_row * args_.shape.hidden_size);
    cuda::end_of_sublayer(gpu_, args_.tag.phase, Sublayer::fc2);
  }

 private:
  /// By what an expert has in the mean; one with more has several tiles.
  std::int64_t strip_tile_rows() const {
    const std::int64_t rows = args_.tag.num_tokens;
    const bool are_few = rows <= ExpertsGpuMemory::fewest_tile_rows ||
                         rows * args_.mixture.experts_per_token <=
                             ExpertsGpuMemory::fewest_tile_rows * args_.mixture.num_experts;
    return are_few ? ExpertsGpuMemory::fewest_tile_rows : ExpertsGpuMemory::most_tile_rows;
  }

  const std::byte* weights(LayerWeight weight) const {
    return operands_.chunks.front() + args_.layout.offset(weight);
  }
  /// Of the first expert; null where experts have none.
  const float* bias(LayerWeight weight) const {
    return args_.layout.bias(operands_.chunks.front(), weight);
  }

  void gather(const ExpertRows& of, std::int64_t first_row, std::byte* x) const {
    const std::int64_t row_bytes = activation_stride(args_.shape.hidden_size, args_.shape.dtype) *
                                   static_cast<std::int64_t>(size_bytes(args_.shape.dtype));
    const std::byte* from = operands_.normed + first_row * row_bytes;
    const auto launch_with = [&](auto word) {
      using Word = decltype(word);
      cuda::launch(
          "gather_rows", gather_rows<Word>,
          {.blocks = dim3(static_cast<unsigned>(of.num_choices)), .threads = dim3(row_threads)},
          gpu_.stream, of.row_of, reinterpret_cast<const Word*>(from),
          row_bytes / static_cast<std::int64_t>(sizeof(Word)), reinterpret_cast<Word*>(x));
    };
    if (row_bytes % 16 == 0) {
      launch_with(cuda::Words{});
    } else {
      launch_with(std::uint16_t{});
    }
  }

  /// h = act(x W_1^T + b_1), or gated.
  cuda::LinearJob first_product(std::byte* workspace, const ExpertsGpuMemory& memory) const {
    const DecoderShape& shape = args_.shape;
    const std::int64_t x_stride = activation_stride(shape.hidden_size, shape.dtype);
    const std::int64_t h_stride = activation_stride(shape.ffn_size, shape.dtype);
    const Weight up{args_.layout.fc1, weights(LayerWeight::fc1)};
    if (!shape.gated_ffn) {
      return cuda::job_of(LinearCall{.weight = up,
                                     .dtype = shape.dtype,
                                     .x = workspace + memory.x,
                                     .x_stride = x_stride,
                                     .bias = bias(LayerWeight::fc1),
                                     .epilogue = epilogue_of(shape.activation),
                                     .dst = workspace + memory.h,
                                     .dst_dtype = shape.dtype,
                                     .dst_stride = h_stride});
    }
    return cuda::job_of(GatedLinearCall{.gate = {args_.layout.gate, weights(LayerWeight::gate)},
                                        .up = up,
                                        .dtype = shape.dtype,
                                        .x = workspace + memory.x,
                                        .x_stride = x_stride,
                                        .gate_bias = bias(LayerWeight::gate),
                                        .up_bias = bias(LayerWeight::fc1),
                                        .activation = epilogue_of(shape.activation),
                                        .limit = shape.swiglu_limit,
                                        .dst = workspace + memory.h,
                                        .dst_stride = h_stride});
  }
  /// y = h W_2^T + b_2 in f32.
  cuda::LinearJob second_product(std::byte* workspace, const ExpertsGpuMemory& memory) const {
    const DecoderShape& shape = args_.shape;
    return cuda::job_of(LinearCall{.weight = {args_.layout.fc2, weights(LayerWeight::fc2)},
                                   .dtype = shape.dtype,
                                   .x = workspace + memory.h,
                                   .x_stride = activation_stride(shape.ffn_size, shape.dtype),
                                   .bias = bias(LayerWeight::fc2),
                                   .dst = workspace + memory.y});
  }

  void multiply(const ExpertRows& of, const cuda::LinearJob& job, bool by_strips) const {
    const cuda::ExpertProduct product{
        .job = job,
        .expert_bytes = static_cast<std::int64_t>(args_.layout.size_bytes()),
        .tiles = of.tiles,
        .num_tiles = of.num_tiles,
        .tile_rows = of.tile_rows};
    if (by_strips) {
      cuda::run_expert_strips(gpu_, product);
    } else {
      cuda::run_expert_tiles(gpu_, product);
    }
  }

  const cuda::Context& gpu_;
  const ExpertsOperands& operands_;
  const ExpertsArgs& args_;
};

}  // namespace

void experts_cuda(const cuda::Context& gpu, const ExpertsOperands& operands) {
  const ExpertsArgs& args = *operands.args;
  cuda::start_sublayers(gpu);
  const TaskOfExperts task(gpu, operands);
  constexpr std::int64_t most_rows = ExpertsGpuMemory::most_rows;
  for (std::int64_t first = 0; first < args.tag.num_tokens; first += most_rows)
    task.run(first, std::min(most_rows, args.tag.num_tokens - first));
}

}  // namespace sluice
