#pragma once

#include <cstdint>
#include <optional>

#include "perfmodels/placement.h"

namespace sluice {

/// Whether some sequence of a batch has tokens in the KV cache.
enum class CachedTokens : std::uint8_t { none, some };

/// Who stores new tokens' KV: sublayer 1 itself where that may be, or always a task of its own.
enum class NewKv : std::uint8_t { as_placed, passes };

/// The sublayer whose stage the task follows that stores a layer's new KV into its slab, on the
/// device `home` which reads the slab's tier; nothing where sublayer 1 stores it itself. Where
/// cached KV crosses to attention that task comes behind it, so that the slab may cross early
/// (LIA's equations 5, 7 and 9; docs/design/kv-cache.md).
std::optional<Sublayer> kv_stored_behind(const Placement& placement, std::optional<Device> home,
                                         CachedTokens cached, NewKv new_kv);

}  // namespace sluice
