#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <vector>

#include "schedulers/neo/iteration.h"
#include "schedulers/policy.h"

namespace sluice {

/// NEO's policies (sections 3.1 and 3.2): weights and as much KV as fits in HBM, the other
/// requests' KV in DDR, their decode attention on the CPU beside the GPU's work.
class NeoPolicy : public Policy {
 public:
  /// Where the CPU's work need not be hidden, all KV lives in DDR.
  explicit NeoPolicy(Hiding hiding) : hiding_(hiding) {}

  void configure(PolicyOptions& options) override {
    // Of HBM, for the activations of prompts that are computed at once.
    activation_share_ = options.take_number("activation_share", 0.001, 0.5).value_or(1.0 / 16);
    launch_s_ = options.take_number("launch_us", 0, 1e6).value_or(0) * 1e-6;
  }

  void start(const CostModel& costs, const Workload& workload) override {
    Policy::start(costs, workload);
    times_.emplace(costs, launch_s_);
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
    if (hiding_ == Hiding::not_asked) return plan;
    plan.hbm_requests = fitting_requests(plan, prompts_at_once_);
    // KV of every request comes before prompts that are computed together.
    if (plan.hbm_requests < workload().batch && fitting_requests(plan, 1) == workload().batch) {
      while (plan.hbm_requests < workload().batch)
        plan.hbm_requests = fitting_requests(plan, --prompts_at_once_);
    }
    pipelines_[0].requests_at_once = prompts_at_once_;
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

  std::optional<Schedule> schedule(const Situation& situation) override {
    if (!costs().has(Device::gpu) || !costs().has(Device::cpu)) return std::nullopt;
    return neo_schedule(*times_, situation, hiding_);
  }

  /// Section 3.2's six steps. Which requests' KV lives where is settled: nothing is swapped.
  IterationPlan plan_iteration(const std::vector<RequestView>& requests) override {
    if (!costs().has(Device::gpu)) return all_together(requests);
    Batches batches;                                                                // step 1
    add_gpu_decodes(requests, batches);                                             // step 2
    std::vector<const RequestView*> swapped_out = add_prefills(requests, batches);  // step 3
    const Load gpu_only = batches[0];
    const std::vector<const RequestView*> waiting = cpu_decodes(requests);
    Load everything = gpu_only;
    for (const RequestView* request : waiting) everything.add_cpu_decode(*request);
    if (gpu_only.count() > 0) {
      add_cpu_decodes(waiting, batches);  // step 4
    } else {
      add_halves(waiting, batches);
    }
    drop_prefills(swapped_out, batches);  // step 5
    // Step 6. Requests that wait have to run later, by themselves if it must be: the set is fixed.
    const std::array<Batches, 3> choices = {Batches{gpu_only, Load{}}, batches,
                                            Batches{everything, Load{}}};
    const auto round_s = [&](const Batches& choice) {
      if (choice[0].count() + choice[1].count() == 0) return std::numeric_limits<double>::max();
      return seconds(choice) + later_s(rest_of(everything, choice));
    };
    return as_plan(*std::ranges::min_element(choices, {}, round_s));
  }

 private:
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
    void add_cpu_decode(const RequestView& request) {
      add_cpu_decodes(1, request.context_tokens);
      requests.push_back(request.id);
    }
  };

  /// The first mostly on the GPU, the second with decode attention on the CPU alone.
  using Batches = std::array<Load, 2>;

  /// What of `everything` is not in `batches`, without the requests' names.
  static Load rest_of(const Load& everything, const Batches& batches) {
    Load rest = everything;
    rest.requests.clear();
    for (const Load& load : batches) {
      rest.prefills -= load.prefills;
      rest.prefill_rows -= load.prefill_rows;
      rest.gpu_decodes -= load.gpu_decodes;
      rest.gpu_context -= load.gpu_context;
      rest.cpu_decodes -= load.cpu_decodes;
      rest.cpu_context -= load.cpu_context;
    }
    return rest;
  }

  /// Requests whose KV HBM has room for, beside the weights of `plan` and so many prompts.
  std::int64_t fitting_requests(MemoryPlan plan, std::int64_t prompts_at_once) const {
    plan.hbm_requests = 0;
    std::array<Pipeline, 2> pipelines = pipelines_;
    pipelines[0].requests_at_once = prompts_at_once;
    const double room = static_cast<double>(costs().capacity_bytes(Tier::hbm)) -
                        footprint(costs(), plan, pipelines, workload()).total(Tier::hbm);
    const double request =
        sequence_kv_bytes(model(), workload()) * static_cast<double>(model().num_layers);
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(room / request), 0, workload().batch);
  }

