// What StarPU and we record, read again; against StarPU's own converter.
#include "engine/trace/fxt.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/trace_recorder.h"
#include "engine/trace/trace_analysis.h"
#include "graphs/decoder_graph.h"
#include "graphs/loaded_model.h"
#include "tests/support/cli_process.h"
#include "tests/support/expect_error.h"
#include "tests/support/pages.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using test::TemporaryFolder;

constexpr std::int64_t num_layers = 6;  // of tiny

struct Decode {
  int num_iterations = 1;
  Fusion fusion = Fusion::layers;
  std::int32_t num_sub_batches = 2;
  std::vector<std::optional<Device>> weight_readers = {};
};

/// Decode iterations of sub-batches of one sequence on the embedded model, from an empty cache.
void decode(Runtime& runtime, TraceRecorder& recorder, const Decode& what) {
  const Model model = open_model("tiny");
  const LoadedModel loaded(model, DType::f32, runtime.setup_pool());
  ASSERT_EQ(loaded.config().num_layers, num_layers);
  KvCache kv(loaded.shape(), num_layers, 64);
  const std::vector<std::vector<std::int32_t>> pages = {test::pages(0, 8), test::pages(8, 8)};
  DecoderGraph graph(
      loaded, {&kv, 1},
      {.num_slots = 2, .fusion = what.fusion, .weight_readers = what.weight_readers});
  recorder.start();
  std::vector<PendingIteration> pending;
  for (int i = 0; i < what.num_iterations; ++i) {
    std::vector<SubBatch> sub_batches(static_cast<std::size_t>(what.num_sub_batches));
    const std::int32_t token = 7;
    for (std::int32_t slot = 0; slot < what.num_sub_batches; ++slot) {
      BatchPart& part = sub_batches[static_cast<std::size_t>(slot)].parts.emplace_back();
      part.phase = Phase::decode;
      part.batch.add({.slot = slot,
                      .context = i,
                      .fresh = i == 0,
                      .tokens = std::span(&token, 1),
                      .pages = pages[static_cast<std::size_t>(slot)],
                      .sampling = {}},
                     BatchBuilder::LogitRows::last);
    }
    for (PendingIteration& done : graph.submit(sub_batches)) pending.push_back(std::move(done));
  }
  for (const PendingIteration& iteration : pending) iteration.tokens();
  recorder.stop();
}

Trace record_decode(const TemporaryFolder& folder, const Decode& what) {
  TraceRecorder recorder(folder.path());
  {
    Runtime runtime({.cores = {0}});
    decode(runtime, recorder, what);
  }
  return read_fxt(recorder.file().string());
}

TEST(FxtTest, EveryTaskIsThereWithItsPlace) {
  const TemporaryFolder folder;
  const Trace trace = record_decode(folder, {.num_iterations = 3});
  EXPECT_EQ(trace.num_lost, 0);
  EXPECT_EQ(trace.num_flushes, 0);
  ASSERT_EQ(trace.workers.size(), 1U);
  EXPECT_EQ(trace.workers[0].device, Device::cpu);
  ASSERT_EQ(trace.nodes.size(), 1U);
  EXPECT_EQ(trace.nodes[0].tier, Tier::ddr);
  std::map<std::string, int> places;
  for (const TraceTask& task : trace.tasks) {
    ASSERT_TRUE(task.tagged);
    ++places[task_label(task) + ", " + task_place(task)];
  }
  EXPECT_EQ(places.size(), 3U * 2U * (num_layers + 3));
  EXPECT_EQ(trace.tasks.size(), places.size());
  EXPECT_EQ(places["stage 1-6, layer 5, iteration 2.1"], 1);
  EXPECT_EQ(places["embedding, iteration 0.0"], 1);
  EXPECT_EQ(iterations_of(trace), (std::vector<std::int64_t>{0, 1, 2}));
  std::vector<std::string> events;
  for (const TraceEvent& event : trace.events) events.push_back(event.text);
  EXPECT_EQ(events, (std::vector<std::string>{"iteration 0", "iteration 1", "iteration 2"}));
}

TEST(FxtTest, StagesShowTheirSublayers) {
  const TemporaryFolder folder;
  const Trace trace = record_decode(folder, {.num_iterations = 2});
  const std::vector<Sublayer> expected = {Sublayer::qkv, Sublayer::attention, Sublayer::out_proj,
                                          Sublayer::fc1, Sublayer::fc2};
  int stages = 0;
  for (const TraceTask& task : trace.tasks) {
    ASSERT_FALSE(task.sublayers.empty());
    std::int64_t end = task.start_ns;
    std::vector<Sublayer> found;
    for (const TraceSublayer& at : task.sublayers) {
      EXPECT_EQ(at.start_ns, end);
      EXPECT_LT(at.start_ns, at.end_ns);
      end = at.end_ns;
      found.push_back(at.sublayer);
    }
    EXPECT_EQ(end, task.end_ns);
    if (task.tag.layer < 0) continue;
    ++stages;
    EXPECT_EQ(found, expected);
  }
  EXPECT_EQ(stages, 2 * 2 * num_layers);
}

