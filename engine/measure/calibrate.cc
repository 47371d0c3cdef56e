#include "engine/measure/calibrate.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <thread>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/units.h"
#include "codelets/kv_store/kv_store.h"
#include "engine/batching/engine.h"
#include "engine/console/interrupt.h"
#include "engine/machine/compute.h"
#include "engine/measure/link_probe.h"
#include "engine/run/iteration_memory.h"
#include "graphs/loaded_model.h"
#include "perfmodels/attention_jobs.h"
#include "perfmodels/roofline.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

/// Time that one measurement should take at least, if it needs no more than `most_iterations`.
constexpr double measurement_s = 0.03;
constexpr std::int64_t most_iterations = 15;
static_assert(most_iterations < page_tokens);
/// Rows of an iteration that takes long enough as it is.
constexpr std::int64_t long_rows = 512;
/// Measurements that take less, with their probes, are made so many times as often: a moment that
/// is not theirs spoils them.
constexpr double short_s = 0.2;
constexpr std::int64_t short_times = 3;
/// The same of those that take less than this and alone tell what their number of rows takes:
/// others have several contexts with as many.
constexpr double short_alone_s = 1;
/// All are measured once; then, short ones first, so often, as far as all of it takes no more than
/// least_repetition_s for each repetition; then more often, as far as it takes no more than the
/// other.
constexpr std::int64_t least_times = 2;
constexpr double least_repetition_s = 57;
constexpr double repetition_s = 53;
/// Time between two saves.
constexpr double save_every_s = 10;

/// The middle of a KV page.
constexpr std::int64_t middle_of_page = page_tokens / 2;
constexpr std::int64_t shortest_context = page_tokens + middle_of_page;
constexpr std::int64_t shorter_context = 3 * page_tokens + middle_of_page;
constexpr std::int64_t short_context = 8 * page_tokens + middle_of_page;
/// Of a few sequences: beyond AttentionJobs::whole_tokens, threads share a context.
constexpr std::int64_t shared_context = AttentionJobs::whole_tokens + middle_of_page;
constexpr std::int64_t few_sequences = 4;
constexpr std::int64_t largest_batch = 256;

/// Logits only with short contexts: they take long.
CalibrationBatch decode_batch(std::int64_t batch, std::int64_t context) {
  return {.shape = BatchShape::decode(batch, context),
          .logit_rows = context <= 2 * page_tokens ? batch : 0};
}
CalibrationBatch prefill_batch(std::int64_t batch, std::int64_t rows, std::int64_t prior) {
  return {.shape = {.phase = Phase::prefill, .batch = batch, .rows = rows, .context = prior + rows},
          .logit_rows = 0};
}

/// Those that the model's context, memory and time allow.
class Choice {
 public:
  Choice(const ModelConfig& config, DType dtype, const CalibrationLimits& limits)
      : config_(config), model_(model_dimensions(config, dtype)), limits_(limits) {}

  /// Whether it is one of them now.
  bool add(const CalibrationBatch& batch) {
    if (!allows(batch)) return false;
    if (std::find(batches.begin(), batches.end(), batch) == batches.end()) batches.push_back(batch);
    return true;
  }

  std::vector<CalibrationBatch> batches;

 private:
  bool allows(const CalibrationBatch& batch) const {
    const BatchShape& shape = batch.shape;
    // Decode's context grows around its mean.
    if (shape.context + most_iterations > config_.max_positions) return false;
    const double kv_bytes = static_cast<double>(shape.batch * shape.context * limits_.num_layers) *
                            kv_bytes_per_token(model_);
    if (kv_bytes > static_cast<double>(limits_.kv_bytes)) return false;
    if (shape.total_rows() > default_prefill_chunk_tokens) return false;
    return foreseen_s(batch, model_, limits_.num_layers, limits_.rates) <= limits_.longest_s;
  }

  const ModelConfig& config_;
  ModelDimensions model_;
  CalibrationLimits limits_;
};

