#include "codelets/weights/quantized.h"

#include <algorithm>

#include "base/memory.h"
#include "codelets/kernels/quantized/digits.h"
#include "codelets/kernels/quantized/gemm.h"
#include "codelets/kernels/quantized/gemm_f32.h"
#include "codelets/kernels/quantized/gemm_fp8.h"
#include "codelets/kernels/strip_gemm.h"

namespace sluice {
namespace {

/// Rows that pass over a strip at once.
constexpr std::int64_t block_rows = 256;

std::int64_t num_strips(const WeightType& type) {
  return (type.out + strip_columns - 1) / strip_columns;
}

const std::byte* first_strip_of(const WeightType& type, const Cell& cell, const std::byte* packed) {
  const auto first_strip = static_cast<std::size_t>(cell.first_column / strip_columns);
  return packed + first_strip * quantized::strip_bytes(type.format, type.in);
}

/// Strips of a job, as long as each thread has jobs: digits of many rows stay in a cache for them.
std::int64_t strips_of_a_job(const WeightType& type, const ProductRows& rows, int num_threads) {
  const std::int64_t row_blocks = count_row_blocks(rows, block_rows);
  return std::clamp<std::int64_t>(num_strips(type) * row_blocks / (4 * num_threads), 1, 4);
}

/// By sums of integers: the same bits on every CPU.
class DigitProduct final : public Product {
 public:
  DigitProduct(ThreadPool& pool, const WeightType& type, const ProductRows& rows)
      : Product(rows, type.out, block_rows,
                strip_columns * strips_of_a_job(type, rows, pool.num_threads())),
        type_(type),
        layout_(type.format, type.in, quantized::digit_order(quantized::fastest_arithmetic())) {
    thread_local Workspace memory;
    std::byte* digits = memory.reserve(static_cast<std::size_t>(rows.rows * layout_.row_bytes()));
    pool.run(rows.rows, [&](std::int64_t row) {
      const auto offset = static_cast<std::size_t>(row * rows.stride) * size_bytes(rows.dtype);
      quantized::make_digits(layout_,
                             {.dtype = rows.dtype,
                              .x = static_cast<const std::byte*>(rows.x) + offset,
                              .rows = 1,
                              .stride = rows.stride},
                             digits + row * layout_.row_bytes());
    });
    digits_ = digits;
  }

  void run(const Cell& cell, const std::byte* packed, float* tile) const override {
    quantized::gemm({.format = type_.format,
                     .rows = cell.num_rows,
                     .in = type_.in,
                     .digits = digits_ + cell.first_row * layout_.row_bytes(),
                     .w = first_strip_of(type_, cell, packed),
                     .strips = (cell.num_columns + strip_columns - 1) / strip_columns,
                     .c = tile,
                     .c_stride = block_columns()});
  }

 private:
  WeightType type_;
  quantized::DigitLayout layout_;
  const std::byte* digits_ = nullptr;
};

/// Of rows as they are: in f32, or rows in bf16 by fp8, whose values are no integers but exact in
/// bf16.
class FloatProduct final : public Product {
 public:
  FloatProduct(const ThreadPool& pool, const WeightType& type, const ProductRows& rows)
      : Product(rows, type.out, block_rows,
                strip_columns * strips_of_a_job(type, rows, pool.num_threads())),
        type_(type),
        rows_(rows) {}

  void run(const Cell& cell, const std::byte* packed, float* tile) const override {
    if (rows_.dtype == DType::f32) {
      multiply<quantized::F32Gemm, float>(quantized::gemm_f32, cell, packed, tile);
    } else {
      multiply<quantized::Fp8Gemm, std::uint16_t>(quantized::gemm_fp8, cell, packed, tile);
    }
  }

 private:
  template <typename Gemm, typename Element>
  void multiply(void (*gemm)(const Gemm&), const Cell& cell, const std::byte* packed,
                float* tile) const {
    gemm({.format = type_.format,
          .rows = cell.num_rows,
          .in = type_.in,
          .x = static_cast<const Element*>(rows_.x) + cell.first_row * rows_.stride,
          .x_stride = rows_.stride,
          .w = first_strip_of(type_, cell, packed),
          .strips = (cell.num_columns + strip_columns - 1) / strip_columns,
          .c = tile,
          .c_stride = block_columns()});
  }

  WeightType type_;
  ProductRows rows_;
};

class QuantizedPacking final : public WeightPacking {
 public:
  std::size_t size_of(const WeightType& type) const override {
    return static_cast<std::size_t>(num_strips(type)) *
           quantized::strip_bytes(type.format, type.in);
  }
  std::int64_t num_panels(const WeightType& type) const override { return num_strips(type); }
  std::int64_t panel_columns(const WeightType& /*type*/) const override { return strip_columns; }
  std::unique_ptr<Product> product(ThreadPool& pool, const WeightType& type,
                                   const ProductRows& rows) const override {
    if (rows.dtype == DType::f32 || type.format.codes == WeightFormat::Codes::fp8)
      return std::make_unique<FloatProduct>(pool, type, rows);
    return std::make_unique<DigitProduct>(pool, type, rows);
  }
};

}  // namespace

const WeightPacking& quantized_packing() {
  static const QuantizedPacking packing;
  return packing;
}

void pack_quantized_strip(const WeightType& type, std::int64_t strip,
                          const quantized::CodedRows& rows, std::byte* packed) {
  quantized::pack_strip(
      type.format, rows, std::min(strip_columns, type.out - strip * strip_columns), type.in,
      packed + static_cast<std::size_t>(strip) * quantized::strip_bytes(type.format, type.in));
}

}  // namespace sluice
