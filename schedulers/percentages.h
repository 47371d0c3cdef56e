#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "perfmodels/placement.h"
#include "perfmodels/work.h"

namespace sluice {

/// Percentages of a block's weights that shall live on tiers, in the order in which they are
/// filled.
struct TierPercentages {
  std::array<Tier, 3> tiers{};
  std::array<double, 3> percents{};
};

/// FlexGen's allocation rule (HeLM Listing 2): a weight goes to the tier on which its middle falls
/// when the block's weights, in their order, are laid out along 0 to 100 %. A middle right on a
/// border counts below it: FlexGen's own lists have a bias after each matrix, which brings it
/// there.
inline void allocate_by_middle(const ModelDimensions& model, std::span<const WeightKind> weights,
                               const TierPercentages& wanted, LayerHomes& homes) {
  double total = 0;
  for (const WeightKind kind : weights) total += weight_elements(model, kind);
  double before = 0;
  for (const WeightKind kind : weights) {
    const double size = weight_elements(model, kind);
    const double middle = 100 * (before + size / 2) / total;
    before += size;
    double end = 0;
    homes[kind] = wanted.tiers.back();
    for (std::size_t i = 0; i < wanted.tiers.size(); ++i) {
      end += wanted.percents[i];
      if (middle <= end) {
        homes[kind] = wanted.tiers[i];
        break;
      }
    }
  }
}

/// FlexGen's two layers of a decoder block, weights in its order: attention and FFN. Norms and
/// biases, which stand in both there, are one small tensor of ours and follow the attention.
inline constexpr std::array<WeightKind, 5> attention_block = {
    WeightKind::query, WeightKind::key, WeightKind::value, WeightKind::out_proj,
    WeightKind::vectors};
inline constexpr std::array<WeightKind, 2> ffn_block = {WeightKind::fc1, WeightKind::fc2};

}  // namespace sluice
