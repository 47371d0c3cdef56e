#include "codelets/kernels/linear.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "codelets/weights/weight_packing.h"

namespace sluice {
namespace {

/// This thread's tiles, `count` of them of so many elements.
float* thread_tiles(std::int64_t elements, std::int64_t count) {
  thread_local Workspace tiles;
  return reinterpret_cast<float*>(
      tiles.reserve(static_cast<std::size_t>(count * elements) * sizeof(float)));
}

/// A call's groups of rows, or all rows as one.
class RowGroups {
 public:
  RowGroups(std::span<const WeightedRows> groups, const WeightedRows& all)
      : all_(all), groups_(groups) {
    for (const WeightedRows& group : groups) ranges_.push_back(group.rows);
  }
  /// Empty where all rows are one.
  std::span<const RowRange> ranges() const { return ranges_; }
  const WeightedRows& of(const Cell& cell) const {
    return groups_.empty() ? all_ : groups_[cell.group];
  }

 private:
  WeightedRows all_;
  std::span<const WeightedRows> groups_;
  std::vector<RowRange> ranges_;
};

template <typename Call>
std::unique_ptr<Product> product_of(ThreadPool& pool, const WeightType& type, const Call& call,
                                    const RowGroups& groups) {
  return WeightPacking::of(type.format)
      .product(pool, type,
               {.x = call.x,
                .dtype = call.dtype,
                .rows = call.rows,
                .stride = call.x_stride != 0 ? call.x_stride : type.in,
                .groups = groups.ranges()});
}

/// Of a cell's columns, or null.
const float* bias_of(const float* bias, const Cell& cell) {
  return bias == nullptr ? nullptr : bias + cell.first_column;
}

/// Where a cell's part of dst begins.
std::byte* at_cell(void* dst, const Cell& cell, std::int64_t stride, DType dtype) {
  return static_cast<std::byte*>(dst) +
         static_cast<std::size_t>(cell.first_row * stride + cell.first_column) * size_bytes(dtype);
}

}  // namespace

void linear(ThreadPool& pool, const LinearCall& call) {
  if (call.rows == 0) return;
  const WeightType& type = call.weight.type;
  const RowGroups groups(call.groups,
                         {.rows = {0, call.rows}, .weight = call.weight.data, .bias = call.bias});
  const std::unique_ptr<Product> product = product_of(pool, type, call, groups);
  const std::int64_t dst_stride = call.dst_stride != 0 ? call.dst_stride : type.out;
  pool.run(product->num_cells(), [&](std::int64_t job) {
    const Cell cell = product->cell(job);
    const WeightedRows& group = groups.of(cell);
    const std::int64_t stride = product->tile_stride(cell);
    float* tile = thread_tiles(cell.num_rows * stride, 1);
    product->run(cell, group.weight, tile);
    simd::finish_tile({.epilogue = call.epilogue,
                       .rows = cell.num_rows,
                       .columns = cell.num_columns,
                       .tile = tile,
                       .tile_stride = stride,
                       .bias = bias_of(group.bias, cell),
                       .limit = call.limit,
                       .dst = at_cell(call.dst, cell, dst_stride, call.dst_dtype),
                       .dst_stride = dst_stride,
                       .dst_dtype = call.dst_dtype});
  });
}

namespace {

RowGroups groups_of(const GatedLinearCall& call) {
  return {call.groups,
          {.rows = {0, call.rows},
           .weight = call.up.data,
           .bias = call.up_bias,
           .gate = call.gate.data,
           .gate_bias = call.gate_bias}};
}

/// Finishes what `product` gives of the up half: `put_gates(cell, tile, stride)` puts the gates of
/// a cell, activated, into a tile.
template <typename PutGates>
void multiply_up(ThreadPool& pool, const GatedLinearCall& call, const Product& product,
                 const RowGroups& groups, PutGates&& put_gates) {
  const std::int64_t dst_stride = call.dst_stride != 0 ? call.dst_stride : call.up.type.out;
  pool.run(product.num_cells(), [&](std::int64_t job) {
    const Cell cell = product.cell(job);
    const std::int64_t stride = product.tile_stride(cell);
    float* gate = thread_tiles(cell.num_rows * stride, 2);
    float* up = gate + cell.num_rows * stride;
    put_gates(cell, gate, stride);
    product.run(cell, groups.of(cell).weight, up);
    simd::finish_tile({.epilogue = up_epilogue_of(call.activation),
                       .rows = cell.num_rows,
                       .columns = cell.num_columns,
                       .tile = up,
                       .tile_stride = stride,
                       .bias = bias_of(groups.of(cell).bias, cell),
                       .operand = gate,
                       .limit = call.limit,
                       .dst = at_cell(call.dst, cell, dst_stride, call.dtype),
                       .dst_stride = dst_stride,
                       .dst_dtype = call.dtype});
  });
}

/// Two formats have cells of their own: all gates come first.
void gated_linear_of_two_formats(ThreadPool& pool, const GatedLinearCall& call) {
  thread_local Workspace memory;
  const std::int64_t out = call.up.type.out;
  auto* gates = reinterpret_cast<float*>(
      memory.reserve(static_cast<std::size_t>(call.rows * out) * sizeof(float)));
  std::vector<WeightedRows> of_gates;
  for (const WeightedRows& group : call.groups)
    of_gates.push_back({.rows = group.rows, .weight = group.gate, .bias = group.gate_bias});
  linear(pool, {.weight = call.gate,
                .dtype = call.dtype,
                .x = call.x,
                .rows = call.rows,
                .x_stride = call.x_stride,
                .bias = call.gate_bias,
                .epilogue = call.activation,
                .limit = call.limit,
                .dst = gates,
                .groups = of_gates});
  const RowGroups groups = groups_of(call);
  const std::unique_ptr<Product> product = product_of(pool, call.up.type, call, groups);
  multiply_up(pool, call, *product, groups,
              [&](const Cell& cell, float* tile, std::int64_t stride) {
                for (std::int64_t row = 0; row < cell.num_rows; ++row) {
                  std::copy_n(gates + (cell.first_row + row) * out + cell.first_column,
                              cell.num_columns, tile + row * stride);
                }
              });
}

}  // namespace

void gated_linear(ThreadPool& pool, const GatedLinearCall& call) {
  if (call.rows == 0) return;
  if (call.gate.type != call.up.type) return gated_linear_of_two_formats(pool, call);
  const RowGroups groups = groups_of(call);
  const std::unique_ptr<Product> product = product_of(pool, call.gate.type, call, groups);
  multiply_up(pool, call, *product, groups,
              [&](const Cell& cell, float* tile, std::int64_t stride) {
                const WeightedRows& group = groups.of(cell);
                product->run(cell, group.gate, tile);
                simd::finish_tile({.epilogue = call.activation,
                                   .rows = cell.num_rows,
                                   .columns = cell.num_columns,
                                   .tile = tile,
                                   .tile_stride = stride,
                                   .bias = bias_of(group.gate_bias, cell),
                                   .limit = call.limit,
                                   .dst = tile,
                                   .dst_stride = stride});
              });
}

}  // namespace sluice
