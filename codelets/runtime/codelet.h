#pragma once

#include <starpu.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/weight_format.h"
#include "codelets/runtime/failure.h"
#include "codelets/runtime/runtime.h"
#include "codelets/runtime/stand_in.h"
#include "codelets/runtime/task_model.h"
#include "codelets/runtime/trace_recorder.h"
#include "perfmodels/task.h"

namespace sluice {

/// A handle and what a task does with it.
struct Access {
  starpu_data_handle_t handle = nullptr;
  starpu_data_access_mode mode = STARPU_R;
};
inline Access reads(const DataHandle& handle) { return {handle.get(), STARPU_R}; }
inline Access writes(const DataHandle& handle) { return {handle.get(), STARPU_W}; }
inline Access updates(const DataHandle& handle) { return {handle.get(), STARPU_RW}; }

/// The buffers of a running task, handed out in the order of its accesses.
class Buffers {
 public:
  explicit Buffers(void** buffers) : next_(buffers) {}
  template <typename T>
  T* take() {
    return reinterpret_cast<T*>(STARPU_VECTOR_GET_PTR(*next_++));
  }
  /// Null when the task was submitted without this one.
  template <typename T>
  T* take_if(bool present) {
    return present ? take<T>() : nullptr;
  }

 private:
  void** next_;
};

/// Accesses of a task, in order; optional ones are added only where they exist.
class AccessList {
 public:
  AccessList(std::initializer_list<Access> accesses) : accesses_(accesses) {}
  void add(const Access& access) { accesses_.push_back(access); }
  void add_if(bool present, const Access& access) {
    if (present) add(access);
  }
  const Access& operator[](int i) const { return accesses_[static_cast<std::size_t>(i)]; }
  int size() const { return static_cast<int>(accesses_.size()); }
  /// Makes them `task`'s.
  void give_to(starpu_task* task) const {
    task->nbuffers = size();
    starpu_data_handle_t* handles = task->handles;
    starpu_data_access_mode* modes = task->modes;
    if (size() > STARPU_NMAXBUFS) {  // StarPU frees them with the task
      handles = task->dyn_handles = allocate<starpu_data_handle_t>();
      modes = task->dyn_modes = allocate<starpu_data_access_mode>();
    }
    for (const Access& access : accesses_) {
      *handles++ = access.handle;
      *modes++ = access.mode;
    }
  }

 private:
  template <typename T>
  T* allocate() const {
    void* memory = std::malloc(accesses_.size() * sizeof(T));  // NOLINT(bugprone-sizeof-expression)
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }

  std::vector<Access> accesses_;
};

/// Adds the time for which it lives to the CPU's busy time and, unless the task is a stage, which
/// stamps its sublayers itself, to that of the task's sublayer.
class BusyTime {
 public:
  BusyTime(const CpuContext& cpu, const TaskTag& tag)
      : cpu_(cpu), tag_(tag), start_(KernelTimes::Clock::now()) {}
  ~BusyTime() {
    const KernelTimes::Clock::duration spent = KernelTimes::Clock::now() - start_;
    if (cpu_.busy_ns != nullptr) {
      cpu_.busy_ns->fetch_add(std::chrono::duration_cast<std::chrono::nanoseconds>(spent).count(),
                              std::memory_order_relaxed);
    }
    if (cpu_.times != nullptr && tag_.sublayer == tag_.last_sublayer)
      cpu_.times->add(tag_.phase, tag_.sublayer, spent);
  }
  BusyTime(const BusyTime&) = delete;
  BusyTime& operator=(const BusyTime&) = delete;

 private:
  const CpuContext& cpu_;
  const TaskTag& tag_;
  KernelTimes::Clock::time_point start_;
};

/// What a codelet's kernel is called with where it runs on a GPU, and not with a CpuContext.
template <typename Context>
inline constexpr bool is_gpu = std::is_same_v<Context, cuda::Context>;

/// A StarPU codelet for each GEMM type, and for each format of quantised weights: they are part of
/// its name, hence of its performance model. `Args` is plain data whose first member is `TaskTag
/// tag`. A device that has no implementation leaves its entry out.
template <typename Args>
class Codelet {
  static_assert(std::is_trivially_copyable_v<Args> && std::is_standard_layout_v<Args>);

