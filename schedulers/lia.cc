// LIA's policy: the cheapest placement of each layer by its cost model (equation 1), as many whole
// layers in HBM as fit (Optimization-1), transfers beside computation (Optimization-2), parameters
// in CXL memory where that costs nothing (section 6).
#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>

#include "perfmodels/timeline.h"
#include "schedulers/plugin.h"

namespace sluice {
namespace {

class Lia : public Policy {
 public:
  void configure(PolicyOptions& options) override {
    optimization_1_ = options.take_switch("opt1", true);
    optimization_2_ = options.take_switch("opt2", true);
    forced_[0] = take_placement(options, "prefill");
    forced_[1] = take_placement(options, "decode");
    equation_1_alone_ = options.take_choice("choose", {"fastest", "equation-1"}) == "equation-1";
    cxl_ = options.take_choice("cxl", {"auto", "on", "off"});
    // What of HBM intermediate values take: "engine": what Sluice keeps there; "paper": what the
    // measurements in LIA's Tables 4 and 5 imply (a batch's KV of all layers until prefill's end,
    // and attention scores at full size).
    paper_reserve_ = options.take_choice("reserve", {"engine", "paper"}) == "paper";
  }

  MemoryPlan plan_memory() override {
    choices_ = {Choice::sum, Choice::sum};
    // Equation 1 adds up what Optimization-2 overlaps, and knows nothing of weights that stay where
    // they came. Where another choice makes the run faster, and not by less than estimates err, it
    // is taken.
    const std::vector<Choice> prefills = choices_of(Phase::prefill);
    const std::vector<Choice> decodes = choices_of(Phase::decode);
    if (prefills.size() * decodes.size() == 1) return plan_by_choices();
    double least_s = std::numeric_limits<double>::infinity();
    std::array<Choice, 2> best = choices_;
    for (const Choice prefill : prefills) {
      for (const Choice decode : decodes) {
        choices_ = {prefill, decode};
        const MemoryPlan plan = plan_by_choices();
        if (!fits(plan)) continue;
        const double seconds = run_s(plan);
        if (seconds >= (1 - estimates_err) * least_s) continue;
        least_s = seconds;
        best = choices_;
      }
    }
    choices_ = best;
    return plan_by_choices();
  }

  Pipeline pipeline(Phase phase) override {
    Pipeline pipeline = Policy::pipeline(phase);
    if (!optimization_2_) pipeline.prefetch = Prefetch::none;
    return pipeline;
  }

  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& homes) override {
    const std::optional<Placement>& forced = forced_[static_cast<std::size_t>(shape.phase)];
    if (forced && !homes.resident()) return *forced;
    const Choice choice =
        homes.resident() ? Choice::sum : choices_[static_cast<std::size_t>(shape.phase)];
    if (choice == Choice::gpu) return Placement(Device::gpu);
    return best(shape, homes, choice == Choice::sum ? Overlap::none : Overlap::transfers);
  }

 private:
  /// Of layers that are not resident: the least sum of all parts (equation 1), or of what does not
  /// overlap; or all on the GPU.
  enum class Choice : std::uint8_t { sum, overlapped, gpu };

  /// Of a run; what differs by less is alike. Nine in ten estimates of mixed placements are nearer.
  static constexpr double estimates_err = 0.1;

  /// Mini-batches beyond so many are estimated together.
  static constexpr std::int64_t most_estimated_chains = 16;

  /// Those of a phase that place layers that are not resident differently, equation 1 first.
  std::vector<Choice> choices_of(Phase phase) {
    std::vector<Choice> distinct = {Choice::sum};
    if (!costs().has(Device::gpu) || !costs().has(Device::cpu) || !optimization_2_ ||
        equation_1_alone_ || (phase == Phase::decode && workload().output_tokens == 1))
      return distinct;
    const LayerHomes homes = streamed_plan().layers.front();
    const BatchShape shape = phase == Phase::prefill ? prefill_shape() : decode_shape();
    Choice& choice = choices_[static_cast<std::size_t>(phase)];
    std::vector<Placement> placements = {place(0, shape, homes)};
    for (const Choice other : {Choice::overlapped, Choice::gpu}) {
      // Its weights are to stay, which prompts are not there for, nor without Optimization-1.
      if (other == Choice::gpu && (phase == Phase::prefill || !optimization_1_)) continue;
      choice = other;
      const Placement placement = place(0, shape, homes);
      if (std::ranges::find(placements, placement) != placements.end()) continue;
      placements.push_back(placement);
      distinct.push_back(other);
    }
    choice = Choice::sum;
    return distinct;
  }