/// The bench test whose iterations are this batch: when decoding, with contexts around it that have
/// as many KV pages, since attention reads whole ones.
BenchTest test_of(const CalibrationBatch& batch, std::int64_t iterations) {
  const BatchShape& shape = batch.shape;
  if (shape.phase == Phase::prefill) {
    return {.phase = Phase::prefill,
            .tokens = shape.rows,
            .batch = shape.batch,
            .depth = shape.context - shape.rows,
            .draws = batch.logit_rows > 0};
  }
  const std::int64_t before_page = (shape.context - 1) / page_tokens * page_tokens;
  return {.phase = Phase::decode,
          .tokens = iterations,
          .batch = shape.batch,
          .depth = std::clamp(shape.context - (iterations + 1) / 2, before_page,
                              before_page + page_tokens - iterations),
          .draws = batch.logit_rows > 0};
}

}  // namespace

ModelConfig with_layers(ModelConfig config, std::int64_t num_layers) {
  config.num_layers = num_layers;
  if (!config.windowed_layers.empty())
    config.windowed_layers.resize(static_cast<std::size_t>(num_layers));
  if (!config.layer_formats.empty())
    config.layer_formats.resize(static_cast<std::size_t>(num_layers));
  return config;
}

std::int64_t calibration_layers(const ModelConfig& config, DType dtype) {
  constexpr std::uint64_t least = std::uint64_t{64} << 20;
  const std::uint64_t flushing = std::max(least, bytes_beyond_caches(read_cpu_topology()));
  const double needed =
      static_cast<double>(flushing) / layer_weight_bytes(model_dimensions(config, dtype));
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(needed) + 1, 1, config.num_layers);
}

LargestIteration largest_calibration_iteration(const ModelConfig& config, DType dtype) {
  const ModelDimensions model = model_dimensions(config, dtype);
  const double token_bytes =
      static_cast<double>(calibration_layers(config, dtype)) * kv_bytes_per_token(model);
  return {.rows = default_prefill_chunk_tokens,
          .logit_rows = largest_batch,
          .sequences = largest_batch,
          .context_tokens = static_cast<std::int64_t>(
              static_cast<double>(CalibrationLimits{}.kv_bytes) / token_bytes)};
}

CalibrationLimits limits_on(const Accelerator& accelerator, const ModelConfig& config,
                            DType dtype) {
  const LargestIteration largest = largest_calibration_iteration(config, dtype);
  const auto weights = [&](std::int64_t num_layers) {
    return packed_weight_bytes(with_layers(config, num_layers), dtype);
  };
  const std::uint64_t layer = weights(2) - weights(1);
  const std::uint64_t fixed =
      weights(1) - layer +
      static_cast<std::uint64_t>(config.vocab_size * config.embed_size) * size_bytes(dtype) +
      2 * activation_bytes(config, dtype, largest.rows, largest.logit_rows) +
      accelerator.scratch.total();
  // A sixteenth is padding; a layer's weights is room for the link's probes; KV may take as much as
  // the weights.
  const std::uint64_t there = accelerator.memory_bytes - accelerator.memory_bytes / 16;
  const std::uint64_t least = fixed + 3 * layer;
  if (there < least) {
    throw Error("{} is too little to calibrate: {} would do", accelerator.name(),
                accelerator.option_for(least + least / 15 + 1));
  }
  CalibrationLimits limits;
  const std::uint64_t rest = there - fixed - layer;
  limits.num_layers =
      std::min(calibration_layers(config, dtype), static_cast<std::int64_t>(rest / (2 * layer)));
  const std::uint64_t kv = rest - static_cast<std::uint64_t>(limits.num_layers) * layer;
  // Pages are not full, and each sequence grows.
  const auto largest_kv =
      static_cast<std::uint64_t>(static_cast<double>(largest.context_tokens * limits.num_layers) *
                                 kv_bytes_per_token(model_dimensions(config, dtype)));
  limits.kv_bytes = std::min(largest_kv, kv / 2);
  return limits;
}

