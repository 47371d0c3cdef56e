#pragma once

#include <starpu.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/environment.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "codelets/runtime/gpu.h"
#include "codelets/runtime/kernel_times.h"
#include "codelets/runtime/node_memory.h"
#include "codelets/runtime/stand_in.h"
#include "codelets/runtime/watchdog.h"

namespace sluice {

/// Throws Error when a StarPU call failed. `what` says what was tried.
void check_starpu(int status, const char* what);

/// Until every task that was submitted has ended.
inline void wait_for_all_tasks() { starpu_task_wait_for_all(); }

/// What has moved from one memory node to another since the last call: StarPU begins anew each
/// time.
struct NodeTraffic {
  std::uint64_t bytes = 0;
  std::int64_t count = 0;
};
NodeTraffic take_traffic(unsigned from, unsigned to);

/// Seconds since StarPU's own beginning of time, by the clock that tasks run by: in a simulation,
/// the simulated machine's.
inline double run_clock_s() { return starpu_timing_now() * 1e-6; }
/// Whether tasks may run on a GPU by CUDA kernels: not in a simulation, nor on a stand-in.
bool runs_cuda_kernels();
/// Sleeps until run_clock_s() says so; in reality at most a twentieth of a second, so that the
/// caller can look whether it is still to.
void sleep_until_run_clock(double time_s);

class RoutingRecorder;

/// Which of its pool's cuts a task is computed by.
struct PhaseCuts {
  int prefill = 0;
  int decode = 0;

  int of(const TaskTag& tag) const {
    return tag.beside_prompts || tag.phase == Phase::prefill ? prefill : decode;
  }
};

/// What a CPU kernel computes with: threads and scratch memory.
struct CpuContext {
  ThreadPool& pool;
  Workspace& workspace;                          ///< shared by all threads; one kernel at a time
  std::atomic<std::int64_t>* busy_ns = nullptr;  ///< time inside of kernels
  KernelTimes* times = nullptr;                  ///< the same, by sublayer
  RoutingRecorder* routing = nullptr;  ///< null: nobody asks which experts rows go through
  PhaseCuts cuts = {};
};

/// How a pool's threads are cut up while the tasks of each phase run.
struct PhaseGroups {
  ThreadPool::Cut prefill;
  ThreadPool::Cut decode;
};

/// How the machine's processors are used.
struct RuntimeOptions {
  /// A thread each; one StarPU CPU worker has them all. Empty: all cores.
  std::vector<int> cores = {};
  /// How the threads are cut up in each phase; nothing: all are one group.
  std::optional<PhaseGroups> groups = std::nullopt;
  /// Decides which worker runs what; lives until after the runtime. Null: any free one runs what
  /// comes first.
  starpu_sched_policy* scheduler = nullptr;
  /// Memory of a stand-in accelerator (stand_in.h) that runs beside the CPU; 0: none.
  std::uint64_t stand_in_bytes = 0;
  /// Memory of the first GPU that StarPU may use, rounded down to MiB; 0: no GPU. Not with a
  /// stand-in accelerator.
  std::uint64_t gpu_bytes = 0;
  /// accelerator_totals() knows a GPU's kernels only where they are timed.
  GpuWorker::Launches gpu_launches = GpuWorker::Launches::in_graphs;
};

/// What an accelerator's memory holds and has moved, in bytes.
struct AcceleratorUse {
  std::uint64_t memory_bytes = 0;
  std::uint64_t peak_bytes = 0;  ///< StarPU's count, as each task has ended
  std::uint64_t to_bytes = 0;    ///< moved into it
  std::uint64_t cxl_bytes = 0;   ///< of those, out of CXL memory
  std::uint64_t from_bytes = 0;
};

/// StarPU, started and stopped. One at a time in a process.
class Runtime {
 public:
  /// Throws Error when StarPU cannot start.
  explicit Runtime(const RuntimeOptions& options);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// The context of the StarPU CPU worker that calls.
  static CpuContext current_cpu();
  /// The context of the GPU's worker that calls.
  static const cuda::Context& current_gpu();

  /// The CPU worker's threads, for work outside of tasks (packing weights) while no task runs.
  ThreadPool& setup_pool();

