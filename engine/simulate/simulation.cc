#include "engine/simulate/simulation.h"

#include <fmt/format.h>
#include <starpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <vector>

#include "base/environment.h"
#include "base/units.h"
#include "codelets/runtime/disk_node.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/task_model.h"
#include "codelets/runtime/trace_recorder.h"
#include "engine/generator.h"
#include "engine/simulate/simulated_contention.h"
#include "graphs/decoder_graph.h"
#include "graphs/imagined_model.h"
#include "perfmodels/task_cost.h"
#include "schedulers/crash_guard.h"

namespace sluice {
namespace {

constexpr unsigned no_node = STARPU_MAXNODES;

double seconds_of(const timespec& time) {
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Watches the tasks as they end. StarPU's callbacks know no object, hence the one in use.
class Watcher {
 public:
  explicit Watcher(unsigned gpu_node) : gpu_node_(gpu_node) {
    in_use = this;
    set_task_observer([](void*) { in_use->ended(starpu_task_get_current()); });
  }
  /// Where a policy ends the run, tasks are still under way, and tell it when they end.
  ~Watcher() {
    starpu_task_wait_for_all();
    set_task_observer(nullptr);
    in_use = nullptr;
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

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
  static inline Watcher* in_use = nullptr;

  void ended(starpu_task* task) {
    const TaskTag* tag = tag_of(task);
    if (tag == nullptr) return;
    ++num_tasks_;
    if (tag->phase == Phase::prefill)
      num_prefill_iterations_ = std::max(num_prefill_iterations_, tag->iteration + 1);
    const starpu_profiling_task_info* info = task->profiling_info;
    const bool on_gpu = starpu_worker_get_type(info->workerid) == STARPU_CUDA_WORKER;
    const double start_s = seconds_of(info->start_time);
    const double end_s = seconds_of(info->end_time);
    busy_s_.at(static_cast<std::size_t>(tag->phase)).at(on_gpu ? 0 : 1) += end_s - start_s;
    // Tasks end in order, and few run at once: what is before `covered_s_` has been counted.
    computing_s_ += std::max(0.0, end_s - std::max(start_s, covered_s_));
    covered_s_ = std::max(covered_s_, end_s);
    note_peak(Device::cpu, STARPU_MAIN_RAM);
    if (gpu_node_ != no_node) note_peak(Device::gpu, gpu_node_);
  }
  void note_peak(Device device, unsigned node) {
    std::uint64_t& peak = peak_bytes_.at(static_cast<std::size_t>(device));
    peak = std::max<std::uint64_t>(peak, starpu_memory_get_used(node));
  }

  unsigned gpu_node_;
  std::int64_t num_tasks_ = 0;
  std::int64_t num_prefill_iterations_ = 0;
  std::array<std::array<double, 2>, 2> busy_s_{};
  std::array<std::uint64_t, 2> peak_bytes_{};
  double covered_s_ = 0;
  double computing_s_ = 0;
};

/// What StarPU allocates in main memory: address space that nothing is behind. Results that are
/// read are zeros.
int reserve_memory(unsigned /*node*/, void** address, std::size_t size_bytes, int /*flags*/) {
  *address =
      mmap(nullptr, size_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *address == MAP_FAILED ? -ENOMEM : 0;
}
int release_memory(unsigned /*node*/, void* address, std::size_t size_bytes, int /*flags*/) {
  return munmap(address, size_bytes);
}

/// StarPU on the simulated machine.
class SimulatedMachine {
 public:
  /// StarPU takes up to `hbm_bytes` of a GPU. `passing_bytes` of main memory are there for what it
  /// allocates, beside a disk if they are given.
  SimulatedMachine(const CostModel& costs, starpu_sched_policy* scheduler, std::uint64_t hbm_bytes,
                   std::optional<std::uint64_t> passing_bytes) {
    if (passing_bytes) disk_.emplace(*passing_bytes, 0);
    variables_.set("STARPU_LIMIT_CUDA_MEM", std::to_string(hbm_bytes >> 20));  // in MiB
    // A task that a worker has taken ahead is not overtaken by one that the CPU waits for.
    variables_.set("STARPU_CUDA_PIPELINE", "1");
    starpu_malloc_set_hooks(reserve_memory, release_memory);
    starpu_conf conf;
    check_starpu(starpu_conf_init(&conf), "reading its settings");
    conf.ncpus = 1;
    conf.ncuda = costs.has(Device::gpu) ? 1 : 0;
    conf.nopencl = 0;
    conf.sched_policy = scheduler;
    conf.catch_signals = 0;
    check_starpu(starpu_init(&conf), "starting on the simulated machine");
    CrashGuard::stay_in_charge();
    starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
    int worker = -1;
    if (starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, &worker, 1) == 1)
      gpu_node_ = starpu_worker_get_memory_node(static_cast<unsigned>(worker));
    if (starpu_memory_nodes_get_numa_count() > 1) cxl_node_ = 1;  // platform.h
    if (disk_) disk_->attach();
  }
  ~SimulatedMachine() {
    starpu_task_wait_for_all();
    starpu_shutdown();
  }
  SimulatedMachine(const SimulatedMachine&) = delete;
  SimulatedMachine& operator=(const SimulatedMachine&) = delete;

  unsigned gpu_node() const { return gpu_node_; }
  unsigned disk_node() const { return disk_ ? disk_->node() : no_node; }
  TierNodes tier_nodes() const { return {gpu_node_, STARPU_MAIN_RAM, cxl_node_, disk_node()}; }

 private:
  StarpuVariables variables_;
  std::optional<DiskNode> disk_;  ///< both live longer than StarPU
  unsigned gpu_node_ = no_node;
  unsigned cxl_node_ = no_node;
};

/// What a direction of the link has moved since it was last asked.
struct Moved {
  double bytes = 0;
  double seconds = 0;
};
Moved moved(const CostModel& costs, unsigned from, unsigned to, Tier from_tier, Tier to_tier) {
  starpu_profiling_bus_info info{};
  starpu_bus_get_profiling_info(starpu_bus_get_id(static_cast<int>(from), static_cast<int>(to)),
                                &info);
  const auto bytes = static_cast<double>(info.transferred_bytes);
  const double latency_s = costs.transfer_s(from_tier, to_tier, 1);
  // One after the other, at the link's rate.
  const double per_byte_s = costs.transfer_s(from_tier, to_tier, 1e9) - latency_s;
  return {bytes, bytes * 1e-9 * per_byte_s + info.transfer_count * latency_s};
}

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
    PolicyRun policy(setup_.policy.policy(), *setup_.costs, setup_.workload);
    policy.check_as_planned(result_.plan.memory, result_.plan.workload);
    check_possible(policy.memory());
    setup_.policy.set_staging(staging_of(result_.plan, setup_.costs->model()));
    const std::uint64_t hbm_bytes =
        setup_.hbm_limit_bytes.value_or(setup_.costs->capacity_bytes(Tier::hbm));
    const SimulatedMachine machine(*setup_.costs, setup_.policy.scheduler(), hbm_bytes,
                                   passing_bytes());
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

  void generate(const SimulatedMachine& machine, Watcher& watcher, PolicyRun& policy) {
    const Workload& workload = setup_.workload;
    ImaginedModel model(setup_.config, setup_.dtype, setup_.costs->model().weight_bits,
                        policy.memory(), machine.tier_nodes());
    std::vector<KvCache> kv;
    for (const KvCohort& cohort : policy.kv_cohorts()) {
      kv.emplace_back(model.shape(), cohort.homes, machine.tier_nodes(),
                      KvCache::pages_for(workload.total_tokens()) * cohort.requests);
    }
    Generator generator(model, kv, nullptr,
                        {.max_batch = workload.batch,
                         .attention = AttentionForm::fused,
                         .fusion = Fusion::layers,
                         .eos_token_ids = {},
                         .policy = &policy});
    std::int64_t num_taken = 0;
    const auto next = [&]() -> std::optional<Request> {
      if (num_taken == workload.batch) return std::nullopt;
      Request request;
      request.index = num_taken++;
      request.prompt_tokens.assign(static_cast<std::size_t>(workload.input_tokens), 0);
      request.max_new_tokens = workload.output_tokens;
      request.ignore_eos = true;
      return request;
    };
    GenerationEvents events;
    std::int64_t num_started = 0;
    events.on_token = [&](const Request&, std::int64_t index) {
      if (index == 0 && ++num_started == workload.batch) end_prefill(machine);
    };
    double tpot_sum_s = 0;
    events.on_finished = [&](const Completion& done) {
      tpot_sum_s += done.time_per_output_token_s;
    };
    starpu_task_wait_for_all();  // KV is cleared where it lives
    watcher.start();
    start_s_ = run_clock_s();
    const std::atomic<bool> never{false};
    GenerationStats stats;
    {
      const TraceSession::Recording recording = setup_.trace.record();
      stats = generator.run(next, events, never);
      starpu_task_wait_for_all();
    }
    result_.decode.seconds = run_clock_s() - start_s_ - result_.prefill.seconds;
    result_.prefill.iterations = watcher.num_prefill_iterations();
    result_.decode.iterations = stats.iterations - result_.prefill.iterations;
    result_.tpot_s = tpot_sum_s / static_cast<double>(workload.batch);
    add_links(machine, result_.decode);
  }

  /// All requests have their first token.
  void end_prefill(const SimulatedMachine& machine) {
    result_.prefill.seconds = run_clock_s() - start_s_;
    if (contention_) contention_->enter(Phase::decode);
    add_links(machine, result_.prefill);
  }

  void add_links(const SimulatedMachine& machine, SimulatedPhase& phase) {
    if (machine.disk_node() != no_node) {
      const Moved read =
          moved(*setup_.costs, machine.disk_node(), STARPU_MAIN_RAM, Tier::disk, Tier::ddr);
      result_.disk_bytes += read.bytes;
      phase.busy.disk_s += read.seconds;
    }
    if (machine.gpu_node() == no_node) return;
    const TierNodes nodes = machine.tier_nodes();
    for (const Tier tier : {Tier::ddr, Tier::cxl}) {
      const unsigned node = nodes.at(static_cast<std::size_t>(tier));
      if (node == no_node) continue;
      const Moved to_gpu = moved(*setup_.costs, node, machine.gpu_node(), tier, Tier::hbm);
      const Moved to_cpu = moved(*setup_.costs, machine.gpu_node(), node, Tier::hbm, tier);
      result_.to_gpu_bytes += to_gpu.bytes;
      result_.to_cpu_bytes += to_cpu.bytes;
      phase.busy.to_gpu_s += to_gpu.seconds;
      phase.busy.to_cpu_s += to_cpu.seconds;
    }
  }

  void finish(const SimulatedMachine& machine, const Watcher& watcher) {
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
    if (machine.gpu_node() != no_node)
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