 public:
  Codelet() = default;  ///< nothing yet
  using CpuKernel = void (*)(const CpuContext&, const Args&, Buffers);
  using CudaKernel = void (*)(const cuda::Context&, const Args&, Buffers);

  template <CpuKernel Kernel>
  static Codelet with_cpu(const char* name) {
    Codelet made(name);
    made.variants_->cpu = cpu_entry<Kernel>;
    return made;
  }

  /// On the CPU, which finds its buffer number `buffer` where that lives, whatever memory or disk
  /// that is: nothing is moved, and what other memories hold of it is no longer valid.
  template <CpuKernel Kernel>
  static Codelet with_cpu_at_home(const char* name, int buffer) {
    Codelet made = with_cpu<Kernel>(name);
    made.variants_->at_home = buffer;
    return made;
  }

  /// Both devices' kernels: `Kernel{}(context, args, buffers)` with a CpuContext or a
  /// cuda::Context. Only a StarPU that drives GPUs calls the latter.
  template <typename Kernel>
  static Codelet with_all(const char* name) {
    Codelet made = with_cpu<run_on<Kernel, CpuContext>>(name);
#ifndef STARPU_SIMGRID
    made.variants_->cuda = cuda_entry<run_on<Kernel, cuda::Context>>;
#endif
    return made;
  }

  /// Throws Error when StarPU takes no such task.
  void submit(DType dtype, const Args& args, const AccessList& accesses,
              const WeightFormat& weights = {}) const {
    Variant& variant = variants_->of(dtype, weights);
    starpu_task* task = starpu_task_create();
    task->cl = &variant.starpu;
    if (variants_->at_home >= 0) {
      const int home = starpu_data_get_home_node(accesses[variants_->at_home].handle);
      int& node = task->cl->nodes[variants_->at_home];
      if (node != home) node = home;  // workers read it; it changes between runs alone
    }
    task->name = variant.name.c_str();
    accesses.give_to(task);
    constexpr std::size_t size = sizeof(Args) + sizeof(starpu_cpu_func_t);
    auto* copy = static_cast<std::byte*>(std::malloc(size));  // StarPU frees it with the task
    if (copy == nullptr) throw std::bad_alloc();
    std::memcpy(copy, &args, sizeof(Args));
    std::memcpy(copy + sizeof(Args), &variants_->cpu, sizeof(variants_->cpu));  // the stand-in's
    task->cl_arg = copy;
    task->cl_arg_size = size;
    task->cl_arg_free = 1;
    task->callback_func = task_observer();
    mark_task(task, args.tag);
    const int status = starpu_task_submit(task);
    if (status != 0) {
      task->destroy = 0;
      starpu_task_destroy(task);
      check_starpu(status, variant.name.c_str());
    }
  }

 private:
  struct Variant {
    std::string name;
    starpu_codelet starpu{};
    starpu_perfmodel model{};
  };

  /// Those that tasks were submitted of, at the addresses where StarPU finds them.
  struct Variants {
    std::string name;
    starpu_cpu_func_t cpu = nullptr;
    starpu_cuda_func_t cuda = nullptr;
    int at_home = -1;  ///< the buffer that is used where it lives; its node is the same for all

    Variant& of(DType dtype, const WeightFormat& weights) {
      const std::pair key(dtype, weights.is_plain() ? std::string() : to_string(weights));
      const std::scoped_lock lock(mutex_);
      const auto [found, is_new] = made_.try_emplace(key);
      if (is_new) make(key, found->second);
      return found->second;
    }

   private:
    using Key = std::pair<DType, std::string>;  ///< and the format of quantised weights