  MemoryPlan plan_by_choices() {
    MemoryPlan plan = streamed_plan();
    if (!costs().has(Device::gpu)) return plan;
    plan.lm_head = Tier::hbm;
    const Placement decode = place(0, decode_shape(), plan.layers.front());
    decode_ = {.parts = {{.shape = decode_shape()}},
               .placements = std::vector<Placement>(plan.layers.size(), decode)};
    // Optimization-2: everything that moves does so beside computation. LIA cuts a prefill into
    // mini-batches for that; here new KV leaves beside the next layer anyway, so that a batch is
    // cut only if its values do not fit. Room is planned for it in either case: without it the same
    // layers stay resident (the paper's Table 4 has one latency for both at B=1).
    pipelines_ = {};
    if (!cut_until_fitting(plan)) return plan;  // the check will tell
    if (optimization_1_) keep_layers(plan);
    return plan;
  }

  /// Whether HBM has room for all weights at once, those that stream included.
  bool weights_stay(const MemoryPlan& plan) const {
    const double passing_kv = decode_passing_kv(plan);
    const Footprint used = footprint(costs(), plan, pipelines_, workload());
    return used.total(Tier::hbm) - used.staging[Tier::hbm] + passing_kv +
               weights_outside_hbm_bytes(model(), plan) <=
           static_cast<double>(costs().capacity_bytes(Tier::hbm));
  }

  /// Of the workload.
  double run_s(const MemoryPlan& plan) {
    const auto iteration_s = [&](const BatchShape& shape) {
      const Pipeline pipeline = this->pipeline(shape.phase);
      std::vector<Placement> placements;
      for (std::size_t layer = 0; layer < plan.layers.size(); ++layer)
        placements.push_back(place(static_cast<std::int64_t>(layer), shape, plan.layers[layer]));
      const std::vector<Chain> chains = cut_into_mini_batches(
          shape, std::min(pipeline.mini_batches, most_estimated_chains), placements);
      MemoryPlan homes = plan;
      if (shape.phase == Phase::decode && choices_[1] == Choice::gpu && weights_stay(plan)) {
        for (LayerHomes& layer : homes.layers) layer.weights.fill(Tier::hbm);
      }
      return estimate_iteration(costs(), homes, chains, pipeline.prefetch, Start::steady).seconds;
    };
    return iteration_s(prefill_shape()) +
           static_cast<double>(workload().output_tokens - 1) * iteration_s(decode_shape());
  }

  /// Cuts prefill into as few mini-batches as make the plan fit; false where none do.
  bool cut_until_fitting(const MemoryPlan& plan) {
    std::int64_t& count = pipelines_[0].mini_batches;
    const std::int64_t most = std::max(count, workload().batch);
    std::int64_t too_few = count - 1;
    for (; !fits(plan); count = std::min(2 * count, most)) {
      if (count == most) return false;
      too_few = count;
    }
    for (std::int64_t enough = count; enough - too_few > 1;) {
      count = (too_few + enough) / 2;
      (fits(plan) ? enough : too_few) = count;
      count = enough;
    }
    return true;
  }

  static std::optional<Placement> take_placement(PolicyOptions& options, const std::string& key) {
    const std::string text = options.take(key, "");
    if (text.empty()) return std::nullopt;
    const std::optional<Placement> placement = Placement::parse(text);
    if (!placement) {
      throw std::runtime_error(key + "=" + text + ": expected six digits, 1 = CPU, such as 011000");
    }
    return placement;
  }

