#include "codelets/expert_join/expert_join.h"
#include "codelets/kernels/norm.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void expert_join_cpu(const CpuContext& cpu, const ExpertJoinOperands& operands) {
  const ExpertJoinArgs& args = *operands.args;
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int64_t rows = args.tag.num_tokens;
  cpu.pool.run(rows, [&](std::int64_t row) {
    float* x = operands.x + row * hidden;
    const float* sum = operands.sum + row * hidden;
    if (operands.hot_sum == nullptr) {
      for (std::int64_t i = 0; i < hidden; ++i) x[i] += sum[i];
    } else {
      const float* hot_sum = operands.hot_sum + row * hidden;
      for (std::int64_t i = 0; i < hidden; ++i) x[i] += sum[i] + hot_sum[i];
    }
  });
  block_output(cpu.pool, args.shape,
               {VectorLayout::at(operands.vectors, args.vectors.ffn_norm_weight),
                VectorLayout::at(operands.vectors, args.vectors.ffn_norm_bias)},
               operands.x, rows);
}

}  // namespace sluice
