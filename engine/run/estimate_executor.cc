#include "engine/run/estimate_executor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/batching/run_record.h"
#include "graphs/kv_cache.h"

namespace sluice {
namespace {

/// Of all layers, if it is the same.
std::optional<Tier> only_home(const KvCohort& cohort) {
  const Tier first = cohort.homes.front();
  const bool same =
      std::ranges::all_of(cohort.homes, [first](const Tier home) { return home == first; });
  return same ? std::optional(first) : std::nullopt;
}

}  // namespace

void EstimateExecutor::submit(const std::vector<SubBatch>& sub_batches,
                              const std::vector<KvMove>& moves) {
  const IterationEstimate estimate = this->estimate(sub_batches, moves);
  const double start_s = under_way_.empty() ? now_s_ : under_way_.back().end_s;
  UnderWay& iteration = under_way_.emplace_back();
  iteration.end_s = std::max(start_s, now_s_) + estimate.seconds;
  iteration.busy = estimate.busy;
  for (const SubBatch& sub_batch : sub_batches) {
    std::size_t count = 0;
    for (const BatchPart& part : sub_batch.parts)
      count += static_cast<std::size_t>(part.batch.num_sequences());
    iteration.results.push_back({.tokens = std::vector<std::int32_t>(count), .logprobs = {}});
  }
}

std::vector<SubBatchResults> EstimateExecutor::wait() {
  UnderWay oldest = std::move(under_way_.front());
  under_way_.pop_front();
  now_s_ = std::max(now_s_, oldest.end_s);
  busy_ += oldest.busy;
  return std::move(oldest.results);
}

void EstimateExecutor::sleep_until(double time_s) { now_s_ = std::max(now_s_, time_s); }

IterationEstimate EstimateExecutor::estimate(std::span<const SubBatch> sub_batches,
                                             std::span<const KvMove> moves) const {
  const bool prompts = std::ranges::any_of(sub_batches, [](const SubBatch& sub_batch) {
    return std::ranges::any_of(sub_batch.parts,
                               [](const BatchPart& part) { return part.phase == Phase::prefill; });
  });
  const Phase phase = prompts ? Phase::prefill : Phase::decode;
  IterationEstimate estimate =
      estimate_iteration(costs_, policy_.memory(), chains_of(sub_batches, phase),
                         policy_.prefetch(phase), Start::steady);
  for (const KvMove& move : moves) estimate.busy += busy_with(move);
  for (const SubBatch& sub_batch : sub_batches) {
    for (const BatchPart& part : sub_batch.parts) estimate.busy += busy_with_cached_pages(part);
  }
  estimate.seconds = std::max(estimate.seconds, estimate.busy.busiest().second);
  return estimate;
}

std::vector<Chain> EstimateExecutor::chains_of(std::span<const SubBatch> sub_batches,
                                               Phase phase) const {
  std::vector<Chain> chains;
  chains.reserve(sub_batches.size());
  for (const SubBatch& sub_batch : sub_batches) {
    chains.push_back(chain_of(sub_batch));
    chains.back().takes_turns = sub_batches.size() > 1 && policy_.mini_batches(phase).asked > 1;
  }
  return chains;
}

Chain EstimateExecutor::chain_of(const SubBatch& sub_batch) const {
  const std::vector<KvCohort>& cohorts = policy_.kv_cohorts();
  const bool of_kinds = cohorts.size() > 1 || sub_batch.parts.size() > 1;
  Chain chain{.parts = {}, .placements = sub_batch.parts.front().placements};
  for (const BatchPart& part : sub_batch.parts) {
    ChainPart& kind = chain.parts.emplace_back(ChainPart{.shape = shape_of(part)});
    if (!of_kinds) continue;
    kind.attention = part.placements.front()[Sublayer::qk];
    kind.kv = only_home(cohorts.at(part.cohort));
  }
  return chain;
}

void EstimateExecutor::add_task(Tier home, std::int64_t num_pages, BusyTimes& busy) const {
  const Device reader = reader_of(home).value_or(Device::cpu);
  const Device device = costs_.has(reader) ? reader : Device::cpu;
  const BatchShape shape = {
      .phase = Phase::decode, .batch = 1, .rows = num_pages * page_tokens, .context = 1};
  (device == Device::gpu ? busy.gpu_s : busy.cpu_s) +=
      costs_.compute_s(device, Sublayer::kv_store, shape) + costs_.task_overhead_s(device, 1);
}

/// As DecoderGraph brings them: in each layer one task gathers them, and they cross as one piece.
BusyTimes EstimateExecutor::busy_with_cached_pages(const BatchPart& part) const {
  BusyTimes busy;
  if (part.phase != Phase::prefill || !part.batch.has_cached_tokens()) return busy;
  const std::int64_t num_pages =
      KvCache::pages_for(part.batch.context_tokens() - part.batch.num_rows());
  const double bytes =
      static_cast<double>(num_pages * page_tokens) * kv_bytes_per_token(costs_.model());
  const std::vector<Tier>& homes = policy_.kv_cohorts().at(part.cohort).homes;
  for (std::size_t layer = 0; layer < homes.size(); ++layer) {
    const std::optional<Device> home = reader_of(homes[layer]);
    const Device device = part.placements[layer][Sublayer::qk];
    if (!home || device == *home) continue;
    add_task(homes[layer], num_pages, busy);
    (device == Device::gpu ? busy.to_gpu_s : busy.to_cpu_s) +=
        costs_.transfer_s(homes[layer], own_tier(device), bytes);
  }
  return busy;
}

/// As DecoderGraph::submit() moves pages: in each layer one task gathers them, they cross as one
/// piece, and another task scatters them.
BusyTimes EstimateExecutor::busy_with(const KvMove& move) const {
  const std::int64_t num_pages = std::ssize(move.from_pages);
  const double bytes =
      static_cast<double>(num_pages * page_tokens) * kv_bytes_per_token(costs_.model());
  const std::vector<Tier>& from = policy_.kv_cohorts().at(move.from).homes;
  const std::vector<Tier>& to = policy_.kv_cohorts().at(move.to).homes;
  BusyTimes all;
  BusyTimes of_layer;
  for (std::size_t layer = 0; layer < from.size(); ++layer) {
    if (layer == 0 || from[layer] != from[layer - 1] || to[layer] != to[layer - 1]) {
      of_layer = {};
      add_task(from[layer], num_pages, of_layer);
      add_task(to[layer], num_pages, of_layer);
      (to[layer] == Tier::hbm ? of_layer.to_gpu_s : of_layer.to_cpu_s) +=
          costs_.transfer_s(from[layer], to[layer], bytes);
    }
    all += of_layer;
  }
  return all;
}

}  // namespace sluice
