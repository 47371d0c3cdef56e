// The shared scheduler on a simulated machine:
//   look_ahead_simgrid <scheduler: look-ahead or eager> <most time, as a multiple of the bound>
// The bound is the longer of all transfers and all computation. Fails when a chain takes longer, or
// when work ran in the wrong place. The chains:
//   1. GPU tasks with a weight each, more than the GPU's memory holds
//   2. one that reads KV, which tasks on the CPU store into in turn
//   3. every other task reads a little of main memory instead of a weight
//   4. mini-batches whose values do not fit at once, with weights
//   5. the same, with all tasks of a layer waiting for each other, as behind one slab
#include <starpu.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "perfmodels/task.h"
#include "schedulers/look_ahead.h"

namespace {

constexpr int num_weights = 32;
constexpr int num_passes = 2;
constexpr std::size_t weight_bytes = std::size_t{64} << 20;
constexpr std::size_t small_bytes = 4096;
constexpr std::size_t gpu_megabytes = 640;
constexpr double task_us = 10000;
constexpr double store_us = 100;
constexpr int num_mini_batches = 24;
constexpr std::size_t value_bytes = std::size_t{32} << 20;
constexpr int num_layers = 6;

starpu_sched_policy look_ahead = sluice::look_ahead_scheduler("look-ahead", "of a test");
int num_on_cpu = 0;

double cost(starpu_task* task, unsigned worker, unsigned /*implementation*/) {
  if (static_cast<const sluice::TaskTag*>(task->cl_arg)->sublayer == sluice::Sublayer::kv_store)
    return store_us;
  return starpu_worker_get_type(static_cast<int>(worker)) == STARPU_CUDA_WORKER ? task_us
                                                                                : 20 * task_us;
}
void never_run(void** /*buffers*/, void* /*argument*/) {}

starpu_perfmodel model{};
starpu_codelet codelet{};
starpu_codelet writer{};   ///< to begin with
starpu_codelet in_turn{};  ///< a layer that also stores into a slab

void describe_codelet() {
  model.type = STARPU_PER_WORKER;
  model.symbol = "look_ahead_simgrid";
  model.worker_cost_function = cost;
  starpu_codelet_init(&codelet);
  codelet.cpu_funcs[0] = never_run;
  codelet.cuda_funcs[0] = never_run;
  codelet.cuda_flags[0] = STARPU_CUDA_ASYNC;
  codelet.nbuffers = 2;
  codelet.modes[0] = STARPU_RW;
  codelet.modes[1] = STARPU_R;
  codelet.model = &model;
  codelet.name = "layer";
  writer = codelet;
  writer.nbuffers = 1;
  writer.modes[0] = STARPU_W;
  in_turn = codelet;
  in_turn.nbuffers = 3;
  in_turn.modes[2] = STARPU_RW;
}

sluice::TaskTag tag_of(int iteration, int layer, sluice::Device device) {
  sluice::TaskTag tag;
  tag.iteration = iteration;
  tag.layer = layer;
  tag.sublayer = sluice::Sublayer::qkv;
  tag.last_sublayer = sluice::Sublayer::fc2;
  tag.device = device;
  return tag;
}

void submit(starpu_codelet& what, const std::vector<starpu_data_handle_t>& handles,
            const sluice::TaskTag& tag) {
  starpu_task* task = starpu_task_create();
  task->cl = &what;
  std::copy(handles.begin(), handles.end(), task->handles);
  task->cl_arg = std::malloc(sizeof(tag));
  std::memcpy(task->cl_arg, &tag, sizeof(tag));
  task->cl_arg_size = sizeof(tag);
  task->cl_arg_free = 1;
  task->epilogue_callback_func = [](void*) {
    const int worker = starpu_worker_get_id();
    if (worker >= 0 && starpu_worker_get_type(worker) == STARPU_CPU_WORKER) ++num_on_cpu;
  };
  STARPU_CHECK_RETURN_VALUE(starpu_task_submit(task), "starpu_task_submit");
}

void submit(starpu_data_handle_t x, starpu_data_handle_t weight, const sluice::TaskTag& tag) {
  submit(codelet, {x, weight}, tag);
}

unsigned gpu_node() {
  int worker = -1;
  starpu_worker_get_ids_by_type(STARPU_CUDA_WORKER, &worker, 1);
  return starpu_worker_get_memory_node(static_cast<unsigned>(worker));
}

starpu_data_handle_t handle_of(std::size_t bytes) {
  static char dummy[small_bytes];  // nobody looks into the memory
  starpu_data_handle_t handle = nullptr;
  starpu_vector_data_register(&handle, STARPU_MAIN_RAM, reinterpret_cast<uintptr_t>(dummy), 1,
                              bytes);
  return handle;
}
starpu_data_handle_t weight_handle() { return handle_of(weight_bytes); }

/// Microseconds that a weight takes to the GPU with nothing else on the way.
double transfer_us() {
  starpu_data_handle_t weight = weight_handle();
  const double start = starpu_timing_now();
  starpu_data_prefetch_on_node(weight, gpu_node(), 0);
  const double took_us = starpu_timing_now() - start;
  starpu_data_unregister(weight);
  return took_us;
}

/// Microseconds of the passes, in the simulated machine's time.
double run(const std::vector<starpu_data_handle_t>& weights, starpu_data_handle_t x) {
  const double start = starpu_timing_now();
  for (int pass = 0; pass < num_passes; ++pass) {
    for (int i = 0; i < num_weights; ++i)
      submit(x, weights[static_cast<std::size_t>(i)], tag_of(pass, i, sluice::Device::gpu));
  }
  starpu_task_wait_for_all();
  return starpu_timing_now() - start;
}

/// Microseconds of a pass in which every second task reads a little: a weight that comes for later
/// would hold it up.
double read_small_between(const std::vector<starpu_data_handle_t>& weights,
                          const std::vector<starpu_data_handle_t>& small, starpu_data_handle_t x) {
  const double start = starpu_timing_now();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto layer = static_cast<int>(2 * i);
    submit(x, weights[i], tag_of(0, layer, sluice::Device::gpu));
    submit(x, small[i], tag_of(0, layer + 1, sluice::Device::gpu));
  }
  starpu_task_wait_for_all();
  return starpu_timing_now() - start;
}