  /// From now on tasks are computed by these groups; while no task runs. Throws Error when they are
  /// not possible.
  void compute_by(const PhaseGroups& groups);

  /// Time inside of CPU kernels since reset_busy(). What a run takes beyond it is the task
  /// system's: submission, scheduling, waiting.
  double busy_seconds() const;
  /// The same by phase and sublayer.
  KernelTotals kernel_totals() const;
  void reset_busy();
  /// The same of the accelerator's kernels: of a GPU's only where it was asked for. All tasks have
  /// ended.
  KernelTotals accelerator_totals() const;

  /// From now on the experts that the CPU computes are counted; while no task runs. Those of the
  /// stand-in accelerator are not.
  RoutingRecorder& record_routing();

  /// The memory of the GPU, or of the stand-in accelerator, for StarPU; nothing without one.
  std::optional<unsigned> accelerator_node() const { return accelerator_node_; }
  /// Takes the memory that kernels on the GPU will need while they run, and what will pass between
  /// the kernels of one task, before StarPU fills it with data. Throws Error when it is not there.
  void reserve_on_gpu(std::uint64_t workspace_bytes, std::uint64_t stage_bytes);
  /// From the beginning on. Only where there is one.
  AcceleratorUse accelerator_use() const;
  /// From the beginning on; none without a GPU. All tasks have ended.
  GraphUse graph_use() const;
  /// What the processors' tasks have read in place of weights in CXL memory: each task all of one,
  /// since the process began.
  std::uint64_t cxl_read_bytes() const;
  /// Counts that, for the task that calls.
  static void note_cxl_reads();

  int num_threads() const;
  std::string version() const;  ///< "1.4.10"
  std::string flavour() const;  ///< "native" or "native + CUDA"

 private:
  struct Cpu;
  /// In the process that plays it.
  void prepare_stand_in(const std::vector<int>& cores) const;
  void start(const RuntimeOptions& options);
  void start_cpu_worker();
  void start_gpu(GpuWorker::Launches launches);
  void watch(unsigned node);
  void stop() noexcept;

