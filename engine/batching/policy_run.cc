#include "engine/batching/policy_run.h"

#include <algorithm>

#include "base/error.h"
#include "perfmodels/layer_run.h"

namespace sluice {

PolicyRun::PolicyRun(CheckedPolicy& policy, const CostModel& costs, const Workload& workload,
                     const KvPages& kv)
    : policy_(policy), costs_(costs), workload_(workload) {
  policy_.start(costs, workload);
  memory_ = policy_.plan_memory(CapacityCheck::hbm_only);
  answered_ = memory_;
  if (memory_.hbm_requests >= workload.batch && !kv.ddr) {
    for (LayerHomes& homes : memory_.layers) homes.kv = Tier::hbm;
  }
  make_cohorts(kv);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    Pipeline& pipeline = pipelines_.at(static_cast<std::size_t>(phase));
    pipeline = policy_.pipeline(phase);
    // Mini-batches are for what moves meanwhile: without a GPU nothing does.
    if (!costs.has(Device::gpu)) pipeline = {.mini_batches = 1, .prefetch = Prefetch::layer};
  }
}

void PolicyRun::make_cohorts(const KvPages& kv) {
  const std::vector<Tier> homes = kv_homes();
  const auto num_in_hbm = std::ranges::count(homes, Tier::hbm);
  const std::int64_t each = kv.all / workload_.batch;
  if (num_in_hbm == std::ssize(homes)) {
    kv_cohorts_.push_back({homes, kv.hbm.value_or(each * workload_.batch)});
    return;
  }
  const std::int64_t hbm_requests = std::min(memory_.hbm_requests, workload_.batch);
  if (hbm_requests > 0) {
    kv_cohorts_.push_back(
        {std::vector<Tier>(homes.size(), Tier::hbm), kv.hbm.value_or(each * hbm_requests)});
  }
  std::int64_t pages = kv.ddr.value_or(each * (workload_.batch - hbm_requests));
  if (num_in_hbm > 0) pages = std::min(pages, kv.hbm.value_or(pages));
  kv_cohorts_.push_back({homes, pages});
}

void PolicyRun::check_as_planned(const MemoryPlan& planned, const Workload& workload) const {
  if (workload != workload_) return;
  const auto same = [&](const char* what, const auto& now, const auto& before) {
    if (now == before) return;
    throw Error(
        "policy {}: plan_memory: its answer has another {} than before, for the same machine and "
        "workload; it has to stay the same",
        policy_.name(), what);
  };
  for (std::size_t layer = 0; layer < planned.layers.size(); ++layer)
    same(fmt::format("home of layer {}", layer).c_str(), answered_.layers[layer],
         planned.layers[layer]);
  same("embedding", answered_.embedding, planned.embedding);
  same("lm_head", answered_.lm_head, planned.lm_head);
  same("lm_head_device", answered_.lm_head_device, planned.lm_head_device);
  same("hbm_requests", answered_.hbm_requests, planned.hbm_requests);
  same("uses_gpu", answered_.uses_gpu, planned.uses_gpu);
}

MiniBatches PolicyRun::mini_batches(Phase phase) const {
  return MiniBatches::of(phase, pipelines_[static_cast<std::size_t>(phase)].mini_batches,
                         costs_.has(Device::gpu));
}

void PolicyRun::set_host_homes(const std::vector<Tier>& layers, Tier kv) {
  has_kv_on_disk_ = kv == Tier::disk;
  host_layers_ = layers;
  for (KvCohort& cohort : kv_cohorts_) {
    for (Tier& home : cohort.homes) home = on_disk_if_there(home);
  }
  for (std::size_t layer = 0; layer < memory_.layers.size(); ++layer) {
    const Tier host = layers.at(layer) == Tier::cxl ? Tier::cxl : Tier::ddr;
    for (Tier& home : memory_.layers[layer].weights) {
      if (home != Tier::hbm) home = host;
    }
  }
}

Device PolicyRun::reader(Tier tier) const {
  const Device device = reader_of(tier).value_or(Device::cpu);
  return costs_.has(device) ? device : Device::cpu;
}

Device PolicyRun::head_device() const {
  return memory_.lm_head_device.value_or(reader(memory_.lm_head));
}

DecoderGraph::Options PolicyRun::graph_options(DecoderGraph::Options options) const {
  options.embedding_device = reader(memory_.embedding);
  options.head_device = head_device();
  const bool halves = std::any_of(pipelines_.begin(), pipelines_.end(), [](const Pipeline& phase) {
    return phase.prefetch == Prefetch::half_layer;
  });
  if (halves && options.fusion != Fusion::sublayers) options.fusion = Fusion::halves;
  options.weight_readers = weight_readers();
  return options;
}

std::vector<std::optional<Device>> PolicyRun::weight_readers() const {
  std::vector<std::optional<Device>> readers;
  readers.reserve(memory_.layers.size());
  for (std::size_t layer = 0; layer < memory_.layers.size(); ++layer) {
    std::optional<Device>& reader = readers.emplace_back(reader_of_weights(memory_.layers[layer]));
    const bool comes_from_disk = !host_layers_.empty() && host_layers_[layer] == Tier::disk;
    if (reader != Device::gpu && comes_from_disk) reader.reset();
  }
  return readers;
}

Tier PolicyRun::on_disk_if_there(Tier home) const {
  return has_kv_on_disk_ && home != Tier::hbm ? Tier::disk : home;
}

std::vector<Tier> PolicyRun::kv_homes() const {
  std::vector<Tier> homes;
  homes.reserve(memory_.layers.size());
  for (const LayerHomes& layer : memory_.layers) homes.push_back(on_disk_if_there(layer.kv));
  return homes;
}

void PolicyRun::place(SubBatch& sub_batch) {
  const std::size_t num_layers = memory_.layers.size();
  for (BatchPart& part : sub_batch.parts) {
    const BatchShape shape = shape_of(part);
    const std::vector<Tier>& kv = kv_cohorts_.at(part.cohort).homes;
    part.placements.assign(num_layers, Placement(Device::cpu));
    for (std::size_t layer = 0; layer < num_layers; ++layer) {
      LayerHomes homes = memory_.layers[layer];
      if (!has_kv_on_disk_ || kv[layer] == Tier::hbm) homes.kv = kv[layer];
      part.placements[layer] = policy_.place(static_cast<std::int64_t>(layer), shape, homes);
      ++placed_layers_.at(static_cast<std::size_t>(shape.phase)).at(part.placements[layer].bits());
    }
  }
  sub_batch.join_alike();
  if (record_ != nullptr) record_->add(sub_batch);
  if (!policy_.lacked_device() || said_lacking_) return;
  said_lacking_ = true;
  const bool no_gpu = !costs_.has(Device::gpu);
  fmt::print(
      stderr,
      "sluice: policy {}: there is no {} here that Sluice can use; everything runs on the {}\n",
      policy_.name(), no_gpu ? "GPU" : "CPU", no_gpu ? "CPU" : "GPU");
}

}  // namespace sluice
