#include "engine/policy_run.h"

#include <algorithm>

#include "base/error.h"
#include "engine/command_line.h"
#include "perfmodels/layer_run.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

/// One of `tiers`; `expected` names them.
std::optional<Tier> read_tier(const CommandLine& line, const std::string& option,
                              std::initializer_list<Tier> tiers, const char* expected) {
  if (!line.given(option)) return std::nullopt;
  const std::string& name = line.get<std::string>(option);
  const std::optional<Tier> tier = parse_tier(name);
  if (!tier || std::find(tiers.begin(), tiers.end(), *tier) == tiers.end())
    throw UsageError("--{} {}: expected {}", option, name, expected);
  return tier;
}

}  // namespace

void declare_policy_options(CommandLine& line) {
  line.options().add_options()  //
      ("policy", po::value<std::string>(),
       "what runs where: a policy's name, or the file of one's own, e.g. ./mine.so; without it, "
       "the "
       "fastest by prediction")  //
      ("policy-option", po::value<std::vector<std::string>>(),
       "key=value for the policy; may be given again");
}

std::map<std::string, std::string> read_policy_options(const CommandLine& line) {
  std::map<std::string, std::string> options;
  if (!line.given("policy-option")) return options;
  for (const std::string& text : line.get<std::vector<std::string>>("policy-option")) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size())
      throw UsageError("--policy-option {}: expected key=value", text);
    const auto [there, added] = options.emplace(text.substr(0, equals), text.substr(equals + 1));
    if (!added) throw UsageError("--policy-option {}: {} is given twice", text, there->first);
  }
  return options;
}

void declare_host_tiers(CommandLine& line) {
  line.options().add_options()  //
      ("parameters-tier", po::value<std::string>(),
       "ddr or cxl: where layers' weights live that the policy leaves in either of them")  //
      ("kv-tier", po::value<std::string>(),
       "ddr, cxl or disk: where KV lives that the policy leaves in either of the first two");
}

std::optional<Tier> read_kv_tier(const CommandLine& line) {
  return read_tier(line, "kv-tier", {Tier::ddr, Tier::cxl, Tier::disk}, "ddr, cxl or disk");
}

HostTiers read_host_tiers(const CommandLine& line) {
  return {.parameters = read_tier(line, "parameters-tier", {Tier::ddr, Tier::cxl}, "ddr or cxl"),
          .kv = read_kv_tier(line)};
}

std::vector<std::string> arguments_of(const HostTiers& tiers) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* option, std::optional<Tier> tier) {
    if (tier) arguments.insert(arguments.end(), {option, std::string(to_string(*tier))});
  };
  add("--parameters-tier", tiers.parameters);
  add("--kv-tier", tiers.kv);
  return arguments;
}

PolicyRun::PolicyRun(CheckedPolicy& policy, const CostModel& costs, const Workload& workload)
    : policy_(policy), costs_(costs), workload_(workload) {
  policy_.start(costs, workload);
  memory_ = policy_.plan_memory(CapacityCheck::hbm_only);
  answered_ = memory_;
  if (memory_.hbm_requests >= workload.batch) {
    for (LayerHomes& homes : memory_.layers) homes.kv = Tier::hbm;
  }
  kv_cohorts_.push_back({kv_homes(), workload.batch});
  if (memory_.hbm_requests > 0 && memory_.hbm_requests < workload.batch) {
    kv_cohorts_.back().requests -= memory_.hbm_requests;
    kv_cohorts_.insert(kv_cohorts_.begin(),
                       {std::vector<Tier>(memory_.layers.size(), Tier::hbm), memory_.hbm_requests});
  }
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    Pipeline& pipeline = pipelines_.at(static_cast<std::size_t>(phase));
    pipeline = policy_.pipeline(phase);
    // Mini-batches are for what moves meanwhile: without a GPU nothing does.
    if (!costs.has(Device::gpu)) pipeline = {.mini_batches = 1, .prefetch = Prefetch::layer};
  }
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
