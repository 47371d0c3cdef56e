#include "engine/simulate/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/simulated.h"
#include "codelets/runtime/task_model.h"
#include "codelets/runtime/trace_recorder.h"
#include "engine/run/run_engine.h"
#include "engine/simulate/simulated_contention.h"
#include "engine/simulate/simulated_links.h"
#include "graphs/decoder_graph.h"
#include "graphs/imagined_model.h"
#include "perfmodels/task_cost.h"
#include "schedulers/crash_guard.h"

namespace sluice {
namespace {

/// Counts what the tasks have done that have ended.
class Watcher {
 public:
  explicit Watcher(unsigned gpu_node)
      : gpu_node_(gpu_node), finished_([this](const FinishedTask& task) { ended(task); }) {}

  /// Tasks that have ended do not count, but for what is in memory.
  void start() {
    num_tasks_ = 0;
    busy_s_ = {};
    computing_s_ = 0;
  }

  std::int64_t num_tasks() const { return num_tasks_; }
  /// Up to the last one with a prompt, or a part of one.
  std::int64_t num_prefill_iterations() const { return num_prefill_iterations_; }
  double busy_s(Phase phase, Device device) const {
    return busy_s_.at(static_cast<std::size_t>(phase)).at(static_cast<std::size_t>(device));
  }
  std::uint64_t peak_bytes(Device device) const {
    return peak_bytes_.at(static_cast<std::size_t>(device));
  }
  /// For which some device computed.
  double computing_s() const { return computing_s_; }

 private:
  void ended(const FinishedTask& task) {
    ++num_tasks_;
    if (task.tag.phase == Phase::prefill)
      num_prefill_iterations_ = std::max(num_prefill_iterations_, task.tag.iteration + 1);
    busy_s_.at(static_cast<std::size_t>(task.tag.phase))
        .at(static_cast<std::size_t>(task.device)) += task.end_s - task.start_s;
    // Tasks end in order, and few run at once: what is before `covered_s_` has been counted.
    computing_s_ += std::max(0.0, task.end_s - std::max(task.start_s, covered_s_));
    covered_s_ = std::max(covered_s_, task.end_s);
    note_peak(Device::cpu, main_memory_node);
    if (gpu_node_ != no_memory_node) note_peak(Device::gpu, gpu_node_);
  }
  void note_peak(Device device, unsigned node) {
    std::uint64_t& peak = peak_bytes_.at(static_cast<std::size_t>(device));
    peak = std::max(peak, node_used_bytes(node));
  }

  unsigned gpu_node_;
  std::int64_t num_tasks_ = 0;
  std::int64_t num_prefill_iterations_ = 0;
  std::array<std::array<double, 2>, 2> busy_s_{};
  std::array<std::uint64_t, 2> peak_bytes_{};
  double covered_s_ = 0;
  double computing_s_ = 0;
  FinishedTasks finished_;  ///< gone first: where a policy ends the run, tasks are still under way
};

class Simulator {
 public:
  explicit Simulator(const SimulationSetup& setup) : setup_(setup) {}

  Simulation run() {
    const auto start = std::chrono::steady_clock::now();
    check_length(setup_.config, setup_.workload);
    result_.plan = make_plan(setup_.policy.policy(), *setup_.costs, setup_.workload);
    if (!result_.plan.shortage.empty())
      throw Error("policy {}: plan_memory: {}", setup_.policy.name(), result_.plan.shortage);
    // Anew, as a run does.
    const std::int64_t pages = KvCache::pages_for(setup_.workload.total_tokens());
    PolicyRun policy(setup_.policy.policy(), *setup_.costs, setup_.workload,
                     {.all = pages * setup_.workload.batch});
    policy.check_as_planned(result_.plan.memory, result_.plan.workload);
    check_possible(policy.memory());
    setup_.policy.set_staging(staging_of(result_.plan, setup_.costs->model()));
    const std::uint64_t hbm_bytes =
        setup_.hbm_limit_bytes.value_or(setup_.costs->capacity_bytes(Tier::hbm));
    const SimulatedRuntime machine({.has_gpu = setup_.costs->has(Device::gpu),
                                    .scheduler = setup_.policy.scheduler(),
                                    .gpu_bytes = hbm_bytes,
                                    .passing_bytes = passing_bytes()});
    CrashGuard::stay_in_charge();
    const CostsInUse costs(*setup_.costs, TaskTime::with_overhead, &policy.memory());
    if (SimulatedContention::is_needed(*setup_.costs)) contention_.emplace(*setup_.costs);
    setup_.trace.divide_stages_by(setup_.costs, policy.memory());
    Watcher watcher(machine.gpu_node());
    generate(machine, watcher, policy);
    contention_.reset();
    finish(machine, watcher);
    result_.wall_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return result_;
  }

 private:
  void check_possible(const MemoryPlan& memory) const {
    check_not_disk("the embedding", memory.embedding);
    check_not_disk("the LM head", memory.lm_head);
  }
  void check_not_disk(std::string_view what, Tier tier) const {
    if (tier == Tier::disk) {
      throw Error(
          "policy {}: plan_memory: it keeps {} on a disk; only layers' weights and KV may live "
          "there",
          setup_.policy.name(), what);
    }
  }

