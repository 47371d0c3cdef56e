#include <cmath>
#include <vector>

#include "codelets/experts/experts.h"
#include "codelets/kernels/activate_ref.h"
#include "codelets/kernels/linear_ref.h"

namespace sluice {

void experts_reference(const ExpertsArgs& args, const double* normed, const double* weights,
                       const ExpertMatrices& of, double* sum) {
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int64_t ffn = args.shape.ffn_size;
  const std::int64_t num_experts = args.mixture.num_experts;
  std::vector<double> gates(static_cast<std::size_t>(ffn));
  std::vector<double> h(static_cast<std::size_t>(ffn));
  std::vector<double> y(static_cast<std::size_t>(hidden));
  for (std::int64_t row = 0; row < args.tag.num_tokens; ++row) {
    double* to = sum + row * hidden;
    for (std::int64_t i = 0; i < hidden; ++i) to[i] = 0;
    for (std::int64_t e = 0; e < num_experts; ++e) {
      const double weight = weights[row * num_experts + e];
      if (weight == 0) continue;
      const double* x = normed + row * hidden;
      const std::int64_t at = e * ffn * hidden;
      const auto bias_of = [e](const float* biases, std::int64_t size) {
        return biases == nullptr ? nullptr : biases + e * size;
      };
      linear_reference(x, of.fc1 + at, bias_of(of.fc1_bias, ffn), hidden, ffn, h.data());
      if (args.shape.gated_ffn) {
        linear_reference(x, of.gate + at, bias_of(of.gate_bias, ffn), hidden, ffn, gates.data());
      }
      for (std::size_t i = 0; i < h.size(); ++i) {
        h[i] = args.shape.gated_ffn
                   ? gated_reference(args.shape.activation, args.shape.swiglu_limit, gates[i], h[i])
                   : activate_reference(args.shape.activation, h[i]);
      }
      linear_reference(h.data(), of.fc2 + at, bias_of(of.fc2_bias, hidden), ffn, hidden, y.data());
      for (std::int64_t i = 0; i < hidden; ++i) to[i] += weight * y[static_cast<std::size_t>(i)];
    }
  }
}

}  // namespace sluice
