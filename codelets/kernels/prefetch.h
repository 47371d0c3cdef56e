#pragma once

namespace sluice {

/// Whether a core's own prefetching keeps up with memory where bytes are read in order: Zen 4's
/// does, and fetches by software only get in its way; Intel's Xeons reach 0.6 of the bandwidth
/// without them (docs/records/performance.md).
inline bool core_prefetches_enough() {
#if defined(__x86_64__)
  static const bool enough = __builtin_cpu_is("intel") == 0;
  return enough;
#else
  return true;
#endif
}

}  // namespace sluice