  /// Nothing resident; parameters in CXL when section 6 says so.
  MemoryPlan streamed_plan() {
    const auto num_layers = static_cast<std::size_t>(model().num_layers);
    const LayerHomes in_ddr = LayerHomes::all(Tier::ddr, Tier::ddr);
    MemoryPlan plan;
    plan.layers.assign(num_layers, in_ddr);
    if (cxl_ == "on" || (cxl_ == "auto" && cxl_is_free(in_ddr)))
      plan.layers.assign(num_layers, LayerHomes::all(Tier::cxl, Tier::ddr));
    return plan;
  }

  /// Section 6: parameters may live in CXL memory when the GPU alone reads them (sublayers 1, 4, 5
  /// and 6 of both phases), and when they reach it as fast as from DDR (Observation-1).
  bool cxl_is_free(const LayerHomes& in_ddr) {
    const double parameters = layer_weight_bytes(model()) * static_cast<double>(model().num_layers);
    if (static_cast<double>(costs().capacity_bytes(Tier::cxl)) < parameters) return false;
    if (!costs().has(Device::gpu)) return false;
    for (const BatchShape& shape : {prefill_shape(), decode_shape()}) {
      const Placement placement = place(0, shape, in_ddr);
      for (const Sublayer sublayer : layer_sublayers) {
        if (!weights_of(sublayer).empty() && placement[sublayer] == Device::cpu) return false;
      }
    }
    const double bytes = layer_weight_bytes(model());
    return costs().transfer_s(Tier::cxl, Tier::hbm, bytes) <=
           1.05 * costs().transfer_s(Tier::ddr, Tier::hbm, bytes);
  }

  BatchShape prefill_shape() const {
    return BatchShape::prefill(workload().batch, workload().input_tokens);
  }
  BatchShape decode_shape() const {
    return BatchShape::decode(workload().batch,
                              workload().input_tokens + (workload().output_tokens + 1) / 2);
  }

  /// Optimization-1: whole layers with their KV, from the first one on, as many as fit.
  void keep_layers(MemoryPlan& plan) {
    for (LayerHomes& homes : plan.layers) {
      const LayerHomes before = homes;
      homes = LayerHomes::all(Tier::hbm, Tier::hbm);
      if (fits(plan)) continue;
      homes = before;
      return;
    }
  }

  double decode_passing_kv(const MemoryPlan& plan) const {
    const std::span<const Chain> decode(&decode_, workload().output_tokens > 1 ? 1 : 0);
    return passing_kv_bytes(model(), plan, decode, pipelines_[1].prefetch, workload());
  }

  bool fits(const MemoryPlan& plan) const {
    const double passing_kv = decode_passing_kv(plan);
    double bytes = footprint(costs(), plan, pipelines_, workload(), passing_kv).total(Tier::hbm);
    if (paper_reserve_) bytes += paper_reserve_bytes(plan);
    return bytes <= static_cast<double>(costs().capacity_bytes(Tier::hbm));
  }

  double paper_reserve_bytes(const MemoryPlan& plan) const {
    const double batch =
        static_cast<double>(workload().batch) / static_cast<double>(pipelines_[0].mini_batches);
    const auto tokens = static_cast<double>(workload().input_tokens);
    const auto streamed = static_cast<double>(model().num_layers - plan.resident_layers());
    const double scores = 2 * 2 * batch * static_cast<double>(model().num_heads) * tokens * tokens;
    return streamed * batch * tokens * kv_bytes_per_token(model()) + scores;
  }

  bool optimization_1_ = true;
  bool optimization_2_ = true;
  bool equation_1_alone_ = false;
  bool paper_reserve_ = false;
  std::string cxl_ = "auto";
  std::array<std::optional<Placement>, 2> forced_;
  std::array<Choice, 2> choices_{};  ///< by phase
  Chain decode_;                     ///< layers that are not resident
};

}  // namespace
}  // namespace sluice

SLUICE_POLICY(sluice::Lia, "lia",
              "LIA: the cheapest placement by its cost model, whole layers in HBM");
