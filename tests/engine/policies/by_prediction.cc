// A policy whose sub-batches follow from the cost model: what decides otherwise where the costs are
// others.
#include "schedulers/plugin.h"

namespace {

using namespace sluice;  // NOLINT(google-build-using-namespace): a fixture

class ByPrediction : public Policy {
 public:
  /// Prompts start as long as, together, they are predicted to take less than twice the FFN of all
  /// requests that decode. Those are cut where attention of the first part is predicted to take as
  /// long as the FFN of the second.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests) override {
    std::vector<const RequestView*> decoding;
    std::vector<const RequestView*> prompts;
    for (const RequestView& request : requests)
      (request.prompt_tokens_left > 0 ? prompts : decoding).push_back(&request);
    IterationPlan plan;
    const std::size_t cut = cut_of(decoding);
    add(plan, {decoding.begin(), decoding.begin() + static_cast<std::ptrdiff_t>(cut)});
    add(plan, {decoding.begin() + static_cast<std::ptrdiff_t>(cut), decoding.end()});
    add(plan, {prompts.begin(),
               prompts.begin() + static_cast<std::ptrdiff_t>(started(prompts, decoding.size()))});
    return plan;
  }

 private:
  double seconds(Sublayer sublayer, const BatchShape& shape) const {
    return costs().compute_s(Device::cpu, sublayer, shape);
  }
  double ffn_s(const BatchShape& shape) const {
    return seconds(Sublayer::fc1, shape) + seconds(Sublayer::fc2, shape);
  }

  std::size_t started(const std::vector<const RequestView*>& prompts, std::size_t decoding) const {
    const BatchShape others = BatchShape::decode(
        static_cast<std::int64_t>(std::max<std::size_t>(1, decoding)), workload().input_tokens);
    const double budget_s = 2 * ffn_s(others);
    double sum_s = 0;
    std::size_t count = 0;
    for (const RequestView* prompt : prompts) {
      const BatchShape shape = BatchShape::prefill(1, prompt->prompt_tokens_left);
      sum_s += seconds(Sublayer::attention, shape) + ffn_s(shape);
      if (sum_s > budget_s && count > 0) break;
      ++count;
    }
    return count;
  }

  std::size_t cut_of(const std::vector<const RequestView*>& decoding) const {
    const auto count = static_cast<std::int64_t>(decoding.size());
    for (std::int64_t first = 1; first < count; ++first) {
      const std::int64_t context = decoding.front()->context_tokens + 1;
      if (seconds(Sublayer::attention, BatchShape::decode(first, context)) >=
          ffn_s(BatchShape::decode(count - first, context)))
        return static_cast<std::size_t>(first);
    }
    return decoding.size();
  }

  static void add(IterationPlan& plan, const std::vector<const RequestView*>& requests) {
    if (requests.empty()) return;
    SubBatchPlan& sub_batch = plan.sub_batches.emplace_back();
    for (const RequestView* request : requests) sub_batch.requests.push_back(request->id);
  }
};

}  // namespace

SLUICE_POLICY(ByPrediction, "by-prediction", "sub-batches as the cost model predicts");
