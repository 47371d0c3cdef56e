#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codelets/experts/expert_layout.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the codelet of a mixture's experts: LIA's sublayers 5 and 6 as one (section 7.1).
struct ExpertsArgs {
  TaskTag tag;
  DecoderShape shape;  ///< its ffn_size is one expert's
  MixtureShape mixture;
  ExpertLayout layout;
  ExpertChunks chunks;           ///< of the layer
  std::int32_t first_chunk = 0;  ///< of the task
  std::int32_t num_chunks = 0;   ///< of the task; 0: all from the first one on
  /// What the task does with the sum: the first one of a layer writes it.
  enum class Sum : std::uint8_t { written, added_to };
  Sum sum = Sum::written;
  /// On a GPU: few rows, and chunks that stay, so that the next iterations launch the same.
  bool recurs = false;

  std::int32_t chunks_of_task() const {
    return num_chunks > 0 ? num_chunks : chunks.count() - first_chunk;
  }
  /// The place of the task's first expert.
  std::int32_t first_place() const { return chunks.first_of(first_chunk); }
  std::int32_t experts_of_task() const {
    const std::int32_t last = first_chunk + chunks_of_task() - 1;
    return chunks.first_of(last) + chunks.size_of(last) - first_place();
  }
};

/// sum = the weighted sum of what a row's experts give, each act(n W_1^T + b_1) W_2^T + b_2, or
/// gated as in FC1; added in f32, in the order of their numbers. Biases are there with expert_bias
/// only. Of a task with some of the chunks the sum is that of their experts, or goes on where the
/// task before it ended.
struct ExpertsOperands {
  const ExpertsArgs* args = nullptr;
  const std::byte* normed = nullptr;  ///< see RouterOperands
  const ExpertChoice* routing = nullptr;
  const std::int32_t* places = nullptr;  ///< [num_experts]; null: a place is an expert's number
  std::array<const std::byte*, most_chunks> chunks{};  ///< args->chunks_of_task() of them
  float* sum = nullptr;                                ///< [num_tokens, hidden_size]
};
/// Reads the experts that some row goes through, and no others. Keeps the time of both sublayers.
void experts_cpu(const CpuContext& cpu, const ExpertsOperands& operands);
/// Operands in device memory, of one chunk. An expert that there is not is the device's failure,
/// with its row.
void experts_cuda(const cuda::Context& gpu, const ExpertsOperands& operands);

/// What experts_cpu() takes of the workspace for so many rows: its input, the values
/// between the two products and the outputs, each once for every expert of a row. Bytes.
std::size_t experts_workspace_bytes(const DecoderShape& shape, const MixtureShape& mixture,
                                    std::int64_t rows);

/// All experts' plain weights in f32, one expert behind the other.
struct ExpertMatrices {
  const float* gate = nullptr;       ///< [num_experts, ffn_size, hidden_size]; none unless gated
  const float* fc1 = nullptr;        ///< the same shape
  const float* fc2 = nullptr;        ///< [num_experts, hidden_size, ffn_size]
  const float* gate_bias = nullptr;  ///< [num_experts, ffn_size], or none
  const float* fc1_bias = nullptr;   ///< likewise
  const float* fc2_bias = nullptr;   ///< [num_experts, hidden_size], or none
};
/// Double precision: `normed` [num_tokens, hidden_size], `weights` [num_tokens, num_experts] as
/// router_reference() gives them, `sum` [num_tokens, hidden_size].
void experts_reference(const ExpertsArgs& args, const double* normed, const double* weights,
                       const ExpertMatrices& of, double* sum);

struct ExpertsHandles {
  HandleRef normed;
  HandleRef routing;
  HandleRef places;  ///< empty unless some experts are hot
  std::span<const HandleRef> chunks;
  HandleRef sum;
};
void submit_experts(const ExpertsArgs& args, const ExpertsHandles& handles);

}  // namespace sluice
