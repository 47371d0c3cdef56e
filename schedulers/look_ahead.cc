#include "schedulers/look_ahead.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "perfmodels/task.h"

namespace sluice {
namespace {

Staging staging;

/// Smaller data is not worth a decision.
constexpr std::uint64_t smallest_streamed_bytes = 64 * 1024;

/// The tag, if this is one of Sluice's tasks.
std::optional<TaskTag> tag_of(const starpu_task* task) {
  if (task->cl == nullptr || task->cl_arg == nullptr || task->cl_arg_size < sizeof(TaskTag))
    return std::nullopt;
  TaskTag tag;
  std::memcpy(&tag, task->cl_arg, sizeof(tag));
  if (tag.magic != TaskTag::expected_magic) return std::nullopt;
  return tag;
}

/// Place of a task within its layer, half a sublayer a step: a stage's first sublayer counts,
/// what stores KV, joins attention or selects rows comes behind sublayer 3.
std::int64_t place_in_layer(Sublayer sublayer) {
  if (sublayer == Sublayer::attention) sublayer = Sublayer::qk;
  if (sublayer == Sublayer::kv_store || sublayer == Sublayer::attention_join ||
      sublayer == Sublayer::select_rows)
    return 2 * static_cast<std::int64_t>(Sublayer::sv) + 1;
  return 2 * static_cast<std::int64_t>(sublayer);
}

/// What runs first; the lowest.
struct Order {
  std::int64_t iteration = 0;
  std::int64_t rank = 0;

  static Order of(const TaskTag& tag) {
    const std::int64_t layer = layer_of(tag) << 24;
    const std::int64_t place = place_in_layer(tag.sublayer);
    // A sub-batch draws its tokens before the next one's LM head, as they are submitted: so late
    // submission does not change the order.
    if (is_behind_layers(tag)) return {tag.iteration, layer + (tag.sub_batch << 8) + place};
    return {tag.iteration, layer + (place << 16) + tag.sub_batch};
  }
  /// The same for all tasks of half a layer: sublayers 1 to 4, or 5 and 6.
  static Order of_half_layer(const TaskTag& tag) {
    const bool ffn = tag.sublayer == Sublayer::fc1 || tag.sublayer == Sublayer::fc2;
    return {tag.iteration, 2 * layer_of(tag) + (ffn ? 1 : 0)};
  }
  static Order of_priority(int priority) { return {-static_cast<std::int64_t>(priority), 0}; }
  bool operator<(const Order& other) const {
    return iteration != other.iteration ? iteration < other.iteration : rank < other.rank;
  }

 private:
  static bool is_behind_layers(const TaskTag& tag) {
    return tag.sublayer == Sublayer::lm_head || tag.sublayer == Sublayer::sampling;
  }
  static std::int64_t layer_of(const TaskTag& tag) {
    return is_behind_layers(tag) ? std::numeric_limits<std::int32_t>::max() : tag.layer;
  }
};

/// Tasks in order; of equal ones the first that came.
class TaskQueue {
 public:
  struct Item {
    Order order;
    starpu_task* task = nullptr;
  };
  void push(const Order& order, starpu_task* task) {
    const auto behind =
        std::upper_bound(items_.begin(), items_.end(), order,
                         [](const Order& value, const Item& item) { return value < item.order; });
    items_.insert(behind, {order, task});
    size_.store(items_.size(), std::memory_order_release);
  }
  /// The first that `fits`, or null.
  template <typename Fits>
  starpu_task* pop(const Fits& fits) {
    const auto found = std::find_if(items_.begin(), items_.end(),
                                    [&](const Item& item) { return fits(item.task); });
    if (found == items_.end()) return nullptr;
    starpu_task* task = found->task;
    items_.erase(found);
    size_.store(items_.size(), std::memory_order_release);
    return task;
  }
  /// May be asked without the lock.
  bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

 private:
  std::deque<Item> items_;
  std::atomic<std::size_t> size_{0};
};

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

/// Data that tasks only read, so far.
struct Streamed {
  starpu_data_handle_t handle;
  std::uint64_t bytes;
  /// Uses by tasks that are submitted and not executed, by memory node: with room in the window.
  std::array<int, STARPU_MAXNODES> admitted{};
};

/// What is on its way into one memory, and what comes next.
class Window {
 public:
  void set_limits(std::uint64_t bytes, Prefetch ahead) {
    budget_bytes_ = bytes;
    ahead_ = ahead;
  }

  /// A task to come, and, one after the other, what it reads.
  void begin(const Order& half) { ++unfinished_[half]; }
  void add(Streamed& data, const Order& half) { waiting_.push_back({&data, half}); }
  /// The task is done.
  void end(const Order& half) {
    const auto found = unfinished_.find(half);
    if (found != unfinished_.end() && --found->second == 0) unfinished_.erase(found);
  }