double foreseen_s(const CalibrationBatch& batch, const ModelDimensions& model,
                  std::int64_t num_layers, const MachineRates& rates) {
  double layer_s = 0;
  for (const Sublayer sublayer : timed_sublayers) {
    if (sublayer != Sublayer::lm_head)
      layer_s += sublayer_load(model, sublayer, batch.shape).seconds(rates);
  }
  const double head_s = lm_head_load(model, batch.logit_rows).seconds(rates);
  return static_cast<double>(num_layers) * layer_s + (batch.logit_rows > 0 ? head_s : 0);
}

std::vector<CalibrationBatch> calibration_batches(const ModelConfig& config, DType dtype,
                                                  const CalibrationLimits& limits) {
  Choice choice(config, dtype, limits);
  for (std::int64_t batch = 1; batch <= largest_batch; batch *= 2) {
    choice.add(decode_batch(batch, shortest_context));
    choice.add(decode_batch(batch, shorter_context));
    choice.add(decode_batch(batch, short_context));
    if (batch <= few_sequences) choice.add(decode_batch(batch, shared_context));
    for (const std::int64_t pages : {32, 128, 512})
      choice.add(decode_batch(batch, pages * page_tokens + middle_of_page));
  }
  for (const std::int64_t batch : {3, 6, 12}) choice.add(decode_batch(batch, shortest_context));
  // One more than what a tile of strip_gemm()'s vectors, or two, hold: where a few rows cost most.
  for (const std::int64_t batch : {7, 13}) choice.add(decode_batch(batch, shortest_context));
  for (const std::int64_t rows : {8, 12, 16, 32, 64, 128, 512}) {
    for (const std::int64_t prior : {0, 512, 2048, 8192}) choice.add(prefill_batch(1, rows, prior));
  }
  for (const std::int64_t prior : {0, 2048}) {
    choice.add(prefill_batch(1, 256, prior));
    // Half of them still tell how attention goes on.
    if (!choice.add(prefill_batch(1, 2048, prior))) choice.add(prefill_batch(1, 1024, prior));
    for (const std::int64_t rows : {8, 16, 32, 64, 128}) choice.add(prefill_batch(4, rows, prior));
  }
  // Without the head they are short.
  for (const std::int64_t rows : {24, 48, 96, 192}) choice.add(prefill_batch(1, rows, 0));
  return std::move(choice.batches);
}

std::vector<CalibrationBatch> check_batches(const ModelConfig& config, DType dtype,
                                            const CalibrationLimits& limits) {
  Choice choice(config, dtype, limits);
  for (const std::int64_t batch : {1, 5, 11, 23, 44, 90}) {
    for (const std::int64_t context : {32, 70, 300, 1100, 4600})
      choice.add(decode_batch(batch, context));
  }
  for (const std::int64_t rows : {13, 45, 180, 700}) {
    for (const std::int64_t prior : {0, 250, 1200, 4600}) choice.add(prefill_batch(1, rows, prior));
  }
  choice.add(prefill_batch(2, 20, 1000));
  choice.add(prefill_batch(3, 70, 0));
  return std::move(choice.batches);
}

struct BatchMeter::Loaded {
  Runtime& runtime;
  Model model;
  LoadedModel weights;
  std::optional<MeteredAccelerator> accelerator;
  std::vector<CalibrationBatch> stored;  ///< whose KV is stored apart
  std::vector<CalibrationBatch> beside;  ///< for interference
  /// Of the batches; of one short sequence; beside an accelerator, of `beside` on the CPU.
  std::vector<KvCache> caches;
  std::unique_ptr<AcceleratorRun::Residence> residence;
  BenchRunner runner;
  BenchRunner fused, apart;           ///< for the task overhead
  std::optional<BenchRunner> on_cpu;  ///< beside an accelerator
  std::optional<LinkProbe> link;
  MachineProbes probes;
  std::optional<MachineRates> before;
  std::map<std::string, std::int64_t> iterations;  ///< by batch

