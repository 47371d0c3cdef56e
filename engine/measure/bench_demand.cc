#include "engine/measure/bench_demand.h"

#include <algorithm>

#include "codelets/weights/plain.h"
#include "engine/run/iteration_memory.h"
#include "graphs/kv_cache.h"

namespace sluice {

BenchModel open_bench_model(const std::string& name, DType dtype,
                            const std::function<void(ModelConfig&)>& set_formats) {
  BenchModel opened;
  if (names_model(name)) {
    opened.model = open_model(name);
    set_formats(opened.model.config);
    return opened;
  }
  opened.model.name = name;
  opened.model.config = find_shape(name);
  set_formats(opened.model.config);
  const ModelConfig& config = opened.model.config;
  decoder_shape(config, dtype);  // throws for shapes that cannot run
  std::int64_t elements = config.vocab_size * config.embed_size;
  if (config.position == PositionKind::learned)
    elements += (config.max_positions + config.position_offset) * config.hidden_size;
  opened.table_bytes = static_cast<std::uint64_t>(elements) * size_bytes(dtype);
  opened.model.weights = random_weights(config, dtype, 0);
  return opened;
}

void check_context(const std::vector<BenchTest>& tests, const ModelConfig& config) {
  for (const BenchTest& test : tests) {
    if (test.depth + test.tokens <= config.max_positions) continue;
    throw UsageError(
        "{} at depth {} needs a context of {} tokens, the model's is {}; use a smaller --depth, "
        "--prompt-tokens or --gen-tokens",
        test.name(), test.depth, test.depth + test.tokens, config.max_positions);
  }
}

std::int64_t max_batch(const std::vector<BenchTest>& tests) {
  std::int64_t batch = 1;
  for (const BenchTest& test : tests) batch = std::max(batch, test.batch);
  return batch;
}

namespace {

std::int64_t max_pages(const std::vector<BenchTest>& tests) {
  std::int64_t pages = 0;
  for (const BenchTest& test : tests) pages = std::max(pages, bench_pages(test));
  return pages;
}

std::int64_t max_context(const std::vector<BenchTest>& tests) {
  std::int64_t tokens = 0;
  for (const BenchTest& test : tests) tokens = std::max(tokens, test.depth + test.tokens);
  return tokens;
}

/// The largest of each test.
std::vector<IterationSize> iterations_of(const std::vector<BenchTest>& tests) {
  std::vector<IterationSize> iterations;
  for (const BenchTest& test : tests) {
    if (test.phase == Phase::decode) {
      iterations.push_back({.phase = Phase::decode, .sequences = test.batch});
      continue;
    }
    // A last chunk is shorter: more sequences share an iteration.
    for (const std::int64_t rows : {std::min(default_prefill_chunk_tokens, test.tokens),
                                    test.tokens % default_prefill_chunk_tokens}) {
      if (rows == 0) continue;
      iterations.push_back(
          {.phase = Phase::prefill,
           .sequences = std::clamp<std::int64_t>(test.rows_at_once / rows, 1, test.batch),
           .rows = rows});
    }
  }
  return iterations;
}

/// The largest of each: a policy is asked about the run as a whole.
Workload workload_of(const std::vector<BenchTest>& tests) {
  Workload workload{.batch = 1, .input_tokens = 0, .output_tokens = 0};
  for (const BenchTest& test : tests) {
    workload.batch = std::max(workload.batch, test.batch);
    std::int64_t& tokens =
        test.phase == Phase::prefill ? workload.input_tokens : workload.output_tokens;
    tokens = std::max(tokens, test.depth + test.tokens);
  }
  return workload;
}

}  // namespace

RunDemand bench_demand(const BenchModel& opened, const std::vector<BenchTest>& tests,
                       const BenchRun& run) {
  const ModelConfig& config = opened.model.config;
  const std::int64_t pages = max_pages(tests);
  const std::vector<IterationSize> iterations = iterations_of(tests);
  HostNeed need = iteration_need(config, iterations, max_context(tests),
                                 {.dtype = run.dtype,
                                  .fusion = run.fusion,
                                  .accelerated = static_cast<bool>(run.accelerator)});
  need.kv_bytes = KvCache::size_bytes(decoder_shape(config, run.dtype), config.num_layers, pages);
  need.table_bytes = opened.table_bytes > 0 ? opened.table_bytes : table_bytes(opened.model);
  return {.model = opened.model,
          .dtype = run.dtype,
          .cpu = run.cpu,
          .tiers = run.tiers,
          .accelerator = run.accelerator,
          .workload = workload_of(tests),
          .need = need,
          .iterations = iterations,
          .kv = {.all = pages},
          .one_cohort = true,
          .smaller = run.smaller};
}

}  // namespace sluice
