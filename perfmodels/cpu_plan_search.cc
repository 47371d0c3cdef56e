#include "perfmodels/cpu_plan_search.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "perfmodels/topo_tree.h"

namespace sluice {
namespace {

using Groups = std::vector<std::vector<int>>;

/// Trees that differ in the order of cores alone are one plan.
Groups in_order(Groups groups) {
  for (std::vector<int>& cores : groups) std::sort(cores.begin(), cores.end());
  std::sort(groups.begin(), groups.end());
  return groups;
}

class Search {
 public:
  Search(const Topology& topology, const PlanScore& score, const PlanSearchOptions& options)
      : score_(score),
        options_(options),
        tree_(TopoTree::fundamental(topology)),
        cores_(tree_.cores()) {
    for (const int core : cores_) node_of_[core] = topology.numa_node_of(core);
  }

  PlanSearch run(bool may_remove) {
    for (const TopoTree& tree : grouped_trees(tree_)) {
      if (!seen_.insert(tree.key()).second) continue;
      const double seconds = look_at(tree);
      if (may_remove) remove_from(tree, seconds);
    }
    std::stable_sort(found_.begin(), found_.end(), [](const FoundPlan& a, const FoundPlan& b) {
      const auto a_s = static_cast<float>(a.seconds);  // what sums' rounding makes of equals is one
      const auto b_s = static_cast<float>(b.seconds);
      if (a_s != b_s) return a_s < b_s;
      return a.plan.groups.size() < b.plan.groups.size();
    });
    if (std::ssize(found_) > options_.top) found_.resize(static_cast<std::size_t>(options_.top));
    result_.best = std::move(found_);
    return std::move(result_);
  }

 private:
  /// A tree that is no faster than the one it was made from has no faster ones below it, as far as
  /// the search goes.
  void remove_from(const TopoTree& parent, double parent_s) {
    for (const TopoTree& tree : smaller_trees(parent)) {
      if (!seen_.insert(tree.key()).second) continue;
      const double seconds = look_at(tree);
      if (seconds < parent_s) remove_from(tree, seconds);
    }
  }

  /// The fastest of a tree's horizontal cuts.
  double look_at(const TopoTree& tree) {
    ++result_.num_trees;
    double best = std::numeric_limits<double>::infinity();
    for (const Groups& groups : horizontal_cuts(tree, options_.most_groups))
      best = std::min(best, seconds_of(in_order(groups)));
    return best;
  }

  double seconds_of(const Groups& groups) {
    const auto known = scores_.find(groups);
    if (known != scores_.end()) return known->second;
    Rank& rank = ranks_[groups.size()];
    if (options_.patience > 0 && rank.in_vain >= options_.patience)
      return std::numeric_limits<double>::infinity();
    CpuPhasePlan plan = plan_of(groups);
    const double seconds = score_(plan);
    plan.predicted_s = seconds;
    ++result_.num_plans;
    rank.in_vain = seconds < rank.best ? 0 : rank.in_vain + 1;
    rank.best = std::min(rank.best, seconds);
    scores_[groups] = seconds;
    found_.push_back({std::move(plan), seconds});
    return seconds;
  }

  CpuPhasePlan plan_of(const Groups& groups) const {
    CpuPhasePlan plan;
    std::set<int> used;
    for (const std::vector<int>& cores : groups) used.insert(cores.begin(), cores.end());
    for (const std::vector<int>& cores : groups) {
      const int node = node_of_.at(cores.front());
      const bool is_on_one = node >= 0 && std::all_of(cores.begin(), cores.end(), [&](int core) {
                               return node_of_.at(core) == node;
                             });
      plan.groups.push_back(
          {.cores = cores,
           .numa_node = is_on_one ? std::optional(node) : std::nullopt,
           .share = static_cast<double>(cores.size()) / static_cast<double>(used.size())});
    }
    for (const int core : cores_) {
      if (!used.contains(core)) plan.left_out.push_back(core);
    }
    return plan;
  }

  /// How plans of as many groups fare.
  struct Rank {
    double best = std::numeric_limits<double>::infinity();
    int in_vain = 0;
  };

  const PlanScore& score_;
  const PlanSearchOptions& options_;
  TopoTree tree_;
  std::vector<int> cores_;
  std::map<int, int> node_of_;
  std::set<std::string> seen_;
  std::map<Groups, double> scores_;
  std::map<std::size_t, Rank> ranks_;
  std::vector<FoundPlan> found_;
  PlanSearch result_;
};

}  // namespace

PlanSearch search_full_plans(const Topology& topology, const PlanScore& score,
                             const PlanSearchOptions& options) {
  return Search(topology, score, options).run(false);
}

PlanSearch search_plans(const Topology& topology, const PlanScore& score,
                        const PlanSearchOptions& options) {
  return Search(topology, score, options).run(true);
}

}  // namespace sluice
