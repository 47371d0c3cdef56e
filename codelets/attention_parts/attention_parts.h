#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "codelets/qkv/qkv.h"
#include "codelets/runtime/handle_ref.h"

namespace sluice {

/// A sub-batch attends in so many parts at most: prompts and decodes, with KV in either of two
/// places.
constexpr std::size_t max_batch_parts = 4;

/// How a batch is cut for attention: the rows of a part lie together, the parts one after the
/// other.
struct PartRows {
  std::int64_t num_parts = 0;
  std::array<std::int64_t, max_batch_parts> rows{};  ///< of each part

  void add(std::int64_t part_rows) { rows.at(static_cast<std::size_t>(num_parts++)) = part_rows; }
};

/// Argument of sublayer 1 for a batch that attends in parts.
struct QkvSplitArgs {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  PartRows parts;
  WeightType weight = {};
};
struct QkvSplitHandles {
  HandleRef batch;
  HandleRef x;
  HandleRef rope;
  HandleRef vectors;
  HandleRef weight;
};
/// What sublayer 1 leaves for one part's attention; see QkvOperands.
struct QkvPart {
  HandleRef q;
  HandleRef new_kv;
};
/// qkv() of all rows at once, q and new KV to each part's own.
void submit_qkv_split(const QkvSplitArgs& args, const QkvSplitHandles& handles,
                      std::span<const QkvPart> parts);

/// What qkv_split_cuda computes with, all pointers in device memory.
struct QkvSplitOperands {
  const QkvSplitArgs* args = nullptr;
  BatchView batch{nullptr};
  const float* x = nullptr;  ///< this and the next ones as in QkvOperands
  const float* rope = nullptr;
  const float* vectors = nullptr;
  Weight weight = {};
  std::array<std::byte*, max_batch_parts> q{};       ///< of each part, [rows, q_size], dtype
  std::array<std::byte*, max_batch_parts> new_kv{};  ///< of each part, see KvPath
};
/// qkv_cuda() of all rows, then split_rows_cuda().
void qkv_split_cuda(const cuda::Context& gpu, const QkvSplitOperands& operands);
/// Copies the rows of q and new_kv, of the whole batch, to the parts' own. Throws Error when CUDA
/// refuses.
void split_rows_cuda(const cuda::Context& gpu, const QkvSplitOperands& operands, const std::byte* q,
                     const std::byte* new_kv);

/// Argument of the codelet that joins what the parts' attention gave.
struct AttentionJoinArgs {
  TaskTag tag;
  DecoderShape shape;
  PartRows parts;
};
/// Device memory; `parts` in order, `out` behind one another; all [rows, q_size], dtype, rows
/// activation_stride() apart. Throws Error when CUDA refuses.
void attention_join_cuda(const cuda::Context& gpu, const AttentionJoinArgs& args,
                         const std::array<const std::byte*, max_batch_parts>& parts,
                         std::byte* out);

/// Copies the parts' attention outputs one behind the other into `out`; all [rows, q_size], dtype,
/// rows activation_stride() apart.
void submit_attention_join(const AttentionJoinArgs& args, std::span<const DataHandle* const> parts,
                           const DataHandle& out);

}  // namespace sluice