  static std::int64_t pages_of(const std::vector<CalibrationBatch>& batches) {
    std::int64_t pages = 1;
    for (const CalibrationBatch& batch : batches) {
      const std::int64_t each = KvCache::pages_for(batch.shape.context + most_iterations);
      pages = std::max(pages, batch.shape.batch * each);
    }
    return pages;
  }
  static std::int64_t slots_of(const std::vector<CalibrationBatch>& batches) {
    std::int64_t slots = 1;
    for (const CalibrationBatch& batch : batches) slots = std::max(slots, batch.shape.batch);
    return slots;
  }
  static Model random_model(const ModelConfig& config, DType dtype) {
    Model model;
    model.config = config;
    model.weights = random_weights(model.config, dtype, 0);
    return model;
  }

  /// Of those that are measured, fresh prompts, and decoding with the shortest contexts.
  static std::vector<CalibrationBatch> batches_stored(
      const std::vector<CalibrationBatch>& batches) {
    std::vector<CalibrationBatch> chosen;
    for (const CalibrationBatch& batch : batches) {
      const BatchShape& shape = batch.shape;
      const bool is_prompt = shape.batch == 1 && shape.context == shape.rows;
      if (shape.phase == Phase::prefill ? is_prompt : shape.context == shortest_context)
        chosen.push_back(batch);
    }
    return chosen;
  }

  /// Of those that are measured, one of each phase with work enough.
  static std::vector<CalibrationBatch> batches_beside(
      const std::vector<CalibrationBatch>& batches) {
    std::vector<CalibrationBatch> chosen;
    const auto choose = [&](std::initializer_list<CalibrationBatch> wanted) {
      for (const CalibrationBatch& batch : wanted) {
        if (std::find(batches.begin(), batches.end(), batch) == batches.end()) continue;
        chosen.push_back(batch);
        return;
      }
    };
    choose({prefill_batch(1, 512, 0), prefill_batch(1, 128, 0), prefill_batch(1, 8, 0)});
    choose({decode_batch(4, short_context), decode_batch(4, shortest_context),
            decode_batch(1, shortest_context)});
    return chosen;
  }

  std::vector<KvCache> make_caches(const std::vector<CalibrationBatch>& batches) const {
    const std::int64_t num_layers = model.config.num_layers;
    const auto homes = accelerator
                           ? accelerator->policy.kv_homes()
                           : std::vector<Tier>(static_cast<std::size_t>(num_layers), Tier::ddr);
    std::vector<KvCache> made;
    made.reserve(3);
    for (const std::int64_t pages :
         {pages_of(batches), KvCache::pages_for(overhead_test.depth + overhead_test.tokens)})
      made.emplace_back(weights.shape(), num_layers, pages, homes);
    if (accelerator) made.emplace_back(weights.shape(), num_layers, pages_of(beside));
    return made;
  }

  std::unique_ptr<AcceleratorRun::Residence> bring(
      const std::vector<CalibrationBatch>& batches) const {
    if (!accelerator) return nullptr;
    return accelerator->run.bring(
        runtime, weights, caches,
        RunSize::of(weights, caches, default_prefill_chunk_tokens, slots_of(batches)));
  }

  BenchRunner make_runner(KvCache& kv, const DecoderGraph::Options& options) const {
    return {weights, kv, runtime, options, accelerator ? &accelerator->policy : nullptr};
  }

  Loaded(const ModelConfig& config, DType dtype, Runtime& the_runtime,
         const std::vector<CalibrationBatch>& batches,
         const std::optional<MeteredAccelerator>& the_accelerator)
      : runtime(the_runtime),
        model(random_model(config, dtype)),
        weights(model, dtype, the_runtime.setup_pool(),
                [](std::uint64_t, std::uint64_t) {
                  if (interrupt_flag()) throw Interrupted();
                }),
        accelerator(the_accelerator),
        stored(batches_stored(batches)),
        beside(batches_beside(batches)),
        caches(make_caches(batches)),
        residence(bring(batches)),
        runner(make_runner(caches[0], {.num_slots = slots_of(batches),
                                       .fusion = Fusion::stages,
                                       .last_layer = LastLayer::all_rows})),
        fused(make_runner(caches[1], {.num_slots = 1, .fusion = Fusion::stages})),
        apart(make_runner(caches[1], {.num_slots = 1, .fusion = Fusion::sublayers})),
        probes(the_runtime, dtype, weights.weight_bytes()) {
    if (accelerator) {
      on_cpu.emplace(
          weights, caches[2], the_runtime,
          DecoderGraph::Options{.num_slots = slots_of(beside), .last_layer = LastLayer::all_rows});
      link.emplace(the_runtime, spare_bytes(config, dtype));
    }
  }

