#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace sluice {

/// Rows of x that are multiplied, [rows, in].
struct ProductRows {
  const void* x = nullptr;
  DType dtype = DType::bf16;  ///< f32 or bf16
  std::int64_t rows = 0;
  std::int64_t stride = 0;  ///< elements between rows
};

/// The part of a product [rows, out] that one job computes.
struct Cell {
  std::int64_t first_row, num_rows, first_column, num_columns;
};

/// A product x W^T on the CPU, cut into a grid of cells. Cells are independent of each other and
/// may be computed by any threads.
class Product {
 public:
  virtual ~Product() = default;
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  std::int64_t num_cells() const { return num_column_blocks() * num_row_blocks(); }
  Cell cell(std::int64_t index) const {
    const std::int64_t first_row = index % num_row_blocks() * block_rows_;
    const std::int64_t first_column = index / num_row_blocks() * block_columns_;
    return {first_row, std::min(block_rows_, rows_ - first_row), first_column,
            std::min(block_columns_, out_ - first_column)};
  }
  /// Elements between the rows of a cell's tile.
  virtual std::int64_t tile_stride(const Cell& /*cell*/) const { return block_columns_; }
  /// tile [num_rows, tile_stride()] = the cell of x W^T, of `packed`, a whole weight of the type
  /// that the product was made for. Throws Error when a library refuses.
  virtual void run(const Cell& cell, const std::byte* packed, float* tile) const = 0;

 protected:
  Product(std::int64_t rows, std::int64_t out, std::int64_t block_rows, std::int64_t block_columns)
      : rows_(rows), out_(out), block_rows_(block_rows), block_columns_(block_columns) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t out() const { return out_; }
  std::int64_t block_columns() const { return block_columns_; }
  std::int64_t num_row_blocks() const { return (rows_ + block_rows_ - 1) / block_rows_; }

 private:
  std::int64_t num_column_blocks() const { return (out_ + block_columns_ - 1) / block_columns_; }

  std::int64_t rows_;
  std::int64_t out_;
  std::int64_t block_rows_;
  std::int64_t block_columns_;
};

}  // namespace sluice
