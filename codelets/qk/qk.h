#pragma once

#include <vector>

#include "codelets/attention/attention.h"
#include "codelets/runtime/handle_ref.h"

namespace sluice {

/// Where each row's scores lie: row r, head h, column c at (offset of r + h * columns of r + c),
/// columns in the order of tokens from the first that the row sees.
class ScoreLayout {
 public:
  ScoreLayout(const DecoderShape& shape, const BatchView& batch);
  std::int64_t offset(std::int64_t row) const { return offsets_[static_cast<std::size_t>(row)]; }
  /// Tokens that a row at `position` sees.
  std::int64_t columns(std::int64_t position) const;

 private:
  std::int64_t window_;
  std::vector<std::int64_t> offsets_;
};

/// S = q K^T / sqrt(head_dim), causal, within the window (LIA Table 1, sublayer 2), for placements
/// that put sublayers 2 and 3 on different devices.
struct QkOperands {
  const AttentionArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::byte* q = nullptr;     ///< [rows, q_size], dtype
  const std::byte* slab = nullptr;  ///< pages, dtype
  float* scores = nullptr;          ///< see ScoreLayout
  /// qk_cuda away from home, see AttentionOperands
  const std::byte* new_kv = nullptr;
};
void qk_cpu(const CpuContext& cpu, const QkOperands& operands);
/// As attention_cuda.
void qk_cuda(const cuda::Context& gpu, const QkOperands& operands);
/// Double precision; scores in the same layout.
void qk_reference(const QkOperands& operands, double* scores);

struct QkHandles {
  HandleRef batch;
  HandleRef q;
  HandleRef slab;
  HandleRef new_kv;
  HandleRef scores;
};
void submit_qk(const AttentionArgs& args, const QkHandles& handles);

}  // namespace sluice
