#include "codelets/cuda/linear.h"

#include "codelets/cuda/linear_job.h"
#include "codelets/cuda/linear_product.h"
#include "codelets/cuda/linear_strips.h"
#include "codelets/weights/plain.h"

namespace sluice::cuda {
namespace {

PackedBlocks blocks_of(const WeightType& type, DType dtype) {
  if (type.format.is_plain()) return PlainLayout::get(type).blocks();
  PackedBlocks sizes;
  sizes.in = type.in;
  sizes.out = type.out;
  sizes.dtype = dtype;
  return sizes;
}

}  // namespace

LinearJob job_of(const LinearCall& call) {
  const WeightType& type = call.weight.type;
  return {.blocks = blocks_of(type, call.dtype),
          .format = type.format,
          .gate_blocks = {},
          .gate_format = {},
          .weight = call.weight.data,
          .gate = nullptr,
          .x = call.x,
          .rows = call.rows,
          .x_stride = call.x_stride != 0 ? call.x_stride : type.in,
          .output = {.bias = call.bias,
                     .gate_bias = nullptr,
                     .epilogue = call.epilogue,
                     .limit = call.limit,
                     .gated = false,
                     .dst = call.dst,
                     .dtype = call.dst_dtype,
                     .stride = call.dst_stride != 0 ? call.dst_stride : type.out}};
}

LinearJob job_of(const GatedLinearCall& call) {
  const WeightType& type = call.up.type;
  return {.blocks = blocks_of(type, call.dtype),
          .format = type.format,
          .gate_blocks = blocks_of(call.gate.type, call.dtype),
          .gate_format = call.gate.type.format,
          .weight = call.up.data,
          .gate = call.gate.data,
          .x = call.x,
          .rows = call.rows,
          .x_stride = call.x_stride != 0 ? call.x_stride : type.in,
          .output = {.bias = call.up_bias,
                     .gate_bias = call.gate_bias,
                     .epilogue = call.activation,
                     .limit = call.limit,
                     .gated = true,
                     .dst = call.dst,
                     .dtype = call.dtype,
                     .stride = call.dst_stride != 0 ? call.dst_stride : type.out}};
}

namespace {

/// A call without rows has nothing to compute, nor need its weights be any.
template <typename Call>
void run(const Context& gpu, const Call& call, std::byte* scratch) {
  if (call.rows == 0) return;
  const LinearJob job = job_of(call);
  if (strips_serve(gpu, job)) {
    run_strips(gpu, job, scratch);
  } else {
    run_product(gpu, job, scratch);
  }
}

template <typename Call>
std::size_t scratch_bytes(const Context& gpu, const Call& call) {
  if (call.rows == 0) return 0;
  const LinearJob job = job_of(call);
  return strips_serve(gpu, job) ? strips_scratch_bytes(gpu, job) : product_scratch_bytes(gpu, job);
}

}  // namespace

void linear(const Context& gpu, const LinearCall& call, std::byte* scratch) {
  run(gpu, call, scratch);
}
std::size_t linear_scratch_bytes(const Context& gpu, const LinearCall& call) {
  return scratch_bytes(gpu, call);
}

void gated_linear(const Context& gpu, const GatedLinearCall& call, std::byte* scratch) {
  run(gpu, call, scratch);
}
std::size_t linear_scratch_bytes(const Context& gpu, const GatedLinearCall& call) {
  return scratch_bytes(gpu, call);
}

}  // namespace sluice::cuda
