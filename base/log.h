#pragma once

#include <spdlog/spdlog.h>

namespace sluice {

/// The one logger: stderr, level from SLUICE_LOG (trace, debug, info, warn, error, off; default
/// warn).
spdlog::logger& logger();

}  // namespace sluice
