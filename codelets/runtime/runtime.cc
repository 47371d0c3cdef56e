#include "codelets/runtime/runtime.h"

#include <fmt/core.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "base/cpu.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "codelets/runtime/failure.h"
#include "codelets/runtime/routing_recorder.h"
#include "codelets/runtime/task_model.h"

namespace sluice {

namespace {

/// oneDNN sees one thread wherever it is called: the parallelism is our own pool's.
void use_one_openmp_thread() { omp_set_num_threads(1); }

}  // namespace

struct Runtime::Cpu {
  Cpu(const std::vector<int>& cores, const std::optional<PhaseGroups>& groups)
      : pool(cores, use_one_openmp_thread,
             groups ? std::vector<ThreadPool::Cut>{groups->prefill}
                    : std::vector<ThreadPool::Cut>{}) {
    if (!groups) return;
    known_.push_back(groups->prefill);
    cuts = numbers_of(*groups);
  }
  PhaseCuts numbers_of(const PhaseGroups& groups) {
    return {.prefill = number_of(groups.prefill), .decode = number_of(groups.decode)};
  }

  ThreadPool pool;
  PhaseCuts cuts;
  Workspace workspace;
  std::atomic<std::int64_t> busy_ns{0};
  KernelTimes times;

 private:
  /// Of a cut of the pool's, which gets it where it does not have it.
  int number_of(const ThreadPool::Cut& cut) {
    const auto found = std::find(known_.begin(), known_.end(), cut);
    if (found != known_.end()) return static_cast<int>(found - known_.begin());
    const int number = pool.add(cut);
    known_.resize(static_cast<std::size_t>(number) + 1);  // the pool's own first one is in no plan
    known_.back() = cut;
    return number;
  }
  std::vector<ThreadPool::Cut> known_;  ///< by number; empty: not from a plan
};

namespace {

/// The memory and threads that a StarPU worker owns; written while StarPU starts, then read only.
std::array<CpuContext*, STARPU_NMAXWORKERS> contexts{};

/// StarPU aborts where it cannot write.
void check_home(const std::filesystem::path& home) {
  const std::error_code error = make_private_folders(home);
  if (!error && access(home.c_str(), W_OK | X_OK) == 0) return;
  throw Error("cannot write into {}: {}; set SLUICE_CACHE to a folder that can be written",
              home.string(), error ? error.message() : std::strerror(errno));
}

void set_starpu_environment(StarpuVariables& variables) {
  // Its measured buses are of the memories that there are: with an emulated GPU, of others.
  const std::filesystem::path home = std::filesystem::path(environment().cache_dir) / "starpu" /
                                     fmt::format("{}-gpus", count_gpus());
  variables.set_default("STARPU_HOME", home);
  check_home(std::getenv("STARPU_HOME"));  // NOLINT(concurrency-mt-unsafe): before threads
  // The thread pools bind themselves, also where the thread that starts them may not run.
  variables.set("STARPU_WORKERS_NOBIND", "1");
  variables.set("STARPU_WORKERS_GETBIND", "0");
  variables.set("STARPU_MAIN_THREAD_BIND", "0");
  variables.set_default("STARPU_SILENT", "1");
}

}  // namespace

/// While it lives, the thread that made it, which submits the tasks, and those that it starts
/// (StarPU's, which drive devices) stay off the cores that the pools compute on, if there are
/// others.
class Runtime::Submitter {
 public:
  explicit Submitter(const std::vector<int>& computing) {
    if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    cpu_set_t spare = before_;
    for (const int core : computing) CPU_CLR(static_cast<std::size_t>(core), &spare);
    moved_ = CPU_COUNT(&spare) > 0 && sched_setaffinity(0, sizeof(spare), &spare) == 0;
  }
  ~Submitter() {
    if (moved_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;

 private:
  cpu_set_t before_{};
  bool moved_ = false;
};

namespace {

/// The most that the accelerator's memory has held.
std::atomic<std::uint64_t> peak_bytes{0};
std::atomic<unsigned> watched_node{STARPU_MAIN_RAM};

void note_peak(void* /*unused*/) {
  const std::uint64_t now = starpu_memory_get_used(watched_node);
  std::uint64_t before = peak_bytes;
  while (now > before && !peak_bytes.compare_exchange_weak(before, now)) {
  }
}

/// What the GPU's worker computes with; made and ended by it, while no task runs.
std::unique_ptr<GpuWorker> gpu_worker;

void look_for_gpu_failure() {
  const std::string failure = gpu_worker->take_failure();
  if (!failure.empty()) run_failure().record("a kernel on the GPU failed: " + failure);
}

/// StarPU cuts small blocks from larger ones (32 MiB), which a small memory has no room for.
constexpr std::uint64_t smallest_shared_bytes = std::uint64_t{1} << 30;

void limit_gpu_memory(std::uint64_t bytes, StarpuVariables& variables) {
  variables.set("STARPU_LIMIT_CUDA_MEM", std::to_string(bytes >> 20));
  // nor has a disk's window in main memory.
  // NOLINTNEXTLINE(concurrency-mt-unsafe): before StarPU's threads exist
  const bool has_window = std::getenv("STARPU_LIMIT_CPU_MEM") != nullptr;
  variables.set("STARPU_SUBALLOCATOR", has_window || bytes < smallest_shared_bytes ? "0" : "1");
}

/// What moved into the accelerator's memory and out of it, as far as StarPU was asked.
std::atomic<std::uint64_t> to_bytes{0};
std::atomic<std::uint64_t> from_bytes{0};
/// What accelerators read of data in CXL memory, and what this process's processors read of weights
/// there.
std::atomic<std::uint64_t> cxl_bytes{0};
std::atomic<std::uint64_t> cxl_read_bytes{0};

int copy_cxl_vector(void* from, unsigned from_node, void* to, unsigned to_node, void* async_data) {
  if (from_node == STARPU_MAIN_RAM && to_node != STARPU_MAIN_RAM)
    cxl_bytes += static_cast<starpu_vector_interface*>(from)->elemsize;
  return starpu_interface_vector_ops.copy_methods->any_to_any(from, from_node, to, to_node,
                                                              async_data);
}

/// StarPU's vectors, with copies that are counted.
starpu_data_interface_ops counted_vectors() {
  static const starpu_data_copy_methods methods = [] {
    starpu_data_copy_methods counted = *starpu_interface_vector_ops.copy_methods;
    counted.any_to_any = copy_cxl_vector;
    return counted;
  }();
  starpu_data_interface_ops ops = starpu_interface_vector_ops;
  ops.copy_methods = &methods;
  return ops;
}

/// Of each kind its own, so that a handle tells what it is.
starpu_data_interface_ops& cxl_vectors(CxlData what) {
  static std::array<starpu_data_interface_ops, 2> ops = {counted_vectors(), counted_vectors()};
  return ops.at(static_cast<std::size_t>(what));
}

/// What a run that goes no further is left with: StarPU has no way to give up a task.
void end_program(const std::string& problem) {
  fmt::print(stderr, "sluice: {}\n", problem);
  std::_Exit(EXIT_FAILURE);
}

/// While it lives, Ctrl-C and its like wait; threads that are made meanwhile leave them to others.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, number);
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

void rest_workers(const std::function<void()>& wait) {
#ifndef STARPU_SIMGRID
  const PausedWorkers asleep;
#endif
  wait();
}

void sleep_until_run_clock(double time_s) {
  double seconds = time_s - run_clock_s();
#ifndef STARPU_SIMGRID
  constexpr double slice_s = 0.05;
  seconds = std::min(seconds, slice_s);
#endif
  if (seconds > 0) starpu_sleep(static_cast<float>(seconds));
}

void check_starpu(int status, const char* what) {
  if (status != 0) throw Error("StarPU: {} failed: {}", what, std::strerror(-status));
}

NodeTraffic take_traffic(unsigned from, unsigned to) {
  starpu_profiling_bus_info info{};
  starpu_bus_get_profiling_info(starpu_bus_get_id(static_cast<int>(from), static_cast<int>(to)),
                                &info);
  return {.bytes = static_cast<std::uint64_t>(info.transferred_bytes),
          .count = info.transfer_count};
}

Runtime::Runtime(const RuntimeOptions& options) {
  const std::vector<int> cores = options.cores.empty() ? read_cpu_topology().cores : options.cores;
  const int watchdog_s = watchdog_limit_s();
  set_starpu_environment(variables_);
  run_failure();  // both processes have it
  accelerator_times_ = make_shared_kernel_times();
  if (options.stand_in_bytes > 0) {
    stand_in_ = std::make_unique<StandIn>(options.stand_in_bytes, [&] { prepare_stand_in(cores); });
  }
  use_one_openmp_thread();
  submitter_ = std::make_unique<Submitter>(cores);
  cpu_ = std::make_unique<Cpu>(cores, options.groups);

  has_gpu_ = options.gpu_bytes > 0;
  if (has_gpu_) limit_gpu_memory(options.gpu_bytes, variables_);
  start(options);
  try {
    start_cpu_worker();
    if (has_gpu_) start_gpu(options.gpu_launches);
    if (stand_in_) {
      stand_in_->started();
      watch(stand_in_->node());
    }
  } catch (const Error&) {
    stop();
    throw;
  }
  if (watchdog_s > 0) watchdog_.emplace(watchdog_s, end_program);
}

void Runtime::start(const RuntimeOptions& options) {
  starpu_conf conf;
  check_starpu(starpu_conf_init(&conf), "reading its settings");
  conf.ncpus = 1;
  conf.ncuda = has_gpu_ ? 1 : 0;
  conf.nopencl = 0;
  conf.ntcpip_ms = stand_in_ ? 1 : 0;
  // By name StarPU would fall back to another one. STARPU_SCHED, which wins over an object, is not
  // set (ignore_starpu_variables()).
  conf.sched_policy = options.scheduler;
  if (options.scheduler == nullptr) conf.sched_policy_name = "eager";
  conf.catch_signals = 0;
  const int status = [&] {
    const SignalsWait wait;  // its sockets to the stand-in know no interrupted calls
    return starpu_init(&conf);
  }();
  if (status != 0) {
    throw Error("StarPU cannot start ({}); see `sluice info` and SLUICE_LOG=debug",
                std::strerror(-status));
  }
}

void Runtime::start_cpu_worker() {
  int worker = -1;
  if (starpu_worker_get_ids_by_type(STARPU_CPU_WORKER, &worker, 1) < 1)
    throw Error("StarPU has no CPU worker");
  contexts.at(static_cast<std::size_t>(worker)) = new CpuContext{.pool = cpu_->pool,
                                                                 .workspace = cpu_->workspace,
                                                                 .busy_ns = &cpu_->busy_ns,
                                                                 .times = &cpu_->times,
                                                                 .cuts = cpu_->cuts};
  starpu_execute_on_each_worker(
      [](void*) {
        CpuContext* context = contexts.at(static_cast<std::size_t>(starpu_worker_get_id_check()));
        if (context == nullptr) return;
        context->pool.enter();
        use_one_openmp_thread();
      },
      nullptr, STARPU_CPU);
}

namespace {

/// Runs `work` on the GPU's worker. Throws Error when it does.
void run_on_gpu_worker(const std::function<void()>& work) {
  struct Call {
    const std::function<void()>& work;
    std::string problem;
  } call{work, ""};
  starpu_execute_on_each_worker(
      [](void* argument) {
        auto& of = *static_cast<Call*>(argument);
        try {
          of.work();
        } catch (const std::exception& error) {
          of.problem = error.what();
        }
      },
      &call, STARPU_CUDA);
  if (!call.problem.empty()) throw Error("{}", call.problem);
}

}  // namespace

void Runtime::start_gpu(GpuWorker::Launches launches) {
  int worker = -1;
  if (starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, &worker, 1) != 1)
    throw Error("StarPU does not see the GPU");
  run_on_gpu_worker([&] { gpu_worker = GpuWorker::make(launches); });
  Failure::set_source(look_for_gpu_failure);
  watch(starpu_worker_get_memory_node(static_cast<unsigned>(worker)));
}

void Runtime::reserve_on_gpu(std::uint64_t workspace_bytes, std::uint64_t stage_bytes) {
  run_on_gpu_worker([&] { gpu_worker->reserve(workspace_bytes, stage_bytes); });
}

void Runtime::watch(unsigned node) {
  accelerator_node_ = node;
  watched_node = node;
  peak_bytes = starpu_memory_get_used(node);
  to_bytes = 0;
  from_bytes = 0;
  cxl_bytes = 0;
  set_task_observer(note_peak);
}

Runtime::~Runtime() { stop(); }

void Runtime::stop() noexcept {
  starpu_task_wait_for_all();
  if (accelerator_node_) set_task_observer(nullptr);
  if (stand_in_) stand_in_->expect_end();
  if (has_gpu_) {
    Failure::set_source(nullptr);
    starpu_execute_on_each_worker([](void*) { gpu_worker.reset(); }, nullptr, STARPU_CUDA);
  }
  watchdog_.reset();  // it asks StarPU
  starpu_shutdown();
  for (CpuContext*& context : contexts) delete std::exchange(context, nullptr);
}

CpuContext Runtime::current_cpu() {
  return *contexts.at(static_cast<std::size_t>(starpu_worker_get_id_check()));
}

const cuda::Context& Runtime::current_gpu() { return gpu_worker->context(); }

void Runtime::prepare_stand_in(const std::vector<int>& cores) const {
  use_one_openmp_thread();
  static const Submitter driver(cores);  // its own StarPU's threads
  auto* pool = new ThreadPool(cores, use_one_openmp_thread);
  auto* workspace = new Workspace;
  for (CpuContext*& context : contexts)
    context = new CpuContext{*pool, *workspace, nullptr, accelerator_times_.get()};
}

bool runs_cuda_kernels() {
#ifdef STARPU_SIMGRID
  return false;
#else
  return starpu_cuda_worker_get_count() > 0;
#endif
}

RoutingRecorder& Runtime::record_routing() {
  if (!routing_) routing_ = std::make_unique<RoutingRecorder>();
  for (CpuContext* context : contexts) {
    if (context != nullptr) context->routing = routing_.get();
  }
  return *routing_;
}

extern "C" void sluice_stand_in_entry(void** buffers, void* arg) {
  thread_local bool entered = false;
  if (!std::exchange(entered, true)) {
    Runtime::current_cpu().pool.enter();
    use_one_openmp_thread();
  }
  const starpu_task* task = starpu_task_get_current();
  starpu_cpu_func_t kernel = nullptr;
  std::memcpy(&kernel, static_cast<std::byte*>(arg) + task->cl_arg_size - sizeof(kernel),
              sizeof(kernel));
  kernel(buffers, arg);
}

std::uint64_t Runtime::cxl_read_bytes() const { return sluice::cxl_read_bytes; }

void Runtime::note_cxl_reads() {
  const starpu_task* task = starpu_task_get_current();
  if (task == nullptr) return;
  for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
    starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
    if (starpu_data_get_interface_ops(handle) == &cxl_vectors(CxlData::weights))
      sluice::cxl_read_bytes += starpu_data_get_size(handle);
  }
}

AcceleratorUse Runtime::accelerator_use() const {
  const unsigned node = accelerator_node_.value();
  to_bytes += take_traffic(main_memory_node, node).bytes;
  from_bytes += take_traffic(node, main_memory_node).bytes;
  return {.memory_bytes = static_cast<std::uint64_t>(starpu_memory_get_total(node)),
          .peak_bytes = peak_bytes,
          .to_bytes = to_bytes,
          .cxl_bytes = cxl_bytes,
          .from_bytes = from_bytes};
}

GraphUse Runtime::graph_use() const { return has_gpu_ ? gpu_worker->graph_use() : GraphUse{}; }

ThreadPool& Runtime::setup_pool() { return cpu_->pool; }

void Runtime::compute_by(const PhaseGroups& groups) {
  cpu_->cuts = cpu_->numbers_of(groups);
  for (CpuContext* context : contexts) {
    if (context != nullptr && &context->pool == &cpu_->pool) context->cuts = cpu_->cuts;
  }
}

double Runtime::busy_seconds() const {
  return static_cast<double>(cpu_->busy_ns.load(std::memory_order_relaxed)) * 1e-9;
}

KernelTotals Runtime::kernel_totals() const { return cpu_->times.totals(); }

void Runtime::reset_busy() {
  cpu_->busy_ns.store(0, std::memory_order_relaxed);
  cpu_->times.reset();
  if (has_gpu_) run_on_gpu_worker([&] { gpu_worker->collect_times(*accelerator_times_); });
  accelerator_times_->reset();
}

KernelTotals Runtime::accelerator_totals() const {
  if (has_gpu_) run_on_gpu_worker([&] { gpu_worker->collect_times(*accelerator_times_); });
  return accelerator_times_->totals();
}

int Runtime::num_threads() const { return cpu_->pool.size(); }

std::string Runtime::version() const {
  int major = 0;
  int minor = 0;
  int release = 0;
  starpu_get_version(&major, &minor, &release);
  return fmt::format("{}.{}.{}", major, minor, release);
}

std::string Runtime::flavour() const {
#if defined(STARPU_SIMGRID)
  return "simgrid";
#elif defined(STARPU_USE_CUDA)
  return "native + CUDA";
#else
  return "native";
#endif
}

DataHandle DataHandle::of_memory(const void* data, std::size_t size_bytes) {
  return on_node(data, size_bytes, STARPU_MAIN_RAM);
}

DataHandle DataHandle::of_cxl_memory(const void* data, std::size_t size_bytes, CxlData what) {
  starpu_vector_interface vector{};
  vector.id = STARPU_VECTOR_INTERFACE_ID;
  vector.ptr = vector.dev_handle = reinterpret_cast<uintptr_t>(data);
  vector.nx = 1;
  vector.elemsize = vector.allocsize = size_bytes;
  DataHandle handle;
  starpu_data_register(&handle.handle_, STARPU_MAIN_RAM, &vector, &cxl_vectors(what));
  return handle;
}

DataHandle DataHandle::on_node(const void* place, std::size_t size_bytes, unsigned node) {
  DataHandle handle;
  starpu_vector_data_register(&handle.handle_, static_cast<int>(node),
                              reinterpret_cast<uintptr_t>(place), 1,
                              size_bytes);  // one element: StarPU counts elements in 32 bits
  return handle;
}

DataHandle DataHandle::imagined(std::size_t size_bytes, unsigned node) {
  static char dummy[4096];
  auto address = reinterpret_cast<uintptr_t>(dummy);
  if (node != STARPU_MAIN_RAM && starpu_node_get_kind(node) != STARPU_DISK_RAM)
    address = starpu_malloc_on_node(node, size_bytes);
  if (address == 0) throw Error("memory node {} has no room for {} bytes", node, size_bytes);
  DataHandle handle;
  starpu_vector_data_register(&handle.handle_, static_cast<int>(node), address, 1, size_bytes);
  return handle;
}

DataHandle DataHandle::temporary(std::size_t size_bytes) {
  DataHandle handle;
  starpu_vector_data_register(&handle.handle_, -1, 0, 1, size_bytes);
  return handle;
}

}  // namespace sluice
