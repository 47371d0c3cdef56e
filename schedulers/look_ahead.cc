#include "schedulers/look_ahead.h"

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "schedulers/look_ahead/order.h"
#include "schedulers/look_ahead/passing_values.h"
#include "schedulers/look_ahead/task_queue.h"
#include "schedulers/look_ahead/window.h"

namespace sluice::look_ahead {
namespace {

Staging staging;

/// A lock that SimGrid knows, taken so that StarPU may meanwhile look at the calling worker.
class Lock {
 public:
  explicit Lock(starpu_pthread_mutex_t& mutex) : mutex_(mutex) {
    starpu_worker_relax_on();
    STARPU_PTHREAD_MUTEX_LOCK(&mutex_);
    starpu_worker_relax_off();
  }
  ~Lock() { STARPU_PTHREAD_MUTEX_UNLOCK(&mutex_); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  starpu_pthread_mutex_t& mutex_;
};

/// What is to come into a memory; StarPU brings what has a higher priority first.
struct Transfer {
  starpu_data_handle_t handle;
  unsigned node;
  int priority;
};

/// One scheduling context's state.
class Scheduler {
 public:
  Scheduler() {
    starpu_pthread_mutex_init(&mutex_, nullptr);
    windows_.at(STARPU_MAIN_RAM).set_limits(staging.host_bytes.value_or(0), staging.ahead);
    slab_windows_.at(STARPU_MAIN_RAM).set_limits(staging.ahead);
  }
  ~Scheduler() { STARPU_PTHREAD_MUTEX_DESTROY(&mutex_); }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  static Scheduler& of(unsigned context) {
    return *static_cast<Scheduler*>(starpu_sched_ctx_get_policy_data(context));
  }

  void add_worker(int worker) {
    const unsigned node = node_of(worker);
    if (node == STARPU_MAIN_RAM) {
      cpus_.push_back(worker);
      return;
    }
    gpus_.push_back(worker);
    const starpu_ssize_t total = starpu_memory_get_total(node);
    std::uint64_t budget = staging.bytes;
    if (budget == 0 && total > 0) budget = static_cast<std::uint64_t>(total) / 4;
    if (budget == 0) budget = std::uint64_t{256} << 20;
    windows_.at(node).set_limits(budget, staging.ahead);
    slab_windows_.at(node).set_limits(staging.ahead);
  }
  void remove_worker(int worker) {
    std::erase(cpus_, worker);
    std::erase(gpus_, worker);
  }

  void submitted(starpu_task* task) {
    if (!streams_at_all()) return;
    const std::optional<TaskTag> tag = tag_of(task);
    if (!tag) return;
    std::vector<Transfer> bring;
    {
      const Lock lock(mutex_);
      if (tag->sublayer == Sublayer::embedding) note_use_at_start();
      unsigned node = 0;
      const bool into_node = streams(task, *tag, node);
      const Order half = Order::of_half_layer(*tag);
      if (into_node) windows_.at(node).begin(half);
      begin_using_values(task, *tag);
      for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
        starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
        if ((STARPU_TASK_GET_MODE(task, i) & STARPU_W) != 0) {
          submitted_writer(handle, task, *tag);
        } else if (into_node) {
          Known& data = known(handle, node);
          if (auto* slab = as<Slab>(data)) slab_windows_.at(node).add(*slab, task);
          if (auto* streamed = as<Streamed>(data)) {
            windows_.at(node).add(*streamed, half);
            streamed->readers.push_back({task, node});
          }
        }
      }
      if (into_node) admit(node, bring);
    }
    start(bring);
  }

