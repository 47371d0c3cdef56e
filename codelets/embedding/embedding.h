#pragma once

#include <cstddef>

#include "codelets/runtime/batch.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the embedding codelet.
struct EmbeddingArgs {
  TaskTag tag;
  DecoderShape shape;
  std::int64_t vocab_size = 0;
  std::int64_t embed_size = 0;
  DType table_dtype = DType::bf16;     ///< of the token table, as stored in the checkpoint
  DType position_dtype = DType::bf16;  ///< of the position table
  std::int64_t position_offset = 0;    ///< rows to skip in the position table (OPT: 2)
  std::int64_t position_rows = 0;      ///< rows of the position table
  bool learned_positions = false;
  bool project_in = false;
  WeightType projection = {};          ///< project_in's
  float rope_attention_factor = 1.0F;  ///< of cosines and sines (YaRN)
};

/// x[r] = E[token(r)] (W_in x where embed_size != hidden_size) + P[position(r) + offset], f32, and
/// the rotary tables of the batch's rows: rope[r] = a cos(position * f[i]), then a sin(...), with
/// i < rotated_dims / 2 and a = rope_attention_factor.
struct EmbeddingOperands {
  const EmbeddingArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::int32_t* slot_tokens = nullptr;  ///< [slots], last token drawn for each
  const std::byte* table = nullptr;      ///< [vocab_size, embed_size], row-major, may be unaligned
  const std::byte* positions = nullptr;  ///< [positions, hidden_size] or null
  Weight project_in = {};                ///< [hidden_size, embed_size], or none
  const float* frequencies = nullptr;    ///< [rotated_dims / 2] or null
  float* x = nullptr;                    ///< [rows, hidden_size]
  float* rope = nullptr;                 ///< [rows, rotated_dims] or null
};
void embedding_cpu(const CpuContext& cpu, const EmbeddingOperands& operands);
void embedding_cuda(const cuda::Context& gpu,
                    const EmbeddingOperands& operands);  ///< operands in device memory

/// The same in double precision; `project_in` is plain [hidden_size, embed_size] or null.
void embedding_reference(const EmbeddingOperands& operands, const float* project_in, double* x,
                         double* rope);

/// The handles of one embedding task; those that the model lacks stay empty.
struct EmbeddingHandles {
  HandleRef batch;
  HandleRef slot_tokens;
  HandleRef table;
  HandleRef positions;
  HandleRef project_in;
  HandleRef frequencies;
  HandleRef x;
  HandleRef rope;
};
/// Throws Error when a handle that the arguments call for is missing.
void submit_embedding(const EmbeddingArgs& args, const EmbeddingHandles& handles);

}  // namespace sluice
