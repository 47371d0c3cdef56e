#include "codelets/cuda/device.h"
#include "codelets/select_rows/select_rows.h"

namespace sluice {
namespace {

/// A block a row.
template <typename Word>
__global__ void copy_selected(BatchView batch, const Word* from, Word* to, std::int64_t row_words) {
  const std::int64_t row = batch.head_rows()[blockIdx.x];
  for (std::int64_t i = threadIdx.x; i < row_words; i += blockDim.x) {
    to[blockIdx.x * row_words + i] = from[row * row_words + i];
  }
}

template <typename Word>
void launch_copy(const cuda::Context& gpu, const SelectRowsOperands& operands) {
  const cuda::LaunchShape shape{
      .blocks = dim3(static_cast<unsigned>(operands.args->tag.num_logit_rows)),
      .threads = dim3(256)};
  cuda::launch("copy_selected", copy_selected<Word>, shape, gpu.stream, operands.batch,
               reinterpret_cast<const Word*>(operands.from), reinterpret_cast<Word*>(operands.to),
               static_cast<std::int64_t>(operands.args->row_bytes / sizeof(Word)));
}

}  // namespace

void select_rows_cuda(const cuda::Context& gpu, const SelectRowsOperands& operands) {
  if (operands.args->row_bytes % sizeof(uint4) == 0) return launch_copy<uint4>(gpu, operands);
  launch_copy<std::uint16_t>(gpu, operands);
}

}  // namespace sluice
