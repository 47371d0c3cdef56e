#include "codelets/kernels/linear.h"

#include <dnnl.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <tuple>

#include "base/error.h"
#include "base/memory.h"
#include "codelets/kernels/simd.h"
#include "codelets/kernels/strip_gemm.h"

namespace sluice {
namespace {

using dnnl::memory;

/// Rows that one oneDNN call computes: enough to reuse a panel in cache, few enough that many calls
/// can be dealt out to threads.
constexpr std::int64_t onednn_block_rows = 64;
/// Rows that pass over a strip at once: a narrow one stays in cache for more of them. Where they
/// pass over several, each has a sum there; 132 are whole tiles of 6 or 12 rows.
std::int64_t strip_block_rows(Bf16Arithmetic arithmetic) {
  return arithmetic == Bf16Arithmetic::portable ? 132 : 256;
}

template <typename Pointer>
Pointer advance(Pointer base, std::int64_t elements, DType dtype) {
  using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const std::byte,
                                  std::byte>;
  return static_cast<Byte*>(base) + static_cast<std::size_t>(elements) * size_bytes(dtype);
}

/// What our own kernels multiply a weight with, which is packed as strips then (as oneDNN would
/// itself, but for a few narrow, deep panels); nothing where oneDNN computes: f32 by AVX-512. In
/// bf16 its sums change with the number of rows, with AMX and, at odd depths, without AVX512_BF16.
std::optional<Bf16Arithmetic> strip_arithmetic(const LinearShape& shape) {
  const bool even = shape.in % 2 == 0;
  if (fastest_bf16_arithmetic() == Bf16Arithmetic::portable) return Bf16Arithmetic::portable;
  if (shape.dtype != DType::bf16) return {};
  return even ? fastest_strip_arithmetic() : Bf16Arithmetic::portable;
}

/// Held while oneDNN compiles a primitive: one at a time in the process.
std::mutex& creation_mutex() {
  static std::mutex mutex;
  return mutex;
}

dnnl::engine& cpu_engine() {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::f32 ? memory::data_type::f32 : memory::data_type::bf16;
}

/// Columns of a panel: about 32 panels a weight, so that as many cores can share it, within bounds
/// that keep a panel worth a call and small enough for the second-level cache.
std::int64_t choose_panel_columns(std::int64_t out) {
  constexpr std::int64_t quantum = 64;
  const std::int64_t wanted = (out / 32 + quantum - 1) / quantum * quantum;
  return std::min(out, std::clamp<std::int64_t>(wanted, quantum, 512));
}

/// A compiled GEMM of [rows, in] by one panel into a dense f32 tile [rows, columns], and for each
/// thread the memory objects that it is called with. (oneDNN's fast kernels take no strided
/// destination, so what follows the product is done by finish_tile().)
class Gemm {
 public:
  Gemm(const LinearShape& shape, const memory::desc& weights, std::int64_t rows,
       std::int64_t columns, std::int64_t x_stride)
      : rows_(rows), columns_(columns), weights_(weights) {
    source_ = {{rows, shape.in}, dnnl_type(shape.dtype), memory::dims{x_stride, 1}};
    tile_ = {{rows, columns}, memory::data_type::f32, memory::format_tag::ab};
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::matmul::primitive_desc description({source_, weights_, tile_}, attributes,
                                                   cpu_engine());
    scratch_ = description.scratchpad_desc();
    primitive_ = dnnl::matmul(description);
  }

