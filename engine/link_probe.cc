#include "engine/link_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/cpu.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kibibyte = 1024;
constexpr std::uint64_t smallest_bytes = 4 * kibibyte;
constexpr std::uint64_t largest_bytes = 64 * kibibyte * kibibyte;

/// A piece of data that goes back and forth.
class Shuttle {
 public:
  Shuttle(const std::byte* host, std::uint64_t bytes, unsigned node)
      : handle_(DataHandle::of_memory(host, bytes)), node_(node) {}

  /// Seconds to the accelerator, from memory that counts as just written.
  double there_s() const {
    hold(STARPU_MAIN_RAM, STARPU_W);
    return hold(node_, STARPU_R);
  }
  /// Seconds back, of what counts as written there.
  double back_s() const {
    hold(node_, STARPU_W);
    return hold(STARPU_MAIN_RAM, STARPU_R);
  }
  /// The accelerator's memory gives up what both have.
  void leave() const { starpu_data_evict_from_node(handle_.get(), node_); }

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

/// Pieces of one size that take turns, as weights do: none is sent again while a cache has it,
/// unless they are many and small. One at a time is in the accelerator's memory.
class Pieces {
 public:
  /// Both sides' memory has been used once when it is made.
  Pieces(const Runtime& runtime, std::uint64_t piece_bytes)
      : host_(count_of(piece_bytes) * piece_bytes) {
    std::memset(host_.data(), 1, host_.size());
    pinned_.pin(host_.data(), host_.size());
    for (std::size_t at = 0; at < host_.size(); at += piece_bytes)
      shuttles_.emplace_back(host_.data() + at, piece_bytes, runtime.accelerator_node().value());
    for (const Shuttle& shuttle : shuttles_) {
      shuttle.there_s();
      shuttle.leave();
    }
  }

  const std::vector<Shuttle>& all() const { return shuttles_; }

  /// Median over all of them.
  double seconds(double (Shuttle::*way)() const) const {
    std::vector<double> each;
    each.reserve(shuttles_.size());
    for (const Shuttle& shuttle : shuttles_) {
      each.push_back((shuttle.*way)());
      shuttle.leave();
    }
    const auto middle = each.begin() + std::ssize(each) / 2;
    std::nth_element(each.begin(), middle, each.end());
    return *middle;
  }

 private:
  static std::uint64_t count_of(std::uint64_t piece_bytes) {
    constexpr std::uint64_t most = 256;
    const std::uint64_t uncached = 2 * read_cpu_topology().last_level_cache_bytes;
    return std::clamp<std::uint64_t>(uncached / piece_bytes, 2, most);
  }

  Buffer host_;
  PinnedMemory pinned_;
  std::vector<Shuttle> shuttles_;
};

}  // namespace

std::vector<CalibrationLink> measure_links(const Runtime& runtime, std::uint64_t room_bytes) {
  CalibrationLink there = {.from = Tier::ddr, .to = Tier::hbm, .points = {}};
  CalibrationLink back = {.from = Tier::hbm, .to = Tier::ddr, .points = {}};
  const std::uint64_t largest = std::clamp(room_bytes / 2, smallest_bytes, largest_bytes);
  for (std::uint64_t bytes = smallest_bytes; bytes <= largest; bytes *= 4) {
    const Pieces pieces(runtime, bytes);
    const auto size = static_cast<double>(bytes);
    there.points.push_back({size, pieces.seconds(&Shuttle::there_s)});
    back.points.push_back({size, pieces.seconds(&Shuttle::back_s)});
  }
  return {std::move(there), std::move(back)};
}

struct LinkLoad::Parts {
  Pieces pieces;
  double piece_bytes;
  std::atomic<bool> restarting{false};
  std::atomic<bool> ending{false};
  double seconds = 0;
  double bytes = 0;
  std::thread thread;

  Parts(const Runtime& runtime, std::uint64_t each_bytes, Way way)
      : pieces(runtime, each_bytes),
        piece_bytes(static_cast<double>(each_bytes)),
        thread([this, way] { work(way); }) {}

  void work(Way way) {
    const std::vector<Shuttle>& all = pieces.all();
    for (std::size_t next = 0; bytes == 0 || !ending; next = (next + 1) % all.size()) {
      if (restarting.exchange(false)) seconds = bytes = 0;
      seconds += way == Way::there ? all[next].there_s() : all[next].back_s();
      all[next].leave();
      bytes += piece_bytes;
    }
  }
};

LinkLoad::LinkLoad(const Runtime& runtime, std::uint64_t room_bytes, Way way)
    : parts_(std::make_unique<Parts>(
          runtime, std::clamp(room_bytes / 8, smallest_bytes, largest_bytes), way)) {}

void LinkLoad::restart() { parts_->restarting = true; }

double LinkLoad::stop() {
  parts_->ending = true;
  if (parts_->thread.joinable()) parts_->thread.join();
  return parts_->bytes / parts_->seconds;
}

LinkLoad::~LinkLoad() { stop(); }

}  // namespace sluice
