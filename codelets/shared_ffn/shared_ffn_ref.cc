#include <vector>

#include "codelets/kernels/activate_ref.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/shared_ffn/shared_ffn.h"

namespace sluice {

void shared_ffn_reference(const SharedFfnArgs& args, const double* normed,
                          const SharedFfnMatrices& of, double* x) {
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int64_t ffn_size = args.ffn_size();
  std::vector<double> gates(static_cast<std::size_t>(ffn_size));
  std::vector<double> h(gates.size());
  std::vector<double> added(static_cast<std::size_t>(hidden));
  for (std::int64_t r = 0; r < args.tag.num_tokens; ++r) {
    const double* input = normed + r * hidden;
    linear_reference(input, of.fc1, nullptr, hidden, ffn_size, h.data());
    if (args.shape.gated_ffn)
      linear_reference(input, of.gate, nullptr, hidden, ffn_size, gates.data());
    for (std::size_t i = 0; i < h.size(); ++i) {
      h[i] = args.shape.gated_ffn ? h[i] * activate_reference(args.shape.activation, gates[i])
                                  : activate_reference(args.shape.activation, h[i]);
    }
    linear_reference(h.data(), of.fc2, nullptr, ffn_size, hidden, added.data());
    for (std::size_t i = 0; i < added.size(); ++i)
      x[r * hidden + static_cast<std::int64_t>(i)] += added[i];
  }
}

}  // namespace sluice