  static constexpr BenchTest overhead_test = {
      .phase = Phase::decode, .tokens = 5, .batch = 1, .depth = 16};

  /// There is room for so much beside weights and KV (limits_on()): one layer's weights.
  static std::uint64_t spare_bytes(const ModelConfig& config, DType dtype) {
    return static_cast<std::uint64_t>(layer_weight_bytes(model_dimensions(config, dtype)));
  }
  static void let_links_work() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }
  double link_alone_bytes_per_s(LinkLoad::Way way) const {
    LinkLoad load(*link, way);
    let_links_work();
    return load.stop();
  }
  CalibrationTwoWays two_ways() const {
    CalibrationTwoWays sample = {
        .there_alone_bytes_per_s = link_alone_bytes_per_s(LinkLoad::Way::there),
        .back_alone_bytes_per_s = link_alone_bytes_per_s(LinkLoad::Way::back)};
    // Each way with two pieces at once, as a run has several.
    LinkLoad there(*link, LinkLoad::Way::there, 2);
    LinkLoad back(*link, LinkLoad::Way::back, 2);
    there.restart();
    let_links_work();
    sample.back_beside_bytes_per_s = back.stop();
    sample.there_beside_bytes_per_s = there.stop();
    return sample;
  }

  /// Seconds that a device's kernels of an iteration's layers take.
  double layers_s(Device device, const CalibrationBatch& batch) {
    BenchRunner& of = device == Device::cpu ? *on_cpu : runner;
    constexpr std::int64_t prefill_times = 2;
    const BenchSlice slice = batch.shape.phase == Phase::prefill
                                 ? of.run_whole(test_of(batch, 1), prefill_times)
                                 : of.run_whole(test_of(batch, most_iterations), 1);
    const KernelTotals& kernels = device == Device::cpu ? slice.kernels : slice.accelerator_kernels;
    double sum_s = 0;
    for (const Sublayer sublayer : timed_sublayers) {
      const KernelTotals::Entry& entry = kernels.of(batch.shape.phase, sublayer);
      if (sublayer == Sublayer::lm_head || entry.count == 0) continue;
      sum_s += entry.seconds / static_cast<double>(entry.count);
    }
    const KernelTotals::Entry& shared = kernels.of(batch.shape.phase, Sublayer::shared_ffn);
    if (shared.count > 0) sum_s += shared.seconds / static_cast<double>(shared.count);
    return sum_s * static_cast<double>(model.config.num_layers);
  }

  MachineRates rates() {
    return accelerator && accelerator->rates ? *accelerator->rates : probes.measure();
  }

  /// One iteration, unless that takes long: KV that was not used for some seconds is slow to read
  /// at first, and a run uses it all the time. On a GPU it never does, and the first one of a size
  /// finds and loads cuBLASLt's kernels (2.7 ms beside 0.1 on an H100).
  void warm_up(const CalibrationBatch& batch) {
    const bool is_gpu = accelerator && accelerator->rates;
    if (!is_gpu && batch.shape.total_rows() >= long_rows) return;
    if (takes_long(batch) && reads_little_kv(batch.shape)) return;
    iterations.erase(describe(batch));
    remember(batch, runner.run_whole(test_of(batch, 1), 1).seconds);
  }

  /// One iteration: long enough to be measured by itself. Before the first one that is foreseen, on
  /// the CPU where the median over layers knows nothing of what is new to the first of them.
  bool takes_long(const CalibrationBatch& batch) const {
    const auto known = iterations.find(describe(batch));
    if (known != iterations.end()) return known->second == 1;
    const bool median_tells = model.config.num_layers >= 3 && batch.logit_rows == 0;
    if (accelerator || !before || !median_tells) return false;
    const ModelDimensions dimensions = model_dimensions(model.config, weights.shape().dtype);
    return foreseen_s(batch, dimensions, model.config.num_layers, *before) >= measurement_s;
  }
  bool reads_little_kv(const BatchShape& shape) const {
    const double kv_bytes =
        static_cast<double>(shape.batch * shape.context * model.config.num_layers) *
        kv_bytes_per_token(model_dimensions(model.config, weights.shape().dtype));
    return kv_bytes < static_cast<double>(weights.weight_bytes()) / 8;
  }

  BenchSlice run(const CalibrationBatch& batch) {
    const auto found = iterations.find(describe(batch));
    const std::int64_t wanted = found == iterations.end() ? 1 : found->second;
    const std::int64_t count = std::min(wanted, most_iterations);
    const BenchSlice slice = batch.shape.phase == Phase::prefill
                                 ? runner.run_whole(test_of(batch, 1), count)
                                 : runner.run_whole(test_of(batch, count), 1);
    remember(batch, slice.seconds / static_cast<double>(count));
    return slice;
  }
  void remember(const CalibrationBatch& batch, double iteration_s) {
    iterations.try_emplace(describe(batch),
                           static_cast<std::int64_t>(measurement_s / iteration_s) + 1);
  }
};