  /// As many of the waiting as there is room for; `bring` gets those that need a transfer.
  void admit(unsigned node, std::vector<starpu_data_handle_t>& bring) {
    while (!waiting_.empty()) {
      Streamed& next = *waiting_.front().data;
      if (!is_near(waiting_.front().half)) return;
      const bool inside = next.admitted.at(node) > 0;
      const std::uint64_t bytes = counted_bytes(next);
      if (!inside && used_bytes_ > 0 && used_bytes_ + bytes > budget_bytes_) return;
      if (!inside) {
        used_bytes_ += bytes;
        bring.push_back(next.handle);
      }
      ++next.admitted.at(node);
      waiting_.pop_front();
    }
  }

  /// A task that reads it is done. True when no task in the window needs it any more.
  bool remove(Streamed& data, unsigned node) {
    if (data.admitted.at(node) == 0) {  // the task was faster than the window
      const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&](const Waiting& each) { return each.data == &data; });
      if (found != waiting_.end()) waiting_.erase(found);
      return true;
    }
    if (--data.admitted.at(node) > 0) return false;
    used_bytes_ -= counted_bytes(data);
    return true;
  }

  /// It is not read-only after all.
  void forget(Streamed& data, unsigned node) {
    std::erase_if(waiting_, [&](const Waiting& each) { return each.data == &data; });
    if (std::exchange(data.admitted.at(node), 0) > 0) used_bytes_ -= counted_bytes(data);
  }

 private:
  struct Waiting {
    Streamed* data;
    Order half;
  };

  /// Norms, biases and the like ride along: a budget is made for weights, and must not miss one for
  /// them.
  std::uint64_t counted_bytes(const Streamed& data) const {
    return data.bytes < budget_bytes_ / 64 ? 0 : data.bytes;
  }

  /// Whether so little is still to be done before that half layer that its data may come.
  bool is_near(const Order& half) const {
    if (ahead_ == Prefetch::none) return false;
    if (ahead_ == Prefetch::layer || unfinished_.empty()) return true;
    auto last = unfinished_.begin();
    if (std::next(last) != unfinished_.end()) ++last;
    return !(last->first < half);
  }

  std::uint64_t budget_bytes_ = 0;
  Prefetch ahead_ = Prefetch::layer;
  std::uint64_t used_bytes_ = 0;
  std::deque<Waiting> waiting_;
  std::map<Order, int> unfinished_;  ///< tasks that are submitted and not executed
};

/// One scheduling context's state.
class Scheduler {
 public:
  Scheduler() {
    starpu_pthread_mutex_init(&mutex_, nullptr);
    windows_.at(STARPU_MAIN_RAM).set_limits(staging.host_bytes, staging.ahead);
  }
  ~Scheduler() { STARPU_PTHREAD_MUTEX_DESTROY(&mutex_); }
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  static Scheduler& of(unsigned context) {
    return *static_cast<Scheduler*>(starpu_sched_ctx_get_policy_data(context));
  }

  void add_worker(int worker) {
    const unsigned node = starpu_worker_get_memory_node(static_cast<unsigned>(worker));
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
  }
  void remove_worker(int worker) {
    std::erase(cpus_, worker);
    std::erase(gpus_, worker);
  }

