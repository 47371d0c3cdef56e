// NEO section 3.1, strawman 1: decode attention on the CPU, while the GPU waits for it.
#include "schedulers/attention_on_cpu.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

/// One sub-batch of all.
class SimpleOffload : public AttentionOnCpu {
  IterationPlan group(const std::vector<RequestView>& requests) override {
    SubBatchPlan all;
    for (const RequestView& request : requests) all.requests.push_back(request.id);
    return {.sub_batches = {std::move(all)}};
  }
};

}  // namespace
}  // namespace sluice

SLUICE_BASELINE(sluice::SimpleOffload, "simple-offload",
                "NEO's first strawman: decode attention on the CPU, one after the other");