  void run(const void* x, const std::byte* weights, float* tile) {
    Thread& thread = for_this_thread();
    std::array<dnnl_exec_arg_t, 4> arguments{};
    int count = 0;
    const auto pass = [&](int which, memory& object, const void* data) {
      dnnl_memory_set_data_handle(object.get(), const_cast<void*>(data));
      arguments.at(static_cast<std::size_t>(count++)) = {which, object.get()};
    };
    pass(DNNL_ARG_SRC, thread.source, x);
    pass(DNNL_ARG_WEIGHTS, thread.weights, weights);
    pass(DNNL_ARG_DST, thread.tile, tile);
    if (scratch_.get_size() != 0) {
      pass(DNNL_ARG_SCRATCHPAD, thread.scratch, thread.scratch_memory.reserve(scratch_.get_size()));
    }
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), thread.stream.get(), count, arguments.data());
    if (status != dnnl_success) {
      throw Error("oneDNN cannot run a GEMM of {} rows and {} columns ({})", rows_, columns_,
                  dnnl_status2str(status));
    }
  }

 private:
  struct Thread {
    dnnl::stream stream;
    memory source, weights, tile, scratch;
    Workspace scratch_memory;
  };

  Thread& for_this_thread() {
    const auto index = static_cast<std::size_t>(ThreadPool::thread_index());
    Thread* thread = threads_[index].load(std::memory_order_acquire);
    if (thread != nullptr) return *thread;
    // Only the thread with this index comes here for this entry.
    auto made = std::make_unique<Thread>();
    dnnl::engine& engine = cpu_engine();
    made->stream = dnnl::stream(engine);
    made->source = memory(source_, engine, nullptr);
    made->weights = memory(weights_, engine, nullptr);
    made->tile = memory(tile_, engine, nullptr);
    made->scratch = memory(scratch_, engine, nullptr);
    Thread& result = *made;
    const std::lock_guard lock(owned_mutex_);
    owned_.push_back(std::move(made));
    threads_[index].store(&result, std::memory_order_release);
    return result;
  }

  std::int64_t rows_;
  std::int64_t columns_;
  memory::desc source_, weights_, tile_, scratch_;
  dnnl::matmul primitive_;
  std::array<std::atomic<Thread*>, ThreadPool::max_threads> threads_{};
  std::mutex owned_mutex_;
  std::vector<std::unique_ptr<Thread>> owned_;
};

}  // namespace

struct PackedLayout::Impl {
  memory::desc full_panel;  ///< [in, columns]
  memory::desc last_panel;  ///< [in, columns of the last panel]
  dnnl::reorder pack_full;  ///< from plain rows into full_panel
  dnnl::reorder pack_last;

  Gemm& gemm(const LinearShape& shape, std::int64_t rows, std::int64_t columns, bool is_last_panel,
             std::int64_t x_stride) {
    const std::tuple key(rows, columns, x_stride);
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = gemms_.find(key); found != gemms_.end()) return *found->second;
    }
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Gemm>& entry = gemms_[key];
    if (!entry) {
      const std::lock_guard creation(creation_mutex());
      entry = std::make_unique<Gemm>(shape, is_last_panel ? last_panel : full_panel, rows, columns,
                                     x_stride);
    }
    return *entry;
  }

 private:
  std::shared_mutex mutex_;
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, std::unique_ptr<Gemm>> gemms_;
};

namespace {

/// The layout oneDNN likes best for a weight panel. One layout serves every number of rows.
memory::desc packed_desc(const LinearShape& shape, std::int64_t columns) {
  if (strip_arithmetic(shape)) {
    const auto tag =
        shape.dtype == DType::f32 ? memory::format_tag::BA16a64b : memory::format_tag::BA16a64b2a;
    return {{shape.in, columns}, dnnl_type(shape.dtype), tag};
  }
  constexpr std::int64_t typical_rows = 16;
  const memory::desc source({typical_rows, shape.in}, dnnl_type(shape.dtype),
                            memory::format_tag::ab);
  const memory::desc weights({shape.in, columns}, dnnl_type(shape.dtype), memory::format_tag::any);
  const memory::desc destination({typical_rows, columns}, memory::data_type::f32,
                                 memory::format_tag::ab);
  return dnnl::matmul::primitive_desc({source, weights, destination}, cpu_engine()).weights_desc();
}

/// A panel as it lies in W [out, in]: its columns one behind the other.
memory::desc plain_desc(const LinearShape& shape, std::int64_t columns) {
  return {{shape.in, columns}, dnnl_type(shape.dtype), memory::format_tag::ba};
}

/// oneDNN's own exceptions as ours, with the shape in them. What it makes runs on one thread of its
/// own, wherever it is made: a pool's threads each call it.
template <typename Work>
auto with_onednn(const LinearShape& shape, Work&& work) {
  omp_set_num_threads(1);
  try {
    return work();
  } catch (const dnnl::error& error) {
    throw Error("oneDNN cannot multiply by a weight [{}, {}] in {}: {}; try --dtype f32", shape.out,
                shape.in, to_string(shape.dtype), error.what());
  }
}

}  // namespace