  void executed(starpu_task* task) {
    if (!streams_at_all()) return;
    const std::optional<TaskTag> tag = tag_of(task);
    if (!tag) return;
    std::vector<Transfer> bring;
    std::vector<starpu_data_handle_t> give_up;
    std::vector<starpu_data_handle_t> read_slabs;  ///< that live on a disk
    PassingValues::Handles leave;
    unsigned node = 0;
    {
      const Lock lock(mutex_);
      leave = end_using_values(task, *tag);
      if (executed_store(task)) {
        for (const int worker : gpus_) admit_slabs(node_of(worker), bring);
        admit_slabs(STARPU_MAIN_RAM, bring);
      }
      if (streams(task, *tag, node)) {
        windows_.at(node).end(Order::of_half_layer(*tag));
        slab_windows_.at(node).end(task);
        for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
          if ((STARPU_TASK_GET_MODE(task, i) & STARPU_W) != 0) continue;
          starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
          Known& its = known(handle, node);
          if (const auto* slab = as<Slab>(its); slab != nullptr && lives_on_disk(handle)) {
            if (!slab_windows_.at(node).needs(*slab)) read_slabs.push_back(handle);
          }
          auto* data = as<Streamed>(its);
          if (data == nullptr) continue;
          std::erase_if(data->readers, [&](const auto& reader) { return reader.task == task; });
          if (windows_.at(node).remove(*data, node)) give_up.push_back(handle);
        }
        admit(node, bring);
      }
    }
    // A copy in main memory makes room here as soon as that is asked for.
    for (starpu_data_handle_t handle : leave)
      starpu_data_prefetch_on_node(handle, STARPU_MAIN_RAM, 1);
    // What is stored next makes it stale.
    for (starpu_data_handle_t handle : read_slabs)
      starpu_data_evict_from_node(handle, STARPU_MAIN_RAM);
    for (starpu_data_handle_t handle : give_up) {
      if (std::any_of(bring.begin(), bring.end(),
                      [&](const Transfer& coming) { return coming.handle == handle; }))
        continue;
      // StarPU keeps what is given up behind what was brought in before it, unless memory holds
      // something that must be written back: then it would evict what is needed next.
      const bool gone = lives_on_disk(handle) &&
                        starpu_data_evict_from_node(handle, STARPU_MAIN_RAM) == 0 &&
                        node == STARPU_MAIN_RAM;
      if (!gone) starpu_data_wont_use(handle);
    }
    const int worker = starpu_worker_get_id();
    if (worker >= 0 && node != STARPU_MAIN_RAM && node_of(worker) == node) {
      // A disk need not wait for the link.
      const auto held =
          std::stable_partition(bring.begin(), bring.end(), [](const Transfer& transfer) {
            return staging.ahead == Prefetch::layer && lives_on_disk(transfer.handle);
          });
      std::vector<Transfer>& later = held_.at(static_cast<std::size_t>(worker));
      later.insert(later.end(), held, bring.end());
      bring.erase(held, bring.end());
    }
    start(bring);
  }

  /// The task's own data has come, or the worker has none to do: what comes after it may now.
  void start_held(unsigned worker) {
    std::vector<Transfer>& held = held_.at(worker);
    if (!held.empty()) start(std::exchange(held, {}));
  }
  /// A task starts: the next one's data may come, and its values, if it is not ready yet.
  void prepare_next(const starpu_task* starting, unsigned worker) {
    const unsigned node = node_of(static_cast<int>(worker));
    if (node == STARPU_MAIN_RAM || starpu_get_prefetch_flag() == 0) return;
    PassingValues::Handles coming;
    starpu_task* next = nullptr;
    {
      const Lock lock(mutex_);
      next = own_.at(worker).front();
      coming = values_.at(node).coming(starting, node);
    }
    // Only this worker takes it away. What a ready task uses cannot be asked for but with it.
    if (next != nullptr && next->prefetched == 0) starpu_prefetch_task_input_for(next, worker);
    for (starpu_data_handle_t value : coming) {
      if (next == nullptr || !uses(next, value)) starpu_data_prefetch_on_node(value, node, 1);
    }
  }

  void push(starpu_task* task) {
    const std::optional<TaskTag> tag = tag_of(task);
    const int worker = tag ? worker_for(task, *tag) : -1;
    const bool far = worker >= 0 && !gpus_.empty() && starpu_get_prefetch_flag() != 0 &&
                     node_of(worker) != STARPU_MAIN_RAM;
    if (far && own_.at(static_cast<std::size_t>(worker)).empty())
      starpu_prefetch_task_input_for(task, static_cast<unsigned>(worker));
    {
      const Lock lock(mutex_);
      if (worker >= 0) {
        own_.at(static_cast<std::size_t>(worker)).push(Order::of(*tag), task);
      } else {
        shared_.push(tag ? Order::of(*tag) : Order::of_priority(task->priority), task);
      }
      starpu_push_task_end(task);
    }
    if (worker >= 0) {
      starpu_wake_worker_relax_light(static_cast<unsigned>(worker));
    } else {
      for (const std::vector<int>* workers : {&gpus_, &cpus_}) {
        for (const int other : *workers)
          starpu_wake_worker_relax_light(static_cast<unsigned>(other));
      }
    }
  }

