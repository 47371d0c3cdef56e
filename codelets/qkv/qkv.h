#pragma once

#include <cstddef>

#include "codelets/runtime/batch.h"
#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/kv_path.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the QKV codelet (LIA Table 1, sublayer 1).
struct QkvArgs {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  KvPath kv = KvPath::slab;
  WeightType weight = {};
};

/// [q k v] = norm(x) W_qkv^T + b; each head of q and k takes an RMS norm where the layout has its
/// weights, and is rotated, as many dimensions as the shape says; k and v stored into the
/// sequences' pages, or passed on as they are, or both.
struct QkvOperands {
  const QkvArgs* args = nullptr;
  BatchView batch{nullptr};
  const float* x = nullptr;  ///< [rows, hidden_size]
  const float* rope =
      nullptr;  ///< [rows, rotated_dims]: cos then sin; null without rotary embedding
  const float* vectors = nullptr;  ///< see VectorLayout
  Weight weight = {};              ///< [qkv_size, hidden_size]: q, k, v rows
  std::byte* q = nullptr;          ///< [rows, q_size], dtype
  std::byte* slab = nullptr;       ///< pages, dtype; see DecoderShape::page_elements(); or null
  std::byte* new_kv = nullptr;     ///< [rows, 2 * kv_size], dtype, see KvPath; or null
};
void qkv_cpu(const CpuContext& cpu, const QkvOperands& operands);
void qkv_cuda(const cuda::Context& gpu,
              const QkvOperands& operands);  ///< operands in device memory

/// The same in double precision with plain `weight` [qkv_size, hidden_size]; qkv [rows, qkv_size]
/// gets the rotated q and k, and v.
void qkv_reference(const QkvOperands& operands, const float* weight, double* qkv);

struct QkvHandles {
  HandleRef batch;
  HandleRef x;
  HandleRef rope;
  HandleRef vectors;
  HandleRef weight;
  HandleRef q;
  HandleRef slab;
  HandleRef new_kv;
};
void submit_qkv(const QkvArgs& args, const QkvHandles& handles);

}  // namespace sluice
