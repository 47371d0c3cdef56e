#include "base/units.h"

#include <fmt/format.h>

namespace sluice {

std::string format_bytes(std::uint64_t bytes) {
  constexpr double kibi = 1024;
  const auto value = static_cast<double>(bytes);
  if (value >= kibi * kibi * kibi) return fmt::format("{:.2f} GiB", value / (kibi * kibi * kibi));
  if (value >= kibi * kibi) return fmt::format("{:.1f} MiB", value / (kibi * kibi));
  return fmt::format("{:.1f} KiB", value / kibi);
}

std::string format_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.2f} ms", seconds * 1e3)
                         : fmt::format("{:.1f} us", seconds * 1e6);
}

}  // namespace sluice