  starpu_task* pop() {
    const unsigned worker = starpu_worker_get_id_check();
    TaskQueue& own = own_.at(worker);
    starpu_task* task = nullptr;
    if (!own.empty() || !shared_.empty()) {
      const Lock lock(mutex_);
      task = !own.empty() ? own.pop([](const starpu_task*) { return true; })
                          : shared_.pop([&](starpu_task* each) {
                              return can_run(static_cast<int>(worker), each);
                            });
    }
    if (task == nullptr) start_held(worker);
    return task;
  }

 private:
  static bool uses(starpu_task* task, starpu_data_handle_t handle) {
    for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
      if (STARPU_TASK_GET_HANDLE(task, i) == handle) return true;
    }
    return false;
  }
  static bool can_run(int worker, starpu_task* task) {
    unsigned implementation = 0;
    if (starpu_worker_can_execute_task_first_impl(static_cast<unsigned>(worker), task,
                                                  &implementation) == 0)
      return false;
    starpu_task_set_implementation(task, implementation);
    return true;
  }

  /// The sub-batch's worker on the wanted device, else on the other; -1 when neither can run it.
  int worker_for(starpu_task* task, const TaskTag& tag) const {
    const auto turn = static_cast<std::size_t>(std::max<int>(0, tag.sub_batch));
    const auto pick = [&](const std::vector<int>& workers) {
      return workers.empty() ? -1 : workers[turn % workers.size()];
    };
    const bool on_gpu = tag.device == Device::gpu;
    for (const int worker : {pick(on_gpu ? gpus_ : cpus_), pick(on_gpu ? cpus_ : gpus_)}) {
      if (worker >= 0 && can_run(worker, task)) return worker;
    }
    return -1;
  }

  /// What lives in GPUs' memories is there before the first iteration.
  void note_use_at_start() {
    if (std::exchange(has_started_, true)) return;
    for (const int gpu : gpus_)
      used_at_start_.at(node_of(gpu)) =
          static_cast<std::int64_t>(starpu_memory_get_used(node_of(gpu)));
  }

