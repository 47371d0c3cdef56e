#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "perfmodels/task.h"
#include "schedulers/checked_policy.h"
#include "tests/engine/dice.h"
#include "tests/schedulers/policy_costs.h"

namespace sluice::test {

inline std::int64_t pages_for(std::int64_t tokens) {
  return (tokens + page_tokens - 1) / page_tokens;
}

/// A machine with room for half of the requests in HBM.
class TwoPools : public PolicyCosts {
 public:
  TwoPools() {
    has_gpu = true;
    capacities = {{Tier::hbm, std::uint64_t{1} << 30}, {Tier::ddr, std::uint64_t{1} << 30}};
  }
};

/// What tests' policies have in common: KV in two pools, and no thought about places.
class TestPolicy : public Policy {
 public:
  MemoryPlan plan_memory() override {
    MemoryPlan plan;
    plan.layers.assign(static_cast<std::size_t>(model().num_layers),
                       LayerHomes::all(Tier::hbm, Tier::ddr));
    plan.hbm_requests = workload().batch / 2;
    return plan;
  }
  Placement place(std::int64_t /*layer*/, const BatchShape& /*shape*/,
                  const LayerHomes& homes) override {
    Placement placement(Device::gpu);
    if (homes.kv != Tier::hbm) placement[Sublayer::qk] = placement[Sublayer::sv] = Device::cpu;
    return placement;
  }
};

/// A policy of a test with its machine.
struct TestMachine {
  explicit TestMachine(Policy& policy) : checked(policy, "played") {}
  TwoPools costs;
  CheckedPolicy checked;
};

/// Everything that can be ordered, at random. What is ordered is possible.
class RandomOrders : public TestPolicy {
 public:
  explicit RandomOrders(std::uint64_t seed) : dice_(seed) {}

  std::optional<Schedule> schedule(const Situation& situation) override {
    if (dice_.percent(5)) return std::nullopt;
    if (situation.under_way && dice_.percent(5)) {
      ++num_empty;
      return Schedule{};
    }
    situation_ = &situation;
    schedule_ = {};
    free_.clear();
    for (const PoolView& pool : situation.pools) free_[pool.tier] = pool.free_pages;
    running_ = situation.running;
    rows_left_ = situation.max_batch_tokens;
    preempt();
    swap();
    admit();
    run();
    if (schedule_.sub_batches.empty()) return std::nullopt;
    return schedule_;
  }

  std::int64_t num_empty = 0;

 private:
  void preempt() {
    std::erase_if(running_, [&](const RequestView& view) {
      if (!dice_.percent(2)) return false;
      schedule_.preemptions.push_back(view.id);
      give_back(view);
      return true;
    });
  }
  /// Shared pages stay with those that share them.
  void give_back(const RequestView& view) { free_[view.kv] += view.pages - view.shared_pages; }
  bool take(Tier tier, std::int64_t pages) {
    if (free_[tier] < pages) return false;
    free_[tier] -= pages;
    return true;
  }
  Tier any_tier() { return dice_.percent(50) ? Tier::hbm : Tier::ddr; }

  void swap() {
    for (RequestView& view : running_) {
      if (!dice_.percent(6)) continue;
      const Tier to = view.kv == Tier::hbm ? Tier::ddr : Tier::hbm;
      if (!take(to, view.pages)) continue;
      give_back(view);
      view.kv = to;
      schedule_.swaps.push_back({view.id, to});
    }
  }
  void admit() {
    std::vector<RequestView> waiting = situation_->waiting;
    if (dice_.percent(50)) dice_.shuffle(waiting);
    std::int64_t sequences = situation_->free_sequences + std::ssize(schedule_.preemptions);
    for (RequestView& view : waiting) {
      if (sequences == 0 || !dice_.percent(60)) continue;
      const Tier tier = any_tier();
      if (!take(tier, view.pages)) continue;
      --sequences;
      view.kv = tier;
      schedule_.admissions.push_back({view.id, tier});
      running_.push_back(view);
    }
  }
  void run() {
    schedule_.sub_batches.resize(static_cast<std::size_t>(1 + dice_.below(3)));
    dice_.shuffle(running_);
    for (const RequestView& view : running_) {
      if (dice_.percent(25)) continue;
      std::int64_t most = std::min(rows_left_, situation_->prefill_chunk_tokens);
      if (dice_.percent(50)) most = std::min(most, 1 + dice_.below(60));
      const std::int64_t rows = view.rows_within(most);
      const std::int64_t more = pages_for(view.context_tokens + rows) - view.pages;
      if (rows == 0 || !take(view.kv, std::max<std::int64_t>(0, more))) continue;
      rows_left_ -= rows;
      schedule_
          .sub_batches[static_cast<std::size_t>(dice_.below(std::ssize(schedule_.sub_batches)))]
          .push_back({view.id, rows});
    }
    std::erase_if(schedule_.sub_batches, [](const auto& one) { return one.empty(); });
  }

  Dice dice_;
  const Situation* situation_ = nullptr;
  Schedule schedule_;
  std::map<Tier, std::int64_t> free_;
  std::vector<RequestView> running_;
  std::int64_t rows_left_ = 0;
};

}  // namespace sluice::test