  void submitted(starpu_task* task) {
    if (!streams_at_all()) return;
    const std::optional<TaskTag> tag = tag_of(task);
    if (!tag) return;
    std::vector<starpu_data_handle_t> bring;
    unsigned node = 0;
    {
      const Lock lock(mutex_);
      const bool into_node = streams(task, *tag, node);
      if (into_node) windows_.at(node).begin(Order::of_half_layer(*tag));
      for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
        starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
        if ((STARPU_TASK_GET_MODE(task, i) & STARPU_W) != 0) {
          leave_alone(handle);
        } else if (Streamed* data = into_node ? streamed(handle, node) : nullptr; data != nullptr) {
          windows_.at(node).add(*data, Order::of_half_layer(*tag));
        }
      }
      if (into_node) windows_.at(node).admit(node, bring);
    }
    for (starpu_data_handle_t handle : bring) starpu_data_prefetch_on_node(handle, node, 1);
  }

  void executed(starpu_task* task) {
    if (!streams_at_all()) return;
    const std::optional<TaskTag> tag = tag_of(task);
    if (!tag) return;
    std::vector<starpu_data_handle_t> bring;
    std::vector<starpu_data_handle_t> give_up;
    unsigned node = 0;
    {
      const Lock lock(mutex_);
      if (!streams(task, *tag, node)) return;
      windows_.at(node).end(Order::of_half_layer(*tag));
      for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i) {
        if ((STARPU_TASK_GET_MODE(task, i) & STARPU_W) != 0) continue;
        starpu_data_handle_t handle = STARPU_TASK_GET_HANDLE(task, i);
        Streamed* data = streamed(handle, node);
        if (data != nullptr && windows_.at(node).remove(*data, node)) give_up.push_back(handle);
      }
      windows_.at(node).admit(node, bring);
    }
    for (starpu_data_handle_t handle : give_up) {
      if (std::find(bring.begin(), bring.end(), handle) != bring.end()) continue;
      // StarPU keeps what is given up behind what was brought in before it, unless memory holds
      // something that must be written back: then it would evict what is needed next.
      const bool gone =
          node == STARPU_MAIN_RAM && starpu_data_evict_from_node(handle, STARPU_MAIN_RAM) == 0;
      if (!gone) starpu_data_wont_use(handle);
    }
    for (starpu_data_handle_t handle : bring) starpu_data_prefetch_on_node(handle, node, 1);
  }

  void push(starpu_task* task) {
    const std::optional<TaskTag> tag = tag_of(task);
    const int worker = tag ? worker_for(task, *tag) : -1;
    const bool far =
        worker >= 0 && !gpus_.empty() && starpu_get_prefetch_flag() != 0 &&
        starpu_worker_get_memory_node(static_cast<unsigned>(worker)) != STARPU_MAIN_RAM;
    if (far) starpu_prefetch_task_input_for(task, static_cast<unsigned>(worker));
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
    if (own.empty() && shared_.empty()) return nullptr;
    const Lock lock(mutex_);
    if (!own.empty()) return own.pop([](const starpu_task*) { return true; });
    return shared_.pop([&](starpu_task* task) { return can_run(static_cast<int>(worker), task); });
  }

 private:
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

  bool streams_from_disk() const { return staging.host_bytes > 0; }
  bool streams_at_all() const { return !gpus_.empty() || streams_from_disk(); }

  /// Whether data streams into the memory that the task will run beside, and which that is.
  bool streams(starpu_task* task, const TaskTag& tag, unsigned& node) const {
    if (tag.device != Device::gpu && !streams_from_disk()) return false;
    const int worker = worker_for(task, tag);
    if (worker < 0) return false;
    node = starpu_worker_get_memory_node(static_cast<unsigned>(worker));
    return node != STARPU_MAIN_RAM || streams_from_disk();
  }

  /// What is known of data that a task reads; null for what the window leaves alone.
  Streamed* streamed(starpu_data_handle_t handle, unsigned node) {
    void* known = starpu_data_get_sched_data(handle);
    if (known == nullptr) {
      // What lives in main memory may yet stream into a GPU's.
      if (node == STARPU_MAIN_RAM && starpu_data_is_on_node(handle, node) != 0) return nullptr;
      const std::uint64_t bytes = starpu_data_get_size(handle);
      const bool alone =
          bytes < smallest_streamed_bytes || starpu_data_is_on_node(handle, node) != 0;
      known =
          alone ? &left_alone_ : static_cast<void*>(&data_.emplace_back(Streamed{handle, bytes}));
      starpu_data_set_sched_data(handle, known);
    }
    return known == &left_alone_ ? nullptr : static_cast<Streamed*>(known);
  }

  /// Some task writes it: a slab may have been read by attention first, before its new KV is
  /// stored.
  void leave_alone(starpu_data_handle_t handle) {
    void* known = starpu_data_get_sched_data(handle);
    if (known == &left_alone_) return;
    starpu_data_set_sched_data(handle, &left_alone_);
    if (known == nullptr) return;
    for (unsigned node = 0; node < windows_.size(); ++node)
      windows_[node].forget(*static_cast<Streamed*>(known), node);
  }

  starpu_pthread_mutex_t mutex_{};
  std::vector<int> cpus_;  ///< workers, as all the rest fixed while tasks run
  std::vector<int> gpus_;  ///< and those with a memory of their own
  std::array<TaskQueue, STARPU_NMAXWORKERS> own_;
  TaskQueue shared_;
  std::array<Window, STARPU_MAXNODES> windows_;
  std::deque<Streamed> data_;
  char left_alone_ = 0;  ///< its address marks data that some task writes, or small or resident
};

}  // namespace

void set_staging(const Staging& next) { staging = next; }

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

void LookAhead::executed(starpu_task* task, unsigned context) {
  if (task->cl != nullptr) Scheduler::of(context).executed(task);
}

}  // namespace sluice