  static void add_gpu_decodes(const std::vector<RequestView>& requests, Batches& batches) {
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left > 0 || request.kv != Tier::hbm) continue;
      ++batches[0].gpu_decodes;
      batches[0].gpu_context += request.context_tokens + 1;
      batches[0].requests.push_back(request.id);
    }
  }

  /// As many as activations leave room for; returns those whose KV leaves the GPU.
  std::vector<const RequestView*> add_prefills(const std::vector<RequestView>& requests,
                                               Batches& batches) const {
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

  /// Who has been skipped most comes first.
  static std::vector<const RequestView*> cpu_decodes(const std::vector<RequestView>& requests) {
    std::vector<const RequestView*> waiting;
    for (const RequestView& request : requests) {
      if (request.prompt_tokens_left == 0 && request.kv != Tier::hbm) waiting.push_back(&request);
    }
    std::stable_sort(waiting.begin(), waiting.end(), [](const auto* a, const auto* b) {
      return a->context_tokens < b->context_tokens;
    });
    return waiting;
  }

  void add_cpu_decodes(const std::vector<const RequestView*>& waiting, Batches& batches) const {
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
  std::size_t most_balanced(const Batches& batches, Load& load, std::int64_t context_tokens,
                            std::size_t most) const {
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

  /// Without work of the GPU's own: two halves, as large as hides the one's attention behind the
  /// other's matrices.
  void add_halves(const std::vector<const RequestView*>& waiting, Batches& batches) const {
    for (std::size_t half = waiting.size() / 2; half > 0; half -= (half + 15) / 16) {
      Batches halves;
      for (std::size_t i = 0; i < 2 * half; ++i) halves[i % 2].add_cpu_decode(*waiting[i]);
      if (!balanced(halves)) continue;
      batches = std::move(halves);
      return;
    }
  }

  /// The last ones first, as long as the CPU's work stays hidden. One stays, lest prompts wait for
  /// all others' last tokens.
  void drop_prefills(std::vector<const RequestView*>& swapped_out, Batches& batches) const {
    if (batches[0].cpu_decodes + batches[1].cpu_decodes == 0) return;
    for (; !swapped_out.empty() && batches[0].prefills > 1; swapped_out.pop_back()) {
      Load fewer = batches[0];
      --fewer.prefills;
      fewer.prefill_rows -= swapped_out.back()->prompt_tokens_left;
      std::erase(fewer.requests, swapped_out.back()->id);
      if (!balanced({fewer, batches[1]})) return;
      batches[0] = std::move(fewer);
    }
  }

  static IterationPlan as_plan(const Batches& batches) {
    IterationPlan plan;
    for (const Load& load : batches) {
      if (load.count() > 0) plan.sub_batches.push_back({load.requests});
    }
    return plan;
  }

  static IterationPlan all_together(const std::vector<RequestView>& requests) {
    SubBatchPlan all;
    for (const RequestView& request : requests) all.requests.push_back(request.id);
    return {.sub_batches = {std::move(all)}};
  }

  // A layer's times, section 3.2.

  double linear_s(const Load& load) const { return times_->linear_s(load.rows()); }
  /// Without what crosses, which passes while others compute.
  double cpu_attention_s(const Load& load) const {
    return times_->attention_s(Device::cpu, load.cpu_decodes, load.cpu_context);
  }
  double gpu_attention_s(const Load& load) const {
    return times_->attention_s(Device::gpu, load.gpu_decodes, load.gpu_context);
  }

  /// T_ca1 <= T_l0 and T_ca0 <= T_l1 + T_ga0: the CPU's work hides behind the GPU's.
  bool balanced(const Batches& batches) const {
    return cpu_attention_s(batches[1]) <= linear_s(batches[0]) &&
           cpu_attention_s(batches[0]) <= linear_s(batches[1]) + gpu_attention_s(batches[0]);
  }

  /// T: max(T_l0, T_ca1) + max(T_l1 + T_ga0, T_ca0).
  double seconds(const Batches& batches) const {
    return std::max(linear_s(batches[0]), cpu_attention_s(batches[1])) +
           std::max(linear_s(batches[1]) + gpu_attention_s(batches[0]),
                    cpu_attention_s(batches[0]));
  }

  /// Of requests that wait now, once they run: together, or as two halves.
  double later_s(const Load& load) const {
    if (load.count() == 0) return 0;
    const auto half = [](std::int64_t all) { return (all + 1) / 2; };
    const Load part = {.prefill_rows = half(load.prefill_rows),
                       .gpu_decodes = half(load.gpu_decodes),
                       .gpu_context = half(load.gpu_context),
                       .cpu_decodes = half(load.cpu_decodes),
                       .cpu_context = half(load.cpu_context),
                       .requests = {},
                       .prefills = half(load.prefills)};
    return std::min(seconds({load, Load{}}), seconds({part, part}));
  }

  Hiding hiding_;
  double activation_share_ = 1.0 / 16;
  double launch_s_ = 0;
  std::int64_t prompts_at_once_ = 1;
  mutable std::optional<LayerTimes> times_;  ///< of the present costs
};

}  // namespace sluice
