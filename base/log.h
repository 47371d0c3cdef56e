#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace sluice {

/// The one logger: stderr, level from SLUICE_LOG (trace, debug, info, warn, error, off; default
/// warn).
spdlog::logger& logger();

/// Whether nobody asked with this text before: for what is said once, however often it is found.
bool is_first_time(const std::string& text);

}  // namespace sluice
