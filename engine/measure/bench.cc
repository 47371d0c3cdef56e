#include "engine/measure/bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <random>

#include "codelets/kv_store/kv_store.h"
#include "codelets/runtime/failure.h"
#include "engine/console/interrupt.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

/// Iterations of a warm-up.
constexpr std::size_t warm_up_iterations = 8;

/// Time between two probes of a repetition.
constexpr double slice_s = 0.25;

/// One page list a sequence.
std::vector<std::int32_t> pages_of(const BenchTest& test, std::int64_t sequence) {
  const std::int64_t count = KvCache::pages_for(test.depth + test.tokens);
  std::vector<std::int32_t> pages;
  pages.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i)
    pages.push_back(static_cast<std::int32_t>(sequence * count + i));
  return pages;
}

std::vector<std::vector<BenchPiece>> prefill_iterations(const BenchTest& test) {
  std::vector<std::vector<BenchPiece>> iterations;
  for (std::int64_t done = 0; done < test.tokens; done += default_prefill_chunk_tokens) {
    const std::int64_t rows = std::min(default_prefill_chunk_tokens, test.tokens - done);
    const std::int64_t together = std::max<std::int64_t>(1, test.rows_at_once / rows);
    for (std::int64_t sequence = 0; sequence < test.batch; ++sequence) {
      if (sequence % together == 0) iterations.emplace_back();
      iterations.back().push_back({.sequence = sequence,
                                   .context = test.depth + done,
                                   .rows = rows,
                                   .draws = test.draws && done + rows == test.tokens});
    }
  }
  return iterations;
}

std::vector<std::vector<BenchPiece>> decode_iterations(const BenchTest& test) {
  std::vector<std::vector<BenchPiece>> iterations;
  for (std::int64_t i = 0; i < test.tokens; ++i) {
    std::vector<BenchPiece>& pieces = iterations.emplace_back();
    for (std::int64_t sequence = 0; sequence < test.batch; ++sequence)
      pieces.push_back(
          {.sequence = sequence, .context = test.depth + i, .rows = 1, .draws = test.draws});
  }
  return iterations;
}

/// Pieces as a policy sees them; their place is their id.
std::vector<RequestView> views_of(const std::vector<BenchPiece>& pieces, const BenchTest& test) {
  std::vector<RequestView> views(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    views[i] = {.id = static_cast<std::int64_t>(i),
                .prompt_tokens_left = test.phase == Phase::prefill ? pieces[i].rows : 0,
                .context_tokens = pieces[i].context,
                .kv = Tier::ddr};
  }
  return views;
}

std::vector<BenchPiece> pieces_of(const std::vector<BenchPiece>& pieces,
                                  const SubBatchPlan& sub_batch) {
  std::vector<BenchPiece> chosen;
  chosen.reserve(sub_batch.requests.size());
  for (const std::int64_t id : sub_batch.requests)
    chosen.push_back(pieces[static_cast<std::size_t>(id)]);
  return chosen;
}

/// What a plan leaves for later.
std::vector<BenchPiece> without(const std::vector<BenchPiece>& pieces, const IterationPlan& plan) {
  std::vector<bool> taken(pieces.size());
  for (const SubBatchPlan& sub_batch : plan.sub_batches) {
    for (const std::int64_t id : sub_batch.requests) taken[static_cast<std::size_t>(id)] = true;
  }
  std::vector<BenchPiece> rest;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!taken[i]) rest.push_back(pieces[i]);
  }
  return rest;
}

}  // namespace

std::string BenchTest::name() const {
  return fmt::format("{}{}", phase == Phase::prefill ? "pp" : "tg", tokens);
}

std::vector<std::vector<BenchPiece>> bench_iterations(const BenchTest& test) {
  return test.phase == Phase::prefill ? prefill_iterations(test) : decode_iterations(test);
}

std::vector<std::vector<StageWork>> bench_work(const BenchTest& test,
                                               const ModelDimensions& model) {
  std::vector<std::vector<StageWork>> work;
  std::vector<SequenceWork> sequences;
  for (const std::vector<BenchPiece>& iteration : bench_iterations(test)) {
    sequences.clear();
    for (const BenchPiece& piece : iteration) {
      sequences.push_back(
          {.rows = piece.rows, .context = piece.context, .logit_rows = piece.draws ? 1 : 0});
    }
    work.push_back(iteration_work(model, sequences));
  }
  return work;
}

double BenchSample::seconds() const {
  double sum = 0;
  for (const BenchSlice& slice : slices) sum += slice.seconds;
  return sum;
}

double BenchSample::busy_s() const {
  double sum = 0;
  for (const BenchSlice& slice : slices) sum += slice.busy_s;
  return sum;
}

std::int64_t bench_pages(const BenchTest& test) {
  return test.batch * KvCache::pages_for(test.depth + test.tokens);
}

