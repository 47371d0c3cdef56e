// NEO's policy for a fixed set of requests (sections 3.1 and 3.2): weights and as much KV as fits
// in HBM, the other requests' KV in DDR, their decode attention on the CPU beside the GPU's work of
// another sub-batch; two sub-batches only where the estimate beats running on the GPU alone.
#include <algorithm>
#include <array>
#include <stdexcept>

#include "schedulers/plugin.h"

namespace sluice {
namespace {

/// Requests of a sub-batch, as its estimate sees them.
struct Load {
  std::int64_t prefill_rows = 0;
  std::int64_t gpu_decodes = 0;
  std::int64_t gpu_context = 0;  ///< tokens, all GPU decodes together
  std::int64_t cpu_decodes = 0;
  std::int64_t cpu_context = 0;
  std::vector<std::int64_t> requests;
  std::int64_t prefills = 0;

  std::int64_t rows() const { return prefill_rows + gpu_decodes + cpu_decodes; }
  std::int64_t count() const { return prefills + gpu_decodes + cpu_decodes; }
  void add_cpu_decodes(std::int64_t more, std::int64_t context_tokens) {
    cpu_decodes += more;
    cpu_context += more * (context_tokens + 1);
  }
};

class Neo : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    // Of HBM, for the activations of prompts that are computed at once.
    activation_share_ = options.take_number("activation_share", 0.001, 0.5).value_or(1.0 / 16);
  }