PackedLayout::PackedLayout(const LinearShape& shape)
    : shape_(shape), impl_(std::make_unique<Impl>()) {
  columns_ = choose_panel_columns(shape.out);
  num_panels_ = (shape.out + columns_ - 1) / columns_;
  with_onednn(shape, [&] {
    const std::lock_guard creation(creation_mutex());
    const std::int64_t last_columns = panel_columns(num_panels_ - 1);
    impl_->full_panel = packed_desc(shape, columns_);
    impl_->last_panel = packed_desc(shape, last_columns);
    const auto packing = [](const memory::desc& plain, const memory::desc& packed) {
      return dnnl::reorder({cpu_engine(), plain, cpu_engine(), packed});
    };
    if (strip_arithmetic(shape)) return;  // pack_strip() packs
    impl_->pack_full = packing(plain_desc(shape, columns_), impl_->full_panel);
    impl_->pack_last = packing(plain_desc(shape, last_columns), impl_->last_panel);
  });
  const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
  panel_bytes_ = aligned(impl_->full_panel.get_size());
  size_bytes_ = panel_offset_bytes(num_panels_ - 1) + aligned(impl_->last_panel.get_size());
}

PackedLayout::~PackedLayout() = default;

const PackedLayout& PackedLayout::get(const LinearShape& shape) {
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, std::int64_t, DType>, std::unique_ptr<PackedLayout>>
      layouts;
  const std::lock_guard lock(mutex);
  std::unique_ptr<PackedLayout>& entry = layouts[{shape.in, shape.out, shape.dtype}];
  if (!entry) entry = std::make_unique<PackedLayout>(shape);
  return *entry;
}

std::int64_t PackedLayout::panel_columns(std::int64_t panel) const {
  return std::min(columns_, shape_.out - first_column(panel));
}

bool PackedLayout::pack_panel(std::int64_t panel, const void* rows, std::byte* packed) const {
  const std::int64_t columns = panel_columns(panel);
  if (const auto arithmetic = strip_arithmetic(shape_)) {
    std::byte* to = packed + panel_offset_bytes(panel);
    bool finite = true;
    for (std::int64_t first = 0; first < columns; first += strip_columns) {
      const StripValues values = pack_strip({.dtype = shape_.dtype,
                                             .rows = advance(rows, first * shape_.in, shape_.dtype),
                                             .columns = std::min(strip_columns, columns - first),
                                             .depth = shape_.in},
                                            to, *arithmetic);
      to += strip_bytes(shape_.in, shape_.dtype);
      finite = finite && values == StripValues::finite;
    }
    return finite;
  }
  with_onednn(shape_, [&] {
    const bool is_last = panel == num_panels_ - 1;
    memory from(plain_desc(shape_, panel_columns(panel)), cpu_engine(), const_cast<void*>(rows));
    memory to(is_last ? impl_->last_panel : impl_->full_panel, cpu_engine(),
              packed + panel_offset_bytes(panel));
    dnnl::stream stream(cpu_engine());
    (is_last ? impl_->pack_last : impl_->pack_full).execute(stream, from, to);
    stream.wait();
  });
  return simd::find_not_finite(rows, columns * shape_.in, shape_.dtype) < 0;
}

