// A policy as a stranger would write it: prompts and decoding travel in lanes of their own, and a
// long context keeps attention beside its KV, on the CPU.
#include "schedulers/plugin.h"

namespace {

class TwoLanes : public sluice::Policy {
 public:
  void configure(sluice::PolicyOptions& options) override {
    long_context_ = options.take_number("long-context", 1, 1e9).value_or(4096);
  }

  sluice::Placement place(std::int64_t layer, const sluice::BatchShape& shape,
                          const sluice::LayerHomes& homes) override {
    if (shape.phase == sluice::Phase::prefill || static_cast<double>(shape.context) < long_context_)
      return Policy::place(layer, shape, homes);  // LIA's equation 1
    return *sluice::Placement::parse("011000");   // QK^T and SV on the CPU, the rest on the GPU
  }

  sluice::IterationPlan plan_iteration(const std::vector<sluice::RequestView>& requests) override {
    sluice::SubBatchPlan prompts;
    sluice::SubBatchPlan decoding;
    for (const sluice::RequestView& request : requests)
      (request.prompt_tokens_left > 0 ? prompts : decoding).requests.push_back(request.id);
    sluice::IterationPlan plan;
    for (sluice::SubBatchPlan* lane : {&decoding, &prompts}) {
      if (!lane->requests.empty()) plan.sub_batches.push_back(std::move(*lane));
    }
    return plan;
  }

 private:
  double long_context_ = 4096;
};

}  // namespace

SLUICE_POLICY(TwoLanes, "two-lanes", "prompts and decoding apart, long contexts on the CPU");