MachineRates mean_rates(const MachineRates& a, const MachineRates& b) {
  return {.read_bandwidth_bytes_per_s =
              (a.read_bandwidth_bytes_per_s + b.read_bandwidth_bytes_per_s) / 2,
          .gemm_flop_per_s = (a.gemm_flop_per_s + b.gemm_flop_per_s) / 2};
}

void fill_with_random_values(ThreadPool& pool, std::span<std::byte> memory, DType dtype) {
  constexpr std::size_t block_elements = (std::size_t{1} << 18) + 7;
  const std::size_t block_bytes = block_elements * size_bytes(dtype);
  const Buffer block(block_bytes);
  std::mt19937 random(2);
  std::uniform_real_distribution<float> values(-1.0F, 1.0F);
  for (std::size_t i = 0; i < block_elements; ++i) {
    if (dtype == DType::f32) {
      block.as<float>()[i] = values(random);
    } else {
      block.as<BFloat16>()[i] = to_bf16(values(random));
    }
  }
  const auto num_blocks =
      static_cast<std::int64_t>((memory.size() + block_bytes - 1) / block_bytes);
  pool.run(num_blocks, [&](std::int64_t i) {
    const std::size_t at = static_cast<std::size_t>(i) * block_bytes;
    std::memcpy(memory.data() + at, block.data(), std::min(block_bytes, memory.size() - at));
  });
}

MachineProbes::MachineProbes(Runtime& runtime, DType dtype, std::uint64_t working_set_bytes) {
  const PausedWorkers paused;
  read_.emplace(runtime.setup_pool(), working_set_bytes);
  gemm_.emplace(runtime.setup_pool(), dtype);
}

MachineRates MachineProbes::measure() {
  const PausedWorkers paused;
  return {.read_bandwidth_bytes_per_s = read_->measure(), .gemm_flop_per_s = gemm_->measure()};
}

BenchRunner::BenchRunner(const ModelWeights& model, KvCache& kv, Runtime& runtime,
                         const DecoderGraph::Options& options, PolicyRun* policy)
    : model_(model),
      kv_(kv),
      runtime_(runtime),
      policy_(policy),
      graph_(model, {&kv, 1}, policy != nullptr ? policy->graph_options(options) : options) {
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int32_t> ids(
      0, static_cast<std::int32_t>(model.config().vocab_size) - 1);
  for (std::int64_t i = 0; i < default_prefill_chunk_tokens; ++i) prompt_.push_back(ids(random));
  fill_kv();
}

/// A prefill of the whole depth would take longer than the tests, and what K and V hold does not
/// change how long attention takes, as long as it is finite and of sensible size.
void BenchRunner::fill_kv() {
  for (std::int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
    if (interrupt_flag()) throw Interrupted();
    kv_.fill(layer, [&](std::span<std::byte> slab) {
      const PausedWorkers paused;
      fill_with_random_values(runtime_.setup_pool(), slab, model_.shape().dtype);
    });
  }
}

void BenchRunner::warm_up(const BenchTest& test) {
  Iterations iterations = bench_iterations(test);
  if (test.phase == Phase::decode)
    iterations.resize(std::min(iterations.size(), warm_up_iterations));
  BenchSlice slice;
  run_slice(iterations, test, std::numeric_limits<double>::infinity(), slice);
}

BenchSample BenchRunner::run(const BenchTest& test, MachineProbes& probes, MachineRates& before) {
  const Iterations iterations = bench_iterations(test);
  const double longest_s =
      runtime_.accelerator_node() ? std::numeric_limits<double>::infinity() : slice_s;
  BenchSample sample;
  for (std::size_t next = 0; next < iterations.size();) {
    BenchSlice& slice = sample.slices.emplace_back();
    slice.first_iteration = next;
    run_slice(iterations, test, longest_s, slice);
    const MachineRates after = probes.measure();
    slice.rates = mean_rates(before, after);
    before = after;  // nothing happens between this slice and the next
    next = slice.end_iteration;
  }
  return sample;
}

BenchSlice BenchRunner::run_whole(const BenchTest& test, std::int64_t times) {
  const Iterations once = bench_iterations(test);
  Iterations iterations;
  for (std::int64_t i = 0; i < times; ++i)
    iterations.insert(iterations.end(), once.begin(), once.end());
  BenchSlice slice;
  run_slice(iterations, test, std::numeric_limits<double>::infinity(), slice);
  return slice;
}

