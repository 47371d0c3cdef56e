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
#include <unordered_map>
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
  /// The next one, or null.
  starpu_task* front() const { return items_.empty() ? nullptr : items_.front().task; }
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

/// What a piece of data is to the look-ahead.
struct Known {
  enum class Kind : std::uint8_t {
    left_alone,  ///< some task writes it, or it is small or resident
    read_only,   ///< so far
    slab,        ///< KV of the host's that some tasks read and others store into
  };
  Kind kind;
};

struct Streamed : Known {
  static constexpr Kind its_kind = Kind::read_only;
  Streamed(starpu_data_handle_t its_handle, std::uint64_t its_bytes)
      : Known{its_kind}, handle(its_handle), bytes(its_bytes) {}

  starpu_data_handle_t handle;
  std::uint64_t bytes;
  /// Uses by tasks that are submitted and not executed, by memory node: with room in the window.
  std::array<int, STARPU_MAXNODES> admitted{};
  /// All of those tasks, in order.
  struct Reader {
    const starpu_task* task;
    unsigned node;
  };
  std::vector<Reader> readers;
};

struct Slab : Known {
  static constexpr Kind its_kind = Kind::slab;
  explicit Slab(starpu_data_handle_t its_handle) : Known{its_kind}, handle(its_handle) {}

  void submit_store(const starpu_task* task) { stores_.push_back(task); }
  void end_store(const starpu_task* task) {
    if (std::erase(stores_, task) > 0) ++num_ended_;
  }
  /// Counted from the first: those that have ended, and those that are submitted.
  std::int64_t num_ended_stores() const { return num_ended_; }
  std::int64_t num_stores() const { return num_ended_ + static_cast<std::int64_t>(stores_.size()); }

  starpu_data_handle_t handle;

 private:
  std::vector<const starpu_task*> stores_;  ///< submitted and not executed
  std::int64_t num_ended_ = 0;
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

/// Coming reads of KV that lives elsewhere, by tasks beside one memory. The next slab comes in as
/// soon as there is a place and all that is to be stored before it is read has been: what came
/// earlier would have to come again.
class SlabWindow {
 public:
  /// `layer`: while the slab before it is in use; `half_layer`: when that one is done, while the
  /// FFN computes. As many at once as footprints count.
  void set_limits(Prefetch ahead) {
    num_places_ = ahead == Prefetch::none ? 0 : ahead == Prefetch::half_layer ? 1 : most_places;
  }

  /// In the order of submission; what is on its way already is known as such.
  void add(Slab& slab, const starpu_task* task, bool is_brought = false) {
    reads_.push_back({&slab, slab.num_stores(), task, is_brought});
  }
  void end(const starpu_task* task) {
    for (Read& read : reads_) {
      if (read.task == task) read.task = nullptr;
    }
  }
  /// Whether a task reads it before more is stored.
  bool needs(const Slab& slab) const {
    return std::any_of(reads_.begin(), reads_.end(), [&](const Read& read) {
      return read.slab == &slab && read.task != nullptr &&
             read.num_stores <= slab.num_ended_stores();
    });
  }
  /// `bring` gets the slabs that are to come now.
  void admit(std::vector<starpu_data_handle_t>& bring) {
    std::erase_if(reads_, [](const Read& read) { return read.leaves_room(); });
    if (num_places_ == 0) return;
    std::array<const Slab*, most_places> places{};
    auto* const end = places.begin() + num_places_;
    for (Read& read : reads_) {
      auto* const place = std::find_if(places.begin(), end, [&](const Slab* slab) {
        return slab == nullptr || slab == read.slab;
      });
      if (place == end) return;
      *place = read.slab;
      const bool is_past = read.is_brought || read.task == nullptr;
      if (is_past || read.slab->num_ended_stores() < read.num_stores) continue;
      read.is_brought = true;
      bring.push_back(read.slab->handle);
    }
  }

 private:
  struct Read {
    Slab* slab;
    std::int64_t num_stores;  ///< into it, before
    const starpu_task* task;  ///< null when it is done
    bool is_brought;

    /// Only once new KV is stored elsewhere is the memory free without a search for what else
    /// could go; and storing it on a disk would wait behind the reads.
    bool leaves_room() const {
      return task == nullptr &&
             (slab->num_ended_stores() > num_stores || slab->num_stores() == num_stores);
    }
  };
  static constexpr std::ptrdiff_t most_places = 2;
  std::ptrdiff_t num_places_ = 0;
  std::deque<Read> reads_;
};

/// Values between tasks (hidden states and the like, which live nowhere else) beside a GPU's
/// memory: those of mini-batches that wait for their next task while others compute.
class PassingValues {
 public:
  using Handles = std::vector<starpu_data_handle_t>;

