#include "base/cpu_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

/// How far from 1 shares may add up that were written with a few digits.
constexpr double share_tolerance = 1e-3;

class PlanReader {
 public:
  PlanReader(std::string_view where, const Topology& topology) : where_(where) {
    topology.root().for_each(TopologyLevel::processor, [&](const TopologyNode& processor) {
      processors_[processor.os_index] = processor.allowed;
    });
    for (const std::vector<int>& threads : topology.threads_of_cores()) {
      for (const int thread : threads) core_of_[thread] = threads.front();
    }
    for (const TopologyMemory& memory : topology.memories()) nodes_.insert(memory.os_index);
  }

  CpuPlan read(const Json& json) const {
    CpuPlan plan;
    plan.prefill = phase(field(json, "prefill", ""), "prefill");
    plan.decode = phase(field(json, "decode", ""), "decode");
    return plan;
  }
  CpuPhasePlan read_phase(const Json& json, const std::string& what) const {
    return phase(json, what);
  }

 private:
  /// The cores that a phase has named, and by which hardware thread.
  using Seen = std::map<int, int>;

  const Json& field(const Json& json, const char* key, std::string_view of) const {
    if (!json.is_object())
      throw Error("{}: {}{}, expected an object", where_, of.empty() ? "" : fmt::format("{}: ", of),
                  describe(json));
    const auto found = json.find(key);
    if (found != json.end()) return *found;
    throw Error(
        "{}: \"{}\"{} is missing; a plan has \"prefill\" and \"decode\", each with \"groups\"",
        where_, key, of.empty() ? "" : fmt::format(" of {}", of));
  }

  CpuPhasePlan phase(const Json& json, const std::string& name) const {
    CpuPhasePlan plan;
    Seen seen;
    const std::string what = fmt::format("{}.groups", name);
    const Json& groups = field(json, "groups", name);
    if (!groups.is_array())
      throw Error("{}: {} is {}, expected a list", where_, what, describe(groups));
    double sum = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      plan.groups.push_back(group(groups[i], fmt::format("{}[{}]", what, i), seen));
      sum += plan.groups.back().share;
    }
    if (plan.groups.empty()) throw Error("{}: {} has no core; name at least one", where_, name);
    if (std::abs(sum - 1) > share_tolerance)
      throw Error("{}: {}: the shares add up to {:.6g}, expected 1", where_, what, sum);
    for (CpuGroup& group : plan.groups) group.share /= sum;
    expect_keys(json, name,
                {"groups", "left_out", "predicted_s", "measured_s", "memory_share", "samples_s"});
    if (const auto left_out = json.find("left_out"); left_out != json.end())
      plan.left_out = cores(*left_out, fmt::format("{}.left_out", name), seen);
    plan.predicted_s = seconds(json, "predicted_s", name);
    plan.measured_s = seconds(json, "measured_s", name);
    return plan;
  }

  CpuGroup group(const Json& json, const std::string& what, Seen& seen) const {
    CpuGroup group{.cores = cores(field(json, "cores", what), fmt::format("{}.cores", what), seen)};
    if (group.cores.empty())
      throw Error("{}: {} has no core; name one, or leave the group out", where_, what);
    if (const auto node = json.find("numa_node"); node != json.end() && !node->is_null()) {
      const auto number = whole_number(*node, 0, max_number);
      if (!number || !nodes_.contains(static_cast<int>(*number)))
        throw Error("{}: {}.numa_node is {}, and the machine has no such node", where_, what,
                    describe(*node));
      group.numa_node = static_cast<int>(*number);
    }
    const Json& share = field(json, "share", what);
    if (!share.is_number() || !(share.get<double>() > 0) || share.get<double>() > 1)
      throw Error("{}: {}.share is {}, expected a number above 0, at most 1", where_, what,
                  describe(share));
    group.share = share.get<double>();
    expect_keys(json, what, {"cores", "numa_node", "share"});
    return group;
  }

  std::vector<int> cores(const Json& json, const std::string& what, Seen& seen) const {
    if (!json.is_array())
      throw Error("{}: {} is {}, expected a list", where_, what, describe(json));
    std::vector<int> cores;
    for (const Json& entry : json) {
      const auto number = whole_number(entry, 0, max_number);
      if (!number)
        throw Error("{}: {} has {}, expected a processor's number", where_, what, describe(entry));
      const int core = static_cast<int>(*number);
      const auto there = processors_.find(core);
      if (there == processors_.end())
        throw Error("{}: {}: core {} is not there; the machine has {} hardware threads", where_,
                    what, core, processors_.size());
      if (!there->second)
        throw Error("{}: {}: core {} may not be used by this process (its affinity or cgroup)",
                    where_, what, core);
      const auto [taken, is_new] = seen.emplace(core_of_.at(core), core);
      if (!is_new && taken->second == core)
        throw Error("{}: {}: core {} stands twice in its phase", where_, what, core);
      if (!is_new)
        throw Error(
            "{}: {}: {} and {} are hardware threads of one core; name one of them in a phase",
            where_, what, taken->second, core);
      cores.push_back(core);
    }
    return cores;
  }

  std::optional<double> seconds(const Json& json, const char* key, std::string_view of) const {
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return std::nullopt;
    if (!found->is_number() || !(found->get<double>() >= 0))
      throw Error("{}: {}.{} is {}, expected seconds", where_, of, key, describe(*found));
    return found->get<double>();
  }

  /// Which keys an object of a plan may have, so that a misspelt one is not lost.
  void expect_keys(const Json& json, const std::string& what,
                   std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : json.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        throw Error("{}: {}: unknown key \"{}\", expected {}", where_, what, key,
                    fmt::join(keys, ", "));
    }
  }

  static constexpr std::int64_t max_number = 1 << 20;
  std::string where_;
  std::map<int, bool> processors_;  ///< whether each may be used
  std::map<int, int> core_of_;      ///< by hardware thread: the first one of its core
  std::set<int> nodes_;
};

}  // namespace

