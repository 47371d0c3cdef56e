#include "engine/link_probe.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t smallest_bytes = std::uint64_t{4} << 10;
constexpr std::uint64_t most_bytes = std::uint64_t{64} << 20;
/// One of each is left out: in it the accelerator's memory is allocated.
constexpr int num_samples = 8;

/// A piece of data that goes back and forth.
class Shuttle {
 public:
  Shuttle(Buffer& host, std::uint64_t bytes, unsigned node)
      : handle_(DataHandle::of_memory(host.data(), bytes)), node_(node) {}

  /// Seconds to the accelerator, from memory that was just written.
  double there_s() const {
    hold(STARPU_MAIN_RAM, STARPU_W);
    return hold(node_, STARPU_R);
  }
  /// Seconds back, of what was written there.
  double back_s() const {
    hold(node_, STARPU_RW);
    return hold(STARPU_MAIN_RAM, STARPU_R);
  }

 private:
  double hold(unsigned node, starpu_data_access_mode mode) const {
    const Clock::time_point start = Clock::now();
    check_starpu(starpu_data_acquire_on_node(handle_.get(), static_cast<int>(node), mode),
                 "moving data over the link");
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    starpu_data_release_on_node(handle_.get(), static_cast<int>(node));
    return seconds;
  }

  DataHandle handle_;
  unsigned node_;
};

/// The first one apart.
double median(std::array<double, num_samples> seconds) {
  auto* const first = seconds.begin() + 1;
  auto* const middle = first + (seconds.end() - first) / 2;
  std::nth_element(first, middle, seconds.end());
  return *middle;
}

}  // namespace

std::vector<CalibrationLink> measure_links(const Runtime& runtime, std::uint64_t largest_bytes) {
  const unsigned node = runtime.accelerator_node().value();
  CalibrationLink there = {.from = Tier::ddr, .to = Tier::hbm, .points = {}};
  CalibrationLink back = {.from = Tier::hbm, .to = Tier::ddr, .points = {}};
  Buffer host(std::clamp(largest_bytes, smallest_bytes, most_bytes));
  std::memset(host.data(), 1, host.size());
  PinnedMemory pinned;
  pinned.pin(host.data(), host.size());
  for (std::uint64_t bytes = smallest_bytes; bytes <= host.size(); bytes *= 4) {
    const Shuttle shuttle(host, bytes, node);
    std::array<double, num_samples> there_s{};
    std::array<double, num_samples> back_s{};
    for (int i = 0; i < num_samples; ++i) {
      there_s.at(static_cast<std::size_t>(i)) = shuttle.there_s();
      back_s.at(static_cast<std::size_t>(i)) = shuttle.back_s();
    }
    there.points.push_back({static_cast<double>(bytes), median(there_s)});
    back.points.push_back({static_cast<double>(bytes), median(back_s)});
  }
  return {std::move(there), std::move(back)};
}

}  // namespace sluice
