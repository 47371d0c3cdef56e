#include <cuda_runtime_api.h>

#include "codelets/attention_parts/attention_parts.h"
#include "codelets/cuda/context.h"

namespace sluice {
namespace {

void copy(const cuda::Context& gpu, std::byte* to, const std::byte* from, std::size_t bytes) {
  cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu.stream),
              "copying the rows of a batch's part");
}

std::size_t bytes_of_rows(const DecoderShape& shape, std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(rows * width) * size_bytes(shape.dtype);
}

}  // namespace

void split_rows_cuda(const cuda::Context& gpu, const QkvSplitOperands& operands, const std::byte* q,
                     const std::byte* new_kv) {
  const DecoderShape& shape = operands.args->shape;
  const PartRows& parts = operands.args->parts;
  for (std::size_t i = 0; i < static_cast<std::size_t>(parts.num_parts); ++i) {
    const std::size_t q_bytes = bytes_of_rows(shape, parts.rows.at(i), shape.q_size());
    const std::size_t kv_bytes = bytes_of_rows(shape, parts.rows.at(i), 2 * shape.kv_size());
    copy(gpu, operands.q.at(i), q, q_bytes);
    copy(gpu, operands.new_kv.at(i), new_kv, kv_bytes);
    q += q_bytes;
    new_kv += kv_bytes;
  }
}

void attention_join_cuda(const cuda::Context& gpu, const AttentionJoinArgs& args,
                         const std::array<const std::byte*, max_batch_parts>& parts,
                         std::byte* out) {
  const std::int64_t stride = activation_stride(args.shape.q_size(), args.shape.dtype);
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.parts.num_parts); ++i) {
    const std::size_t bytes = bytes_of_rows(args.shape, args.parts.rows.at(i), stride);
    copy(gpu, out, parts.at(i), bytes);
    out += bytes;
  }
}

}  // namespace sluice
