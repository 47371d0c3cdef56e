// Mixtures of experts (ours, after KTransformers, Fiddler and llama.cpp's --n-cpu-moe, which have
// their thresholds set by hand): attention in HBM and on the GPU, experts that are often chosen
// there, too, the others where the cost model says.
#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "perfmodels/hot_experts.h"
#include "perfmodels/routing_file.h"
#include "perfmodels/timeline.h"
#include "schedulers/host_tier.h"
#include "schedulers/plugin.h"
#include "schedulers/refusals.h"

namespace sluice {
namespace {

constexpr double gib = 1ULL << 30;

/// In tenths of a GiB, rounded up.
std::string size_text(double bytes) {
  std::ostringstream text;
  text << std::ceil(bytes / gib * 10) / 10 << " GiB";
  return text.str();
}

class Experts : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    hot_file_ = options.take("hot", "");
    keeps_experts_ = hot_file_ != "none";
    if (!keeps_experts_) hot_file_.clear();
    if (!hot_file_.empty()) {
      std::ifstream file(hot_file_);
      hot_text_.assign(std::istreambuf_iterator<char>(file), {});
      if (!file)
        throw std::runtime_error(
            "hot=" + hot_file_ +
            ": it cannot be read; expected a file that --record-routing wrote");
    }
    sub_batches_ = options.take_choice("sub_batches", {"auto", "1", "2"});
    forced_ = {take_placement(options, "prefill"), take_placement(options, "decode")};
    overlap_ = options.take_switch("overlap", true);
  }

  void start(const CostModel& costs, const Workload& workload) override {
    Policy::start(costs, workload);
    decided_.reset();
    settled_ = {};
    ranking_ = model().routing;
    if (hot_file_.empty() || model().num_experts == 0) return;
    const RoutedModel any = {.name = "",
                             .num_layers = model().num_layers,
                             .num_experts = model().num_experts,
                             .experts_per_token = model().experts_per_token};
    ranking_ = Routing::recorded(parse_routing(hot_text_, "hot=" + hot_file_, any),
                                 model().experts_per_token);
  }

  MemoryPlan plan_memory() override {
    if (model().num_experts == 0)
      throw std::runtime_error(std::string(no_experts) +
                               "; take --policy lia, or none for the fastest one");
    if (!has_both()) return Policy::plan_memory();
    decided_.reset();
    settled_ = {};
    std::optional<Candidate> best;
    const std::vector<Prefetch> prefetches =
        overlap_ ? std::vector{Prefetch::layer, Prefetch::half_layer} : std::vector{Prefetch::none};
    for (const Prefetch prefetch : prefetches) {
      consider(with_kv(prefetch, Tier::hbm), best);
      consider(with_kv(prefetch, Tier::ddr), best);
      if (best) break;
    }
    if (!best) refuse_hbm();
    pipelines_ = best->pipelines;
    memory_ = best->memory;
    settle();
    count_again();
    return memory_;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& homes) override {
    const std::optional<Placement>& forced = forced_.at(static_cast<std::size_t>(shape.phase));
    if (forced && has_both() && !homes.resident()) return *forced;
    const std::optional<Settled>& settled = settled_.at(static_cast<std::size_t>(shape.phase));
    if (settled && settled->is_for(shape) && !homes.resident()) return settled->placement;
    return best(shape, homes, overlap_ ? Overlap::stored : Overlap::none);
  }

  IterationPlan plan_iteration(const std::vector<RequestView>& requests) override {
    if (!may_split(requests)) return Policy::plan_iteration(requests);
    const auto middle = requests.begin() + std::ssize(requests) / 2;
    const Halves halves = {shape_of(requests.begin(), middle), shape_of(middle, requests.end())};
    if (!split_pays(halves)) return Policy::plan_iteration(requests);
    IterationPlan plan;
    plan.sub_batches.resize(halves.size());
    for (auto request = requests.begin(); request != requests.end(); ++request)
      plan.sub_batches[request < middle ? 0 : 1].requests.push_back(request->id);
    return plan;
  }

 private:
  /// A placement of layers that are not resident.
  struct Settled {
    Placement placement{Device::gpu};
    std::int64_t rows = 0;

    bool is_for(const BatchShape& shape) const {
      return 2 * shape.total_rows() >= rows - 1 && shape.total_rows() <= 2 * rows;
    }
  };

  /// Less is no reason to leave the rule.
  static constexpr double worth_settling = 0.01;
  /// Nine in ten estimates of mixed placements are nearer.
  static constexpr double estimates_err = 0.1;