BatchMeter::BatchMeter(const ModelConfig& config, DType dtype, Runtime& runtime,
                       std::int64_t num_layers, const std::vector<CalibrationBatch>& batches,
                       const std::optional<MeteredAccelerator>& accelerator) {
  const ModelConfig few = with_layers(config, num_layers);
  const std::uint64_t weights = packed_weight_bytes(few, dtype);
  const std::uint64_t table =
      static_cast<std::uint64_t>(config.vocab_size * config.embed_size) * size_bytes(dtype);
  const std::uint64_t kv =
      KvCache::size_bytes(decoder_shape(few, dtype), num_layers, Loaded::pages_of(batches));
  const std::uint64_t rest =
      activation_bytes(few, dtype, default_prefill_chunk_tokens, Loaded::slots_of(batches)) +
      ReadProbe::buffer_bytes(weights) +
      static_cast<std::uint64_t>(num_layers) *
          new_kv_bytes(decoder_shape(few, dtype), default_prefill_chunk_tokens) +
      (accelerator ? LinkProbe::host_bytes(Loaded::spare_bytes(config, dtype)) : 0);
  const std::uint64_t available = available_memory_bytes();
  if (weights + table + kv + rest > available) {
    throw Error("not enough memory to calibrate: {} needed, {} available",
                format_bytes(weights + table + kv + rest), format_bytes(available));
  }
  loaded_ = std::make_unique<Loaded>(few, dtype, runtime, batches, accelerator);
}

BatchMeter::~BatchMeter() = default;

CalibrationSample BatchMeter::measure(const CalibrationBatch& batch) {
  loaded_->warm_up(batch);
  const MachineRates before = loaded_->before ? *loaded_->before : loaded_->rates();
  const BenchSlice slice = loaded_->run(batch);
  const MachineRates after = loaded_->rates();
  loaded_->before = after;
  CalibrationSample sample;
  sample.rates = mean_rates(before, after);
  const KernelTotals& kernels = loaded_->accelerator ? slice.accelerator_kernels : slice.kernels;
  for (std::size_t i = 0; i < timed_sublayers.size(); ++i) {
    const KernelTotals::Entry& entry = kernels.of(batch.shape.phase, timed_sublayers[i]);
    sample.seconds[i] = entry.median_s;
    // As ModelDimensions counts it.
    if (timed_sublayers[i] == Sublayer::out_proj)
      sample.seconds[i] += kernels.of(batch.shape.phase, Sublayer::shared_ffn).median_s;
  }
  return sample;
}