namespace {

PanelBlocks blocks_of(const LinearShape& shape, const memory::desc& desc) {
  const dnnl_memory_desc_t& data = desc.data;
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  if (data.format_kind != dnnl_blocked || blocking.inner_nblks > PanelBlocks::max_inner ||
      data.offset0 != 0 || data.extra.flags != dnnl_memory_extra_flag_none) {
    throw Error(
        "oneDNN packs a weight [{}, {}] in {} in a way of its own, which a GPU cannot read; "
        "expected "
        "blocks: keep this weight's sublayer on the CPU, or try another --dtype",
        shape.out, shape.in, to_string(shape.dtype));
  }
  PanelBlocks blocks{.in_stride = blocking.strides[0],
                     .column_stride = blocking.strides[1],
                     .num_inner = blocking.inner_nblks};
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    blocks.inner_size[i] = static_cast<std::int32_t>(blocking.inner_blks[i]);
    blocks.inner_is_column[i] = blocking.inner_idxs[i] == 1;
  }
  return blocks;
}

}  // namespace

PackedBlocks PackedLayout::blocks() const {
  return {
      .in = shape_.in,
      .out = shape_.out,
      .dtype = shape_.dtype,
      .num_panels = num_panels_,
      .panel_columns = columns_,
      .panel_elements = static_cast<std::int64_t>(panel_bytes_ / sluice::size_bytes(shape_.dtype)),
      .full = blocks_of(shape_, impl_->full_panel),
      .last = blocks_of(shape_, impl_->last_panel)};
}

namespace {

/// Strips of a job, as long as each thread has jobs: where rows must be widened, or multiply faster
/// than the last-level cache gives them, it is done once for several.
std::int64_t strips_of_a_job(Bf16Arithmetic arithmetic, std::int64_t columns,
                             std::int64_t row_blocks, int num_threads) {
  if (arithmetic != Bf16Arithmetic::portable && arithmetic != Bf16Arithmetic::amx) return 1;
  return std::clamp<std::int64_t>(columns / strip_columns * row_blocks / (4 * num_threads), 1, 4);
}

/// The grid of (columns, rows) that a call is cut into; each cell is one job. Columns are a
/// panel's, or those of some strips where our own kernel computes.
struct Grid {
  Grid(const ThreadPool& pool, const PackedLayout& the_layout, std::int64_t num_rows,
       std::int64_t wanted_x_stride)
      : layout(the_layout),
        rows(num_rows),
        x_stride(wanted_x_stride != 0 ? wanted_x_stride : the_layout.shape().in),
        strips(strip_arithmetic(the_layout.shape())),
        block_rows(strips ? strip_block_rows(*strips) : onednn_block_rows),
        block_columns(strips ? strip_columns * strips_of_a_job(*strips, the_layout.shape().out,
                                                               num_row_blocks(), pool.num_threads())
                             : the_layout.panel_columns(0)) {}

  const PackedLayout& layout;
  std::int64_t rows;
  std::int64_t x_stride;
  std::optional<Bf16Arithmetic> strips;  ///< our own kernel's
  std::int64_t block_rows;
  std::int64_t block_columns;

  std::int64_t num_column_blocks() const {
    return (layout.shape().out + block_columns - 1) / block_columns;
  }
  std::int64_t num_row_blocks() const { return (rows + block_rows - 1) / block_rows; }
  std::int64_t num_jobs() const { return num_column_blocks() * num_row_blocks(); }

