#include <algorithm>
#include <array>
#include <span>

#include "base/dtype.h"
#include "base/memory.h"
#include "codelets/kernels/flush_subnormals.h"
#include "codelets/kernels/strip_kernels.h"
#include "codelets/kernels/strip_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codelets/kernels/strip_gemm_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file once a target:
#include <hwy/highway.h>

#include "codelets/kernels/multiply_add-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::strip::HWY_NAMESPACE {
using namespace sluice::HWY_NAMESPACE;  // NOLINT(google-build-using-namespace): of this target

/// Of A a block that was widened: rows and streams at fixed offsets need one register for all.
template <std::int64_t Pairs>
struct BlockOperands {
  static constexpr std::int64_t a_stride = 2 * Pairs + 16;  // rows in different cache sets
  const float* a;
  float* c;
  std::int64_t c_stride;
};

/// Of each row as few bytes are widened at once that the hardware does not foresee the next row's.
constexpr std::int64_t rows_fetched_ahead = 8;

/// `count` elements of a row of A; with `ahead`, those of a later row are fetched meanwhile.
void widen(const std::uint16_t* from, std::int64_t count, const std::uint16_t* ahead, float* to) {
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  if (ahead != nullptr) {
    for (std::int64_t i = 0; i < count; i += 32) __builtin_prefetch(ahead + i);
  }
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Words words = hn::PromoteTo(WordTag(), hn::LoadU(halves, from + i));
    hn::StoreU(lower(words), FloatTag(), to + i);
  }
  for (; i < count; ++i) to[i] = to_float(BFloat16{from[i]});
}

/// Tiles `Vectors` vectors wide, of as many rows as their sums fit into registers, in blocks of up
/// to `Pairs`.
template <class Weights, int Vectors, std::int64_t Pairs>
struct PortableKernel {
  using Operands = BlockOperands<Pairs>;
  static constexpr bool has_tiles_by_lines = false;  // it is compiled for many CPUs
  /// The hardware foresees several streams better than one (docs/records/performance.md).
  static constexpr int streams = 4;
  static constexpr std::int64_t stream_elements = 2 * Pairs / streams;  // of A
  static constexpr std::int64_t pair_bytes = Weights::pair_bytes * strip_columns;
  static constexpr std::int64_t columns = std::int64_t{lanes} * Vectors;
  static constexpr std::int64_t max_rows = max_sums / Vectors;

  /// In scratch memory of this thread until the next call. An odd depth gets a zero.
  static Operands operands(const StripGemm& call, const Block& block) {
    thread_local Workspace scratch;
    const auto size = static_cast<std::size_t>(call.rows * Operands::a_stride) * sizeof(float);
    auto* wide = reinterpret_cast<float*>(scratch.reserve(size));
    for (std::int64_t row = 0; row < call.rows; ++row) {
      for (std::int64_t stream = 0; stream < block.streams; ++stream) {
        const std::int64_t first = 2 * (block.first + stream * block.stream_pairs);
        const std::int64_t count = std::min(2 * block.turns, call.depth - first);
        float* to = wide + row * Operands::a_stride + stream * stream_elements;
        to[count] = 0.0F;
        if (call.wide_a != nullptr) {
          std::copy_n(call.wide_a + row * call.a_stride + first, count, to);
          continue;
        }
        const std::uint16_t* from = call.a + row * call.a_stride + first;
        const bool fetches = row + rows_fetched_ahead < call.rows;
        widen(from, count, fetches ? from + rows_fetched_ahead * call.a_stride : nullptr, to);
      }
    }
    return {wide, call.c, call.c_stride};
  }

  static HWY_INLINE void fetch_near(const std::byte* pair) {
    for (std::int64_t at = 0; at < 4 * columns; at += 64) {
      for (std::int64_t row = 0; row < pair_bytes; row += 4 * strip_columns) {
        __builtin_prefetch(pair + near_bytes + row + at, 0, 3);
      }
    }
  }

  /// The products of two elements of each row of A with `Some` vectors of columns, from `first` on,
  /// of the two rows of B at `pair`.
  template <int Some, int Rows>
  static HWY_INLINE void add_pair(const float* a, const std::byte* pair, int first,
                                  Vector (&sum)[Rows][Vectors]) {
#pragma GCC unroll 2
    for (int part = 0; part < 2; ++part) {
      // Of rows and columns the fewer are held.
      constexpr bool holds_rows = Rows < Some;
      constexpr int few = std::min(Rows, Some);
      constexpr int many = std::max(Rows, Some);
      Vector held[few];
      const auto row = [&](int r) { return hn::Set(FloatTag(), a[r * Operands::a_stride + part]); };
      const auto column = [&](int j) {
        return Weights::load(pair, strip_columns, part, std::int64_t{lanes} * (first + j));
      };
#pragma GCC unroll 12
      for (int i = 0; i < few; ++i) held[i] = holds_rows ? row(i) : column(i);
#pragma GCC unroll 12
      for (int i = 0; i < many; ++i) {
        const Vector other = holds_rows ? column(i) : row(i);
#pragma GCC unroll 12
        for (int h = 0; h < few; ++h) {
          if constexpr (holds_rows) {
            add_product(sum[h][first + i], held[h], other);
          } else {
            add_product(sum[i][first + h], other, held[h]);
          }
        }
      }
    }
  }