int CpuPhasePlan::num_cores() const {
  std::size_t count = 0;
  for (const CpuGroup& group : groups) count += group.cores.size();
  return static_cast<int>(count);
}

std::vector<int> CpuPlan::cores() const {
  std::vector<int> result;
  const auto add = [&](const std::vector<int>& cores) {
    for (const int core : cores) {
      if (std::find(result.begin(), result.end(), core) == result.end()) result.push_back(core);
    }
  };
  for (const CpuPhasePlan* phase : {&prefill, &decode}) {
    for (const CpuGroup& group : phase->groups) add(group.cores);
  }
  return result;
}

CpuPlan interleaved_plan(const std::vector<int>& cores) {
  const CpuPhasePlan phase{.groups = {{.cores = cores}}};
  return {.prefill = phase, .decode = phase};
}

CpuPlan static_plan(const std::vector<int>& cores, const Topology& topology) {
  CpuPhasePlan phase;
  for (const int core : cores) {
    const int node = topology.numa_node_of(core);
    const std::optional<int> home = node < 0 ? std::nullopt : std::optional(node);
    auto group = std::find_if(phase.groups.begin(), phase.groups.end(),
                              [&](const CpuGroup& other) { return other.numa_node == home; });
    if (group == phase.groups.end())
      group = phase.groups.insert(group, CpuGroup{.cores = {}, .numa_node = home});
    group->cores.push_back(core);
  }
  for (CpuGroup& group : phase.groups)
    group.share = static_cast<double>(group.cores.size()) / static_cast<double>(cores.size());
  return {.prefill = phase, .decode = phase};
}

ThreadPool::Cut threads_of(const CpuPhasePlan& plan, const std::vector<int>& cores) {
  ThreadPool::Cut cut;
  for (const CpuGroup& group : plan.groups) {
    ThreadPool::Group& threads = cut.emplace_back();
    threads.share = group.share;
    for (const int core : group.cores) {
      const auto found = std::find(cores.begin(), cores.end(), core);
      if (found == cores.end())
        throw Error("the CPU plan has core {}, which the run does not use", core);
      threads.threads.push_back(static_cast<int>(found - cores.begin()));
    }
  }
  return cut;
}

nlohmann::json as_json(const CpuPhasePlan& plan) {
  Json groups = Json::array();
  for (const CpuGroup& group : plan.groups) {
    groups.push_back({{"cores", group.cores},
                      {"numa_node", group.numa_node ? Json(*group.numa_node) : Json()},
                      {"share", group.share}});
  }
  Json json = {{"groups", std::move(groups)}, {"left_out", plan.left_out}};
  json["predicted_s"] = plan.predicted_s ? Json(*plan.predicted_s) : Json();
  json["measured_s"] = plan.measured_s ? Json(*plan.measured_s) : Json();
  return json;
}

CpuPhasePlan read_cpu_phase_plan(const nlohmann::json& json, std::string_view where,
                                 const std::string& what, const Topology& topology) {
  return PlanReader(where, topology).read_phase(json, what);
}

nlohmann::json as_json(const CpuPlan& plan, const Topology& topology) {
  return {{"prefill", as_json(plan.prefill)},
          {"decode", as_json(plan.decode)},
          {"topology", topology.shape()}};
}

CpuPlan read_cpu_plan(const nlohmann::json& json, std::string_view where,
                      const Topology& topology) {
  // What `sluice plan --json` prints of one point.
  if (json.is_array() && json.size() == 1) return read_cpu_plan(json.front(), where, topology);
  if (json.is_object() && json.contains("cpu_plan"))
    return read_cpu_plan(json.at("cpu_plan"), where, topology);
  if (json.is_object() && json.contains("topology") && json.at("topology") != topology.shape())
    throw Error(
        "{}: a plan of another machine: its topology is not {} ({}); begin with what {} says",
        where, topology.is_this_machine() ? "this one's" : "the described one's",
        topology.summary(),
        topology.is_this_machine()
            ? "sluice info --json"
            : "sluice plan --cpu-plan static --json, or info --topology --json,");
  if (json.is_object() && json.contains("prefill") && json.at("prefill").contains("plans"))
    throw Error("{}: plans that sluice tune compares, of which none is chosen yet", where);
  return PlanReader(where, topology).read(json);
}

}  // namespace sluice
