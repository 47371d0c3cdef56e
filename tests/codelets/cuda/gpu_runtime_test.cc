// Codelets on StarPU's CUDA worker: memory that is too small for the data, failures of host and
// device code, scratch memory that counts.
#include <gtest/gtest.h>

#include <vector>

#include "base/cpu.h"
#include "codelets/cuda/context.h"
#include "codelets/cuda/task_graphs.h"
#include "codelets/runtime/codelet.h"
#include "schedulers/look_ahead.h"
#include "tests/codelets/cuda/gpu_runtime_kernels.h"

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

Runtime& runtime() {
  static starpu_sched_policy scheduler = look_ahead_scheduler("test", "runs tasks where they say");
  static Runtime instance(
      {.cores = read_cpu_topology().cores, .scheduler = &scheduler, .gpu_bytes = 10 * mebibyte});
  return instance;
}

enum class What : std::uint8_t {
  add,
  add_in_graph,
  throw_in_graph,
  wait_in_graph,
  throw_on_host,
  fail_on_device
};
struct SumArgs {
  TaskTag tag;
  std::int64_t count = 0;
  What what = What::add;
};

struct Sum {
  void operator()(const CpuContext& /*cpu*/, const SumArgs& /*args*/, Buffers /*buffers*/) const {
    throw Error("it ran on the CPU");
  }
  void operator()(const cuda::Context& gpu, const SumArgs& args, Buffers buffers) const {
    const auto* values = buffers.take<float>();
    auto* sum = buffers.take<float>();
    if (args.what == What::throw_on_host) throw Error("it was meant to fail");
    if (args.what == What::fail_on_device) {
      test::find_fault(gpu);
    } else if (args.what == What::add) {
      test::add_up(gpu, values, args.count, sum);
    } else if (args.what == What::wait_in_graph) {
      cuda::TaskGraphs graphs(gpu.stream);
      for (int i = 0; i < 3; ++i) {
        graphs.run({}, [&] {
          test::add_up(gpu, values, args.count, sum);
          cuda::check(cudaStreamSynchronize(gpu.stream), "waiting");  // no capture has that
        });
      }
      if (graphs.use().captured + graphs.use().launched > 0) throw Error("it was captured");
    } else {
      TaskKey key;
      key.add(values);
      key.add(sum);
      key.add(args.count);
      gpu.graphs->run(key, [&] {
        test::add_up(gpu, values, args.count, sum);
        if (args.what == What::throw_in_graph) throw Error("it was meant to fail");
      });
    }
  }
};

/// `what` of each of some arrays on the GPU, and their sum.
class Sums {
 public:
  Sums(std::size_t num_arrays, std::size_t count) {
    arrays_.assign(num_arrays, std::vector<float>(count, 1));
    for (const std::vector<float>& array : arrays_)
      handles_.push_back(DataHandle::of_memory(array.data(), array.size() * sizeof(float)));
  }
  /// `count`: of the elements, the first ones; all when it is 0.
  void submit(What what = What::add, std::int64_t count = 0) const {
    static const auto codelet = Codelet<SumArgs>::with_all<Sum>("sum");
    SumArgs args;
    args.count = count > 0 ? count : static_cast<std::int64_t>(arrays_.front().size());
    args.what = what;
    args.tag.device = Device::gpu;
    args.tag.layer = 2;
    args.tag.num_tokens = 7;
    for (const DataHandle& handle : handles_)
      codelet.submit(DType::f32, args, {reads(handle), updates(to_sum_)});
  }
  float wait() const {
    starpu_task_wait_for_all();
    return *ReadAccess(to_sum_).as<float>();
  }

 private:
  std::vector<std::vector<float>> arrays_;
  std::vector<DataHandle> handles_;
  float sum_ = 0;
  DataHandle to_sum_ = DataHandle::of_memory(&sum_, sizeof(sum_));
};

class GpuRuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override { runtime(); }
  void TearDown() override { run_failure().clear(); }
  static std::string reason() {
    try {
      run_failure().rethrow();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(GpuRuntimeTest, ScratchMemoryCountsAndIsRefusedWhereThereIsNone) {
  const unsigned node = runtime().accelerator_node().value();
  const auto before = static_cast<std::uint64_t>(starpu_memory_get_used(node));
  runtime().reserve_on_gpu(mebibyte, mebibyte / 2);
  EXPECT_EQ(static_cast<std::uint64_t>(starpu_memory_get_used(node)),
            before + mebibyte + mebibyte / 2);
  EXPECT_THROW(runtime().reserve_on_gpu(20 * mebibyte, 0), Error);
}

TEST_F(GpuRuntimeTest, DataStreamsThroughASmallerMemory) {
  const Sums sums(8, mebibyte / 2);
  const std::uint64_t before_bytes = runtime().accelerator_use().to_bytes;
  for (int round = 0; round < 2; ++round) sums.submit();
  EXPECT_EQ(sums.wait(), static_cast<float>(2 * 8 * mebibyte / 2));
  EXPECT_EQ(reason(), "");
  const AcceleratorUse use = runtime().accelerator_use();
  EXPECT_EQ(use.memory_bytes, 10 * mebibyte);
  EXPECT_LE(use.peak_bytes, use.memory_bytes);
  EXPECT_GT(use.peak_bytes, 4 * mebibyte);
  EXPECT_GT(use.to_bytes - before_bytes, 8 * 2 * mebibyte);  // some came twice
}

TEST_F(GpuRuntimeTest, HostCodeThatThrowsNamesTheCodelet) {
  const Sums sums(1, 4);
  sums.submit(What::throw_on_host);
  sums.submit();
  EXPECT_EQ(sums.wait(), 0);
  EXPECT_EQ(reason(), "sum_f32 of layer 2 with 7 tokens failed: it was meant to fail");
}

TEST_F(GpuRuntimeTest, WhatDeviceCodeFindsIsTheRunsFailure) {
  const Sums sums(1, 4);
  sums.submit(What::fail_on_device);
  sums.submit();
  EXPECT_EQ(sums.wait(), 0);
  EXPECT_EQ(reason(),
            "a kernel on the GPU failed: token id 1234 in row 5 is outside of the vocabulary");
  run_failure().clear();
  EXPECT_EQ(reason(), "");
  sums.submit();
  EXPECT_EQ(sums.wait(), 4);
}

/// Graphs made, and launches of graphs, since it was made.
class GraphsSince {
 public:
  std::pair<std::int64_t, std::int64_t> use() const {
    const GraphUse now = runtime().graph_use();
    return {now.captured - before_.captured, now.launched - before_.launched};
  }

 private:
  GraphUse before_ = runtime().graph_use();
};
using Use = std::pair<std::int64_t, std::int64_t>;

TEST_F(GpuRuntimeTest, TheSecondOfATaskIsCapturedAndTheRestAreLaunchedWhole) {
  const Sums sums(1, 64);
  const GraphsSince graphs;
  for (int i = 0; i < 5; ++i) sums.submit(What::add_in_graph);
  EXPECT_EQ(sums.wait(), 5 * 64);
  EXPECT_EQ(graphs.use(), Use(1, 4));
  // Another length is another task.
  for (int i = 0; i < 2; ++i) sums.submit(What::add_in_graph, 63);
  sums.submit(What::add_in_graph);
  EXPECT_EQ(sums.wait(), 5 * 64 + 2 * 63 + 64);
  EXPECT_EQ(graphs.use(), Use(2, 6));
  EXPECT_EQ(reason(), "");
}

TEST_F(GpuRuntimeTest, AFailureWhileATaskIsCapturedIsTheRunsAndTheStreamGoesOn) {
  const Sums sums(1, 32);
  const GraphsSince graphs;
  sums.submit(What::add_in_graph);
  EXPECT_EQ(sums.wait(), 32);
  sums.submit(What::throw_in_graph);
  EXPECT_EQ(sums.wait(), 2 * 32);  // what was captured has not run, then it ran as it was
  EXPECT_EQ(reason(), "sum_f32 of layer 2 with 7 tokens failed: it was meant to fail");
  run_failure().clear();
  for (int i = 0; i < 2; ++i) sums.submit(What::add_in_graph);
  EXPECT_EQ(sums.wait(), 4 * 32);
  EXPECT_EQ(graphs.use(), Use(1, 2));
}

TEST_F(GpuRuntimeTest, WhatCannotBeCapturedIsLaunchedAsItIs) {
  const Sums sums(1, 16);
  sums.submit(What::wait_in_graph);
  EXPECT_EQ(sums.wait(), 3 * 16);
  EXPECT_EQ(reason(), "");
}

TEST_F(GpuRuntimeTest, WhatHasNotComeForLongIsForgotten) {
  const Sums sums(1, 1024);
  const GraphsSince graphs;
  std::int64_t expected = 0;
  for (int round = 0; round < 2; ++round) {
    for (std::int64_t count = 1; count <= 300; ++count) {  // more than are remembered
      sums.submit(What::add_in_graph, count);
      expected += count;
    }
  }
  EXPECT_EQ(sums.wait(), static_cast<float>(expected));
  EXPECT_EQ(graphs.use(), Use(0, 0));
  for (int i = 0; i < 2; ++i) sums.submit(What::add_in_graph, 300);
  EXPECT_EQ(sums.wait(), static_cast<float>(expected + 600));
  EXPECT_EQ(graphs.use(), Use(1, 2));
}

}  // namespace
}  // namespace sluice
