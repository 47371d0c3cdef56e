#pragma once

#include <optional>

#include "codelets/runtime/kv_path.h"
#include "perfmodels/kv_store.h"
#include "perfmodels/placement.h"

namespace sluice {

/// How KV passes between the tasks of one layer, given its placement p and the device h that reads
/// the slab's tier, if one does (LIA's equations 5, 7 and 9; docs/design/kv-cache.md):
///   on h: 1, 2 and 3      sublayer 1 stores into the slab itself
///   on h: 2 and 3, not 1  a task on h stores what sublayer 1 passes on, directly behind its stage
///   on h: not both        that task comes behind attention, so that the slab may cross early, and
///                         attention reads new KV as passed on and only cached KV of the slab
/// Where no tokens are cached the slab does not cross, and one of 2 and 3 on h is like both.
/// With NewKv::passes sublayer 1 counts as away.
class KvPlan {
 public:
  /// `home`: the device that reads the slab's tier, if there is one.
  KvPlan(const Placement& placement, std::optional<Device> home, CachedTokens cached,
         NewKv new_kv = NewKv::as_placed);

  /// Of the tasks of sublayers 1 to 3 that run on `device`.
  KvPath path_on(Device device) const { return device == home_ ? at_home_ : elsewhere_; }
  /// The new tokens' KV passes from task to task, in a handle of its own.
  bool passes_new_kv() const { return passes_new_kv_; }
  /// The sublayer whose stage the storing task follows; nothing without such a task.
  std::optional<Sublayer> store_after() const { return store_after_; }

 private:
  std::optional<Device> home_;
  KvPath at_home_;
  KvPath elsewhere_;
  bool passes_new_kv_;
  std::optional<Sublayer> store_after_;
};

}  // namespace sluice
