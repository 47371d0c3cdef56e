#include "perfmodels/kv_store.h"

namespace sluice {

std::optional<Sublayer> kv_stored_behind(const Placement& placement, std::optional<Device> home,
                                         CachedTokens cached, NewKv new_kv) {
  const bool qk_away = placement[Sublayer::qk] != home;
  const bool sv_away = placement[Sublayer::sv] != home;
  const bool slab_crosses = (qk_away || sv_away) && cached == CachedTokens::some;
  if (slab_crosses || (qk_away && sv_away)) return Sublayer::sv;
  if (placement[Sublayer::qkv] != home || new_kv == NewKv::passes) return Sublayer::qkv;
  return std::nullopt;
}

}  // namespace sluice