  MemoryPlan plan_memory() override {
    if (!costs().has(Device::gpu) || !costs().has(Device::cpu)) return Policy::plan_memory();
    const auto num_layers = static_cast<std::size_t>(model().num_layers);
    MemoryPlan plan;
    plan.layers.assign(num_layers, LayerHomes::all(Tier::hbm, Tier::ddr));
    plan.lm_head = Tier::hbm;
    const auto capacity = static_cast<double>(costs().capacity_bytes(Tier::hbm));
    const double prompt = activation_bytes(model(), static_cast<double>(workload().input_tokens));
    prompts_at_once_ = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(activation_share_ * capacity / prompt), 1, workload().batch);
    pipelines_[0].requests_at_once = prompts_at_once_;
    const double used = footprint(costs(), plan, pipelines_, workload()).total(Tier::hbm);
    const double request = sequence_kv_bytes(model(), workload()) * static_cast<double>(num_layers);
    plan.hbm_requests = std::clamp<std::int64_t>(
        static_cast<std::int64_t>((capacity - used) / request), 0, workload().batch);
    return plan;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& homes) override {
    if (!costs().has(Device::gpu)) return Placement(Device::cpu);
    Placement placement(Device::gpu);
    if (shape.phase == Phase::decode && homes.kv != Tier::hbm)
      placement[Sublayer::qk] = placement[Sublayer::sv] = Device::cpu;
    return placement;
  }

  /// Section 3.2's six steps. Which requests' KV lives where is settled: nothing is swapped.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests) override {
    if (!costs().has(Device::gpu)) return all_together(requests);
    std::array<Load, 2> batches;                                                    // step 1
    add_gpu_decodes(requests, batches);                                             // step 2
    std::vector<const RequestView*> swapped_out = add_prefills(requests, batches);  // step 3
    const Load gpu_only = batches[0];
    add_cpu_decodes(requests, batches);          // step 4
    drop_prefills(swapped_out, batches);         // step 5
    return decide(requests, batches, gpu_only);  // step 6
  }

 private:
  static void add_gpu_decodes(const std::vector<RequestView>& requests,
                              std::array<Load, 2>& batches) {
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left > 0 || request.kv != Tier::hbm) continue;
      ++batches[0].gpu_decodes;
      batches[0].gpu_context += request.context_tokens + 1;
      batches[0].requests.push_back(request.id);
    }
  }

  /// As many as activations leave room for; returns those whose KV leaves the GPU.
  std::vector<const RequestView*> add_prefills(const std::vector<RequestView>& requests,
                                               std::array<Load, 2>& batches) const {
    std::vector<const RequestView*> swapped_out;
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left == 0) continue;
      if (batches[0].prefills == prompts_at_once_) break;
      ++batches[0].prefills;
      batches[0].prefill_rows += request.prompt_tokens_left;
      batches[0].requests.push_back(request.id);
      if (request.kv != Tier::hbm) swapped_out.push_back(&request);
    }
    return swapped_out;
  }

  void add_cpu_decodes(const std::vector<RequestView>& requests,
                       std::array<Load, 2>& batches) const {
    std::vector<const RequestView*> waiting;
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left == 0 && request.kv != Tier::hbm) waiting.push_back(&request);
    }
    // Who has been skipped most comes first.
    std::stable_sort(waiting.begin(), waiting.end(), [](const auto* a, const auto* b) {
      return a->context_tokens < b->context_tokens;
    });
    for (std::size_t next = 0; next < waiting.size();) {
      // The second sub-batch if possible, as many as see equally much; else one in the first.
      const std::size_t alike =
          static_cast<std::size_t>(
              std::find_if(waiting.begin() + static_cast<std::ptrdiff_t>(next), waiting.end(),
                           [&](const RequestView* other) {
                             return other->context_tokens != waiting[next]->context_tokens;
                           }) -
              waiting.begin()) -
          next;
      Load* to = &batches[1];
      std::size_t count = most_balanced(batches, *to, waiting[next]->context_tokens, alike);
      if (count == 0) {
        to = &batches[0];
        count = most_balanced(batches, *to, waiting[next]->context_tokens, 1);
      }
      if (count == 0) return;  // nor do those that see more
      to->add_cpu_decodes(static_cast<std::int64_t>(count), waiting[next]->context_tokens);
      for (; count > 0; --count) to->requests.push_back(waiting[next++]->id);
    }
  }

  /// How many requests of such contexts `load`, one of the batches, can take more, at most `most`.
  std::size_t most_balanced(const std::array<Load, 2>& batches, Load& load,
                            std::int64_t context_tokens, std::size_t most) const {
    const auto fits = [&](std::size_t count) {
      load.add_cpu_decodes(static_cast<std::int64_t>(count), context_tokens);
      const bool is_balanced = balanced(batches);
      load.add_cpu_decodes(-static_cast<std::int64_t>(count), context_tokens);
      return is_balanced;
    };
    std::size_t enough = 0;
    std::size_t step = 1;
    for (; enough + step <= most && fits(enough + step); step *= 2) enough += step;
    for (; step > 0; step /= 2) {
      if (enough + step <= most && fits(enough + step)) enough += step;
    }
    return enough;
  }

  /// The last ones first, as long as the CPU's work stays hidden.
  void drop_prefills(std::vector<const RequestView*>& swapped_out,
                     std::array<Load, 2>& batches) const {
    if (batches[0].cpu_decodes + batches[1].cpu_decodes == 0) return;
    for (; !swapped_out.empty(); swapped_out.pop_back()) {
      Load fewer = batches[0];
      --fewer.prefills;
      fewer.prefill_rows -= swapped_out.back()->prompt_tokens_left;
      std::erase(fewer.requests, swapped_out.back()->id);
      if (fewer.count() == 0 || !balanced({fewer, batches[1]})) return;
      batches[0] = std::move(fewer);
    }
  }

  IterationPlan decide(const std::vector<RequestView>& requests, const std::array<Load, 2>& batches,
                       const Load& gpu_only) const {
    const auto as_plan = [](const Load& load) { return SubBatchPlan{load.requests}; };
    const double alone = gpu_only.count() == 0
                             ? 0
                             : static_cast<double>(gpu_only.count()) / seconds({gpu_only, Load{}});
    const auto together = static_cast<double>(batches[0].count() + batches[1].count());
    IterationPlan plan;
    if (together > 0 && together / seconds(batches) > alone) {
      for (const Load& load : batches) {
        if (load.count() > 0) plan.sub_batches.push_back(as_plan(load));
      }
    } else if (gpu_only.count() > 0) {
      plan.sub_batches.push_back(as_plan(gpu_only));
    } else {
      return all_together(requests);  // nothing hides the CPU's work, but someone must run
    }
    return plan;
  }

  static IterationPlan all_together(const std::vector<RequestView>& requests) {
    SubBatchPlan all;
    for (const RequestView& request : requests) all.requests.push_back(request.id);
    return {.sub_batches = {std::move(all)}};
  }

  // A layer's times, section 3.2.

  double linear_s(const Load& load) const {
    if (load.rows() == 0) return 0;
    const BatchShape shape = BatchShape::decode(load.rows(), 1);
    double sum = 0;
    for (const Sublayer sublayer : layer_sublayers) {
      if (weights_of(sublayer).empty()) continue;
      sum += costs().compute_s(Device::gpu, sublayer, shape);
    }
    // Before attention, and after it.
    return sum + costs().task_overhead_s(Device::gpu, 1) + costs().task_overhead_s(Device::gpu, 3);
  }

  double attention_s(Device device, std::int64_t decodes, std::int64_t context) const {
    if (decodes == 0) return 0;
    const BatchShape shape = BatchShape::decode(decodes, (context + decodes - 1) / decodes);
    double sum = costs().task_overhead_s(device, 2);
    for (const Sublayer sublayer : {Sublayer::qk, Sublayer::sv})
      sum += costs().compute_s(device, sublayer, shape);
    return sum;
  }
  double cpu_attention_s(const Load& load) const {
    return attention_s(Device::cpu, load.cpu_decodes, load.cpu_context);
  }
  double gpu_attention_s(const Load& load) const {
    return attention_s(Device::gpu, load.gpu_decodes, load.gpu_context);
  }

  /// T_ca1 <= T_l0 and T_ca0 <= T_l1 + T_ga0: the CPU's work hides behind the GPU's.
  bool balanced(const std::array<Load, 2>& batches) const {
    return cpu_attention_s(batches[1]) <= linear_s(batches[0]) &&
           cpu_attention_s(batches[0]) <= linear_s(batches[1]) + gpu_attention_s(batches[0]);
  }

  /// T: max(T_l0, T_ca1) + max(T_l1 + T_ga0, T_ca0).
  double seconds(const std::array<Load, 2>& batches) const {
    return std::max(linear_s(batches[0]), cpu_attention_s(batches[1])) +
           std::max(linear_s(batches[1]) + gpu_attention_s(batches[0]),
                    cpu_attention_s(batches[0]));
  }

  double activation_share_ = 1.0 / 16;
  std::int64_t prompts_at_once_ = 1;
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::Neo, "neo",
              "NEO: requests whose KV does not fit HBM attend on the CPU, beside the others");
