#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "perfmodels/chain_work.h"

namespace sluice::test {

/// What an iteration consists of, without an order.
struct IterationWork {
  std::vector<std::vector<ChainLayer>> layers;  ///< by chain, then layer
  std::vector<LayerLoads> loads;                ///< by layer
  std::vector<HeadStep> heads;                  ///< by chain
  struct Swap {
    double out_s = 0;
    double back_s = 0;
  };
  std::vector<Swap> swaps;  ///< by chain: of hidden states after a layer that ends on the GPU
  bool half_layers = false;
};

/// Of these chains.
IterationWork work_of(const CostModel& costs, const MemoryPlan& memory,
                      std::span<const Chain> chains, Prefetch prefetch);

/// The least that any order of this work can take: what its busiest part needs, and what each chain
/// takes behind the loads that it waits for.
double order_bound_s(const IterationWork& work);

/// Whether orders are left out that a bound excludes, or that differ only in which of two chains
/// that are alike goes first: without, every order is looked at.
enum class Pruning : std::uint8_t { on, off };

/// The shortest iteration from a cold start, over all orders of its tasks and transfers: a
/// depth-first search that leaves out what cannot become shorter. Nothing lies on a disk.
/// 1. A device computes one thing at a time, finishes it, and may wait for something better.
/// 2. Each direction of the link moves one thing at a time, and may interrupt it for another.
/// 3. Weights of unit u may come once all chains are done with unit u-2; values may go first.
/// 4. A unit's first task waits for all of its weights.
/// Returns infinity where nothing is shorter than `below`. Throws std::runtime_error where there
/// are too many orders.
double best_order_s(const IterationWork& work,
                    double below = std::numeric_limits<double>::infinity(),
                    Pruning pruning = Pruning::on);

}  // namespace sluice::test
