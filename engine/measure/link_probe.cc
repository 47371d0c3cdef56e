#include "engine/measure/link_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/cpu.h"
#include "base/median.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Way = LinkProbe::Way;

constexpr std::uint64_t kibibyte = 1024;
constexpr std::uint64_t smallest_bytes = 4 * kibibyte;
constexpr std::uint64_t largest_bytes = 64 * kibibyte * kibibyte;
/// Of smaller pieces, what sets the time is the way and not the memory.
constexpr std::uint64_t uncached_from_bytes = kibibyte * kibibyte;
constexpr std::uint64_t few_pieces = 16;
constexpr std::uint64_t least_pieces = 2;
constexpr std::uint64_t most_pieces = 256;

std::uint64_t largest_piece_bytes(std::uint64_t room_bytes) {
  return std::clamp(room_bytes / 2, smallest_bytes, largest_bytes);
}

/// What pieces of so much at most take: when all have been used, the first has left the caches.
std::uint64_t bytes_of_pieces(std::uint64_t largest_piece) {
  if (largest_piece < uncached_from_bytes) return few_pieces * largest_piece;
  return std::max(2 * read_cpu_topology().last_level_cache_bytes, least_pieces * largest_piece);
}

std::uint64_t num_pieces(std::uint64_t piece_bytes) {
  if (piece_bytes < uncached_from_bytes) return few_pieces;
  return std::min(most_pieces, bytes_of_pieces(piece_bytes) / piece_bytes);
}

/// A piece of data that goes back and forth.
class Shuttle {
 public:
  Shuttle(const std::byte* host, std::uint64_t bytes, unsigned node)
      : handle_(DataHandle::of_memory(host, bytes)), node_(node) {}

  /// Seconds of one way, of what counts as just written where it starts.
  double move_s(Way way) const {
    write(way);
    const Clock::time_point start = Clock::now();
    arrive(way);
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void write(Way way) const {
    touch(way == Way::there ? main_memory_node : node_, NodeAccess::Mode::write);
  }
  void send(Way way) const { handle_.send_to(end(way)); }
  void arrive(Way way) const { touch(end(way), NodeAccess::Mode::read); }
  /// The accelerator's memory gives up what both have.
  void leave() const { handle_.leave(node_); }

 private:
  unsigned end(Way way) const { return way == Way::there ? node_ : main_memory_node; }

  void touch(unsigned node, NodeAccess::Mode mode) const {
    const NodeAccess access(handle_, node, mode, "moving data over the link");
  }

  DataHandle handle_;
  unsigned node_;
};

/// Pieces of one size that take turns, as weights do: none is sent again while a cache has it,
/// unless they are small. The last ones stay in the accelerator's memory, as far as half of what is
/// free there goes, so that a cache does not have the place of the next one either.
class Pieces {
 public:
  /// In the host's memory from `host` on, bytes_of_pieces(). The accelerator's has been used once
  /// when they are made.
  Pieces(unsigned node, std::byte* host, std::uint64_t piece_bytes) {
    const std::uint64_t count = num_pieces(piece_bytes);
    for (std::uint64_t i = 0; i < count; ++i)
      shuttles_.emplace_back(host + i * piece_bytes, piece_bytes, node);
    num_staying_ =
        std::min<std::size_t>(shuttles_.size() - 1, node_free_bytes(node) / 2 / piece_bytes);
    for (std::size_t i = 0; i < size(); ++i) {
      at(i).move_s(Way::there);
      leave_after(i);
    }
  }

  std::size_t size() const { return shuttles_.size(); }
  const Shuttle& at(std::size_t i) const { return shuttles_.at(i); }

  /// When piece `i` has been moved, another one makes room.
  void leave_after(std::size_t i) const { at((i + size() - num_staying_) % size()).leave(); }

  /// Median over all of them.
  double seconds(Way way) const {
    std::vector<double> each;
    each.reserve(size());
    for (std::size_t i = 0; i < size(); ++i) {
      each.push_back(at(i).move_s(way));
      leave_after(i);
    }
    return median(std::move(each));
  }

 private:
  std::vector<Shuttle> shuttles_;
  std::size_t num_staying_ = 0;
};

}  // namespace

LinkProbe::LinkProbe(const Runtime& runtime, std::uint64_t room_bytes)
    : runtime_(runtime), room_bytes_(room_bytes), host_(host_bytes(room_bytes)) {
  std::memset(host_.data(), 1, host_.size());
  pinned_.pin(host_.data(), host_.size());
}

std::uint64_t LinkProbe::host_bytes(std::uint64_t room_bytes) {
  return 2 * bytes_of_pieces(largest_piece_bytes(room_bytes));
}

std::byte* LinkProbe::host_of(Way way) const {
  return host_.data() + (way == Way::there ? 0 : host_.size() / 2);
}

std::vector<CalibrationLink> LinkProbe::measure() const {
  CalibrationLink there = {.from = Tier::ddr, .to = Tier::hbm, .points = {}};
  CalibrationLink back = {.from = Tier::hbm, .to = Tier::ddr, .points = {}};
  const std::uint64_t largest = largest_piece_bytes(room_bytes_);
  for (std::uint64_t bytes = smallest_bytes; bytes <= largest; bytes *= 4) {
    const Pieces pieces(runtime_.accelerator_node().value(), host_of(Way::there), bytes);
    const auto size = static_cast<double>(bytes);
    there.points.push_back({size, pieces.seconds(Way::there)});
    back.points.push_back({size, pieces.seconds(Way::back)});
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

  Parts(unsigned node, std::byte* host, std::uint64_t each_bytes, Way way, std::size_t at_once)
      : pieces(node, host, each_bytes),
        piece_bytes(static_cast<double>(each_bytes)),
        thread([this, way, at_once] { work(way, at_once); }) {}

  void work(Way way, std::size_t at_once) {
    for (std::size_t next = 0; bytes == 0 || !ending;
         next = next + at_once < pieces.size() ? next + at_once : 0) {
      if (restarting.exchange(false)) seconds = bytes = 0;
      const std::size_t end = std::min(next + at_once, pieces.size());
      for (std::size_t i = next; i < end; ++i) pieces.at(i).write(way);
      const Clock::time_point start = Clock::now();
      for (std::size_t i = next; i < end; ++i) pieces.at(i).send(way);
      for (std::size_t i = next; i < end; ++i) pieces.at(i).arrive(way);
      seconds += std::chrono::duration<double>(Clock::now() - start).count();
      bytes += piece_bytes * static_cast<double>(end - next);
      for (std::size_t i = next; i < end; ++i) pieces.leave_after(i);
    }
  }
};

LinkLoad::LinkLoad(const LinkProbe& probe, Way way, std::size_t at_once)
    : parts_(std::make_unique<Parts>(
          probe.runtime_.accelerator_node().value(), probe.host_of(way),
          std::clamp(probe.room_bytes_ / 8, smallest_bytes, largest_bytes), way, at_once)) {}

void LinkLoad::restart() { parts_->restarting = true; }

double LinkLoad::stop() {
  parts_->ending = true;
  if (parts_->thread.joinable()) parts_->thread.join();
  return parts_->bytes / parts_->seconds;
}

LinkLoad::~LinkLoad() { stop(); }

}  // namespace sluice