/// Slabs that a GPU task reads before a CPU task writes them: the look-ahead takes them for
/// read-only at first, and must not let them fill its window for ever.
void read_then_write(const std::vector<starpu_data_handle_t>& slabs, starpu_data_handle_t x) {
  for (starpu_data_handle_t slab : slabs) submit(x, slab, tag_of(0, 0, sluice::Device::gpu));
  for (starpu_data_handle_t slab : slabs) submit(slab, x, tag_of(0, 1, sluice::Device::cpu));
  starpu_task_wait_for_all();
  num_on_cpu = 0;
}

/// Microseconds of passes in which each layer reads its slab on the GPU before new KV is stored
/// into it on the CPU, all submitted at once.
double read_and_store(const std::vector<starpu_data_handle_t>& slabs, starpu_data_handle_t x,
                      starpu_data_handle_t new_kv) {
  const double start = starpu_timing_now();
  for (int pass = 0; pass < num_passes; ++pass) {
    for (std::size_t i = 0; i < slabs.size(); ++i) {
      const auto layer = static_cast<int>(i);
      submit(x, slabs[i], tag_of(pass, layer, sluice::Device::gpu));
      sluice::TaskTag tag = tag_of(pass, layer, sluice::Device::cpu);
      tag.sublayer = tag.last_sublayer = sluice::Sublayer::kv_store;
      submit(slabs[i], new_kv, tag);
    }
  }
  starpu_task_wait_for_all();
  const double took_us = starpu_timing_now() - start;
  num_on_cpu = 0;
  return took_us;
}

