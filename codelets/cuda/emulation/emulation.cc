#include "codelets/cuda/emulation/emulation.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "codelets/cuda/emulation/device_memory.h"

namespace sluice::cuda::emulation {
namespace {

constexpr std::size_t stack_bytes = 256 << 10;
constexpr unsigned max_block_threads = 1024;
constexpr std::size_t max_dynamic_bytes = 227 << 10;
constexpr int warp_size = 32;
constexpr std::size_t exchange_bytes = 64;

using boost::context::fiber;

struct Warp {
  unsigned alive = 0;                               ///< lanes
  unsigned arrived = 0;                             ///< lanes that wait for others
  std::array<std::uint64_t, warp_size> meetings{};  ///< that each lane has left
  std::array<std::array<std::byte, exchange_bytes>, warp_size> left{};
};

/// Stacks are kept: a block needs hundreds.
class Stacks {
 public:
  struct Allocator {
    Stacks* from;
    boost::context::stack_context allocate() {
      if (from->free_.empty()) return from->fresh_.allocate();
      const boost::context::stack_context stack = from->free_.back();
      from->free_.pop_back();
      return stack;
    }
    void deallocate(boost::context::stack_context& stack) noexcept { from->free_.push_back(stack); }
  };
  Allocator allocator() { return {this}; }

 private:
  boost::context::fixedsize_stack fresh_{stack_bytes};
  std::vector<boost::context::stack_context> free_;
};

class Block;
thread_local Block* running = nullptr;

class Block {
 public:
  Block(const Grid& grid, Stacks& stacks, std::vector<std::byte>& shared)
      : grid_(grid),
        stacks_(stacks),
        shared_(shared),
        num_threads_(grid.threads.x * grid.threads.y * grid.threads.z),
        threads_(num_threads_),
        warps_((num_threads_ + warp_size - 1) / warp_size) {}

  void run(const dim3& index, const std::function<void()>& body) {
    // What a kernel reads before it wrote it should hurt.
    std::fill(shared_.begin(), shared_.end(), std::byte{0xff});
    running = this;
    for (unsigned i = 0; i < num_threads_; ++i) start(i, index, body);
    unsigned left = num_threads_;
    while (left > 0) {
      const std::uint64_t before = progress_;
      for (unsigned i = 0; i < num_threads_; ++i) {
        if (!threads_[i].fiber) continue;
        current_ = i;
        threads_[i].fiber = std::move(threads_[i].fiber).resume();
        if (!threads_[i].fiber) --left;
        if (error_) break;
      }
      if (error_) break;
      if (progress_ == before) give_up("its threads wait for each other in vain");
    }
    running = nullptr;
    if (error_) std::rethrow_exception(error_);
  }

  const Place& place() const { return threads_[current_].place; }
  void* shared() { return shared_.data(); }
  int lane() const { return static_cast<int>(current_ % warp_size); }
  Warp& warp() { return warps_[current_ / warp_size]; }
  void note_wait() { threads_[current_].has_waited = true; }

  void meet_block() {
    ++progress_;
    const std::uint64_t before = meetings_;
    ++arrived_;
    hold_block();
    while (meetings_ == before) yield();
  }

  void meet_warp(unsigned mask) {
    ++progress_;
    Warp& mine = warp();
    const unsigned me = 1U << lane();
    if ((mask & me) == 0) give_up("a lane is not in the mask that it waits with");
    std::uint64_t& meetings = mine.meetings.at(static_cast<std::size_t>(lane()));
    const std::uint64_t before = meetings;
    mine.arrived |= me;
    hold_warp(mine, mask);
    while (meetings == before) {
      yield();
      if (meetings == before) hold_warp(mine, mask);  // others may have ended
    }
  }

 private:
  struct Thread {
    Place place;
    boost::context::fiber fiber;
    bool has_waited = false;
  };