    void make(const Key& key, Variant& variant) const {
      variant.name = fmt::format("{}_{}", name, to_string(key.first));
      if (!key.second.empty()) variant.name += "_" + key.second;
      starpu_codelet& starpu = variant.starpu;
      starpu_codelet_init(&starpu);
      starpu.name = variant.name.c_str();
      starpu.nbuffers = STARPU_VARIABLE_NBUFFERS;
      starpu.flags = STARPU_CODELET_NOPLANS;  // none of its data is partitioned
      starpu.cpu_funcs[0] = cpu;
      starpu.cpu_funcs_name[0] = stand_in_entry_name;
      starpu.where = cpu != nullptr ? STARPU_CPU | STARPU_TCPIP_MS : 0;
#ifdef STARPU_SIMGRID
      // No kernel runs in a simulation: every device has one.
      starpu.cuda_funcs[0] = cpu;
      starpu.cuda_flags[0] = STARPU_CUDA_ASYNC;
      starpu.where |= STARPU_CUDA;
#else
      if (cuda != nullptr) {
        starpu.cuda_funcs[0] = cuda;
        starpu.cuda_flags[0] = STARPU_CUDA_ASYNC;
        starpu.where |= STARPU_CUDA;
      }
#endif
      if (at_home >= 0) {
        starpu.where = STARPU_CPU;
        starpu.specific_nodes = 1;
        std::fill(std::begin(starpu.nodes), std::end(starpu.nodes), STARPU_SPECIFIC_NODE_LOCAL);
      }
      variant.model = task_model(starpu.name);
      starpu.model = &variant.model;
    }

    std::mutex mutex_;
    std::map<Key, Variant> made_;
  };

  explicit Codelet(const char* name) : variants_(new Variants) { variants_->name = name; }

  template <typename Kernel, typename Context>
  static void run_on(const Context& context, const Args& args, Buffers buffers) {
    Kernel{}(context, args, buffers);
  }

  /// Nothing is thrown through StarPU: a failing kernel poisons the run, and later ones do nothing.
  template <CpuKernel Kernel>
  static void cpu_entry(void** buffers, void* arg) noexcept {
    if (run_failure().happened()) return;
    const Args& args = *static_cast<const Args*>(arg);
    try {
      const CpuContext cpu = Runtime::current_cpu();
      cpu.pool.follow(cpu.cuts.of(args.tag));
      const BusyTime busy(cpu, args.tag);
      if (cpu.busy_ns != nullptr) Runtime::note_cxl_reads();  // not in the stand-in
      Kernel(cpu, args, Buffers(buffers));
    } catch (const std::exception& error) {
      record_failure(args.tag, error.what());
    }
  }

  /// The same on a GPU's worker, which goes on while the kernel runs: what only device code finds
  /// is the run's failure as soon as anyone asks (GpuWorker::look_for_failure).
  template <CudaKernel Kernel>
  static void cuda_entry(void** buffers, void* arg) noexcept {
    if (run_failure().happened()) return;
    const Args& args = *static_cast<const Args*>(arg);
    try {
      const cuda::Context& gpu = Runtime::current_gpu();
      std::optional<GpuSublayerClock> clock;  // a stage has its own
      if (args.tag.sublayer == args.tag.last_sublayer) clock.emplace(gpu, args.tag.phase);
      Kernel(gpu, args, Buffers(buffers));
      if (clock) clock->end_of(args.tag.sublayer);
    } catch (const std::exception& error) {
      record_failure(args.tag, error.what());
    }
  }

  static void record_failure(const TaskTag& tag, const char* why) {
    starpu_task* task = starpu_task_get_current();
    const bool named = task != nullptr && task->name != nullptr;  // not in the stand-in
    const std::string layers = tag.layer < 0 ? "" : " of " + layers_of(tag);
    run_failure().record(fmt::format("{}{} with {} tokens failed: {}",
                                     named ? task->name : "a task", layers, tag.num_tokens, why));
  }

  Variants* variants_ = nullptr;  ///< never destroyed: StarPU may end after all static objects
};

}  // namespace sluice
