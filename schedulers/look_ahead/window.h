#pragma once

#include <starpu.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "perfmodels/memory_plan.h"
#include "schedulers/look_ahead/order.h"

namespace sluice::look_ahead {

/// Smaller data is not worth a decision.
constexpr std::uint64_t smallest_streamed_bytes = 64 * 1024;

/// What a piece of data is to the look-ahead.
struct Known {
  enum class Kind : std::uint8_t {
    left_alone,  ///< some task writes it, or it is small or resident
    read_only,   ///< so far
    slab,        ///< KV of the host's that some tasks read and others store into
  };
  Kind kind;
};

/// Data that tasks only read: weights.
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

/// KV that kv_store tasks on the CPU write, with the stores that are submitted.
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

/// Weights on their way into one memory, and what comes next.
class Window {
 public:
  void set_limits(std::uint64_t bytes, Prefetch ahead);

  /// A task to come, and, one after the other, what it reads.
  void begin(const Order& half) { ++unfinished_[half]; }
  void add(Streamed& data, const Order& half) { waiting_.push_back({&data, half}); }
  /// The task is done.
  void end(const Order& half);

  /// What its data takes, and what more it is to take.
  std::int64_t claimed_bytes() const {
    const std::uint64_t bytes =
        waiting_.empty() ? used_bytes_ : std::max(budget_bytes_, used_bytes_);
    return static_cast<std::int64_t>(bytes);
  }
  /// As many of the waiting as there is room for; `bring` gets those that need a transfer.
  void admit(unsigned node, std::vector<starpu_data_handle_t>& bring);
  /// A task that reads it is done. True when no task in the window needs it any more.
  bool remove(Streamed& data, unsigned node);
  /// It is not read-only after all.
  void forget(Streamed& data, unsigned node);

 private:
  struct Waiting {
    Streamed* data;
    Order half;
  };

  std::uint64_t counted_bytes(const Streamed& data) const;
  bool is_near(const Order& half) const;

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
  void set_limits(Prefetch ahead);

  /// In the order of submission; what is on its way already is known as such.
  void add(Slab& slab, const starpu_task* task, bool is_brought = false);
  void end(const starpu_task* task);

  /// Whether a task reads it before more is stored.
  bool needs(const Slab& slab) const;
  /// `bring` gets the slabs that are to come now.
  void admit(std::vector<starpu_data_handle_t>& bring);

 private:
  struct Read {
    Slab* slab;
    std::int64_t num_stores;  ///< into it, before
    const starpu_task* task;  ///< null when it is done
    bool is_brought;

    bool leaves_room() const;
  };
  static constexpr std::ptrdiff_t most_places = 2;

  std::ptrdiff_t num_places_ = 0;
  std::deque<Read> reads_;
};

}  // namespace sluice::look_ahead
