#pragma once

#include <cstddef>

#include "codelets/runtime/handle_ref.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the codelet that chooses the experts of a mixture (LIA section 7.1).
struct RouterArgs {
  TaskTag tag;
  DecoderShape shape;
  VectorLayout vectors;
  WeightType weight = {};
  MixtureShape mixture;
};

/// Of each row n = norm(x), in the type of the GEMMs, and the experts_per_token largest of the
/// logits n W_r^T + b_r, in f32, b_r only where vectors have a router_bias; of equal ones the lower
/// number. Their weights are MixtureShape's.
///
/// A sigmoid router (DeepSeek-V3's) chooses by c = sigmoid(logit) + correction. A group of
/// neighbouring experts, two or more, has the sum of its two largest c; outside of the
/// groups_per_token best groups c is minus infinity, as in Transformers 5.24 (Glm4MoeTopkRouter),
/// so that no expert there is chosen; older ones took 0. The weights are the chosen ones' sigmoids
/// without correction, where norm_chosen says so divided by their sum + 1e-20, times
/// routed_scaling.
struct RouterOperands {
  const RouterArgs* args = nullptr;
  const float* x = nullptr;        ///< [num_tokens, hidden_size]
  const float* vectors = nullptr;  ///< see VectorLayout
  Weight weight = {};              ///< W_r [num_experts, hidden_size]
  std::byte* normed =
      nullptr;  ///< [num_tokens, hidden_size], dtype, rows activation_stride() apart
  ExpertChoice* routing = nullptr;  ///< [num_tokens, experts_per_token], by number in each row
};
/// Throws Error that names layer and row where a logit is NaN or infinite.
void router_cpu(const CpuContext& cpu, const RouterOperands& operands);
/// Operands in device memory; what is not finite is the device's failure, with its row.
void router_cuda(const cuda::Context& gpu, const RouterOperands& operands);
/// Double precision: of rows `normed` [num_tokens, hidden_size] by plain `weight` [num_experts,
/// hidden_size] and `bias` [num_experts], or null, to `weights` [num_tokens, num_experts], 0 for
/// experts that are not chosen; `correction` [num_experts] or null. The result is the smallest
/// distance, of all rows, of the last chosen logit (or c, or group) from the first one left out;
/// infinity where none is.
double router_reference(const RouterArgs& args, const double* normed, const float* weight,
                        const float* bias, double* weights, const float* correction = nullptr);

/// Chooses one row's experts by its logits [num_experts]; `correction` [num_experts] or null. False
/// where a logit is not finite.
bool choose_experts(const MixtureShape& mixture, const float* logits, ExpertChoice* chosen,
                    const float* correction = nullptr);

struct RouterHandles {
  HandleRef x;
  HandleRef vectors;
  HandleRef weight;
  HandleRef normed;
  HandleRef routing;
};
void submit_router(const RouterArgs& args, const RouterHandles& handles);

}  // namespace sluice