/// Microseconds of layers through which mini-batches pass whose values do not fit the memory at
/// once; `slab`: that all tasks of a layer store into, or null.
double run_mini_batches(const std::vector<starpu_data_handle_t>& weights,
                        starpu_data_handle_t slab) {
  std::vector<starpu_data_handle_t> values(num_mini_batches);
  for (starpu_data_handle_t& value : values) {
    starpu_vector_data_register(&value, -1, 0, 1, value_bytes);
    submit(writer, {value}, tag_of(0, -1, sluice::Device::cpu));
  }
  starpu_task_wait_for_all();
  num_on_cpu = 0;
  const double start = starpu_timing_now();
  for (int layer = 0; layer < num_layers; ++layer) {
    for (int i = 0; i < num_mini_batches; ++i) {
      sluice::TaskTag tag = tag_of(0, layer, sluice::Device::gpu);
      tag.sub_batch = static_cast<std::int16_t>(i);
      starpu_data_handle_t value = values[static_cast<std::size_t>(i)];
      starpu_data_handle_t weight = weights[static_cast<std::size_t>(layer)];
      slab != nullptr ? submit(in_turn, {value, weight, slab}, tag) : submit(value, weight, tag);
    }
  }
  for (starpu_data_handle_t value : values) starpu_data_unregister_submit(value);
  starpu_task_wait_for_all();
  return starpu_timing_now() - start;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool ours = std::strcmp(argv[1], "look-ahead") == 0;
  const double most = std::atof(argv[2]);
  setenv("STARPU_LIMIT_CUDA_MEM", std::to_string(gpu_megabytes).c_str(), 1);
  describe_codelet();
  starpu_conf conf;
  starpu_conf_init(&conf);
  conf.ncpus = 2;
  conf.ncuda = 1;
  conf.nopencl = 0;
  if (ours) {
    sluice::set_staging({.bytes = 4 * weight_bytes});
    conf.sched_policy = &look_ahead;
  } else {
    conf.sched_policy_name = argv[1];
  }
  if (starpu_init(&conf) != 0) return 77;

  std::vector<starpu_data_handle_t> weights(num_weights);
  for (starpu_data_handle_t& weight : weights) weight = weight_handle();
  starpu_data_handle_t x = handle_of(small_bytes);
  starpu_data_handle_t new_kv = handle_of(small_bytes);

  std::vector<starpu_data_handle_t> slabs(5);  // one more than the window holds
  for (starpu_data_handle_t& slab : slabs) slab = weight_handle();
  read_then_write(slabs, x);
  for (starpu_data_handle_t slab : slabs) starpu_data_unregister(slab);

  constexpr int num_tasks = num_weights * num_passes;
  const double transfers_us = num_tasks * transfer_us();
  const double compute_us = num_tasks * task_us;
  const double took_us = run(weights, x);
  const int strayed = num_on_cpu;
  for (int i = 0; i < 4; ++i) submit(x, weights[0], tag_of(num_passes, i, sluice::Device::cpu));
  starpu_task_wait_for_all();
  const int on_cpu = num_on_cpu - strayed;
  std::printf(
      "%s: %.0f ms, transfers alone %.0f ms, computation alone %.0f ms; %d of %d GPU tasks and %d "
      "of 4 CPU tasks ran on the CPU\n",
      argv[1], took_us / 1e3, transfers_us / 1e3, compute_us / 1e3, strayed, num_tasks, on_cpu);

  std::vector<starpu_data_handle_t> small(num_weights);
  for (starpu_data_handle_t& each : small) each = handle_of(small_bytes);
  const double between_us = read_small_between(weights, small, x);
  const double between_alone_us = 2 * num_weights * task_us;
  std::printf("small data between weights: %.0f ms, computation alone %.0f ms\n", between_us / 1e3,
              between_alone_us / 1e3);
  for (starpu_data_handle_t each : small) starpu_data_unregister(each);

  const double mini_batches_us = run_mini_batches(weights, nullptr);
  const double in_turn_us = run_mini_batches(weights, new_kv);
  const double mini_batches_alone_us = num_layers * num_mini_batches * task_us;
  std::printf(
      "mini-batches: %.0f ms, one waiting for the other %.0f ms, computation alone %.0f ms\n",
      mini_batches_us / 1e3, in_turn_us / 1e3, mini_batches_alone_us / 1e3);
  const int mini_batches_strayed = num_on_cpu;
  for (starpu_data_handle_t weight : weights) starpu_data_unregister(weight);

  std::vector<starpu_data_handle_t> kv(num_weights);
  for (starpu_data_handle_t& slab : kv) slab = weight_handle();
  const double kv_us = read_and_store(kv, x, new_kv);
  std::printf("KV read and stored in turn: %.0f ms\n", kv_us / 1e3);
  for (starpu_data_handle_t slab : kv) starpu_data_unregister(slab);
  starpu_data_unregister(new_kv);
  starpu_data_unregister(x);
  starpu_shutdown();
  const bool in_time = std::max(took_us, kv_us) <= most * std::max(transfers_us, compute_us) &&
                       between_us <= most * between_alone_us &&
                       std::max(mini_batches_us, in_turn_us) <= most * mini_batches_alone_us;
  const bool in_place = strayed == 0 && on_cpu == 4 && mini_batches_strayed == 0;
  return in_time && (!ours || in_place) ? 0 : 1;
}