double BatchMeter::measure_task_overhead_us() {
  const auto outside_s = [&](BenchRunner& runner) {
    const BenchSlice slice = runner.run_whole(Loaded::overhead_test, 1);
    const double busy_s = slice.busy_s + slice.accelerator_kernels.seconds();
    return (slice.seconds - busy_s) / static_cast<double>(Loaded::overhead_test.tokens);
  };
  constexpr int times = 5;  // by turns; the smallest: whatever else runs only adds to it
  double apart_s = outside_s(loaded_->apart);
  double fused_s = outside_s(loaded_->fused);
  for (int i = 1; i < times; ++i) {
    apart_s = std::min(apart_s, outside_s(loaded_->apart));
    fused_s = std::min(fused_s, outside_s(loaded_->fused));
  }
  loaded_->before.reset();
  // A layer is one task, or five: attention stays fused.
  const auto added = static_cast<double>(4 * loaded_->model.config.num_layers);
  constexpr double least_us = 0.1;
  return std::max(least_us, 1e6 * (apart_s - fused_s) / added);
}

void BatchMeter::measure_kv_stores(Calibration& into) {
  const std::size_t begin = into.kv_stores.size();
  const MachineRates before = loaded_->rates();
  for (const CalibrationBatch& batch : loaded_->stored) {
    const BatchShape& shape = batch.shape;
    into.kv_stores.push_back({.phase = shape.phase,
                              .rows = shape.total_rows(),
                              .rates = {},
                              .seconds = loaded_->runner.time_kv_store(test_of(batch, 1))});
  }
  const MachineRates after = loaded_->rates();
  for (std::size_t i = begin; i < into.kv_stores.size(); ++i)
    into.kv_stores[i].rates = mean_rates(before, after);
  loaded_->before.reset();
}

void BatchMeter::measure_links(Calibration& into) {
  loaded_->before.reset();
  for (CalibrationLink& link : loaded_->link->measure()) into.links.push_back(std::move(link));
}

void BatchMeter::measure_interference(Calibration& into) {
  loaded_->before.reset();
  into.two_ways.push_back(loaded_->two_ways());
  const double alone = into.two_ways.back().there_alone_bytes_per_s;
  for (const CalibrationBatch& batch : loaded_->beside) {
    for (const Device device : {Device::gpu, Device::cpu}) {
      CalibrationInterference sample;
      sample.device = device;
      sample.phase = batch.shape.phase;
      sample.link_alone_bytes_per_s = alone;
      sample.kernels_alone_s = loaded_->layers_s(device, batch);
      LinkLoad load(*loaded_->link, LinkLoad::Way::there);
      sample.kernels_beside_s = loaded_->layers_s(device, batch);
      sample.link_beside_bytes_per_s = load.stop();
      into.interference.push_back(sample);
    }
  }
}

namespace {

/// calibrate()'s rounds: every third is of all batches, those between are of the short ones.
class Rounds {
 public:
  Rounds(Calibration& calibration, BatchMeter& meter, const std::vector<CalibrationBatch>& batches,
         const std::function<double(const CalibrationBatch&)>& cost_s,
         const CalibrationProgress& progress, const std::function<void()>& save)
      : calibration_(calibration), meter_(meter), progress_(progress), save_(save) {
    std::map<std::int64_t, int> with_rows;
    for (const CalibrationBatch& batch : batches) ++with_rows[batch.shape.total_rows()];
    for (const CalibrationBatch& batch : batches) {
      const double batch_s = cost_s(batch);
      const bool is_alone = with_rows[batch.shape.total_rows()] == 1;
      const std::int64_t times = batch_s < (is_alone ? short_alone_s : short_s) ? short_times : 1;
      batches_.push_back({batch, batch_s, times > 1, batch_s});
      total_s_ += static_cast<double>(calibration.repetitions * times) * batch_s;
    }
  }

  void run() {
    for (std::int64_t round = 0; round < short_times * calibration_.repetitions; ++round)
      run_round(round);
  }

 private:
  struct Batch {
    CalibrationBatch batch;
    double foreseen_s = 0;
    bool is_short = false;
    double took_s = 0;  ///< the last time; at first, as foreseen
  };