  /// All products of a tile.
  template <int Streams, bool Near, int Rows>
  static HWY_INLINE void add_turns(const float* a, const std::byte* b, const Depth& depth,
                                   Vector (&sum)[Rows][Vectors]) {
    // Two cache lines of each stream in turn, as the hardware foresees them best.
    constexpr int some = std::min(Vectors, 128 / 4 / lanes);
    const std::int64_t stream_bytes = depth.stream_bytes;
    const std::int64_t lines = depth.lines;
    const std::byte* ahead = depth.ahead;
    for (std::int64_t turn = 0; turn < depth.turns; ++turn) {
#pragma GCC unroll 4
      for (int first = 0; first < Vectors; first += some) {
#pragma GCC unroll 4
        for (int stream = 0; stream < Streams; ++stream) {
          const std::byte* pair = b + stream * stream_bytes;
          if (first == 0) {
            for (std::int64_t line = 0; line < lines; ++line) {
              __builtin_prefetch(ahead + stream * stream_bytes + 64 * line, 0, 2);
            }
            if constexpr (Near) fetch_near(pair);
          }
          add_pair<some>(a + stream * stream_elements, pair, first, sum);
        }
      }
      a += 2;
      b += pair_bytes;
      ahead += 64 * lines;
    }
  }

  template <int Rows, int /*Lines*/, bool Near>
  static void tile(const Operands& rows, const std::byte* b, const Depth& depth) {
    const FloatTag d;
    // The pragmas keep the sums in registers.
    Vector sum[Rows][Vectors];
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
      for (int j = 0; j < Vectors; ++j) {
        sum[r][j] =
            depth.accumulate ? hn::LoadU(d, rows.c + r * rows.c_stride + lanes * j) : hn::Zero(d);
      }
    }
    depth.streams == 1 ? add_turns<1, Near>(rows.a, b, depth, sum)
                       : add_turns<streams, Near>(rows.a, b, depth, sum);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
      for (int j = 0; j < Vectors; ++j) {
        hn::StoreU(sum[r][j], d, rows.c + r * rows.c_stride + lanes * j);
      }
    }
  }
};

constexpr int strip_vectors = static_cast<int>(strip_columns) / lanes;
/// Memory waits while a block of one row is widened, so there are few.
constexpr std::int64_t low_pairs = 1024;
constexpr std::int64_t high_pairs = 128;
template <class Weights>
using LowKernel = PortableKernel<Weights, std::min(strip_vectors, 8), low_pairs>;
/// Where registers are few enough that it is another one.
template <class Weights>
using MiddleKernel = PortableKernel<Weights, 4, high_pairs>;
constexpr bool has_middle_kernel = strip_vectors > 4;
template <class Weights>
using HighKernel = PortableKernel<Weights, 2, high_pairs>;

std::span<const StripKernel> kernels() {
  constexpr StripKernel low = kernel_of<LowKernel<F32Rows>>(low_pairs);
  constexpr StripKernel high = kernel_of<HighKernel<F32Rows>>(high_pairs);
  if constexpr (has_middle_kernel) {
    static constexpr std::array all = {low, kernel_of<MiddleKernel<F32Rows>>(high_pairs), high};
    return all;
  } else {
    static constexpr std::array all = {low, high};
    return all;
  }
}

StripSchedule own(std::int64_t rows) {
  if (rows == 1) return {.tile = tile_shape<LowKernel<F32Rows>>, .block_depth = 2 * low_pairs};
  return {.tile = tile_shape<HighKernel<F32Rows>>, .block_depth = 2 * high_pairs};
}

template <class Weights>
void gemm_of(const StripGemm& call) {
  const StripTile tile = call.schedule.tile ? call.schedule.tile : own(call.rows).tile;
  if (tile == tile_shape<LowKernel<Weights>>)
    return Multiplication<LowKernel<Weights>>(call, pairs_of_a_block(call, low_pairs)).run();
  const std::int64_t pairs = pairs_of_a_block(call, high_pairs);
  if constexpr (has_middle_kernel) {
    if (tile == tile_shape<MiddleKernel<Weights>>)
      return Multiplication<MiddleKernel<Weights>>(call, pairs).run();
  }
  Multiplication<HighKernel<Weights>>(call, pairs).run();
}

void gemm(const StripGemm& call) {
  if (call.dtype == DType::f32) return gemm_of<F32Rows>(call);
  [[maybe_unused]] const FlushSubnormals flush;
  gemm_of<Bf16Rows>(call);
}

}  // namespace sluice::strip::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::strip {

HWY_EXPORT(gemm);
HWY_EXPORT(kernels);
HWY_EXPORT(own);

std::span<const StripKernel> kernels_portable() { return HWY_DYNAMIC_DISPATCH(kernels)(); }
StripSchedule own_portable(std::int64_t rows) { return HWY_DYNAMIC_DISPATCH(own)(rows); }
void gemm_portable(const StripGemm& call) { HWY_DYNAMIC_DISPATCH(gemm)(call); }

}  // namespace sluice::strip
#endif