TEST(FxtTest, ATaskOfSeveralLayersShowsTheSublayersOfEach) {
  const TemporaryFolder folder;
  const Trace trace = record_decode(
      folder, {.num_iterations = 2,
               .num_sub_batches = 1,
               .weight_readers = std::vector<std::optional<Device>>(num_layers, Device::cpu)});
  EXPECT_EQ(trace.tasks.size(), 2U * (1 + 3));
  for (const TraceTask& task : trace.tasks) {
    if (task.tag.layer < 0) continue;
    EXPECT_EQ(task_place(task), fmt::format("layers 0 to 5, iteration {}.0", task.tag.iteration));
    ASSERT_EQ(task.sublayers.size(), 5U * num_layers);
    for (std::size_t i = 0; i < task.sublayers.size(); ++i) {
      EXPECT_EQ(task.sublayers[i].layer, static_cast<std::int32_t>(i / 5));
      EXPECT_EQ(task.sublayers[i].sublayer, task.sublayers[i % 5].sublayer);
    }
  }
  const Trace again = trace_from_lines(trace_as_lines(trace), "trace.jsonl");
  EXPECT_EQ(again.tasks[1].tag.num_layers, num_layers);
  EXPECT_EQ(again.tasks[1].sublayers, trace.tasks[1].sublayers);
}

/// A task of 2 ms in which nothing stamps its sublayers.
void run_silent_stage(TraceRecorder& recorder, const TaskTag& tag) {
  const Runtime runtime({.cores = {0}});
  starpu_codelet silent;
  starpu_codelet_init(&silent);
  silent.cpu_funcs[0] = [](void**, void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  };
  recorder.start();
  starpu_task* task = starpu_task_create();
  task->cl = &silent;
  mark_task(task, tag);
  ASSERT_EQ(starpu_task_submit(task), 0);
  recorder.stop();
}

TEST(FxtTest, AStageThatNothingStampsIsDividedAsPredicted) {
  const TemporaryFolder folder;
  TraceRecorder recorder(folder.path());
  run_silent_stage(recorder, {.layer = 4,
                              .sublayer = Sublayer::qkv,
                              .last_sublayer = Sublayer::fc2,
                              .num_layers = 2,
                              .num_tokens = 9});
  const StageParts parts = [](const TaskTag& tag, Device device) -> std::vector<SublayerSeconds> {
    EXPECT_EQ(tag.num_tokens, 9);
    EXPECT_EQ(device, Device::cpu);
    return {{tag.layer, Sublayer::qkv, 0.5},
            {tag.layer, Sublayer::fc2, 1.0},
            {tag.layer + 1, Sublayer::qkv, 0.5}};
  };
  const Trace trace = read_fxt(recorder.file().string(), parts);
  ASSERT_EQ(trace.tasks.size(), 1U);
  const TraceTask& task = trace.tasks[0];
  const std::int64_t whole_ns = task.duration_ns();
  EXPECT_GE(whole_ns, 2'000'000);
  const std::int64_t first_ns = task.start_ns + whole_ns / 4;
  const std::int64_t second_ns = task.start_ns + whole_ns * 3 / 4;
  EXPECT_EQ(task.sublayers,
            (std::vector<TraceSublayer>{{Sublayer::qkv, task.start_ns, first_ns, 4},
                                        {Sublayer::fc2, first_ns, second_ns, 4},
                                        {Sublayer::qkv, second_ns, task.end_ns, 5}}));
  EXPECT_TRUE(trace.workers[0].predicted_sublayers);
  EXPECT_TRUE(trace_from_lines(trace_as_lines(trace), "x").workers[0].predicted_sublayers);

  const Trace whole = read_fxt(recorder.file().string());
  EXPECT_EQ(whole.tasks[0].sublayers,
            (std::vector<TraceSublayer>{{Sublayer::qkv, task.start_ns, task.end_ns, 4}}));
  EXPECT_FALSE(whole.workers[0].predicted_sublayers);
}

TEST(FxtTest, StampsCountMoreThanPredictions) {
  const TemporaryFolder folder;
  record_decode(folder, {.num_iterations = 1});
  const Trace trace = read_fxt(folder.file("fxt_0"),
                               [](const TaskTag& tag, Device) -> std::vector<SublayerSeconds> {
                                 return {{tag.layer, tag.sublayer, 1}};
                               });
  for (const TraceTask& task : trace.tasks) {
    EXPECT_EQ(task.sublayers.size(), task.tag.layer < 0 ? 1U : 5U);
  }
}

