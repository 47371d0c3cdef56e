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

/// The scheduler that policies share; its functions are these.
///
/// Placement: a task with a tag goes to the device that the tag names (any worker with a memory of
/// its own counts as a GPU), among that device's workers to the one whose turn its sub-batch is;
/// where none of them can run it, to whatever worker can. Tasks without a tag, as plain StarPU
/// programs have, go to the next free worker that can run them, by StarPU's priority.
///
/// Order on a worker: earlier iteration, earlier layer, earlier sublayer (storing KV comes behind
/// sublayer 3), lower sub-batch.
///
/// Look-ahead: sees the GPU's tasks as they are submitted, in order, and brings the read-only data
/// of those to come into its memory, as much at once as set_staging() allows. When a task ends,
/// what has room now is sent for once the worker's next task has its own data, or there is none to
/// run: a link serves first what was sent for first; with Prefetch::layer, what lives on a disk is
/// sent for at once. After its last task in sight, data is given up (starpu_data_wont_use). Left
/// alone is data that some task writes, that is small, or that was there already when first seen:
/// that is resident. The same goes for the CPU's tasks and main memory where data lives on a disk,
/// but there what has room is sent for at once. Where there is neither, nothing of this runs.
///
/// KV: a slab that kv_store tasks on the CPU write is the exception. While the GPU reads one, or
/// the CPU one that lives on a disk, the next one that it will read comes in, before weights, once
/// all that is to be stored into it before that read has been: two slabs at once, whatever bytes
/// set_staging() says; with Prefetch::half_layer one, the next when the last is done; none with
/// Prefetch::none. What comes from a disk is given up in main memory once it has been read.
///
/// Values between tasks (data without a home, such as hidden states): while a GPU's task runs,
/// those of the next one come (LIA Optimization-2), not of all that are ready: mini-batches may
/// have more of them than there is room for. Those that a task has used go to main memory at once
/// when tasks of two other sub-batches run there before the next one that uses them, and values
/// that those need wait in main memory for want of room: so a place is free as soon as it is asked
/// for. With Prefetch::none, or several workers beside one memory, StarPU does what it does.
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