  struct Cell {
    std::int64_t first_row, num_rows, first_column, num_columns;
  };
  Cell cell(std::int64_t job) const {
    const std::int64_t first_row = job % num_row_blocks() * block_rows;
    const std::int64_t first_column = job / num_row_blocks() * block_columns;
    return {first_row, std::min(block_rows, rows - first_row), first_column,
            std::min(block_columns, layout.shape().out - first_column)};
  }
};

/// What multiplies a cell's rows by its columns: our strips, or the compiled GEMMs for full and
/// last panels and blocks of rows.
class CellGemm {
 public:
  explicit CellGemm(const Grid& grid) : grid_(grid) {
    if (grid.strips) return;
    const std::int64_t last_panel = grid.layout.num_panels() - 1;
    for (const std::int64_t panel : {std::int64_t{0}, last_panel}) {
      for (const std::int64_t block : {std::int64_t{0}, grid.num_row_blocks() - 1}) {
        const Grid::Cell cell = grid.cell(panel * grid.num_row_blocks() + block);
        at(cell) = &grid.layout.impl().gemm(grid.layout.shape(), cell.num_rows, cell.num_columns,
                                            panel == last_panel, grid.x_stride);
      }
    }
  }

  /// Elements between the rows of a tile.
  std::int64_t tile_stride(const Grid::Cell& cell) const {
    return grid_.strips ? grid_.block_columns : cell.num_columns;
  }

  /// tile = x W^T for the cell; `x` and `packed` are the whole matrices.
  void run(const Grid::Cell& cell, const void* x, const std::byte* packed, float* tile) const {
    const LinearShape& shape = grid_.layout.shape();
    const void* rows = advance(x, cell.first_row * grid_.x_stride, shape.dtype);
    if (!grid_.strips) {
      const std::int64_t panel = cell.first_column / grid_.block_columns;
      const_cast<CellGemm*>(this)->at(cell)->run(
          rows, packed + grid_.layout.panel_offset_bytes(panel), tile);
      return;
    }
    // Panels are whole strips, but for the last one, so all strips lie one behind the other.
    const std::int64_t first_strip = cell.first_column / strip_columns;
    const bool is_f32 = shape.dtype == DType::f32;
    strip_gemm(
        {.dtype = shape.dtype,
         .rows = cell.num_rows,
         .depth = shape.in,
         .a = is_f32 ? nullptr : static_cast<const std::uint16_t*>(rows),
         .wide_a = is_f32 ? static_cast<const float*>(rows) : nullptr,
         .a_stride = grid_.x_stride,
         .b = packed + static_cast<std::size_t>(first_strip) * strip_bytes(shape.in, shape.dtype),
         .strips = (cell.num_columns + strip_columns - 1) / strip_columns,
         .c = tile,
         .c_stride = grid_.block_columns,
         .source = StripSource::memory,
         .arithmetic = *grid_.strips});
  }

 private:
  Gemm*& at(const Grid::Cell& cell) {
    const bool last_panel = cell.first_column + cell.num_columns == grid_.layout.shape().out;
    const bool last_block = cell.first_row + cell.num_rows == grid_.rows;
    return gemms_[last_panel ? 1 : 0][last_block ? 1 : 0];
  }

  const Grid& grid_;
  std::array<std::array<Gemm*, 2>, 2> gemms_{};
};

/// This thread's tiles, `count` of them of the cell's size.
float* thread_tiles(std::int64_t elements, std::int64_t count) {
  thread_local Workspace tiles;
  return reinterpret_cast<float*>(
      tiles.reserve(static_cast<std::size_t>(count * elements) * sizeof(float)));
}

/// The rows that a call multiplies.
struct Rows {
  const void* x;
  std::int64_t stride;
};

/// As oneDNN's fast kernels take them: it multiplies rows that do not lie dense by its reference
/// kernel, a hundred times slower than copying them first. The copy is this thread's until its
/// next.
template <typename Call>
Rows rows_of(ThreadPool& pool, const Call& call) {
  const LinearShape& shape = call.layout->shape();
  if (call.x_stride == 0 || call.x_stride == shape.in || strip_arithmetic(shape))
    return {call.x, call.x_stride};
  thread_local Workspace copies;
  const std::size_t row_bytes = static_cast<std::size_t>(shape.in) * size_bytes(shape.dtype);
  std::byte* dense = copies.reserve(static_cast<std::size_t>(call.rows) * row_bytes);
  pool.run(call.rows, [&](std::int64_t row) {
    std::memcpy(dense + static_cast<std::size_t>(row) * row_bytes,
                advance(call.x, row * call.x_stride, shape.dtype), row_bytes);
  });
  return {dense, shape.in};
}

}  // namespace