  static bool is_one(starpu_data_handle_t handle) {
    return starpu_data_get_home_node(handle) < 0 &&
           starpu_data_get_size(handle) >= smallest_streamed_bytes;
  }

  /// A task to come, and those that it uses.
  void begin(const starpu_task* task, const TaskTag& tag, Handles values) {
    const Key key{Order::of(tag), num_begun_++};
    for (starpu_data_handle_t value : values) uses_[value].push_back(key.second);
    by_task_[task] = tasks_.emplace(key, Task{tag.sub_batch, tag.device, std::move(values)}).first;
  }
  /// The task is done; gives those that it used.
  Handles end(const starpu_task* task) {
    const auto found = by_task_.find(task);
    if (found == by_task_.end()) return {};
    const std::uint64_t number = found->second->first.second;
    Handles values = found->second->second.values;
    tasks_.erase(found->second);
    by_task_.erase(found);
    for (starpu_data_handle_t value : values) {
      const auto its = uses_.find(value);
      if (its == uses_.end()) continue;  // the task had it twice
      std::erase(its->second, number);
      if (its->second.empty()) uses_.erase(its);
    }
    return values;
  }

  /// Whether others must have its place before it is used again: tasks of two other sub-batches on
  /// the GPU come first, and their values that wait in main memory need more than
  /// `available_bytes`.
  bool is_in_the_way(starpu_data_handle_t value, std::int16_t sub_batch, unsigned node,
                     std::uint64_t available_bytes) const {
    const auto found = uses_.find(value);
    if (found == uses_.end() || starpu_data_is_on_node(value, node) == 0) return false;
    std::uint64_t needed_bytes = 0;
    std::vector<std::int16_t> others;
    for (const auto& [key, task] : tasks_) {
      if (key.second == found->second.front()) break;
      if (task.device != Device::gpu || task.sub_batch == sub_batch) continue;
      if (std::find(others.begin(), others.end(), task.sub_batch) == others.end())
        others.push_back(task.sub_batch);
      for (starpu_data_handle_t needed : task.values) {
        if (is_elsewhere(needed, node)) needed_bytes += starpu_data_get_size(needed);
      }
      if (others.size() >= 2 && needed_bytes > available_bytes) return true;
    }
    return false;
  }
  /// Those of the GPU's next task behind this one: where it waits for a slab, say, they may come
  /// even so. Only what waits in main memory, and for no other task before.
  Handles coming(const starpu_task* running, unsigned node) const {
    Handles found;
    const auto its = by_task_.find(running);
    if (its == by_task_.end()) return found;
    auto next = its->second;
    do {
      if (++next == tasks_.end()) return found;
    } while (next->second.device != Device::gpu);
    for (starpu_data_handle_t value : next->second.values) {
      if (uses_.at(value).front() == next->first.second && is_elsewhere(value, node))
        found.push_back(value);
    }
    return found;
  }

 private:
  /// A task's place, and which one it is of those that share the place.
  using Key = std::pair<Order, std::uint64_t>;
  struct Task {
    std::int16_t sub_batch;
    Device device;
    Handles values;
  };

  /// In main memory alone; what no task has made yet is nowhere.
  static bool is_elsewhere(starpu_data_handle_t value, unsigned node) {
    return starpu_data_is_on_node(value, node) == 0 &&
           starpu_data_is_on_node(value, STARPU_MAIN_RAM) != 0;
  }

  std::uint64_t num_begun_ = 0;
  std::map<Key, Task> tasks_;  ///< submitted and not executed
  std::unordered_map<const starpu_task*, std::map<Key, Task>::const_iterator> by_task_;
  /// By value: the tasks that will use it, as they were submitted.
  std::unordered_map<starpu_data_handle_t, std::deque<std::uint64_t>> uses_;
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
      const starpu_ssize_t available = starpu_memory_get_available(node);
      if (worker < 0 || node_of(worker) != node || available < 0) return;
      std::copy_if(used.begin(), used.end(), std::back_inserter(leave),
                   [&](starpu_data_handle_t value) {
                     return values.is_in_the_way(value, tag.sub_batch, node,
                                                 static_cast<std::uint64_t>(available));
                   });
    });
    return leave;
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
  /// By worker, which alone touches it: what is to come into its memory, behind its next task's.
  std::array<std::vector<Transfer>, STARPU_NMAXWORKERS> held_;
  std::deque<Streamed> data_;
  std::deque<Slab> slabs_;
  Known left_alone_{Known::Kind::left_alone};
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
