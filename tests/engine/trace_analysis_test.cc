// Every figure is worked out by hand from the drawing in trace_data.h.
#include "engine/trace/trace_analysis.h"

#include <gtest/gtest.h>

#include "engine/trace/trace_report.h"
#include "tests/engine/trace_data.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using testing::two_sub_batches;

TEST(TraceAnalysisTest, WorkersAreBusyIdleAndOverlapped) {
  const std::vector<WorkerUse> uses = worker_use(two_sub_batches());
  ASSERT_EQ(uses.size(), 2U);
  const WorkerUse& cpu = uses[0];
  EXPECT_EQ(cpu.num_tasks, 2);
  EXPECT_EQ(cpu.busy_ns, 40000);  // 16-46, 82-92
  EXPECT_EQ(cpu.idle_ns, 60000);
  EXPECT_EQ(cpu.transfer_ns, 24000);  // 0-20, 41-45
  EXPECT_EQ(cpu.overlap_ns, 8000);    // 16-20, 41-45
  const WorkerUse& gpu = uses[1];
  EXPECT_EQ(gpu.num_tasks, 3);
  EXPECT_EQ(gpu.busy_ns, 50000);  // 5-15, 20-40, 47-67
  EXPECT_EQ(gpu.idle_ns, 50000);
  EXPECT_EQ(gpu.transfer_ns, 24000);
  EXPECT_EQ(gpu.overlap_ns, 10000);  // 5-15
  EXPECT_EQ(gpu.sublayer_ns[static_cast<std::size_t>(Sublayer::qkv)], 10000);
  EXPECT_EQ(gpu.sublayer_ns[static_cast<std::size_t>(Sublayer::fc1)], 20000);
}

TEST(TraceAnalysisTest, LinksAreCountedByDirection) {
  const std::vector<LinkUse> uses = link_use(two_sub_batches());
  ASSERT_EQ(uses.size(), 2U);
  EXPECT_EQ(uses[0].from, 0);
  EXPECT_EQ(uses[0].to, 1);
  EXPECT_EQ(uses[0].num_transfers, 2);
  EXPECT_EQ(uses[0].bytes, 16000);
  EXPECT_EQ(uses[0].busy_ns, 20000);
  EXPECT_EQ(uses[0].overlap_ns, 14000);  // 5-15 beside the GPU's work, 16-20 beside the CPU's
  EXPECT_EQ(uses[1].from, 1);
  EXPECT_EQ(uses[1].busy_ns, 4000);
  EXPECT_EQ(uses[1].overlap_ns, 4000);
}

TEST(TraceAnalysisTest, TransfersAtTheSameTimeCountOnce) {
  Trace trace = two_sub_batches();
  trace.transfers[1].start_ns = 2000;  // beside the first until 5000
  EXPECT_EQ(link_use(trace)[0].busy_ns, 20000);
}

TEST(TraceAnalysisTest, GapsHaveTheirCauses) {
  struct Expected {
    int worker;
    std::int64_t start, end;
    GapCause cause;
    std::int64_t next, waited_for;
  };
  const std::vector<Expected> expected = {{0, 46000, 82000, GapCause::nothing_submitted, 5, -1},
                                          {1, 67000, 100000, GapCause::nothing_submitted, -1, -1},
                                          {0, 0, 16000, GapCause::dependency, 2, 1},
                                          {0, 92000, 100000, GapCause::nothing_submitted, -1, -1},
                                          {1, 40000, 47000, GapCause::dependency, 4, 2},
                                          {1, 0, 5000, GapCause::data, 1, -1},
                                          {1, 15000, 20000, GapCause::data, 3, -1}};
  const std::vector<TraceGap> gaps = longest_gaps(two_sub_batches(), 10);
  ASSERT_EQ(gaps.size(), expected.size());
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(gaps[i].worker, expected[i].worker);
    EXPECT_EQ(gaps[i].start_ns, expected[i].start);
    EXPECT_EQ(gaps[i].end_ns, expected[i].end);
    EXPECT_EQ(gaps[i].cause, expected[i].cause) << to_string(gaps[i].cause);
    EXPECT_EQ(gaps[i].next, expected[i].next);
    EXPECT_EQ(gaps[i].waited_for, expected[i].waited_for);
  }
  EXPECT_EQ(longest_gaps(two_sub_batches(), 3).size(), 3U);
}

TEST(TraceAnalysisTest, WhatIsReadyAndThereWaitsForTheScheduler) {
  Trace trace = two_sub_batches();
  trace.tasks[2].ready_ns = 0;
  trace.transfers[1].end_ns = 14000;  // task 3's data is there before the gap from 15 to 20
  const std::vector<TraceGap> gaps = longest_gaps(trace, 10);
  EXPECT_EQ(gaps.back().start_ns, 15000);
  EXPECT_EQ(gaps.back().cause, GapCause::scheduling) << to_string(gaps.back().cause);
}

TEST(TraceAnalysisTest, CriticalPathIsTheLongestChain) {
  const IterationPath path = critical_path(two_sub_batches(), 0);
  EXPECT_EQ(path.num_tasks, 4);
  EXPECT_EQ(path.start_ns, 0);  // task 1 waits for data from the begin on
  EXPECT_EQ(path.end_ns, 67000);
  EXPECT_EQ(path.chain, (std::vector<std::int64_t>{1, 2, 4}));
  EXPECT_EQ(path.task_ns, 60000);     // 10 + 30 + 20
  EXPECT_EQ(path.transfer_ns, 5000);  // task 1's; task 3's 15 + 20 are a shorter chain
  EXPECT_EQ(path.sublayer_ns[static_cast<std::size_t>(Sublayer::attention)], 30000);
  EXPECT_EQ(path.sublayer_ns[static_cast<std::size_t>(Sublayer::out_proj)], 4000);
  EXPECT_EQ(critical_path(two_sub_batches(), 1).chain, (std::vector<std::int64_t>{5}));
}

TEST(TraceAnalysisTest, AnUnknownIterationIsAnError) {
  testing::expect_error([] { critical_path(two_sub_batches(), 7); }, {"no iteration 7"});
}

TEST(TraceAnalysisTest, IterationsRise) {
  EXPECT_EQ(iterations_of(two_sub_batches()), (std::vector<std::int64_t>{0, 1}));
  EXPECT_TRUE(iterations_of(Trace{}).empty());
}

TEST(TraceReportTest, TextNamesCauses) {
  const std::string text = trace_as_text(two_sub_batches(), {0});
  for (const char* part : {"nothing submitted", "dependency on qkv, layer 0, iteration 0.0", "data",
                           "sub-batch 1 of iteration 3; both count from 0",
                           "ddr (NUMA 0) to hbm (CUDA 0)", "0.050 ms", "critical path 0.065 ms"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(TraceReportTest, AnEmptyTraceIsReported) {
  Trace empty;
  empty.duration_ns = 5;
  EXPECT_NE(trace_as_text(empty, {}).find("0 tasks"), std::string::npos);
}

}  // namespace
}  // namespace sluice
