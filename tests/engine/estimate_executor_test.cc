// The clock of a run that computes nothing, against estimates that are added up by hand.
#include "engine/run/estimate_executor.h"

#include <gtest/gtest.h>

#include <optional>

#include "engine/batching/engine.h"
#include "engine/machine/compute.h"
#include "engine/machine/machine_costs.h"
#include "schedulers/checked_policy.h"

namespace sluice {
namespace {

/// All on the GPU, with weights in HBM; some requests' KV in DDR, where the CPU attends to it.
class SomeInDdr : public Policy {
 public:
  explicit SomeInDdr(std::int64_t hbm_requests) : hbm_requests_(hbm_requests) {}
  MemoryPlan plan_memory() override {
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers),
                       LayerHomes::all(Tier::hbm, Tier::ddr));
    plan.embedding = plan.lm_head = Tier::hbm;
    plan.hbm_requests = hbm_requests_;
    return plan;
  }
  Placement place(std::int64_t /*layer*/, const BatchShape& shape,
                  const LayerHomes& homes) override {
    Placement placement(Device::gpu);
    if (shape.phase == Phase::decode && homes.kv != Tier::hbm)
      placement[Sublayer::qk] = placement[Sublayer::sv] = Device::cpu;
    return placement;
  }

 private:
  std::int64_t hbm_requests_;
};

class EstimateExecutorTest : public ::testing::Test {
 protected:
  const CostModel& costs() const { return *costs_.model; }

  PolicyRun& start(std::int64_t hbm_requests) {
    policy_.emplace(hbm_requests);
    checked_.emplace(*policy_, "some-in-ddr");
    return run_.emplace(*checked_, costs(), workload_,
                        KvPages{.all = workload_.batch * 16, .hbm = 100, .ddr = 1000});
  }

  /// Sequences of one phase, each with so many rows behind so much that is cached.
  struct Sequences {
    std::size_t cohort = 0;
    std::int64_t count = 1;
    std::int32_t context = 0;
    std::size_t rows = 1;
  };
  SubBatch sub_batch(const std::vector<Sequences>& kinds) {
    SubBatch sub_batch;
    for (const Sequences& kind : kinds) {
      BatchPart& part = sub_batch.parts.emplace_back();
      part.cohort = kind.cohort;
      part.phase = kind.rows > 1 ? Phase::prefill : Phase::decode;
      const std::vector<std::int32_t> tokens(kind.rows);
      const std::vector<std::int32_t> pages(64);
      for (std::int64_t i = 0; i < kind.count; ++i) {
        part.batch.add(
            {.slot = 0, .context = kind.context, .tokens = tokens, .pages = pages, .sampling = {}},
            BatchBuilder::LogitRows::last);
      }
    }
    run_->place(sub_batch);
    return sub_batch;
  }

  IterationEstimate estimated(const std::vector<Chain>& chains) const {
    return estimate_iteration(costs(), run_->memory(), chains, Prefetch::layer, Start::steady);
  }
  std::vector<Placement> everywhere(const Placement& placement) const {
    return {static_cast<std::size_t>(costs().model().num_layers), placement};
  }

  ModelConfig config_ = find_model_config("llama-2-7b");
  MachineCosts costs_ = profile_costs("g4-4xlarge", model_dimensions(config_, default_dtype));
  Workload workload_ = {.batch = 8, .input_tokens = 100, .output_tokens = 28};
  std::optional<SomeInDdr> policy_;
  std::optional<CheckedPolicy> checked_;
  std::optional<PolicyRun> run_;
};

TEST_F(EstimateExecutorTest, IterationsFollowEachOther) {
  EstimateExecutor executor(costs(), start(4));
  const Placement gpu(Device::gpu);
  const IterationEstimate prompts = estimated({{.parts = {{.shape = {Phase::prefill, 2, 100, 100},
                                                           .attention = Device::gpu,
                                                           .kv = Tier::hbm}},
                                                .placements = everywhere(gpu)}});
  const IterationEstimate decodes = estimated(
      {{.parts = {{.shape = {Phase::decode, 2, 1, 101}, .attention = Device::gpu, .kv = Tier::hbm}},
        .placements = everywhere(gpu)}});
  EXPECT_EQ(executor.now_s(), 0);
  executor.submit({sub_batch({{.count = 2, .rows = 100}})}, {});
  executor.submit({sub_batch({{.count = 2, .context = 100}})}, {});
  EXPECT_EQ(executor.now_s(), 0);
  const std::vector<SubBatchResults> first = executor.wait();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].tokens.size(), 2U);
  EXPECT_DOUBLE_EQ(executor.now_s(), prompts.seconds);
  EXPECT_DOUBLE_EQ(executor.busy().gpu_s, prompts.busy.gpu_s);
  executor.wait();
  EXPECT_DOUBLE_EQ(executor.now_s(), prompts.seconds + decodes.seconds);
  // A later one begins when it is there.
  executor.sleep_until(100);
  executor.submit({sub_batch({{.count = 2, .context = 100}})}, {});
  executor.sleep_until(50);
  executor.wait();
  EXPECT_DOUBLE_EQ(executor.now_s(), 100 + decodes.seconds);
  EXPECT_DOUBLE_EQ(executor.busy().gpu_s, prompts.busy.gpu_s + 2 * decodes.busy.gpu_s);
  EXPECT_EQ(executor.busy().to_gpu_s, 0);
}

