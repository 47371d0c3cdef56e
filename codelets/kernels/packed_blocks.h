#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace sluice {

/// Where the elements of a packed panel [in, columns] lie: blocks of blocks, as oneDNN describes
/// them. Plain data, for devices that read what the CPU packed.
struct PanelBlocks {
  static constexpr std::int32_t max_inner = 6;
  std::int64_t in_stride = 0;      ///< elements between neighbouring outermost blocks along `in`
  std::int64_t column_stride = 0;  ///< the same along the columns
  std::int32_t num_inner = 0;      ///< blocks within those, dense, the innermost one last
  std::int32_t inner_size[max_inner] = {};
  bool inner_is_column[max_inner] = {};

  /// Elements from the panel's start to that of input `in` and output `column`, counted within it.
  constexpr std::int64_t offset(std::int64_t in, std::int64_t column) const {
    std::int64_t result = 0;
    std::int64_t stride = 1;
    for (std::int32_t i = num_inner - 1; i >= 0; --i) {
      std::int64_t& along = inner_is_column[i] ? column : in;
      result += along % inner_size[i] * stride;
      along /= inner_size[i];
      stride *= inner_size[i];
    }
    return result + in * in_stride + column * column_stride;
  }

  /// Strips of 64 columns one behind the other, each [depth / 2][64][2] for `depth` rounded up to
  /// 32 (codelets/kernels/strip_gemm.h).
  constexpr bool is_strips(std::int64_t in) const {
    return num_inner == 3 && inner_size[0] == 16 && inner_size[1] == 64 && inner_size[2] == 2 &&
           !inner_is_column[0] && inner_is_column[1] && !inner_is_column[2] &&
           in_stride == std::int64_t{32} * 64 && column_stride == (in + 31) / 32 * 32 * 64;
  }
};

/// The same of a whole packed weight: panels of columns one behind the other.
struct PackedBlocks {
  std::int64_t in = 0;
  std::int64_t out = 0;
  DType dtype = DType::bf16;
  std::int64_t num_panels = 0;
  std::int64_t panel_columns = 0;   ///< of all but the last, which may have fewer
  std::int64_t panel_elements = 0;  ///< from one panel's start to the next's
  PanelBlocks full;
  PanelBlocks last;

  /// Elements from the packed weight's start to W[column, in].
  constexpr std::int64_t offset(std::int64_t in_index, std::int64_t column) const {
    const std::int64_t panel = column / panel_columns;
    const PanelBlocks& blocks = panel == num_panels - 1 ? last : full;
    return panel * panel_elements + blocks.offset(in_index, column - panel * panel_columns);
  }

  /// The whole weight is strips one behind the other.
  constexpr bool is_strips() const {
    const bool seamless =
        num_panels == 1 || (panel_columns % 64 == 0 && full.is_strips(in) &&
                            panel_elements == panel_columns / 64 * full.column_stride);
    return dtype == DType::bf16 && last.is_strips(in) && seamless;
  }
};

}  // namespace sluice