  using Requests = std::vector<RequestView>::const_iterator;
  using Halves = std::array<BatchShape, 2>;

  /// What lives where, and what a run of the workload takes then.
  struct Candidate {
    MemoryPlan memory;
    std::array<Pipeline, 2> pipelines;
    double seconds = 0;
  };

  static std::optional<Placement> take_placement(PolicyOptions& options, const std::string& key) {
    const std::string text = options.take(key, "");
    if (text.empty()) return std::nullopt;
    const std::optional<Placement> placement = Placement::parse(text);
    if (!placement) {
      throw std::runtime_error(key + "=" + text + ": expected six digits, 1 = CPU, such as 000011");
    }
    return placement;
  }

  bool has_both() const { return costs().has(Device::gpu) && costs().has(Device::cpu); }

  // ---- What lives where

  /// Attention and the head in HBM, all experts on the host.
  MemoryPlan attention_in_hbm(Tier kv) const {
    LayerHomes homes = LayerHomes::all(Tier::hbm, kv);
    homes[WeightKind::fc1] = homes[WeightKind::fc2] = host_tier(costs());
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers), homes);
    plan.lm_head = Tier::hbm;
    return plan;
  }

  /// With KV on a tier, or in HBM as far as there is room; prompts cut until they fit. Nothing: no
  /// room even so.
  std::optional<MemoryPlan> with_kv(Prefetch prefetch, Tier kv) {
    pipelines_.fill({.mini_batches = 1, .prefetch = prefetch});
    MemoryPlan plan = attention_in_hbm(kv);
    if (kv == Tier::ddr) {
      if (!cut_until_fitting(plan)) return std::nullopt;
      return plan;
    }
    if (fits(plan)) return plan;
    // Where all KV does not fit some layers' does.
    for (LayerHomes& homes : plan.layers) homes.kv = Tier::ddr;
    if (!cut_until_fitting(plan)) return std::nullopt;
    for (LayerHomes& homes : plan.layers) {
      homes.kv = Tier::hbm;
      if (fits(plan)) continue;
      homes.kv = Tier::ddr;
      break;
    }
    return plan;
  }

  bool cut_until_fitting(const MemoryPlan& plan) {
    std::int64_t& parts = pipelines_[0].mini_batches;
    while (!fits(plan)) {
      if (parts >= workload().batch) return false;
      parts = std::min(2 * parts, workload().batch);
    }
    return true;
  }

  /// Takes the better one of `best` and what is best with a plan's KV: as many experts in HBM as
  /// pay, the hot ones of each layer or all of some layers.
  void consider(std::optional<MemoryPlan> plan, std::optional<Candidate>& best) {
    if (!plan) return;
    // What another home of KV would save has to be more than estimates err.
    const double other_kv_s = best ? (1 - estimates_err) * best->seconds : 0;
    const std::optional<Candidate> before = std::exchange(best, std::nullopt);
    const auto take = [&](MemoryPlan memory) {
      const double seconds = run_s(memory);
      if (!best || seconds < best->seconds) best = {std::move(memory), pipelines_, seconds};
    };
    take(*plan);
    if (keeps_experts_) take(with_whole_layers(*plan));
    if (keeps_experts_ && ranking_) take(with_hot(*plan, best_count(*plan)));
    if (before && best->seconds >= other_kv_s) best = before;
  }

  /// All experts of the first layers, as many as fit.
  MemoryPlan with_whole_layers(MemoryPlan plan) {
    for (LayerHomes& homes : plan.layers) {
      const LayerHomes before = homes;
      homes[WeightKind::fc1] = homes[WeightKind::fc2] = Tier::hbm;
      if (fits(plan)) continue;
      homes = before;
      break;
    }
    return plan;
  }

  MemoryPlan with_hot(MemoryPlan plan, std::int64_t count) const {
    if (count == 0) return plan;
    for (std::int64_t layer = 0; layer < model().num_layers; ++layer) {
      const std::vector<std::int64_t> hottest = ranking_->hottest(layer, count);
      std::vector<std::int32_t>& list = plan.hot_experts.emplace_back();
      for (const std::int64_t expert : hottest) list.push_back(static_cast<std::int32_t>(expert));
      std::ranges::sort(list);
    }
    count_hot_experts(model(), plan);
    return plan;
  }

  /// Hot experts of each layer: the more there are the less the CPU has to do, until the GPU takes
  /// longer than it.
  std::int64_t best_count(const MemoryPlan& plan) {
    std::int64_t most = 0;
    for (std::int64_t too_many = model().num_experts + 1; too_many - most > 1;) {
      const std::int64_t middle = (most + too_many) / 2;
      (fits(with_hot(plan, middle)) ? most : too_many) = middle;
    }
    // Evenly spaced ones, then those around the best.
    std::int64_t best = most;
    double best_s = run_s(with_hot(plan, most));
    const auto look = [&](std::int64_t count) {
      const double seconds = run_s(with_hot(plan, count));
      if (seconds >= best_s) return;
      best = count;
      best_s = seconds;
    };
    constexpr std::int64_t first_looks = 16;
    const std::int64_t step = (most + first_looks) / first_looks;
    for (std::int64_t count = 0; count < most; count += step) look(count);
    const std::int64_t around = best;
    for (std::int64_t count = std::max<std::int64_t>(0, around - step + 1);
         count < std::min(most, around + step) && step > 1; ++count)
      look(count);
    return best;
  }

  double passing_kv(const MemoryPlan& plan) {
    if (workload().output_tokens < 2) return 0;
    const Chain decode = chain_of(plan, decode_shape());
    return passing_kv_bytes(model(), plan, {&decode, 1}, pipelines_[1].prefetch, workload());
  }

  bool fits(const MemoryPlan& plan) {
    return fits_hbm(costs(), plan, pipelines_, workload(), passing_kv(plan));
  }

  [[noreturn]] void refuse_hbm() {
    pipelines_.fill({.mini_batches = workload().batch,
                     .prefetch = overlap_ ? Prefetch::half_layer : Prefetch::none});
    const MemoryPlan least = attention_in_hbm(Tier::ddr);
    const Footprint used = footprint(costs(), least, pipelines_, workload(), passing_kv(least));
    throw std::runtime_error(
        "HBM holds " + size_text(static_cast<double>(costs().capacity_bytes(Tier::hbm))) +
        ", and attention, the LM head and chunks of experts on their way take " +
        size_text(used.total(Tier::hbm)) +
        "; take --hbm, or a GPU, of so much, a smaller batch, or --policy cpu-only");
  }

  // ---- How long it takes

  BatchShape prefill_shape() const {
    return BatchShape::prefill(workload().batch, workload().input_tokens);
  }
  BatchShape decode_shape() const {
    return BatchShape::decode(workload().batch,
                              workload().input_tokens + (workload().output_tokens + 1) / 2);
  }

  Chain chain_of(const MemoryPlan& plan, const BatchShape& shape) {
    Chain chain = {.parts = {{.shape = shape}}, .placements = {}};
    for (std::size_t layer = 0; layer < plan.layers.size(); ++layer)
      chain.placements.push_back(
          place(static_cast<std::int64_t>(layer), shape, plan.layers[layer]));
    return chain;
  }

  double iteration_s(const MemoryPlan& plan, const std::vector<Chain>& chains, Phase phase) const {
    const Prefetch prefetch = pipelines_[static_cast<std::size_t>(phase)].prefetch;
    return estimate_iteration(costs(), plan, chains, prefetch, Start::steady).seconds;
  }
  double together_s(const MemoryPlan& plan, const BatchShape& shape) {
    constexpr std::int64_t most_chains = 16;
    const Pipeline& pipeline = pipelines_[static_cast<std::size_t>(shape.phase)];
    const std::vector<Chain> chains = cut_into_mini_batches(
        shape, std::min(pipeline.mini_batches, most_chains), chain_of(plan, shape).placements);
    return iteration_s(plan, chains, shape.phase);
  }
  /// Each half touches experts of its own: both together more than one batch does.
  double halves_s(const MemoryPlan& plan, const Halves& halves) {
    return iteration_s(plan, {chain_of(plan, halves[0]), chain_of(plan, halves[1])},
                       halves[0].phase);
  }

  bool may_split(Phase phase, std::int64_t requests) const {
    return requests > 1 && sub_batches_ != "1" && has_both() &&
           pipelines_[static_cast<std::size_t>(phase)].mini_batches == 1;
  }

  double phase_s(const MemoryPlan& plan, const BatchShape& shape) {
    if (!may_split(shape.phase, shape.batch)) return together_s(plan, shape);
    Halves halves = {shape, shape};
    halves[0].batch = shape.batch / 2;
    halves[1].batch = shape.batch - halves[0].batch;
    const double split_s = halves_s(plan, halves);
    return sub_batches_ == "2" ? split_s : std::min(split_s, together_s(plan, shape));
  }

  void settle() {
    settle(prefill_shape());
    if (workload().output_tokens > 1) settle(decode_shape());
  }

  /// With other placements another number of hot experts may be the best one.
  void count_again() {
    if (!keeps_experts_ || !ranking_) return;
    MemoryPlan plan = memory_;
    plan.hot_experts.clear();
    const Tier host = host_tier(costs());
    for (LayerHomes& homes : plan.layers) homes[WeightKind::fc1] = homes[WeightKind::fc2] = host;
    count_hot_experts(model(), plan);
    plan = with_hot(plan, best_count(plan));
    if (run_s(plan) >= run_s(memory_)) return;
    memory_ = std::move(plan);
    settle();
  }

  /// The rule of place() looks at one layer. Where estimates of whole iterations find a placement
  /// that is faster, it is taken for about as many rows.
  void settle(const BatchShape& shape) {
    std::optional<Settled>& settled = settled_.at(static_cast<std::size_t>(shape.phase));
    settled.reset();
    std::optional<Placement> fastest;
    double least_s = (1 - worth_settling) * phase_s(memory_, shape);
    for (unsigned bits = 0; bits < num_placements; ++bits) {
      const Placement placement = Placement::from_bits(bits);
      if (!can_place(model(), placement)) continue;
      settled = {placement, shape.total_rows()};
      const double seconds = phase_s(memory_, shape);
      if (seconds >= least_s) continue;
      least_s = seconds;
      fastest = placement;
    }
    settled.reset();
    if (fastest) settled = {*fastest, shape.total_rows()};
  }

  /// Of the workload.
  double run_s(const MemoryPlan& plan) {
    return phase_s(plan, prefill_shape()) +
           static_cast<double>(workload().output_tokens - 1) * phase_s(plan, decode_shape());
  }

  // ---- Sub-batches

  /// Requests of one phase alone are split.
  bool may_split(const std::vector<RequestView>& requests) const {
    if (requests.empty()) return false;
    const auto phase_of = [](const RequestView& request) {
      return request.prompt_tokens_left > 0 ? Phase::prefill : Phase::decode;
    };
    const Phase phase = phase_of(requests.front());
    return may_split(phase, std::ssize(requests)) &&
           std::ranges::all_of(requests, [&](const auto& each) { return phase_of(each) == phase; });
  }

  static BatchShape shape_of(Requests first, Requests last) {
    BatchShape shape = {.phase = first->prompt_tokens_left > 0 ? Phase::prefill : Phase::decode,
                        .batch = last - first,
                        .rows = 0,
                        .context = 0};
    for (Requests request = first; request != last; ++request) {
      const std::int64_t rows = std::max<std::int64_t>(1, request->prompt_tokens_left);
      shape.rows += rows;
      shape.context += request->context_tokens + rows;
    }
    shape.rows = (shape.rows + shape.batch - 1) / shape.batch;
    shape.context = (shape.context + shape.batch - 1) / shape.batch;
    return shape;
  }

  /// Whether two sub-batches are faster than one: asked again when others come or go, or when
  /// contexts have grown by an eighth.
  bool split_pays(const Halves& halves) {
    if (sub_batches_ == "2") return true;
    const bool is_known =
        decided_ && decided_->halves[0].phase == halves[0].phase &&
        decided_->halves[0].batch == halves[0].batch &&
        decided_->halves[1].batch == halves[1].batch &&
        decided_->halves[0].rows == halves[0].rows &&
        halves[0].context >= decided_->halves[0].context &&
        halves[0].context <= decided_->halves[0].context + decided_->halves[0].context / 8;
    if (is_known) return decided_->split_pays;
    BatchShape all = halves[0];
    all.batch += halves[1].batch;
    all.context = std::max(halves[0].context, halves[1].context);
    all.rows = std::max(halves[0].rows, halves[1].rows);
    decided_ = {halves, halves_s(memory_, halves) < together_s(memory_, all)};
    return decided_->split_pays;
  }

  struct Decided {
    Halves halves;
    bool split_pays = false;
  };

  std::string hot_file_;       ///< empty: none
  bool keeps_experts_ = true;  ///< in HBM
  std::string hot_text_;
  std::string sub_batches_ = "auto";
  std::array<std::optional<Placement>, 2> forced_;  ///< by phase
  bool overlap_ = true;
  std::array<std::optional<Settled>, 2> settled_;  ///< by phase
  std::optional<Routing> ranking_;  ///< nothing: no expert is known to be hotter than another
  MemoryPlan memory_;
  std::optional<Decided> decided_;
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::Experts, "experts",
              "experts: attention and hot experts on the GPU, other experts where that is faster");
