#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "base/cpu.h"
#include "base/memory.h"
#include "codelets/kernels/probe.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/probe_read.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace sluice::probe::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The exclusive or of `words` words that start on a cache line: eight loads in flight, dealt to
/// `num_streams` equal parts that are read side by side.
template <int num_streams, bool with_prefetch>
HWY_INLINE std::uint64_t read_streams(const std::uint64_t* data, std::size_t words,
                                      [[maybe_unused]] std::size_t ahead) {
  const hn::ScalableTag<std::uint64_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t stream_words = words / num_streams;
  const std::size_t step = 8 / num_streams * lanes;
  const auto at = [&](std::size_t k) {
    return data + k % num_streams * stream_words + k / num_streams * lanes;
  };
  const std::uint64_t* p0 = at(0);
  const std::uint64_t* p1 = at(1);
  const std::uint64_t* p2 = at(2);
  const std::uint64_t* p3 = at(3);
  const std::uint64_t* p4 = at(4);
  const std::uint64_t* p5 = at(5);
  const std::uint64_t* p6 = at(6);
  const std::uint64_t* p7 = at(7);
  auto a0 = hn::Zero(d);
  auto a1 = a0;
  auto a2 = a0;
  auto a3 = a0;
  auto a4 = a0;
  auto a5 = a0;
  auto a6 = a0;
  auto a7 = a0;
  for (std::size_t i = 0; i + step <= stream_words; i += step) {
    if constexpr (with_prefetch) {
      hwy::Prefetch(p0 + i + ahead);
      hwy::Prefetch(p1 + i + ahead);
      hwy::Prefetch(p2 + i + ahead);
      hwy::Prefetch(p3 + i + ahead);
      hwy::Prefetch(p4 + i + ahead);
      hwy::Prefetch(p5 + i + ahead);
      hwy::Prefetch(p6 + i + ahead);
      hwy::Prefetch(p7 + i + ahead);
    }
    a0 = hn::Xor(a0, hn::Load(d, p0 + i));
    a1 = hn::Xor(a1, hn::Load(d, p1 + i));
    a2 = hn::Xor(a2, hn::Load(d, p2 + i));
    a3 = hn::Xor(a3, hn::Load(d, p3 + i));
    a4 = hn::Xor(a4, hn::Load(d, p4 + i));
    a5 = hn::Xor(a5, hn::Load(d, p5 + i));
    a6 = hn::Xor(a6, hn::Load(d, p6 + i));
    a7 = hn::Xor(a7, hn::Load(d, p7 + i));
  }
  const auto all =
      hn::Xor(hn::Xor(hn::Xor(a0, a1), hn::Xor(a2, a3)), hn::Xor(hn::Xor(a4, a5), hn::Xor(a6, a7)));
  return hn::GetLane(hn::SumOfLanes(d, all));
}

std::uint64_t read_part(const std::byte* data, std::int64_t bytes, const ReadProbe::Loop& loop) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(data);
  const auto count = static_cast<std::size_t>(bytes) / 8;
  const auto ahead = static_cast<std::size_t>(loop.prefetch_bytes) / 8;
  if (loop.num_streams == 1) {
    return ahead == 0 ? read_streams<1, false>(words, count, 0)
                      : read_streams<1, true>(words, count, ahead);
  }
  return ahead == 0 ? read_streams<4, false>(words, count, 0)
                    : read_streams<4, true>(words, count, ahead);
}

}  // namespace sluice::probe::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice {
namespace probe {
namespace {
HWY_EXPORT(read_part);
}  // namespace
}  // namespace probe

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t parts_per_thread = 8;
constexpr std::int64_t quantum_bytes = 4096;  ///< a multiple of what one turn of any loop reads

/// Where the loops' results go, so that they are not optimised away.
std::atomic<std::uint64_t> sink{0};

}  // namespace

std::size_t ReadProbe::buffer_bytes(std::uint64_t working_set_bytes) {
  constexpr std::uint64_t least = std::uint64_t{512} << 20;
  const CpuTopology topology = read_cpu_topology();
  if (working_set_bytes < 2 * topology.last_level_cache_bytes) {
    return static_cast<std::size_t>((working_set_bytes + huge_page_bytes - 1) / huge_page_bytes *
                                    huge_page_bytes);
  }
  const std::uint64_t wanted = std::max(least, bytes_beyond_caches(topology));
  return static_cast<std::size_t>(std::min(wanted, available_memory_bytes() / 4) / huge_page_bytes *
                                  huge_page_bytes);
}

std::size_t ReadProbe::least_bytes(const ThreadPool& pool) {
  return static_cast<std::size_t>(parts_per_thread * pool.num_threads() * quantum_bytes);
}

ReadProbe::ReadProbe(ThreadPool& pool, std::uint64_t working_set_bytes)
    : ReadProbe(pool, Buffer(std::max(buffer_bytes(working_set_bytes), least_bytes(pool)))) {}

ReadProbe::ReadProbe(ThreadPool& pool, Buffer buffer) : pool_(pool), buffer_(std::move(buffer)) {
  const std::size_t num_pages = (buffer_.size() + huge_page_bytes - 1) / huge_page_bytes;
  pool_.run(static_cast<std::int64_t>(num_pages), [&](std::int64_t index) {
    const auto page = static_cast<std::size_t>(index);
    const std::size_t begin = page * huge_page_bytes;
    auto* words = buffer_.as<std::uint64_t>() + begin / 8;
    const std::size_t bytes = std::min(huge_page_bytes, buffer_.size() - begin);
    for (std::size_t i = 0; i < bytes / 8; ++i) words[i] = page + i;
  });
}

double ReadProbe::measure() {
  constexpr std::array<Loop, 4> loops = {{{1, 0}, {1, 4096}, {4, 0}, {4, 4096}}};
  double best = 0;
  for (const Loop& loop : loops) best = std::max(best, pass(loop));
  return best;
}

double ReadProbe::pass(const Loop& loop) {
  constexpr std::int64_t least_bytes = std::int64_t{256} << 20;  // what can be timed
  constexpr std::int64_t most_bytes = 2 * least_bytes;
  const auto size = static_cast<std::int64_t>(buffer_.size());
  const std::int64_t window_bytes = std::min(size, most_bytes);
  const std::byte* window = buffer_.data() + num_passes_++ % (size / window_bytes) * window_bytes;
  // A few parts a thread, each contiguous; a late thread leaves its share to the others.
  const std::int64_t num_parts = parts_per_thread * pool_.num_threads();
  const std::int64_t part_bytes = window_bytes / num_parts / quantum_bytes * quantum_bytes;
  const std::int64_t rounds = std::max<std::int64_t>(1, least_bytes / (num_parts * part_bytes));
  const Clock::time_point start = Clock::now();
  for (std::int64_t round = 0; round < rounds; ++round) {
    pool_.run(num_parts, [&](std::int64_t part) {
      const std::uint64_t value =
          HWY_DYNAMIC_DISPATCH(probe::read_part)(window + part * part_bytes, part_bytes, loop);
      sink.fetch_xor(value, std::memory_order_relaxed);
    });
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return static_cast<double>(rounds * num_parts * part_bytes) / seconds;
}

}  // namespace sluice
#endif
