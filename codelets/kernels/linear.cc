#include "codelets/kernels/linear.h"

#include <algorithm>
#include <memory>

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

template <typename Call>
std::unique_ptr<Product> product_of(ThreadPool& pool, const WeightType& type, const Call& call) {
  return WeightPacking::of(type.format)
      .product(pool, type,
               {.x = call.x,
                .dtype = call.dtype,
                .rows = call.rows,
                .stride = call.x_stride != 0 ? call.x_stride : type.in});
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
  const std::unique_ptr<Product> product = product_of(pool, type, call);
  const std::int64_t dst_stride = call.dst_stride != 0 ? call.dst_stride : type.out;
  pool.run(product->num_cells(), [&](std::int64_t job) {
    const Cell cell = product->cell(job);
    const std::int64_t stride = product->tile_stride(cell);
    float* tile = thread_tiles(cell.num_rows * stride, 1);
    product->run(cell, call.weight.data, tile);
    simd::finish_tile({.epilogue = call.epilogue,
                       .rows = cell.num_rows,
                       .columns = cell.num_columns,
                       .tile = tile,
                       .tile_stride = stride,
                       .bias = call.bias == nullptr ? nullptr : call.bias + cell.first_column,
                       .dst = at_cell(call.dst, cell, dst_stride, call.dst_dtype),
                       .dst_stride = dst_stride,
                       .dst_dtype = call.dst_dtype});
  });
}

namespace {

/// Finishes what `product` gives of the up half: `put_gates(cell, tile, stride)` puts the gates of
/// a cell, activated, into a tile.
template <typename PutGates>
void multiply_up(ThreadPool& pool, const GatedLinearCall& call, const Product& product,
                 PutGates&& put_gates) {
  const std::int64_t dst_stride = call.dst_stride != 0 ? call.dst_stride : call.up.type.out;
  pool.run(product.num_cells(), [&](std::int64_t job) {
    const Cell cell = product.cell(job);
    const std::int64_t stride = product.tile_stride(cell);
    float* gate = thread_tiles(cell.num_rows * stride, 2);
    float* up = gate + cell.num_rows * stride;
    put_gates(cell, gate, stride);
    product.run(cell, call.up.data, up);
    simd::finish_tile({.epilogue = Epilogue::multiply,
                       .rows = cell.num_rows,
                       .columns = cell.num_columns,
                       .tile = up,
                       .tile_stride = stride,
                       .bias = call.up_bias == nullptr ? nullptr : call.up_bias + cell.first_column,
                       .operand = gate,
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
  linear(pool, {.weight = call.gate,
                .dtype = call.dtype,
                .x = call.x,
                .rows = call.rows,
                .x_stride = call.x_stride,
                .bias = call.gate_bias,
                .epilogue = call.activation,
                .dst = gates});
  const std::unique_ptr<Product> product = product_of(pool, call.up.type, call);
  multiply_up(pool, call, *product, [&](const Cell& cell, float* tile, std::int64_t stride) {
    for (std::int64_t row = 0; row < cell.num_rows; ++row) {
      std::copy_n(gates + (cell.first_row + row) * out + cell.first_column, cell.num_columns,
                  tile + row * stride);
    }
  });
}

}  // namespace

void gated_linear(ThreadPool& pool, const GatedLinearCall& call) {
  if (call.rows == 0) return;
  if (call.gate.type != call.up.type) return gated_linear_of_two_formats(pool, call);
  const std::unique_ptr<Product> product = product_of(pool, call.gate.type, call);
  multiply_up(pool, call, *product, [&](const Cell& cell, float* tile, std::int64_t stride) {
    product->run(cell, call.gate.data, tile);
    simd::finish_tile(
        {.epilogue = call.activation,
         .rows = cell.num_rows,
         .columns = cell.num_columns,
         .tile = tile,
         .tile_stride = stride,
         .bias = call.gate_bias == nullptr ? nullptr : call.gate_bias + cell.first_column,
         .dst = tile,
         .dst_stride = stride});
  });
}

}  // namespace sluice