  /// Memories whose passing values are looked after: where one worker ends all tasks no value that
  /// some task is still to use goes away while that worker looks at it.
  template <typename Visit>
  void visit_values(const Visit& visit) {
    if (staging.ahead == Prefetch::none) return;
    for (const int gpu : gpus_) {
      const unsigned node = node_of(gpu);
      const bool alone = std::count_if(gpus_.begin(), gpus_.end(),
                                       [&](int worker) { return node_of(worker) == node; }) == 1;
      if (alone) visit(values_.at(node), node);
    }
  }
  void begin_using_values(const starpu_task* task, const TaskTag& tag) {
    visit_values([&](PassingValues& values, unsigned /*node*/) {
      PassingValues::Handles used;
      for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
        starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
        if (PassingValues::is_one(handle)) used.push_back(handle);
      }
      values.begin(task, tag, std::move(used));
    });
  }
  /// Gives those that should leave.
  PassingValues::Handles end_using_values(const starpu_task* task, const TaskTag& tag) {
    PassingValues::Handles leave;
    const int worker = starpu_worker_get_id();
    visit_values([&](PassingValues& values, unsigned node) {
      const PassingValues::Handles used = values.end(task);
      if (worker < 0 || node_of(worker) != node) return;
      std::copy_if(used.begin(), used.end(), std::back_inserter(leave),
                   [&](starpu_data_handle_t value) {
                     const std::int64_t wanted = values.wanted_before(value, tag.sub_batch, node);
                     return wanted > 0 && !has_room(node, wanted);
                   });
    });
    return leave;
  }

  /// Whether so many bytes of values may come without another value having to go. What StarPU calls
  /// available is little: it keeps weights that were given up, and memory that was freed.
  bool has_room(unsigned node, std::int64_t wanted_bytes) const {
    const starpu_ssize_t available = starpu_memory_get_available(node);
    if (available < 0 || wanted_bytes <= available) return true;
    std::int64_t room = starpu_memory_get_total(node) - used_at_start_.at(node);
    room -= windows_.at(node).claimed_bytes() + values_.at(node).bytes_on(node);
    for (const Slab& slab : slabs_) {
      if (starpu_data_is_on_node(slab.handle, node) != 0)
        room -= static_cast<std::int64_t>(starpu_data_get_size(slab.handle));
    }
    return wanted_bytes <= room;
  }

  static bool lives_on_disk(starpu_data_handle_t handle) {
    const int home = starpu_data_get_home_node(handle);
    return home >= 0 && starpu_node_get_kind(static_cast<unsigned>(home)) == STARPU_DISK_RAM;
  }

  bool streams_from_disk() const { return staging.host_bytes.has_value(); }
  bool streams_at_all() const { return !gpus_.empty() || streams_from_disk(); }

  /// Whether data streams into the memory that the task will run beside, and which that is.
  bool streams(starpu_task* task, const TaskTag& tag, unsigned& node) const {
    if (tag.device != Device::gpu && !streams_from_disk()) return false;
    const int worker = worker_for(task, tag);
    if (worker < 0) return false;
    node = node_of(worker);
    return node != STARPU_MAIN_RAM || streams_from_disk();
  }

  static unsigned node_of(int worker) {
    return starpu_worker_get_memory_node(static_cast<unsigned>(worker));
  }

  void admit(unsigned node, std::vector<Transfer>& bring) {
    std::vector<starpu_data_handle_t> handles;
    windows_.at(node).admit(node, handles);
    for (starpu_data_handle_t handle : handles) bring.push_back({handle, node, 0});
    admit_slabs(node, bring);
  }

  /// The next layer's KV goes before the weights of those behind it.
  void admit_slabs(unsigned node, std::vector<Transfer>& bring) {
    std::vector<starpu_data_handle_t> handles;
    slab_windows_.at(node).admit(handles);
    for (starpu_data_handle_t handle : handles) bring.push_back({handle, node, 1});
  }

  static void start(const std::vector<Transfer>& bring) {
    for (const Transfer& transfer : bring)
      starpu_data_prefetch_on_node_prio(transfer.handle, transfer.node, 1, transfer.priority);
  }

  /// It, if it is one.
  template <typename Kind>
  static Kind* as(Known& data) {
    return data.kind == Kind::its_kind ? static_cast<Kind*>(&data) : nullptr;
  }

  static Known* already_known(starpu_data_handle_t handle) {
    return static_cast<Known*>(starpu_data_get_sched_data(handle));
  }

  /// What is known of data that a task beside `node` reads, from now on.
  Known& known(starpu_data_handle_t handle, unsigned node) {
    Known* data = already_known(handle);
    if (data != nullptr) return *data;
    const bool is_there = starpu_data_is_on_node(handle, node) != 0;
    // What lives in main memory may yet stream into a GPU's.
    if (node == STARPU_MAIN_RAM && is_there) return left_alone_;
    const std::uint64_t bytes = starpu_data_get_size(handle);
    data = bytes < smallest_streamed_bytes || is_there ? &left_alone_
                                                       : &data_.emplace_back(handle, bytes);
    starpu_data_set_sched_data(handle, data);
    return *data;
  }

  /// Data that some task writes: KV, or left alone. A slab may have been read by attention first.
  void submitted_writer(starpu_data_handle_t handle, const starpu_task* task, const TaskTag& tag) {
    Known* data = already_known(handle);
    auto* slab = data == nullptr ? nullptr : as<Slab>(*data);
    if (slab == nullptr) {
      auto* streamed = data == nullptr ? nullptr : as<Streamed>(*data);
      if (tag.sublayer == Sublayer::kv_store && tag.device == Device::cpu &&
          starpu_data_get_size(handle) >= smallest_streamed_bytes)
        slab = &slabs_.emplace_back(handle);
      if (streamed != nullptr) no_longer_read_only(*streamed, slab);
      starpu_data_set_sched_data(handle,
                                 slab != nullptr ? static_cast<Known*>(slab) : &left_alone_);
    }
    if (slab != nullptr) slab->submit_store(task);
  }

  void no_longer_read_only(Streamed& data, Slab* slab) {
    for (unsigned node = 0; node < windows_.size(); ++node) windows_[node].forget(data, node);
    if (slab == nullptr) return;
    for (const Streamed::Reader& reader : data.readers)
      slab_windows_.at(reader.node).add(*slab, reader.task, true);
  }

  /// Whether it stored into a slab.
  bool executed_store(const starpu_task* task) {
    bool stored = false;
    for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
      if ((STARPU_TASK_GET_MODE(task, i) & STARPU_W) == 0) continue;
      Known* data = already_known(STARPU_TASK_GET_HANDLE(task, i));
      auto* slab = data == nullptr ? nullptr : as<Slab>(*data);
      if (slab == nullptr) continue;
      slab->end_store(task);
      stored = true;
    }
    return stored;
  }

  starpu_pthread_mutex_t mutex_{};
  std::vector<int> cpus_;  ///< workers, as all the rest fixed while tasks run
  std::vector<int> gpus_;  ///< and those with a memory of their own
  std::array<TaskQueue, STARPU_NMAXWORKERS> own_;
  TaskQueue shared_;
  std::array<Window, STARPU_MAXNODES> windows_;
  std::array<SlabWindow, STARPU_MAXNODES> slab_windows_;
  std::array<PassingValues, STARPU_MAXNODES> values_;
  bool has_started_ = false;
  std::array<std::int64_t, STARPU_MAXNODES> used_at_start_{};
  /// By worker, which alone touches it: what is to come into its memory, behind its next task's.
  std::array<std::vector<Transfer>, STARPU_NMAXWORKERS> held_;
  std::deque<Streamed> data_;
  std::deque<Slab> slabs_;
  Known left_alone_{Known::Kind::left_alone};
};

}  // namespace
}  // namespace sluice::look_ahead

