#include <algorithm>
#include <cmath>

#include "codelets/cuda/device.h"
#include "codelets/cuda/linear.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/embedding/embedding.h"
#include "codelets/kernels/kv_page.h"

namespace sluice {
namespace {

struct EmbedCall {
  EmbeddingOperands operands;  ///< but for `args`, which is the host's
  EmbeddingArgs args;
  std::byte* embedded;  ///< [rows, embedded_stride] in the shape's dtype, or null
  std::int64_t embedded_stride;
  cuda::DeviceFailure* failure;
};

/// Element of a table that starts at any byte.
__device__ float element(const std::byte* table, std::int64_t index, DType dtype) {
  const auto byte = [&](std::int64_t i) { return std::to_integer<std::uint32_t>(table[i]); };
  if (dtype == DType::f32) {
    const std::int64_t at = 4 * index;
    return std::bit_cast<float>(byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 |
                                byte(at + 3) << 24);
  }
  const auto bits = static_cast<std::uint16_t>(byte(2 * index) | byte(2 * index + 1) << 8);
  return dtype == DType::bf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
}

/// The row's token, or the first of the table where it has none; then `failure` says so.
__device__ std::int64_t token_of(const EmbedCall& call, std::int64_t row) {
  const std::int32_t given = call.operands.batch.rows()[static_cast<std::size_t>(row)].token;
  const std::int64_t token = given >= 0 ? given : call.operands.slot_tokens[-(given + 1)];
  if (token >= 0 && token < call.args.vocab_size) return token;
  if (threadIdx.x == 0) {
    cuda::record(call.failure, cuda::DeviceFailure::token_outside_vocabulary, row, token);
  }
  return 0;
}

/// The rows' embeddings [rows, embed_size] on their way into the projection. A block a row.
__global__ void gather_rows(EmbedCall call) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t token = token_of(call, row);
  for (std::int64_t i = threadIdx.x; i < call.args.embed_size; i += blockDim.x) {
    const float value =
        element(call.operands.table, token * call.args.embed_size + i, call.args.table_dtype);
    const std::int64_t at = row * call.embedded_stride + i;
    if (call.args.shape.dtype == DType::f32) {
      reinterpret_cast<float*>(call.embedded)[at] = value;
    } else {
      put_element(value, reinterpret_cast<BFloat16*>(call.embedded) + at);
    }
  }
}

/// x = embedding (there already, where it was projected) + position, and the rotary table. A block
/// a row.
__global__ void embed_rows(EmbedCall call) {
  const EmbeddingArgs& args = call.args;
  const EmbeddingOperands& operands = call.operands;
  const std::int64_t row = blockIdx.x;
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int32_t position = operands.batch.rows()[static_cast<std::size_t>(row)].position;
  const std::int64_t token = args.project_in ? 0 : token_of(call, row);
  std::int64_t position_row = position + args.position_offset;
  if (args.learned_positions && position_row >= args.position_rows) {
    if (threadIdx.x == 0) {
      cuda::record(call.failure, cuda::DeviceFailure::position_beyond_table, row, position);
    }
    position_row = 0;
  }
  float* x = operands.x + row * hidden;
  for (std::int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
    float value =
        args.project_in ? x[i] : element(operands.table, token * hidden + i, args.table_dtype);
    if (args.learned_positions) {
      value += element(operands.positions, position_row * hidden + i, args.position_dtype);
    }
    x[i] = value;
  }
  if (!args.shape.rope) return;
  const std::int64_t half = args.shape.rotated_dims() / 2;
  float* rope = operands.rope + row * 2 * half;
  for (std::int64_t i = threadIdx.x; i < half; i += blockDim.x) {
    const float angle = static_cast<float>(position) * operands.frequencies[i];
    rope[i] = args.rope_attention_factor * cosf(angle);
    rope[half + i] = args.rope_attention_factor * sinf(angle);
  }
}

cuda::LaunchShape block_a_row(std::int64_t rows, std::int64_t width) {
  constexpr std::int64_t most_threads = 256;
  const std::int64_t threads = (width + 31) / 32 * 32;
  return {.blocks = dim3(static_cast<unsigned>(rows)),
          .threads = dim3(static_cast<unsigned>(std::min(most_threads, threads)))};
}

}  // namespace

void embedding_cuda(const cuda::Context& gpu, const EmbeddingOperands& operands) {
  const EmbeddingArgs& args = *operands.args;
  const std::int64_t rows = args.tag.num_tokens;
  EmbedCall call{.operands = operands,
                 .args = args,
                 .embedded = nullptr,
                 .embedded_stride = (args.embed_size + 7) / 8 * 8,
                 .failure = gpu.failure};
  call.operands.args = nullptr;
  if (args.project_in) {
    const DType dtype = args.shape.dtype;
    LinearCall project{.weight = operands.project_in,
                       .dtype = dtype,
                       .rows = rows,
                       .x_stride = call.embedded_stride,
                       .dst = operands.x};
    cuda::WorkspaceLayout layout;
    const std::size_t embedded_at = layout.place<std::byte>(
        rows * call.embedded_stride * static_cast<std::int64_t>(size_bytes(dtype)));
    const std::size_t scratch_at = layout.place<std::byte>(
        static_cast<std::int64_t>(cuda::linear_scratch_bytes(gpu, project)));
    std::byte* workspace = gpu.workspace.reserve(layout.bytes());
    call.embedded = workspace + embedded_at;
    cuda::launch("gather_rows", gather_rows, block_a_row(rows, args.embed_size), gpu.stream, call);
    project.x = call.embedded;
    cuda::linear(gpu, project, workspace + scratch_at);
  }
  cuda::launch("embed_rows", embed_rows, block_a_row(rows, args.shape.hidden_size), gpu.stream,
               call);
}

}  // namespace sluice
