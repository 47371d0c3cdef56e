#include <algorithm>

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

/// Of A a block that was widened: rows at fixed offsets need one register for all of them.
struct BlockOperands {
  static constexpr std::int64_t max_pairs = 128;
  static constexpr std::int64_t a_stride = 2 * max_pairs + 16;  // rows in different cache sets
  const float* a;
  float* c;
  std::int64_t c_stride;
};

/// In scratch memory of this thread until the next call. An odd depth gets a zero.
BlockOperands widen_block(const StripGemm& call, std::int64_t first, std::int64_t pairs) {
  constexpr std::int64_t stride = BlockOperands::a_stride;
  const hn::Rebind<std::uint16_t, FloatTag> halves;
  const std::int64_t count = std::min(2 * pairs, call.depth - first);
  thread_local Workspace scratch;
  auto* wide = reinterpret_cast<float*>(
      scratch.reserve(static_cast<std::size_t>(call.rows * stride) * sizeof(float)));
  for (std::int64_t r = 0; r < call.rows; ++r) {
    float* to = wide + r * stride;
    to[count] = 0.0F;
    if (call.wide_a != nullptr) {
      std::copy_n(call.wide_a + r * call.a_stride + first, count, to);
      continue;
    }
    const std::uint16_t* from = call.a + r * call.a_stride + first;
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
      const Words words = hn::PromoteTo(WordTag(), hn::LoadU(halves, from + i));
      hn::StoreU(lower(words), FloatTag(), to + i);
    }
    for (; i < count; ++i) to[i] = to_float(BFloat16{from[i]});
  }
  return {wide, call.c, call.c_stride};
}

/// Tiles `Vectors` vectors wide, of as many rows as their sums fit into registers.
template <class Weights, int Vectors>
struct PortableKernel {
  using Operands = BlockOperands;
  static constexpr bool has_tiles_by_lines = false;  // it is compiled for many CPUs
  static constexpr std::int64_t pair_bytes = Weights::pair_bytes * strip_columns;
  static constexpr std::int64_t columns = std::int64_t{lanes} * Vectors;
  static constexpr std::int64_t max_rows = max_sums / Vectors;

  static Operands operands(const StripGemm& call, std::int64_t first, std::int64_t pairs) {
    return widen_block(call, first, pairs);
  }

  template <int Rows, int Lines, bool Near>
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
    const std::int64_t lines = Lines == any_lines ? depth.lines : Lines;
    for (std::int64_t k = 0; k < depth.pairs; ++k) {
      for (std::int64_t line = 0; line < lines; ++line) {
        __builtin_prefetch(depth.ahead + 64 * (lines * k + line), 0, 2);
      }
      if constexpr (Near) {
        for (std::int64_t at = 0; at < 4 * columns; at += 64) {
          for (std::int64_t row = 0; row < pair_bytes; row += 4 * strip_columns) {
            __builtin_prefetch(b + k * pair_bytes + near_bytes + row + at, 0, 3);
          }
        }
      }
      const float* a = rows.a + 2 * k;
#pragma GCC unroll 2
      for (int part = 0; part < 2; ++part) {
        // Of rows and columns the fewer are held.
        constexpr bool holds_rows = Rows < Vectors;
        constexpr int few = std::min(Rows, Vectors);
        constexpr int many = std::max(Rows, Vectors);
        Vector held[few];
        const auto row = [&](int r) { return hn::Set(d, a[r * Operands::a_stride + part]); };
        const auto column = [&](int j) {
          return Weights::load(b + k * pair_bytes, strip_columns, part, std::int64_t{lanes} * j);
        };
#pragma GCC unroll 12
        for (int i = 0; i < few; ++i) held[i] = holds_rows ? row(i) : column(i);
#pragma GCC unroll 12
        for (int i = 0; i < many; ++i) {
          const Vector other = holds_rows ? column(i) : row(i);
#pragma GCC unroll 12
          for (int h = 0; h < few; ++h) {
            if constexpr (holds_rows) {
              add_product(sum[h][i], held[h], other);
            } else {
              add_product(sum[i][h], other, held[h]);
            }
          }
        }
      }
    }
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 12
      for (int j = 0; j < Vectors; ++j) {
        hn::StoreU(sum[r][j], d, rows.c + r * rows.c_stride + lanes * j);
      }
    }
  }
};

void gemm(const StripGemm& call) {
  constexpr std::int64_t block_pairs = BlockOperands::max_pairs;
  if (call.dtype == DType::f32) return multiply<PortableKernel<F32Rows, 2>>(call, block_pairs);
  [[maybe_unused]] const FlushSubnormals flush;
  multiply<PortableKernel<Bf16Rows, 2>>(call, block_pairs);
}

/// Two rows of each strip in turn: the hardware foresees several streams better than one.
template <class Weights>
void gemv_of(const StripGemm& call) {
  using Kernel = PortableKernel<Weights, std::min(static_cast<int>(strip_columns) / lanes, 8)>;
  const auto bytes_per_strip = static_cast<std::int64_t>(strip_bytes(call.depth, call.dtype));
  const std::int64_t all_pairs = (call.depth + 1) / 2;
  for (std::int64_t first = 0; first < all_pairs; first += BlockOperands::max_pairs) {
    const std::int64_t pairs = std::min(BlockOperands::max_pairs, all_pairs - first);
    const BlockOperands row = widen_block(call, 2 * first, pairs);
    for (std::int64_t k = 0; k < pairs; ++k) {
      const Depth depth{1, call.accumulate || first + k > 0, nullptr, 0};
      for (std::int64_t strip = 0; strip < call.strips; ++strip) {
        const std::byte* b = call.b + strip * bytes_per_strip + (first + k) * Kernel::pair_bytes;
        for (std::int64_t column = 0; column < strip_columns; column += Kernel::columns) {
          Kernel::template tile<1, 0, false>(
              {row.a + 2 * k, row.c + strip * strip_columns + column, row.c_stride}, b + column * 4,
              depth);
        }
      }
    }
  }
}

void gemv(const StripGemm& call) {
  if (call.dtype == DType::f32) return gemv_of<F32Rows>(call);
  [[maybe_unused]] const FlushSubnormals flush;
  gemv_of<Bf16Rows>(call);
}

}  // namespace sluice::strip::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::strip {

HWY_EXPORT(gemm);
HWY_EXPORT(gemv);

void gemm_portable(const StripGemm& call) { HWY_DYNAMIC_DISPATCH(gemm)(call); }
void gemv_portable(const StripGemm& call) { HWY_DYNAMIC_DISPATCH(gemv)(call); }

}  // namespace sluice::strip
#endif