namespace sluice {

using look_ahead::Scheduler;

void set_staging(const Staging& next) { look_ahead::staging = next; }

void LookAhead::init(unsigned context) {
  starpu_sched_ctx_set_policy_data(context, new Scheduler());
  if (starpu_sched_ctx_min_priority_is_set(context) == 0)
    starpu_sched_ctx_set_min_priority(context, std::numeric_limits<int>::min());
  if (starpu_sched_ctx_max_priority_is_set(context) == 0)
    starpu_sched_ctx_set_max_priority(context, std::numeric_limits<int>::max());
}

void LookAhead::deinit(unsigned context) { delete &Scheduler::of(context); }

void LookAhead::add_workers(unsigned context, int* workers, unsigned count) {
  for (unsigned i = 0; i < count; ++i) Scheduler::of(context).add_worker(workers[i]);
}

void LookAhead::remove_workers(unsigned context, int* workers, unsigned count) {
  for (unsigned i = 0; i < count; ++i) Scheduler::of(context).remove_worker(workers[i]);
}

void LookAhead::submitted(starpu_task* task) {
  if (task->cl != nullptr) Scheduler::of(task->sched_ctx).submitted(task);
}

int LookAhead::push(starpu_task* task) {
  Scheduler::of(task->sched_ctx).push(task);
  return 0;
}

starpu_task* LookAhead::pop(unsigned context) { return Scheduler::of(context).pop(); }

void LookAhead::starts(starpu_task* task, unsigned context) {
  const int worker = starpu_worker_get_id();
  if (task->cl == nullptr || worker < 0) return;
  Scheduler::of(context).prepare_next(task, static_cast<unsigned>(worker));
  Scheduler::of(context).start_held(static_cast<unsigned>(worker));
}

void LookAhead::executed(starpu_task* task, unsigned context) {
  if (task->cl != nullptr) Scheduler::of(context).executed(task);
}

}  // namespace sluice
