#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace sluice {

/// Neighbouring rows that one weight multiplies.
struct RowRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// Rows of x that are multiplied, [rows, in].
struct ProductRows {
  const void* x = nullptr;
  DType dtype = DType::bf16;  ///< f32 or bf16
  std::int64_t rows = 0;
  std::int64_t stride = 0;  ///< elements between rows
  /// Where several weights of one type multiply a part of the rows each: these parts, in order,
  /// none empty. Empty: one weight multiplies all.
  std::span<const RowRange> groups = {};
};

/// The part of a product [rows, out] that one job computes: rows of one group.
struct Cell {
  std::int64_t first_row, num_rows, first_column, num_columns;
  std::size_t group = 0;  ///< index among ProductRows::groups
};

/// A product x W^T on the CPU, cut into a grid of cells, or into one grid for each group of rows.
/// Cells are independent of each other and may be computed by any threads.
class Product {
 public:
  virtual ~Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  std::int64_t num_cells() const { return grids_.back().end_cell; }
  /// Cells of a weight are neighbours, and among them those of a block of its columns.
  Cell cell(std::int64_t index) const {
    const auto grid = std::upper_bound(
        grids_.begin(), grids_.end(), index,
        [](std::int64_t cell, const Grid& candidate) { return cell < candidate.end_cell; });
    const std::int64_t in_grid = index - (grid->end_cell - num_cells_of(grid->rows));
    const std::int64_t row_blocks = num_row_blocks(grid->rows.count);
    const std::int64_t first_row = in_grid % row_blocks * block_rows_;
    const std::int64_t first_column = in_grid / row_blocks * block_columns_;
    return {grid->rows.first + first_row, std::min(block_rows_, grid->rows.count - first_row),
            first_column, std::min(block_columns_, out_ - first_column),
            static_cast<std::size_t>(grid - grids_.begin())};
  }
  /// Elements between the rows of a cell's tile.
  virtual std::int64_t tile_stride(const Cell& /*cell*/) const { return block_columns_; }
  /// tile [num_rows, tile_stride()] = the cell of x W^T, of `packed`, a whole weight of the type
  /// that the product was made for. Throws Error when a library refuses.
  virtual void run(const Cell& cell, const std::byte* packed, float* tile) const = 0;

 protected:
  Product(const ProductRows& rows, std::int64_t out, std::int64_t block_rows,
          std::int64_t block_columns)
      : out_(out), block_rows_(block_rows), block_columns_(block_columns) {
    const RowRange all{0, rows.rows};
    std::int64_t end_cell = 0;
    for (const RowRange& range : rows.groups.empty() ? std::span(&all, 1) : rows.groups) {
      end_cell += num_cells_of(range);
      grids_.push_back({range, end_cell});
    }
  }

  std::int64_t out() const { return out_; }
  std::int64_t block_columns() const { return block_columns_; }

 private:
  struct Grid {
    RowRange rows;
    std::int64_t end_cell;  ///< behind its last cell
  };
  std::int64_t num_row_blocks(std::int64_t rows) const {
    return (rows + block_rows_ - 1) / block_rows_;
  }
  std::int64_t num_cells_of(const RowRange& rows) const {
    return num_row_blocks(rows.count) * ((out_ + block_columns_ - 1) / block_columns_);
  }

  std::int64_t out_;
  std::int64_t block_rows_;
  std::int64_t block_columns_;
  std::vector<Grid> grids_;
};

/// Blocks of at most so many rows that a product's rows are cut into.
inline std::int64_t count_row_blocks(const ProductRows& rows, std::int64_t block_rows) {
  const auto blocks = [&](std::int64_t count) { return (count + block_rows - 1) / block_rows; };
  if (rows.groups.empty()) return blocks(rows.rows);
  std::int64_t sum = 0;
  for (const RowRange& range : rows.groups) sum += blocks(range.count);
  return sum;
}

}  // namespace sluice