TEST(FxtTest, UnfusedSublayersAreTasks) {
  const TemporaryFolder folder;
  const Trace trace = record_decode(folder, {.num_iterations = 1, .fusion = Fusion::sublayers});
  EXPECT_EQ(trace.tasks.size(), 2U * (5 * num_layers + 3));
  for (const TraceTask& task : trace.tasks) EXPECT_EQ(task.sublayers.size(), 1U);
}

TEST(FxtTest, EachLayerDependsOnTheOneBefore) {
  const TemporaryFolder folder;
  const Trace trace = record_decode(folder, {.num_iterations = 2});
  const TaskIndex index(trace);
  int checked = 0;
  for (const TraceTask& task : trace.tasks) {
    EXPECT_LE(task.submit_ns, task.ready_ns);
    EXPECT_LE(task.ready_ns, task.start_ns);
    std::set<std::string> before;
    for (const std::int64_t id : task.after) {
      ASSERT_NE(index.find(id), nullptr);
      EXPECT_LE(index.find(id)->end_ns, task.start_ns);
      before.insert(task_label(*index.find(id)) + ", " + task_place(*index.find(id)));
    }
    if (task.tag.layer < 1) continue;
    ++checked;
    const std::string expected =
        fmt::format("stage 1-6, layer {}, iteration {}.{}", task.tag.layer - 1, task.tag.iteration,
                    task.tag.sub_batch);
    EXPECT_EQ(before.count(expected), 1U) << expected;
  }
  EXPECT_EQ(checked, 2 * 2 * (num_layers - 1));
  // embedding, layers, head and sampling of one sub-batch wait for each other; they are on the
  // longest chain, which the other sub-batch's may precede.
  EXPECT_GE(critical_path(trace, 0).chain.size(), static_cast<std::size_t>(num_layers + 3));
}

/// Start and end of each job in ms, as StarPU's own tool writes them.
std::map<std::int64_t, std::pair<double, double>> converted(const std::string& fxt_file) {
  const TemporaryFolder folder;
  testing::CliProcess tool(SLUICE_FXT_TOOL, {"-i", fxt_file, "-d", folder.path().string()});
  EXPECT_EQ(tool.wait().exit_code, 0);
  std::map<std::int64_t, std::pair<double, double>> jobs;
  std::ifstream records(folder.file("tasks.rec"));
  std::int64_t job = -1;
  for (std::string key; records >> key;) {
    std::string rest;
    if (key == "JobId:") {
      records >> job;
    } else if (key == "StartTime:") {
      records >> jobs[job].first;
    } else if (key == "EndTime:") {
      records >> jobs[job].second;
    } else {
      std::getline(records, rest);
    }
  }
  return jobs;
}

TEST(FxtTest, TimesAreThoseOfStarPUsOwnTool) {
  if (std::ifstream(SLUICE_FXT_TOOL).fail()) GTEST_SKIP() << SLUICE_FXT_TOOL << " is missing";
  const TemporaryFolder folder;
  const Trace trace = record_decode(folder, {.num_iterations = 3});
  const auto jobs = converted(folder.file("fxt_0"));
  ASSERT_FALSE(trace.tasks.empty());
  ASSERT_EQ(jobs.count(trace.tasks.front().id), 1U);
  const double begin = jobs.at(trace.tasks.front().id).first -
                       static_cast<double>(trace.tasks.front().start_ns) * 1e-6;
  for (const TraceTask& task : trace.tasks) {
    ASSERT_EQ(jobs.count(task.id), 1U) << task.id;
    const auto [start, end] = jobs.at(task.id);
    EXPECT_NEAR(start, begin + static_cast<double>(task.start_ns) * 1e-6, 2e-6);
    EXPECT_NEAR(end, begin + static_cast<double>(task.end_ns) * 1e-6, 2e-6);
  }
}

