#include <vector>

#include "codelets/kernels/linear_ref.h"
#include "codelets/kernels/norm.h"
#include "codelets/lm_head/lm_head.h"

namespace sluice {

void lm_head_reference(const LmHeadOperands& operands, const float* project_out, const float* head,
                       double* logits) {
  const LmHeadArgs& args = *operands.args;
  const std::int64_t hidden = args.shape.hidden_size;
  const float* weight = operands.final_norm;
  const NormVectors norm{weight, args.norm_bias && weight != nullptr ? weight + hidden : nullptr};
  for (std::int64_t r = 0; r < args.tag.num_logit_rows; ++r) {
    const float* x = operands.x + r * hidden;
    std::vector<double> input(x, x + hidden);
    if (args.final_norm) norm_reference(args.shape, norm, input.data(), hidden, input.data());
    if (project_out != nullptr) {
      std::vector<double> projected(static_cast<std::size_t>(args.embed_size));
      linear_reference(input.data(), project_out, nullptr, hidden, args.embed_size,
                       projected.data());
      input = projected;
    }
    linear_reference(input.data(), head, nullptr, args.embed_size, args.vocab_size,
                     logits + r * args.vocab_size);
  }
}

}  // namespace sluice
