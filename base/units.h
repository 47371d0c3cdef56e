#pragma once

#include <cstdint>
#include <string>

namespace sluice {

/// "1.25 GiB", "512.0 MiB" or "3.0 KiB"
std::string format_bytes(std::uint64_t bytes);
/// "1.23 s", "4.56 ms" or "7.8 us"
std::string format_seconds(double seconds);

}  // namespace sluice
