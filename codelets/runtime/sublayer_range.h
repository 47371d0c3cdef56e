#pragma once

#include "perfmodels/task.h"

namespace sluice {

/// Neighbouring sublayers of one layer, LIA's numbers: first <= last, both of 1..6. Where a range
/// holds sublayers 2 and 3, they run as one flash-style attention.
struct SublayerRange {
  Sublayer first = Sublayer::qkv;
  Sublayer last = Sublayer::fc2;

  bool has(Sublayer sublayer) const { return first <= sublayer && sublayer <= last; }
  bool is_single() const { return first == last; }
  bool operator==(const SublayerRange&) const = default;
};

}  // namespace sluice
