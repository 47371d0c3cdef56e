#include "graphs/kv_plan.h"

namespace sluice {

KvPlan::KvPlan(const Placement& placement, std::optional<Device> home, CachedTokens cached,
               NewKv new_kv)
    : home_(home),
      elsewhere_(cached == CachedTokens::some ? KvPath::cached_and_new_kv : KvPath::new_kv) {
  const bool makes_at_home = placement[Sublayer::qkv] == home && new_kv == NewKv::as_placed;
  const bool all_attend_at_home =
      placement[Sublayer::qk] == home && placement[Sublayer::sv] == home;
  const bool none_attend_at_home =
      placement[Sublayer::qk] != home && placement[Sublayer::sv] != home;
  const bool slab_travels = !all_attend_at_home && cached == CachedTokens::some;
  passes_new_kv_ = !makes_at_home || !all_attend_at_home;
  at_home_ = all_attend_at_home ? KvPath::slab : KvPath::slab_and_new_kv;
  if (none_attend_at_home || slab_travels) {
    at_home_ = elsewhere_;
    store_after_ = Sublayer::sv;
  } else if (!makes_at_home) {
    store_after_ = Sublayer::qkv;
  }
}

}  // namespace sluice
