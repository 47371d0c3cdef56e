#pragma once

#include <starpu.h>

#include <cstdint>
#include <optional>

#include "perfmodels/memory_plan.h"

namespace sluice {

/// What of the coming weights may be on its way: into a GPU's memory, or from a disk into the
/// host's.
struct Staging {
  /// At once, in each GPU's memory; 0: a quarter of it.
  std::uint64_t bytes = 0;
  /// `layer`: as far ahead as the bytes go. `half_layer`: that of a half layer (LIA's sublayers 1
  /// to 4, or 5 and 6) as soon as only the half before it is still to be done (FlexGen's schedule).
  /// `none`: that of a task when it is ready to run.
  Prefetch ahead = Prefetch::layer;
  /// Likewise, of weights that live on a disk, in the host's memory, for tasks on the CPU; 0: only
  /// KV lives there; without a value nothing does. For tasks on a GPU it passes through the host's
  /// memory, no more than `bytes` at once.
  std::optional<std::uint64_t> host_bytes = std::nullopt;
};

/// For the next starpu_init().
void set_staging(const Staging& next);

/// The scheduler that policies share (docs/design/overview.md#the-shared-scheduler).
///
/// Placement
/// 1. A tagged task goes to the tag's device (any worker with a memory of its own is a GPU), there
///    to the worker whose turn its sub-batch is; if none can run it, to any worker that can.
/// 2. A task without a tag goes to the next free worker that can run it, by StarPU's priority.
/// Order on a worker: earlier iteration, layer, sublayer (kv_store behind 3), lower sub-batch.
///
/// Read-only data of coming GPU tasks, as much at once as set_staging() allows
/// 3. A task ends; the worker's next task has its data; then what has room is sent for. With
///    Prefetch::layer data that lives on a disk is sent for at once.
/// 4. Data is given up after its last use in sight. Data that some task writes, that is small, or
///    that was there when first seen (resident) is left alone.
/// 5. The same goes for CPU tasks and main memory where data lives on a disk, at once.
///
/// KV that kv_store tasks on the CPU write, and that a GPU or a disk's reader needs elsewhere
/// 6. While one slab is read the next comes, before weights, once all is stored into it: two at
///    once whatever set_staging() says, one with Prefetch::half_layer, none with Prefetch::none.
/// 7. What comes from a disk leaves main memory once it has been read.
///
/// Values between tasks (hidden states), but for Prefetch::none and several workers on one memory
/// 8. While a GPU's task runs, only those of the next task come (LIA Optimization-2).
/// 9. Used ones leave at once if two other sub-batches run before their next use and need room.
struct LookAhead {
  static void init(unsigned context);
  static void deinit(unsigned context);
  static void add_workers(unsigned context, int* workers, unsigned count);
  static void remove_workers(unsigned context, int* workers, unsigned count);
  static void submitted(starpu_task* task);
  static int push(starpu_task* task);
  static starpu_task* pop(unsigned context);
  static void starts(starpu_task* task, unsigned context);
  static void executed(starpu_task* task, unsigned context);
};

/// It under a policy's name. `name` and `description` must outlive it.
constexpr starpu_sched_policy look_ahead_scheduler(const char* name, const char* description) {
  starpu_sched_policy scheduler{};
  scheduler.init_sched = LookAhead::init;
  scheduler.deinit_sched = LookAhead::deinit;
  scheduler.push_task = LookAhead::push;
  scheduler.pop_task = LookAhead::pop;
  scheduler.submit_hook = LookAhead::submitted;
  scheduler.pre_exec_hook = LookAhead::starts;
  scheduler.post_exec_hook = LookAhead::executed;
  scheduler.add_workers = LookAhead::add_workers;
  scheduler.remove_workers = LookAhead::remove_workers;
  scheduler.prefetches = 1;
  scheduler.policy_name = name;
  scheduler.policy_description = description;
  scheduler.worker_type = STARPU_WORKER_LIST;
  return scheduler;
}

}  // namespace sluice
