#include "graphs/kv_plan.h"

namespace sluice {

KvPlan::KvPlan(const Placement& placement, std::optional<Device> home, CachedTokens cached,
               NewKv new_kv)
    : home_(home),
      elsewhere_(cached == CachedTokens::some ? KvPath::cached_and_new_kv : KvPath::new_kv) {
  store_after_ = kv_stored_behind(placement, home, cached, new_kv);
  const bool all_attend_at_home =
      placement[Sublayer::qk] == home && placement[Sublayer::sv] == home;
  passes_new_kv_ = store_after_ || !all_attend_at_home;
  if (store_after_ == Sublayer::sv) {
    at_home_ = elsewhere_;
  } else {
    at_home_ = all_attend_at_home ? KvPath::slab : KvPath::slab_and_new_kv;
  }
}

}  // namespace sluice
