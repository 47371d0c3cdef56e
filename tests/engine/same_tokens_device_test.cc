// Requests whose KV lives in an accelerator's memory and in DDR, and goes from one to the other as
// a policy orders at random, give the tokens that each gives alone on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "base/cpu.h"
#include "codelets/runtime/gpu.h"
#include "engine/batching/engine.h"
#include "engine/machine/compute.h"
#include "engine/run/graph_executor.h"
#include "graphs/loaded_model.h"
#include "models/model.h"
#include "schedulers/look_ahead.h"
#include "tests/engine/arriving_requests.h"
#include "tests/engine/random_orders.h"

namespace sluice {
namespace {

using test::ArrivingRequests;

std::uint64_t number_from(const char* variable) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return text == nullptr ? 0 : static_cast<std::uint64_t>(std::stoi(text));
}
/// Memory of a stand-in accelerator, or of a GPU, which need not be a real one.
std::uint64_t stand_in_bytes() { return number_from("SLUICE_TEST_STAND_IN_MIB") << 20; }
std::uint64_t gpu_bytes() { return number_from("SLUICE_TEST_GPU_MIB") << 20; }
int num_requests() {
  const std::uint64_t asked_for = number_from("SLUICE_TEST_REQUESTS");
  return asked_for == 0 ? 30 : static_cast<int>(asked_for);
}

/// StarPU on the scheduler that policies share.
Runtime& runtime() {
  static starpu_sched_policy scheduler = look_ahead_scheduler("shared", "as policies have it");
  static Runtime instance = [] {
    set_staging({.host_bytes = std::uint64_t{1} << 20});
    return Runtime({.cores = read_cpu_topology().cores,
                    .scheduler = &scheduler,
                    .stand_in_bytes = stand_in_bytes(),
                    .gpu_bytes = gpu_bytes()});
  }();
  return instance;
}

/// One layer's costs for each layer that there is.
class Costs : public test::TwoPools {
 public:
  explicit Costs(const ModelConfig& config) : dimensions_(model_dimensions(config, DType::f32)) {}
  const ModelDimensions& model() const override { return dimensions_; }

 private:
  ModelDimensions dimensions_;
};

using Output = std::pair<std::int64_t, std::int64_t>;
struct Outcome {
  std::map<Output, Completion> completions;
  std::map<Output, std::vector<float>> logprobs;  ///< of each token
  EngineStats stats;
};

constexpr std::int64_t max_sequences = 8;

class SameTokensDeviceTest : public testing::TestWithParam<KvPool::Sharing> {
 protected:
  void SetUp() override {
    if (gpu_bytes() > 0 && find_first_gpu().devices.empty())
      GTEST_SKIP() << "no GPU: CUDA sees none";
  }

  /// With a policy a pool in HBM and one in DDR; else one in DDR.
  static Outcome run(const LoadedModel& model, PolicyRun* policy, KvPool::Sharing sharing,
                     ArrivingRequests& source) {
    const ModelConfig& config = model.config();
    const std::int64_t pages = policy == nullptr ? 200 : 26;
    const std::size_t num_pools = policy == nullptr ? 1 : 2;
    std::vector<KvCache> caches;
    std::vector<KvPool> pools;
    caches.reserve(num_pools);
    for (std::size_t i = 0; i < num_pools; ++i) {
      const Tier home = policy == nullptr ? Tier::ddr : policy->kv_cohorts()[i].homes.front();
      caches.emplace_back(model.shape(), config.num_layers, pages,
                          std::vector<Tier>(static_cast<std::size_t>(config.num_layers), home));
      caches.back().clear();
      pools.emplace_back(pages, sharing);
    }
    GraphExecutor executor(model, caches, {.num_slots = max_sequences});
    Engine engine(config, pools, executor,
                  {.max_sequences = policy == nullptr ? 1 : max_sequences,
                   .max_batch_tokens = policy == nullptr ? std::nullopt : std::optional(48),
                   .admit_by = policy == nullptr ? AdmitBy::whole_output : AdmitBy::known_tokens,
                   .eos_token_ids = {1, 2, 3},
                   .policy = policy});
    Outcome outcome;
    const EngineEvents events = {
        .on_token =
            [&](const Request& request, const DrawnToken& token) {
              outcome.logprobs[{request.index, token.output}].push_back(
                  token.logprobs->token.logprob);
              source.note_token();
              return Verdict::goes_on;
            },
        .on_finished =
            [&](Completion done) {
              const Output of(done.request->index, done.output);
              EXPECT_TRUE(outcome.completions.emplace(of, std::move(done)).second);
            }};
    outcome.stats = engine.run(source, events, std::atomic<bool>{false});
    for (const KvPool& pool : pools) EXPECT_EQ(pool.num_available(), pool.num_pages());
    return outcome;
  }
};

TEST_P(SameTokensDeviceTest, AsEachGivesAloneOnTheCpu) {
  const Model files = open_model("tiny");
  const LoadedModel model(files, DType::f32, runtime().setup_pool());
  // No request of this seed draws a token within an f32 error of the border to the next.
  std::mt19937_64 random(26);
  std::vector<Request> requests =
      test::random_requests(random, files.config.vocab_size, num_requests());
  for (Request& request : requests) request.logprobs = 1;
  ArrivingRequests alone(test::one_by_one(requests));
  const Outcome expected = run(model, nullptr, KvPool::Sharing::off, alone);
  test::RandomOrders orders(7);
  CheckedPolicy checked(orders, "at random");
  const Costs costs(files.config);
  PolicyRun policy(checked, costs,
                   {.batch = max_sequences, .input_tokens = 64, .output_tokens = 64}, {});
  ArrivingRequests together(test::arriving_at_random(random, requests, 0.1));
  Outcome found = run(model, &policy, GetParam(), together);
  ASSERT_EQ(found.completions.size(), expected.completions.size());
  for (const auto& [of, completion] : found.completions) {
    const Completion& other = expected.completions.at(of);
    if (completion.finish_reason == FinishReason::cancelled) {
      ASSERT_LE(completion.token_ids.size(), other.token_ids.size());
      EXPECT_TRUE(std::ranges::equal(completion.token_ids,
                                     std::span(other.token_ids).first(completion.token_ids.size())))
          << of.first;
    } else {
      EXPECT_EQ(completion.token_ids, other.token_ids) << of.first << " " << of.second;
    }
    const std::vector<float>& logprobs = found.logprobs[of];
    for (std::size_t i = 0; i < logprobs.size(); ++i) {
      EXPECT_NEAR(logprobs[i], expected.logprobs.at(of).at(i), 1e-4)
          << of.first << " " << of.second << ", token " << i;
    }
  }
  EXPECT_GT(found.stats.swapped_in_pages, 0);
  EXPECT_GT(found.stats.swapped_out_pages, 0);
  EXPECT_GT(found.stats.preemptions, 0);
  EXPECT_EQ(found.stats.prefix_hit_tokens > 0, GetParam() == KvPool::Sharing::on);
  if (stand_in_bytes() + gpu_bytes() == 0) return;
  const AcceleratorUse use = runtime().accelerator_use();
  EXPECT_GT(use.to_bytes, 0U);
  EXPECT_GT(use.from_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(Sharing, SameTokensDeviceTest,
                         testing::Values(KvPool::Sharing::off, KvPool::Sharing::on),
                         [](const auto& of) {
                           return of.param == KvPool::Sharing::on ? "shared" : "own";
                         });

}  // namespace
}  // namespace sluice