double BenchRunner::time_kv_store(const BenchTest& test) {
  const std::vector<BenchPiece> first = bench_iterations(test).front();
  const SubBatch sub_batch = sub_batch_of(first, test);
  const std::vector<std::int32_t> words = sub_batch.parts.front().batch.build();
  const std::int64_t rows = BatchView(words.data()).num_rows();
  const std::int64_t num_layers = model_.config().num_layers;
  const std::size_t layer_bytes = new_kv_bytes(model_.shape(), rows);
  const Buffer new_kv(static_cast<std::size_t>(num_layers) * layer_bytes);
  std::memset(new_kv.data(), 0, new_kv.size());  // pages of its own
  runtime_.reset_busy();
  {
    const DataHandle batch =
        DataHandle::of_memory(words.data(), words.size() * sizeof(std::int32_t));
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
      if (interrupt_flag()) throw Interrupted();
      KvStoreArgs args{.tag = {}, .shape = model_.shape()};
      args.tag.layer = static_cast<std::int32_t>(layer);
      args.tag.sublayer = args.tag.last_sublayer = Sublayer::kv_store;
      args.tag.phase = test.phase;
      args.tag.device = reader_of(kv_.home(layer)).value_or(Device::cpu);
      args.tag.num_tokens = rows;
      args.tag.num_sequences = test.batch;
      const DataHandle of_layer = DataHandle::of_memory(
          new_kv.data() + static_cast<std::size_t>(layer) * layer_bytes, layer_bytes);
      submit_kv_store(args, {batch, of_layer, kv_.slab(layer)});
      wait_for_all_tasks();  // an accelerator has room for one layer's
    }
  }
  run_failure().rethrow();
  KernelTotals kernels = runtime_.kernel_totals();
  kernels += runtime_.accelerator_totals();
  const KernelTotals::Entry& stores = kernels.of(test.phase, Sublayer::kv_store);
  return stores.median_s;
}

/// As Engine does it: an iteration is submitted before the one before it is looked at.
void BenchRunner::run_slice(const Iterations& iterations, const BenchTest& test, double longest_s,
                            BenchSlice& slice) {
  runtime_.reset_busy();
  const auto to_device_bytes = [&] {
    return runtime_.accelerator_node() ? runtime_.accelerator_use().to_bytes : 0;
  };
  const std::uint64_t before_bytes = to_device_bytes();
  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<PendingIteration> before;
  std::size_t next = slice.first_iteration;
  do {
    if (interrupt_flag()) throw Interrupted();
    std::vector<PendingIteration> current = submit(iterations[next], test);
    for (const PendingIteration& part : before) part.tokens();
    before = std::move(current);
    ++next;
  } while (next < iterations.size() && seconds() < longest_s);
  for (const PendingIteration& part : before) part.tokens();
  slice.end_iteration = next;
  slice.seconds = seconds();
  slice.busy_s = runtime_.busy_seconds();
  slice.kernels = runtime_.kernel_totals();
  slice.accelerator_kernels = runtime_.accelerator_totals();
  slice.to_device_bytes = to_device_bytes() - before_bytes;
}

std::vector<PendingIteration> BenchRunner::submit(const std::vector<BenchPiece>& iteration,
                                                  const BenchTest& test) {
  if (policy_ == nullptr) return graph_.submit(std::vector{sub_batch_of(iteration, test)});
  std::vector<PendingIteration> parts;
  std::vector<BenchPiece> left = iteration;
  while (!left.empty()) {
    const IterationPlan plan = policy_->plan_iteration(views_of(left, test), Awaited::nothing);
    std::vector<SubBatch> sub_batches;
    sub_batches.reserve(plan.sub_batches.size());
    for (const SubBatchPlan& planned : plan.sub_batches) {
      for (const std::vector<BenchPiece>& part :
           policy_->mini_batches(test.phase)
               .cut(pieces_of(left, planned), [](const BenchPiece& piece) { return piece.rows; }))
        sub_batches.push_back(sub_batch_of(part, test));
    }
    for (PendingIteration& part : graph_.submit(sub_batches)) parts.push_back(std::move(part));
    left = without(left, plan);
  }
  return parts;
}

std::int32_t BenchRunner::next_token(const BenchPiece& piece) const {
  if (model_.config().num_experts == 0) return -(static_cast<std::int32_t>(piece.sequence) + 1);
  // Sequences with equal prompts would draw equal tokens, which go through equal experts.
  const auto at = static_cast<std::size_t>(piece.sequence * 7919 + piece.context);
  return prompt_[at % prompt_.size()];
}

SubBatch BenchRunner::sub_batch_of(const std::vector<BenchPiece>& pieces, const BenchTest& test) {
  BatchPart part;
  part.phase = test.phase;
  for (const BenchPiece& piece : pieces) {
    const auto slot = static_cast<std::int32_t>(piece.sequence);
    const std::int32_t next = next_token(piece);
    std::span<const std::int32_t> tokens(&next, 1);
    if (test.phase == Phase::prefill)
      tokens = std::span(prompt_).first(static_cast<std::size_t>(piece.rows));
    const std::vector<std::int32_t> pages = pages_of(test, piece.sequence);
    part.batch.add({.slot = slot,
                    .context = static_cast<std::int32_t>(piece.context),
                    .fresh = piece.context == test.depth,
                    .tokens = tokens,
                    .pages = pages,
                    .sampling = {}},
                   piece.draws ? BatchBuilder::LogitRows::last : BatchBuilder::LogitRows::none);
  }
  SubBatch sub_batch{{std::move(part)}};
  if (policy_ != nullptr) policy_->place(sub_batch);
  return sub_batch;
}

}  // namespace sluice