void linear(ThreadPool& pool, const LinearCall& call) {
  if (call.rows == 0) return;
  const PackedLayout& layout = *call.layout;
  with_onednn(layout.shape(), [&] {
    const Rows from = rows_of(pool, call);
    const Grid grid(pool, layout, call.rows, from.stride);
    const CellGemm gemm(grid);
    const std::int64_t dst_stride = call.dst_stride != 0 ? call.dst_stride : layout.shape().out;
    pool.run(grid.num_jobs(), [&](std::int64_t job) {
      const Grid::Cell cell = grid.cell(job);
      const std::int64_t stride = gemm.tile_stride(cell);
      float* tile = thread_tiles(cell.num_rows * stride, 1);
      gemm.run(cell, from.x, call.packed, tile);
      simd::finish_tile({.epilogue = call.epilogue,
                         .rows = cell.num_rows,
                         .columns = cell.num_columns,
                         .tile = tile,
                         .tile_stride = stride,
                         .bias = call.bias == nullptr ? nullptr : call.bias + cell.first_column,
                         .dst = advance(call.dst, cell.first_row * dst_stride + cell.first_column,
                                        call.dst_dtype),
                         .dst_stride = dst_stride,
                         .dst_dtype = call.dst_dtype});
    });
  });
}

void gated_linear(ThreadPool& pool, const GatedLinearCall& call) {
  if (call.rows == 0) return;
  const PackedLayout& layout = *call.layout;
  const DType dtype = layout.shape().dtype;
  with_onednn(layout.shape(), [&] {
    const Rows from = rows_of(pool, call);
    const Grid grid(pool, layout, call.rows, from.stride);
    const CellGemm gemm(grid);
    const std::int64_t dst_stride = call.dst_stride != 0 ? call.dst_stride : layout.shape().out;
    pool.run(grid.num_jobs(), [&](std::int64_t job) {
      const Grid::Cell cell = grid.cell(job);
      const std::int64_t stride = gemm.tile_stride(cell);
      float* gate = thread_tiles(cell.num_rows * stride, 2);
      float* up = gate + cell.num_rows * stride;
      gemm.run(cell, from.x, call.packed_gate, gate);
      simd::finish_tile(
          {.epilogue = call.activation,
           .rows = cell.num_rows,
           .columns = cell.num_columns,
           .tile = gate,
           .tile_stride = stride,
           .bias = call.gate_bias == nullptr ? nullptr : call.gate_bias + cell.first_column,
           .dst = gate,
           .dst_stride = stride});
      gemm.run(cell, from.x, call.packed_up, up);
      simd::finish_tile(
          {.epilogue = Epilogue::multiply,
           .rows = cell.num_rows,
           .columns = cell.num_columns,
           .tile = up,
           .tile_stride = stride,
           .bias = call.up_bias == nullptr ? nullptr : call.up_bias + cell.first_column,
           .operand = gate,
           .dst = advance(call.dst, cell.first_row * dst_stride + cell.first_column, dtype),
           .dst_stride = dst_stride,
           .dst_dtype = dtype});
    });
  });
}

std::string onednn_version() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("{}.{}.{}", version->major, version->minor, version->patch);
}

const char* onednn_isa_name() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "SSE4.1";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
    case dnnl_cpu_isa_avx2_vnni:
      return "AVX2 VNNI";
    case dnnl_cpu_isa_avx512_core:
      return "AVX-512";
    case dnnl_cpu_isa_avx512_core_vnni:
      return "AVX-512 VNNI";
    case dnnl_cpu_isa_avx512_core_bf16:
      return "AVX-512 with bfloat16";
    case dnnl_cpu_isa_avx512_core_amx:
      return "AMX";
    default:
      return "other";
  }
}

}  // namespace sluice