  void start(unsigned i, const dim3& index, const std::function<void()>& body) {
    Thread& thread = threads_[i];
    const dim3& size = grid_.threads;
    thread.place = {
        {i % size.x, i / size.x % size.y, i / (size.x * size.y)}, index, size, grid_.blocks};
    warps_[i / warp_size].alive |= 1U << (i % warp_size);
    thread.fiber = fiber(std::allocator_arg, stacks_.allocator(), [this, i, &body](fiber&& back) {
      back_ = std::move(back);
      try {
        body();
        if (grid_.early && !threads_[i].has_waited)
          give_up("it is launched early, and a thread ends that has not waited for the last one");
      } catch (const boost::context::detail::forced_unwind&) {
        throw;
      } catch (...) {
        error_ = std::current_exception();
      }
      end(i);
      return std::move(back_);
    });
  }

  /// A thread that has ended is waited for no longer.
  void end(unsigned i) {
    ++progress_;
    ++ended_;
    warps_[i / warp_size].alive &= ~(1U << (i % warp_size));
    hold_block();
  }

  void hold_block() {
    if (arrived_ == 0 || arrived_ < num_threads_ - ended_) return;
    arrived_ = 0;
    ++meetings_;
    ++progress_;
  }

  void hold_warp(Warp& warp, unsigned mask) {
    const unsigned needed = mask & warp.alive;
    if ((warp.arrived & needed) != needed) return;
    warp.arrived &= ~needed;
    for (std::size_t i = 0; i < warp_size; ++i) {
      if ((needed >> i & 1U) != 0) ++warp.meetings.at(i);
    }
    ++progress_;
  }

  void yield() { back_ = std::move(back_).resume(); }

  [[noreturn]] void give_up(const char* why) const {
    std::fprintf(stderr, "CUDA emulation: kernel %s: %s\n", grid_.kernel, why);
    std::abort();
  }

  const Grid& grid_;
  Stacks& stacks_;
  std::vector<std::byte>& shared_;
  unsigned num_threads_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  unsigned arrived_ = 0;  ///< threads that wait at the block's barrier
  std::uint64_t meetings_ = 0;
  fiber back_;  ///< to run()
  unsigned current_ = 0;
  unsigned ended_ = 0;
  std::uint64_t progress_ = 0;
  std::exception_ptr error_;
};

/// 0 .. count - 1 in an order of no meaning, always the same.
std::vector<std::uint64_t> shuffled(std::uint64_t count) {
  std::vector<std::uint64_t> order(count);
  for (std::uint64_t i = 0; i < count; ++i) order[i] = i;
  std::uint64_t state = 0x9e3779b97f4a7c15U;
  for (std::uint64_t i = count; i > 1; --i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    std::swap(order[i - 1], order[(state >> 33) % i]);
  }
  return order;
}

}  // namespace

void run(const Grid& grid, const std::function<void()>& body) {
  const unsigned num_threads = grid.threads.x * grid.threads.y * grid.threads.z;
  if (num_threads == 0 || num_threads > max_block_threads ||
      grid.dynamic_bytes > max_dynamic_bytes) {
    std::fprintf(stderr,
                 "CUDA emulation: kernel %s: no GPU takes a block of %u threads with %zu bytes\n",
                 grid.kernel, num_threads, grid.dynamic_bytes);
    std::abort();
  }
  const OpenMemory open;
  thread_local Stacks stacks;
  std::vector<std::byte> shared(grid.dynamic_bytes);
  const std::uint64_t plane = std::uint64_t{grid.blocks.x} * grid.blocks.y;
  for (const std::uint64_t i : shuffled(plane * grid.blocks.z)) {
    const dim3 index(static_cast<unsigned>(i % grid.blocks.x),
                     static_cast<unsigned>(i / grid.blocks.x % grid.blocks.y),
                     static_cast<unsigned>(i / plane));
    Block(grid, stacks, shared).run(index, body);
  }
}

const Place& place() { return running->place(); }
void* dynamic_shared_memory() { return running->shared(); }
void note_wait() { running->note_wait(); }
void block_barrier() { running->meet_block(); }
void warp_barrier(unsigned mask) { running->meet_warp(mask); }
int lane() { return running->lane(); }

void exchange(unsigned mask, const void* mine, void* theirs, std::size_t bytes, int from) {
  Warp& warp = running->warp();
  std::memcpy(warp.left.at(static_cast<std::size_t>(running->lane())).data(), mine, bytes);
  warp_barrier(mask);
  std::memcpy(theirs, warp.left.at(static_cast<std::size_t>(from)).data(), bytes);
  warp_barrier(mask);
}

}  // namespace sluice::cuda::emulation
