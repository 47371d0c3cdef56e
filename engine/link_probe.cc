#include "engine/link_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "base/cpu.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kibibyte = 1024;
constexpr std::uint64_t smallest_bytes = 4 * kibibyte;
constexpr std::uint64_t largest_bytes = 64 * kibibyte * kibibyte;
/// Of smaller pieces, what sets the time is the way and not the memory.
constexpr std::uint64_t uncached_from_bytes = kibibyte * kibibyte;

/// A piece of data that goes back and forth.
class Shuttle {
 public:
  using Way = LinkLoad::Way;

  Shuttle(const std::byte* host, std::uint64_t bytes, unsigned node)
      : handle_(DataHandle::of_memory(host, bytes)), node_(node) {}

  /// Seconds of one way, of what counts as just written where it starts.
  double move_s(Way way) const {
    write(way);
    const Clock::time_point start = Clock::now();
    arrive(way);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void write(Way way) const { hold(way == Way::there ? STARPU_MAIN_RAM : node_, STARPU_W); }
  void send(Way way) const {
    check_starpu(starpu_data_prefetch_on_node(handle_.get(), end(way), 1), "sending data");
  }
  void arrive(Way way) const { hold(end(way), STARPU_R); }
  /// The accelerator's memory gives up what both have.
  void leave() const { starpu_data_evict_from_node(handle_.get(), node_); }

 private:
  unsigned end(Way way) const { return way == Way::there ? node_ : STARPU_MAIN_RAM; }

  void hold(unsigned node, starpu_data_access_mode mode) const {
    check_starpu(starpu_data_acquire_on_node(handle_.get(), static_cast<int>(node), mode),
                 "moving data over the link");
    starpu_data_release_on_node(handle_.get(), static_cast<int>(node));
  }

  DataHandle handle_;
  unsigned node_;
};

/// Pieces of one size that take turns, as weights do: none is sent again while a cache has it,
/// unless they are small. Only those on their way are in the accelerator's memory.
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
      shuttle.move_s(LinkLoad::Way::there);
      shuttle.leave();
    }
  }

  const std::vector<Shuttle>& all() const { return shuttles_; }

  /// Median over all of them.
  double seconds(LinkLoad::Way way) const {
    std::vector<double> each;
    each.reserve(shuttles_.size());
    for (const Shuttle& shuttle : shuttles_) {
      each.push_back(shuttle.move_s(way));
      shuttle.leave();
    }
    const auto middle = each.begin() + std::ssize(each) / 2;
    std::nth_element(each.begin(), middle, each.end());
    return *middle;
  }

 private:
  static std::uint64_t count_of(std::uint64_t piece_bytes) {
    constexpr std::uint64_t few = 16;
    constexpr std::uint64_t most = 256;
    if (piece_bytes < uncached_from_bytes) return few;
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
    there.points.push_back({size, pieces.seconds(LinkLoad::Way::there)});
    back.points.push_back({size, pieces.seconds(LinkLoad::Way::back)});
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

  Parts(const Runtime& runtime, std::uint64_t each_bytes, Way way, std::size_t at_once)
      : pieces(runtime, each_bytes),
        piece_bytes(static_cast<double>(each_bytes)),
        thread([this, way, at_once] { work(way, at_once); }) {}

  void work(Way way, std::size_t at_once) {
    const std::vector<Shuttle>& all = pieces.all();
    for (std::size_t next = 0; bytes == 0 || !ending;
         next = next + at_once < all.size() ? next + at_once : 0) {
      if (restarting.exchange(false)) seconds = bytes = 0;
      const auto some = std::span(all).subspan(next, std::min(at_once, all.size() - next));
      for (const Shuttle& shuttle : some) shuttle.write(way);
      const Clock::time_point start = Clock::now();
      for (const Shuttle& shuttle : some) shuttle.send(way);
      for (const Shuttle& shuttle : some) shuttle.arrive(way);
      seconds += std::chrono::duration<double>(Clock::now() - start).count();
      bytes += piece_bytes * static_cast<double>(some.size());
      for (const Shuttle& shuttle : some) shuttle.leave();
    }
  }
};

LinkLoad::LinkLoad(const Runtime& runtime, std::uint64_t room_bytes, Way way, std::size_t at_once)
    : parts_(std::make_unique<Parts>(
          runtime, std::clamp(room_bytes / 8, smallest_bytes, largest_bytes), way, at_once)) {}

void LinkLoad::restart() { parts_->restarting = true; }

double LinkLoad::stop() {
  parts_->ending = true;
  if (parts_->thread.joinable()) parts_->thread.join();
  return parts_->bytes / parts_->seconds;
}

LinkLoad::~LinkLoad() { stop(); }

}  // namespace sluice
