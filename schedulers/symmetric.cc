// NEO section 3.1, strawman 2: decode attention on the CPU for one half of the requests, beside the
// GPU's work for the other half.
#include "schedulers/attention_on_cpu.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

/// Prompts by themselves; without any, two sub-batches of equal number.
class Symmetric : public AttentionOnCpu {
  IterationPlan group(const std::vector<RequestView>& requests) override {
    SubBatchPlan prompts;
    std::vector<SubBatchPlan> halves(2);
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left > 0) {
        prompts.requests.push_back(request.id);
      } else {
        std::vector<std::int64_t>& fewer =
            halves[halves[0].requests.size() > halves[1].requests.size() ? 1 : 0].requests;
        fewer.push_back(request.id);
      }
    }
    if (!prompts.requests.empty()) return {.sub_batches = {std::move(prompts)}};
    if (halves[1].requests.empty()) halves.pop_back();
    return {.sub_batches = std::move(halves)};
  }
};

}  // namespace
}  // namespace sluice

SLUICE_BASELINE(sluice::Symmetric, "symmetric",
                "NEO's second strawman: two equal halves, attention of one beside the other");