/// Needs neither threads nor a model: StarPU moves data to a disk and back.
TEST(FxtTest, TransfersHaveTheirBytesAndDirection) {
  const TemporaryFolder folder;
  const TemporaryFolder disk;
  TraceRecorder recorder(folder.path());
  constexpr std::size_t size_bytes = 1 << 20;
  {
    const Runtime runtime({.cores = {0}});
    const int node = starpu_disk_register(&starpu_disk_unistd_ops,
                                          const_cast<char*>(disk.path().c_str()), 64 << 20);
    ASSERT_EQ(node, 1);
    std::vector<char> values(size_bytes, 'x');
    recorder.start();
    {
      const DataHandle handle = DataHandle::of_memory(values.data(), size_bytes);
      ASSERT_EQ(starpu_data_prefetch_on_node(handle.get(), static_cast<unsigned>(node), 0), 0);
    }
    recorder.stop();
  }
  const Trace trace = read_fxt(recorder.file().string());
  ASSERT_EQ(trace.nodes.size(), 2U);
  EXPECT_EQ(trace.nodes[1].tier, Tier::disk);
  const std::vector<LinkUse> links = link_use(trace);
  ASSERT_EQ(links.size(), 1U);
  EXPECT_EQ(links[0].from, 0);
  EXPECT_EQ(links[0].to, 1);
  EXPECT_EQ(links[0].bytes, static_cast<std::int64_t>(size_bytes));
  EXPECT_GT(links[0].busy_ns, 0);
  EXPECT_TRUE(trace.transfers[0].prefetch);
}

TEST(FxtTest, MemoryCountsWhatWeRegistered) {
  const TemporaryFolder folder;
  TraceRecorder recorder(folder.path());
  const std::vector<char> values(12345);
  {
    const Runtime runtime({.cores = {0}});
    const DataHandle handle = DataHandle::of_memory(values.data(), values.size());
    recorder.start();
    recorder.stop();
  }
  const Trace trace = read_fxt(recorder.file().string());
  ASSERT_FALSE(trace.memory.empty());
  EXPECT_EQ(trace.memory[0].bytes, 12345);
}

TEST(FxtTest, AFullBufferIsWrittenOutAndCounted) {
  const TemporaryFolder folder;
  setenv("STARPU_TRACE_BUFFER_SIZE", "1", 1);  // NOLINT(concurrency-mt-unsafe)
  const Trace trace = record_decode(folder, {.num_iterations = 60, .fusion = Fusion::sublayers});
  unsetenv("STARPU_TRACE_BUFFER_SIZE");  // NOLINT(concurrency-mt-unsafe)
  EXPECT_GT(trace.num_flushes, 0);
  EXPECT_EQ(trace.num_lost, 0);
  EXPECT_EQ(trace.tasks.size(), 60U * 2U * (5 * num_layers + 3));
}

TEST(FxtTest, ATaskThatTheRecordLacksIsCounted) {
  const TemporaryFolder folder;
  TraceRecorder recorder(folder.path());
  {
    const Runtime runtime({.cores = {0}});
    recorder.start();
    starpu_task* task = starpu_task_create();
    mark_task(task, TaskTag{});
    task->destroy = 0;
    starpu_task_destroy(task);
    recorder.stop();
  }
  EXPECT_EQ(read_fxt(recorder.file().string()).num_lost, 1);
}

TEST(FxtTest, RequestsKeepTheirIds) {
  const TemporaryFolder folder;
  const std::string long_id(5000, 'x');
  TraceRecorder recorder(folder.path());
  {
    const Runtime runtime({.cores = {0}});
    mark_request("admitted", 1, "before the trace");
    recorder.start();
    mark_request("admitted", 0, "the first \"story\"");
    mark_request("finished", 4, "4");
    mark_request("finished", 5, long_id);
    mark_request("finished", 6, "a\nsluice request finished 7 forged\x1b[2J");
    mark_request("finished", 8, "");  // as a simulation's
    recorder.stop();
  }
  const Trace trace = read_fxt(recorder.file().string(), nullptr, recorder.request_ids());
  ASSERT_EQ(trace.events.size(), 5U);
  EXPECT_EQ(trace.events[0].text, "admitted 0 (the first \"story\")");
  EXPECT_EQ(trace.events[1].text, "finished 4");
  EXPECT_EQ(trace.events[2].text, "finished 5 (" + long_id + ")");
  EXPECT_EQ(trace.events[3].text, "finished 6 (a\nsluice request finished 7 forged\x1b[2J)");
  EXPECT_EQ(trace.events[4].text, "finished 8");
}

TEST(FxtTest, ARecordThatEndsEarlyOrIsNoneIsAnError) {
  const TemporaryFolder folder;
  record_decode(folder, {.num_iterations = 2});
  const std::string whole = testing::content_of(folder.file("fxt_0"));
  folder.write("cut", whole.substr(0, whole.size() / 2));
  testing::expect_error([&] { read_fxt(folder.file("cut")); }, {"cut", "ends early", "disk"});
  folder.write("head", whole.substr(0, 64));
  testing::expect_error([&] { read_fxt(folder.file("head")); }, {"head"});
  testing::expect_error([&] { read_fxt(folder.file("none")); }, {"none", "cannot read"});
}

}  // namespace
}  // namespace sluice