TEST_F(EstimateExecutorTest, PartsAttendWhereTheirKvLives) {
  EstimateExecutor executor(costs(), start(4));
  Placement on_cpu(Device::gpu);
  on_cpu[Sublayer::qk] = on_cpu[Sublayer::sv] = Device::cpu;
  const Chain both = {
      .parts = {{.shape = {Phase::decode, 2, 1, 201}, .attention = Device::gpu, .kv = Tier::hbm},
                {.shape = {Phase::decode, 3, 1, 301}, .attention = Device::cpu, .kv = Tier::ddr}},
      .placements = everywhere(Placement(Device::gpu))};
  const Chain on_the_cpu = {
      .parts = {{.shape = {Phase::decode, 5, 1, 401}, .attention = Device::cpu, .kv = Tier::ddr}},
      .placements = everywhere(on_cpu)};
  const IterationEstimate expected = estimated({both, on_the_cpu});
  executor.submit({sub_batch({{.cohort = 0, .count = 2, .context = 200},
                              {.cohort = 1, .count = 3, .context = 300}}),
                   sub_batch({{.cohort = 1, .count = 5, .context = 400}})},
                  {});
  const std::vector<SubBatchResults> results = executor.wait();
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(results[0].tokens.size(), 5U);
  EXPECT_EQ(results[1].tokens.size(), 5U);
  EXPECT_DOUBLE_EQ(executor.now_s(), expected.seconds);
  EXPECT_GT(executor.busy().cpu_s, 0);
}

TEST_F(EstimateExecutorTest, MovesTakeTheLinkBesideAndTheDevices) {
  EstimateExecutor executor(costs(), start(4));
  const auto move = [](std::size_t from, std::size_t to, std::size_t pages) {
    return KvMove{.from = from,
                  .to = to,
                  .from_pages = std::vector<std::int32_t>(pages),
                  .to_pages = std::vector<std::int32_t>(pages)};
  };
  const std::vector<SubBatch> decodes = {sub_batch({{.count = 2, .context = 100}})};
  const IterationEstimate without = executor.estimate(decodes, {});
  // 32 layers, 10 pages of 16 tokens, 4096 values of K and of V, 2 bytes each; 12 GB/s after 10 us;
  // a task on the GPU takes 10 us, and reads and writes at 320 GB/s.
  const double bytes = 10.0 * 16 * 2 * 4096 * 2;
  const double crossing_s = 32 * (10e-6 + bytes / 12e9);
  const double on_gpu_s = 32 * (10e-6 + 2 * bytes / 320e9);
  const double on_cpu_s = 32 * (2 * bytes / 39.7e9);
  const IterationEstimate out = executor.estimate(decodes, std::vector{move(0, 1, 10)});
  EXPECT_NEAR(out.busy.to_cpu_s - without.busy.to_cpu_s, crossing_s, 1e-9);
  EXPECT_NEAR(out.busy.gpu_s - without.busy.gpu_s, on_gpu_s, 1e-6);
  EXPECT_NEAR(out.busy.cpu_s - without.busy.cpu_s, on_cpu_s, 1e-6);
  EXPECT_EQ(out.busy.to_gpu_s, without.busy.to_gpu_s);
  const IterationEstimate in = executor.estimate(decodes, std::vector{move(1, 0, 10)});
  EXPECT_NEAR(in.busy.to_gpu_s - without.busy.to_gpu_s, crossing_s, 1e-9);
  // Few bytes cross while the GPU computes; what takes longer than that is waited for.
  EXPECT_LT(in.seconds, without.seconds + crossing_s / 2);
  EXPECT_GE(in.seconds, without.busy.gpu_s + on_gpu_s);
  const IterationEstimate much = executor.estimate(decodes, std::vector{move(1, 0, 1000)});
  EXPECT_DOUBLE_EQ(much.seconds, much.busy.to_gpu_s);
}

TEST_F(EstimateExecutorTest, ALaterPieceOfAPromptBringsItsPages) {
  EstimateExecutor executor(costs(), start(4));
  const auto piece = [&](std::size_t cohort) {
    return executor.estimate(
        std::vector{sub_batch({{.cohort = cohort, .context = 100, .rows = 50}})}, {});
  };
  // 7 pages of 32 layers cross to the GPU, which stores nothing of them.
  const double bytes = 7.0 * 16 * 2 * 4096 * 2;
  EXPECT_NEAR(piece(1).busy.to_gpu_s - piece(0).busy.to_gpu_s, 32 * (10e-6 + bytes / 12e9), 1e-9);
}

TEST_F(EstimateExecutorTest, AnEnginesIterationsAddUp) {
  PolicyRun& policy = start(8);
  EstimateExecutor executor(costs(), policy);
  std::vector<KvPool> pools;
  for (const KvCohort& cohort : policy.kv_cohorts()) pools.emplace_back(cohort.pages);
  Engine engine(config_, pools, executor, {.max_sequences = 8, .policy = &policy});
  std::vector<Request> requests(3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].index = static_cast<std::int64_t>(i);
    requests[i].prompt_tokens.assign(50, 1);
    requests[i].max_new_tokens = 4;
    requests[i].ignore_eos = true;
  }
  RequestList source(std::move(requests));
  EngineEvents events;
  const std::atomic<bool> never{false};
  const EngineStats stats = engine.run(source, events, never);
  EXPECT_EQ(stats.iterations, 4);
  double expected_s = 0;
  for (const BatchShape& shape : {BatchShape{Phase::prefill, 3, 50, 50}, BatchShape::decode(3, 51),
                                  BatchShape::decode(3, 52), BatchShape::decode(3, 53)}) {
    expected_s +=
        estimated({{.parts = {{.shape = shape, .attention = Device::gpu, .kv = Tier::hbm}},
                    .placements = everywhere(Placement(Device::gpu))}})
            .seconds;
  }
  EXPECT_DOUBLE_EQ(stats.wall_s, expected_s);
}

}  // namespace
}  // namespace sluice
