#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codelets/kernels/probe.h"
#include "codelets/runtime/routing_recorder.h"
#include "codelets/runtime/runtime.h"
#include "engine/batching/engine.h"
#include "engine/batching/policy_run.h"
#include "graphs/decoder_graph.h"
#include "perfmodels/work.h"

namespace sluice {

/// One thing to measure: `batch` sequences with `depth` tokens of KV each get `tokens` more, either
/// as prompts (prefill, "pp512") or one after the other (decode, "tg128").
struct BenchTest {
  Phase phase = Phase::decode;
  std::int64_t tokens = 0;
  std::int64_t batch = 1;
  std::int64_t depth = 0;
  /// Draws tokens, for which logits are needed; else each iteration ends with the layers.
  bool draws = true;
  /// Of prompts in an iteration: as many whole ones as fit, or one's chunk.
  std::int64_t rows_at_once = default_prefill_chunk_tokens;

  std::string name() const;
  std::int64_t total_tokens() const { return tokens * batch; }
};

/// One sequence's part of one iteration of a test.
struct BenchPiece {
  std::int64_t sequence = 0;
  std::int64_t context = 0;
  std::int64_t rows = 1;
  bool draws = true;
};
/// What each iteration of a test computes. Longer prompts are cut as Engine cuts them, into
/// chunks of default_prefill_chunk_tokens.
std::vector<std::vector<BenchPiece>> bench_iterations(const BenchTest& test);

/// The work of each iteration of a test.
std::vector<std::vector<StageWork>> bench_work(const BenchTest& test, const ModelDimensions& model);

/// KV pages that a test needs.
std::int64_t bench_pages(const BenchTest& test);

/// Both probes, and the rest that StarPU's workers take while they run.
class MachineProbes {
 public:
  /// Calibrates itself: about a second.
  /// `working_set_bytes`: what the runs that are judged read over and over.
  MachineProbes(Runtime& runtime, DType dtype, std::uint64_t working_set_bytes);
  /// Some 60 ms. No task may run meanwhile.
  MachineRates measure();

 private:
  std::optional<ReadProbe> read_;
  std::optional<GemmProbe> gemm_;
};

MachineRates mean_rates(const MachineRates& a, const MachineRates& b);

/// Fills memory with values in [-1, 1): one block of random ones, repeated; its length is odd, so
/// that rows, pages and weights differ. `dtype` is f32 or bf16. No task may run meanwhile.
void fill_with_random_values(ThreadPool& pool, std::span<std::byte> memory, DType dtype);

/// Iterations of a repetition that ran between two probes.
struct BenchSlice {
  std::size_t first_iteration = 0;
  std::size_t end_iteration = 0;
  double seconds = 0;  ///< from the first submission to the last result
  double busy_s = 0;   ///< of that, inside of kernels
  MachineRates rates;  ///< mean of the probes right before and right after
  KernelTotals kernels{};
  KernelTotals accelerator_kernels{};
  std::uint64_t to_device_bytes = 0;  ///< moved into an accelerator's memory
};

/// One repetition of a test.
struct BenchSample {
  std::vector<BenchSlice> slices;

  double seconds() const;
  double busy_s() const;
};

/// A test and what was measured.
struct BenchResult {
  BenchTest test;
  std::vector<std::vector<StageWork>> work;  ///< of each iteration
  std::vector<BenchSample> samples;
  RoutingCounts routing{};  ///< of a model with experts, all samples together
};

/// Runs tests on a loaded model. The KV cache is the test's alone.
class BenchRunner {
 public:
  /// Fills the cache, so that a depth needs no prefill. Without a policy everything runs at once.
  BenchRunner(const ModelWeights& model, KvCache& kv, Runtime& runtime,
              const DecoderGraph::Options& options, PolicyRun* policy = nullptr);

  /// A short run, in which kernels are compiled and memory is touched.
  void warm_up(const BenchTest& test);
  /// Stops at an iteration every quarter of a second, to probe: memory bandwidth changes within
  /// seconds. With an accelerator, whose limits the probes do not know, in one slice. `before` are
  /// the rates of a probe that has just ended; becomes those of the last one. Throws Interrupted
  /// soon after Ctrl-C.
  BenchSample run(const BenchTest& test, MachineProbes& probes, MachineRates& before);
  /// All iterations of a test, so many times, without a probe: a slice without rates.
  BenchSlice run_whole(const BenchTest& test, std::int64_t times);
  /// Seconds for which the K and V of a test's first iteration are stored into one layer's slab,
  /// where that is at home; the median over the layers.
  double time_kv_store(const BenchTest& test);

 private:
  void fill_kv();
  using Iterations = std::vector<std::vector<BenchPiece>>;
  /// From the slice's first iteration on, until `longest_s` have passed; completes the slice but
  /// for its rates.
  void run_slice(const Iterations& iterations, const BenchTest& test, double longest_s,
                 BenchSlice& slice);
  /// One of a policy's sub-batches each, cut into its mini-batches. What the policy leaves for
  /// later iterations follows at once: each test is a given amount of work.
  std::vector<PendingIteration> submit(const std::vector<BenchPiece>& iteration,
                                       const BenchTest& test);
  /// Of a sequence that decodes: the one it has drawn last, of a mixture a random one.
  std::int32_t next_token(const BenchPiece& piece) const;
  SubBatch sub_batch_of(const std::vector<BenchPiece>& pieces, const BenchTest& test);

  const ModelWeights& model_;
  KvCache& kv_;
  Runtime& runtime_;
  PolicyRun* policy_;
  DecoderGraph graph_;
  std::vector<std::int32_t> prompt_;  ///< random token ids, as many as the longest chunk
};

}  // namespace sluice
