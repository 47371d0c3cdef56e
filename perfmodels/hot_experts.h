#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "perfmodels/memory_plan.h"
#include "perfmodels/work.h"

namespace sluice {

/// Experts of a layer that live in HBM while its others do not, or the mean of several layers with
/// as many each. They are rows of numbers alone: who runs them knows MemoryPlan::hot_experts.
class CountedHotExperts {
 public:
  /// `lists`: of each layer, from `first_layer` on, the numbers of its hot experts, as many in
  /// each. Which rows go through them follows from the model's routing.
  CountedHotExperts(const ModelDimensions& model, std::int64_t first_layer,
                    std::span<const std::vector<std::int32_t>> lists);

  std::int64_t count() const { return count_; }  ///< of one layer
  double bytes() const { return bytes_; }        ///< of one layer
  /// Share of a layer's pairs of row and chosen expert that they catch; the mean over the layers.
  double share() const { return share_; }
  /// What of a layer's experts the hot ones have in an iteration of so many rows, and the others.
  /// Of the experts touched (experts_touched()) they have the share that independent rows give
  /// them.
  ExpertPart hot(const ModelDimensions& model, double rows) const;
  ExpertPart cold(const ModelDimensions& model, double rows) const;

  bool operator==(const CountedHotExperts& other) const {
    return count_ == other.count_ && bytes_ == other.bytes_ && hot_chances_ == other.hot_chances_ &&
           cold_chances_ == other.cold_chances_;
  }

 private:
  /// Of the experts that independent rows touch, how many are hot, and all.
  struct Touched {
    double hot = 0;
    double all = 0;
  };
  Touched touched(double rows) const;

  std::int64_t count_ = 0;
  double bytes_ = 0;
  double share_ = 0;
  /// By layer, of which those that are like the one before are left out.
  std::vector<std::vector<double>> hot_chances_;
  std::vector<std::vector<double>> cold_chances_;
  mutable std::mutex mutex_;
  mutable std::map<double, Touched> known_;  ///< by rows; cost models ask for the same ones often
};

/// Gives each layer's homes what `memory.hot_experts` says: one CountedHotExperts for all layers
/// where each has as many, else one a layer. A layer whose experts all live in HBM has none.
void count_hot_experts(const ModelDimensions& model, MemoryPlan& memory);

/// The hot experts of a layer whose others live outside HBM; null where there are none.
const CountedHotExperts* hot_experts(const LayerHomes& homes);
/// Share of a weight's bytes that lives in HBM as hot experts do, whatever its home.
double hot_share(const ModelDimensions& model, const LayerHomes& homes, WeightKind kind);

}  // namespace sluice