  StarpuVariables variables_;  ///< longer than StarPU
  SharedKernelTimes accelerator_times_;
  std::unique_ptr<RoutingRecorder> routing_;
  std::unique_ptr<StandIn> stand_in_;
  bool has_gpu_ = false;
  std::optional<unsigned> accelerator_node_;
  std::unique_ptr<Cpu> cpu_;
  class Submitter;
  std::unique_ptr<Submitter> submitter_;
  std::optional<Watchdog> watchdog_;
};

/// Calls `wait` while no task is there, and lets StarPU's workers sleep meanwhile, which else look
/// for one all the time. Not in a simulation, whose clock stands still with them.
void rest_workers(const std::function<void()>& wait);

/// Keeps StarPU's workers asleep while it lives: idle ones poll, and would take a core from what
/// runs on setup_pool().
class PausedWorkers {
 public:
  PausedWorkers() { starpu_pause(); }
  ~PausedWorkers() { starpu_resume(); }
  PausedWorkers(const PausedWorkers&) = delete;
  PausedWorkers& operator=(const PausedWorkers&) = delete;
};

/// What lies in CXL memory: a task that reads weights reads all of them, of KV some pages.
enum class CxlData : std::uint8_t { weights, kv };

/// A StarPU data handle, unregistered at the end. Move-only.
class DataHandle {
 public:
  DataHandle() = default;
  ~DataHandle() { reset(); }
  DataHandle(DataHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  DataHandle& operator=(DataHandle&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  DataHandle(const DataHandle&) = delete;
  DataHandle& operator=(const DataHandle&) = delete;

  /// `size_bytes` of host memory that stays the caller's.
  static DataHandle of_memory(const void* data, std::size_t size_bytes);
  /// The same in CXL memory: StarPU takes it and DDR for one memory node, so that processors read
  /// it in place and accelerators straight from there; what those read is counted apart.
  static DataHandle of_cxl_memory(const void* data, std::size_t size_bytes, CxlData what);
  /// `size_bytes` that StarPU allocates where the first writer runs.
  static DataHandle temporary(std::size_t size_bytes);
  /// `size_bytes` that live on a memory node and that no kernel ever looks into: for simulation.
  /// Where the node's memory is limited, they count until the end. Throws Error when they do not
  /// fit.
  static DataHandle imagined(std::size_t size_bytes, unsigned node = STARPU_MAIN_RAM);
  /// `size_bytes` at `place` of a memory node, as its driver names places; they stay the caller's.
  static DataHandle on_node(const void* place, std::size_t size_bytes, unsigned node);

  starpu_data_handle_t get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

  /// 0 where there is nothing.
  std::size_t size_bytes() const { return handle_ != nullptr ? starpu_data_get_size(handle_) : 0; }
  /// Whether it lives in main memory, wherever copies of it may be; and where there. Not of
  /// nothing.
  bool lives_in_main_memory() const {
    return starpu_data_get_home_node(handle_) == static_cast<int>(main_memory_node);
  }
  void* main_memory() const { return starpu_data_handle_to_pointer(handle_, main_memory_node); }
  /// Has it copied to a node, and goes on. Throws Error when StarPU refuses.
  void send_to(unsigned node) const {
    check_starpu(starpu_data_prefetch_on_node(handle_, node, 1), "sending data");
  }
  /// Has a node give up its copy, if another node has one.
  void leave(unsigned node) const { starpu_data_evict_from_node(handle_, node); }

  /// Lets StarPU drop it when the tasks submitted so far are done, without waiting.
  void release_after_use() noexcept {
    if (handle_ != nullptr) starpu_data_unregister_submit(std::exchange(handle_, nullptr));
  }
  /// Waits for the tasks that use it.
  void reset() noexcept {
    if (handle_ != nullptr) starpu_data_unregister(std::exchange(handle_, nullptr));
  }

 private:
  starpu_data_handle_t handle_ = nullptr;
};

/// Holds a handle's memory in the host's, to be written all over, for as long as it lives. Waits
/// for the tasks that use it; what it held is gone.
class WriteAccess {
 public:
  explicit WriteAccess(const DataHandle& handle) : handle_(handle.get()) {
    check_starpu(starpu_data_acquire(handle_, STARPU_W), "writing data");
  }
  ~WriteAccess() { starpu_data_release(handle_); }
  WriteAccess(const WriteAccess&) = delete;
  WriteAccess& operator=(const WriteAccess&) = delete;
  std::span<std::byte> bytes() const {
    return {static_cast<std::byte*>(starpu_data_get_local_ptr(handle_)),
            starpu_data_get_size(handle_)};
  }

 private:
  starpu_data_handle_t handle_;
};

/// Holds a handle's data in a memory node for as long as it lives. Move-only.
class NodeAccess {
 public:
  enum class Mode : std::uint8_t {
    read,  ///< brings it there, and waits for it
    write  ///< what it held is gone, and other nodes have nothing
  };
  /// `what` is tried, for the Error when StarPU refuses.
  NodeAccess(const DataHandle& handle, unsigned node, Mode mode, const char* what)
      : handle_(handle.get()), node_(static_cast<int>(node)) {
    check_starpu(
        starpu_data_acquire_on_node(handle_, node_, mode == Mode::read ? STARPU_R : STARPU_W),
        what);
  }
  ~NodeAccess() {
    if (handle_ != nullptr) starpu_data_release_on_node(handle_, node_);
  }
  NodeAccess(NodeAccess&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), node_(other.node_) {}
  NodeAccess& operator=(NodeAccess&&) = delete;
  NodeAccess(const NodeAccess&) = delete;
  NodeAccess& operator=(const NodeAccess&) = delete;

 private:
  starpu_data_handle_t handle_;
  int node_;
};

/// Holds a handle's data in host memory, readable, for as long as it lives. Waits for its writers.
class ReadAccess {
 public:
  explicit ReadAccess(const DataHandle& handle) : handle_(handle.get()) {
    check_starpu(starpu_data_acquire(handle_, STARPU_R), "reading a result");
  }
  ~ReadAccess() { starpu_data_release(handle_); }
  ReadAccess(const ReadAccess&) = delete;
  ReadAccess& operator=(const ReadAccess&) = delete;
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(starpu_data_get_local_ptr(handle_));
  }

 private:
  starpu_data_handle_t handle_;
};

}  // namespace sluice