  void run_round(std::int64_t round) {
    const bool is_whole = round % short_times == 0;
    const std::int64_t whole = round / short_times;  // or the one before
    const std::int64_t needed = std::min(least_times, calibration_.repetitions);
    const bool is_needed = is_whole && whole < needed;
    const bool of_accelerator = calibration_.measured_device() == Device::gpu;
    if (of_accelerator && is_whole && std::ssize(calibration_.links) <= 2 * whole)
      meter_.measure_links(calibration_);  // both ways
    const double limit_s = static_cast<double>(calibration_.repetitions) *
                           (is_needed ? least_repetition_s : repetition_s);
    for (Batch* batch : order_of(round == 0)) {
      if (!batch->is_short && !is_whole) continue;
      if (round == 0 || has_room(*batch, needed - whole - 1, limit_s))
        measure(*batch, batch->is_short ? round : whole);
      done_s_ += batch->foreseen_s;
    }
    step("task overhead");
    if (!is_whole || std::ssize(calibration_.task_overhead_us) > whole) return;
    // The overhead last: it says that this round has all of these, also after Ctrl-C.
    meter_.measure_kv_stores(calibration_);
    if (of_accelerator) meter_.measure_interference(calibration_);
    calibration_.task_overhead_us.push_back(meter_.measure_task_overhead_us());
  }

  /// But for the first time the longest are last, for which there may be no time.
  std::vector<Batch*> order_of(bool is_first) {
    std::vector<Batch*> order;
    for (Batch& batch : batches_) order.push_back(&batch);
    if (!is_first) {
      std::stable_sort(order.begin(), order.end(),
                       [](const Batch* a, const Batch* b) { return a->took_s < b->took_s; });
    }
    return order;
  }

  /// Whether there is time until `limit_s` for one more of this batch, and then for so many rounds
  /// of all.
  bool has_room(const Batch& batch, std::int64_t whole_rounds, double limit_s) const {
    double needed_s = batch.took_s;
    for (const Batch& each : batches_)
      needed_s += static_cast<double>(std::max<std::int64_t>(0, whole_rounds)) * each.took_s;
    return since_s(start_) + needed_s <= limit_s;
  }

  void measure(Batch& batch, std::int64_t repetition) {
    step(describe(batch.batch));
    const CalibrationPoint* known = calibration_.find(batch.batch);
    if (known != nullptr && std::ssize(known->samples) > repetition)
      return;  // of a call that was interrupted
    const Clock::time_point begin = Clock::now();
    const CalibrationSample sample = meter_.measure(batch.batch);  // none, when interrupted
    calibration_.at(batch.batch).samples.push_back(sample);
    batch.took_s = since_s(begin);
  }

  void step(const std::string& what) {
    if (interrupt_flag()) throw Interrupted();
    if (progress_) progress_(done_s_, total_s_, what);
    if (since_s(saved_) < save_every_s) return;
    save_();
    saved_ = Clock::now();
  }

  static double since_s(Clock::time_point then) {
    return std::chrono::duration<double>(Clock::now() - then).count();
  }

  Calibration& calibration_;
  BatchMeter& meter_;
  const CalibrationProgress& progress_;
  const std::function<void()>& save_;
  std::vector<Batch> batches_;
  double done_s_ = 0;
  double total_s_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point saved_ = start_;
};

}  // namespace

void calibrate(Calibration& calibration, BatchMeter& meter,
               const std::vector<CalibrationBatch>& batches,
               const std::function<double(const CalibrationBatch&)>& cost_s,
               const CalibrationProgress& progress, const std::function<void()>& save) {
  try {
    Rounds(calibration, meter, batches, cost_s, progress, save).run();
  } catch (const Interrupted&) {
    save();
    throw;
  }
  save();
}

std::string describe(const CalibrationBatch& batch) {
  const BatchShape& shape = batch.shape;
  if (shape.phase == Phase::decode)
    return fmt::format("decode, batch {}, context {}", shape.batch, shape.context);
  return fmt::format("prefill, {} x {} rows after {}", shape.batch, shape.rows,
                     shape.context - shape.rows);
}

}  // namespace sluice