  /// With a disk: the DDR that is left for what passes and for values.
  std::optional<std::uint64_t> passing_bytes() const {
    const Footprint& planned = result_.plan.footprint;
    if (planned.weights[Tier::disk] + planned.kv[Tier::disk] == 0) return std::nullopt;
    const double lives_there = planned.weights[Tier::ddr] + planned.kv[Tier::ddr];
    return setup_.costs->capacity_bytes(Tier::ddr) - static_cast<std::uint64_t>(lives_there);
  }

  void generate(const SimulatedRuntime& machine, Watcher& watcher, PolicyRun& policy) {
    const Workload& workload = setup_.workload;
    ImaginedModel model(setup_.config, setup_.dtype, setup_.costs->model(), policy.memory(),
                        tier_nodes(machine));
    std::vector<KvCache> kv;
    for (const KvCohort& cohort : policy.kv_cohorts()) {
      kv.emplace_back(model.shape(), cohort.homes, tier_nodes(machine), cohort.pages);
    }
    RunEngine engine(model, kv, policy, {.max_sequences = workload.batch}, {});
    std::vector<Request> requests(static_cast<std::size_t>(workload.batch));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Request& request = requests[i];
      request.index = static_cast<std::int64_t>(i);
      request.prompt_tokens.assign(static_cast<std::size_t>(workload.input_tokens), 0);
      request.max_new_tokens = workload.output_tokens;
      request.ignore_eos = true;
    }
    RequestList source(std::move(requests));
    EngineEvents events;
    std::int64_t num_started = 0;
    events.on_token = [&](const Request&, const DrawnToken& token) {
      if (token.index == 0 && ++num_started == workload.batch) end_prefill(machine);
      return Verdict::goes_on;
    };
    double tpot_sum_s = 0;
    events.on_finished = [&](const Completion& done) {
      tpot_sum_s += done.time_per_output_token_s();
    };
    wait_for_all_tasks();  // KV is cleared where it lives
    watcher.start();
    start_s_ = run_clock_s();
    const std::atomic<bool> never{false};
    EngineStats stats;
    {
      const TraceSession::Recording recording = setup_.trace.record();
      stats = engine.engine().run(source, events, never);
      wait_for_all_tasks();
    }
    result_.decode.seconds = run_clock_s() - start_s_ - result_.prefill.seconds;
    result_.prefill.iterations = watcher.num_prefill_iterations();
    result_.decode.iterations = stats.iterations - result_.prefill.iterations;
    result_.tpot_s = tpot_sum_s / static_cast<double>(workload.batch);
    add_links(machine, result_.decode);
  }

  /// All requests have their first token.
  void end_prefill(const SimulatedRuntime& machine) {
    result_.prefill.seconds = run_clock_s() - start_s_;
    if (contention_) contention_->enter(Phase::decode);
    add_links(machine, result_.prefill);
  }

  void add_links(const SimulatedRuntime& machine, SimulatedPhase& phase) {
    const LinkTraffic traffic = take_link_traffic(*setup_.costs, machine);
    result_.disk_bytes += traffic.disk_bytes;
    result_.to_gpu_bytes += traffic.to_gpu_bytes;
    result_.to_cpu_bytes += traffic.to_cpu_bytes;
    phase.busy += traffic.busy;
  }

  void finish(const SimulatedRuntime& machine, const Watcher& watcher) {
    result_.num_tasks = watcher.num_tasks();
    for (const Phase phase : {Phase::prefill, Phase::decode}) {
      BusyTimes& busy = (phase == Phase::prefill ? result_.prefill : result_.decode).busy;
      busy.cpu_s = watcher.busy_s(phase, Device::cpu);
      busy.gpu_s = watcher.busy_s(phase, Device::gpu);
    }
    const double idle_s = result_.latency_s() - watcher.computing_s();
    result_.overlap_s = std::max(0.0, result_.busy().to_gpu_s - std::max(0.0, idle_s));
    // StarPU counts what it allocates; what lives in host memory all the time is ours.
    const Footprint& planned = result_.plan.footprint;
    for (const Tier tier : {Tier::ddr, Tier::cxl, Tier::disk})
      result_.peak_bytes[tier] = planned.weights[tier] + planned.kv[tier];
    result_.peak_bytes[Tier::ddr] += static_cast<double>(watcher.peak_bytes(Device::cpu));
    if (machine.gpu_node() != no_memory_node)
      result_.peak_bytes[Tier::hbm] = static_cast<double>(watcher.peak_bytes(Device::gpu));
    note_shortage();
  }

  /// StarPU keeps to HBM's size; in host memory it takes what it asks for.
  void note_shortage() {
    for (const Tier tier : {Tier::ddr, Tier::cxl}) {
      const std::uint64_t there = setup_.costs->capacity_bytes(tier);
      const auto peak = static_cast<std::uint64_t>(result_.peak_bytes[tier]);
      if (peak <= there) continue;
      result_.shortage = fmt::format(
          "{} held {} at its fullest, {} of it values on their way, and has {}; a smaller batch "
          "needs less",
          to_string(tier), format_bytes(peak),
          format_bytes(peak - static_cast<std::uint64_t>(result_.plan.footprint.weights[tier] +
                                                         result_.plan.footprint.kv[tier])),
          format_bytes(there));
      return;
    }
  }

  const SimulationSetup& setup_;
  Simulation result_;
  double start_s_ = 0;
  std::optional<SimulatedContention> contention_;
};

}  // namespace

BusyTimes Simulation::busy() const {
  BusyTimes sum = prefill.busy;
  sum += decode.busy;
  return sum;
}

Simulation simulate(const SimulationSetup& setup) { return Simulator(setup).run(); }

}  // namespace sluice
