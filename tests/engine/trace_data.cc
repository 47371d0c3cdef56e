#include "tests/engine/trace_data.h"

namespace sluice::testing {
namespace {

constexpr std::int64_t unit_ns = 1000;

struct Times {
  std::int64_t submit, ready, start, end;
};

TraceTask task(std::int64_t id, int worker, const Times& times, std::vector<std::int64_t> after) {
  TraceTask made;
  made.id = id;
  made.worker = worker;
  made.submit_ns = times.submit * unit_ns;
  made.ready_ns = times.ready * unit_ns;
  made.start_ns = times.start * unit_ns;
  made.end_ns = times.end * unit_ns;
  made.after = std::move(after);
  made.tagged = true;
  made.tag.layer = 0;
  made.tag.phase = Phase::decode;
  made.tag.num_tokens = 2;
  return made;
}

TraceTask single(TraceTask made, const char* name, Sublayer sublayer) {
  made.name = name;
  made.tag.sublayer = made.tag.last_sublayer = sublayer;
  made.sublayers = {{sublayer, made.start_ns, made.end_ns, made.tag.layer}};
  return made;
}

/// Sublayers 4 to 6: 4, 10 and 6 units long.
TraceTask stage(TraceTask made) {
  made.name = "stage_4_6_bf16";
  made.tag.sublayer = Sublayer::out_proj;
  made.tag.last_sublayer = Sublayer::fc2;
  const std::int64_t fc1 = made.start_ns + 4 * unit_ns;
  const std::int64_t fc2 = fc1 + 10 * unit_ns;
  made.sublayers = {{Sublayer::out_proj, made.start_ns, fc1, made.tag.layer},
                    {Sublayer::fc1, fc1, fc2, made.tag.layer},
                    {Sublayer::fc2, fc2, made.end_ns, made.tag.layer}};
  return made;
}

TraceTransfer transfer(int from, int to, std::int64_t bytes, std::int64_t for_task,
                       std::int64_t start, std::int64_t end) {
  return {.from = from,
          .to = to,
          .bytes = bytes,
          .prefetch = for_task == 3,
          .task = for_task,
          .start_ns = start * unit_ns,
          .end_ns = end * unit_ns};
}

}  // namespace

Trace two_sub_batches() {
  Trace trace;
  trace.duration_ns = 100 * unit_ns;
  trace.nodes = {{0, Tier::ddr, "NUMA 0"}, {1, Tier::hbm, "CUDA 0"}};
  trace.workers = {{0, Device::cpu, 0, "CPU 0"}, {1, Device::gpu, 1, "CUDA 0.0"}};
  trace.tasks = {single(task(1, 1, {0, 0, 5, 15}, {}), "qkv_bf16", Sublayer::qkv),
                 single(task(2, 0, {0, 15, 16, 46}, {1}), "attention_bf16", Sublayer::attention),
                 stage(task(3, 1, {0, 0, 20, 40}, {})), stage(task(4, 1, {1, 46, 47, 67}, {2})),
                 single(task(5, 0, {80, 80, 82, 92}, {4}), "attention_bf16", Sublayer::attention)};
  trace.tasks[2].tag.sub_batch = 1;
  trace.tasks[4].tag.iteration = 1;
  trace.transfers = {transfer(0, 1, 4000, 1, 0, 5), transfer(0, 1, 12000, 3, 5, 20),
                     transfer(1, 0, 2000, -1, 41, 45)};
  trace.memory = {{0, 0, 1000000}, {1, 0, 0}, {1, 5 * unit_ns, 4000}, {1, 20 * unit_ns, 16000}};
  trace.events = {{TraceEvent::Kind::iteration, 0, "iteration 0"},
                  {TraceEvent::Kind::request, 70 * unit_ns, "finished 0 (\"a\" story)"},
                  {TraceEvent::Kind::iteration, 80 * unit_ns, "iteration 1"}};
  return trace;
}

}  // namespace sluice::testing
