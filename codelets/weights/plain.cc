#include "codelets/weights/plain.h"

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
#include "codelets/weights/weight_packing.h"

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
std::optional<Bf16Arithmetic> strip_arithmetic(const WeightType& type) {
  const bool even = type.in % 2 == 0;
  if (fastest_bf16_arithmetic() == Bf16Arithmetic::portable) return Bf16Arithmetic::portable;
  if (type.format.dtype() != DType::bf16) return {};
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
  Gemm(const WeightType& type, const memory::desc& weights, std::int64_t rows, std::int64_t columns,
       std::int64_t x_stride)
      : rows_(rows), columns_(columns), weights_(weights) {
    source_ = {{rows, type.in}, dnnl_type(type.format.dtype()), memory::dims{x_stride, 1}};
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

struct PlainLayout::Impl {
  memory::desc full_panel;  ///< [in, columns]
  memory::desc last_panel;  ///< [in, columns of the last panel]
  dnnl::reorder pack_full;  ///< from plain rows into full_panel
  dnnl::reorder pack_last;

  Gemm& gemm(const WeightType& type, std::int64_t rows, std::int64_t columns, bool is_last_panel,
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
      entry = std::make_unique<Gemm>(type, is_last_panel ? last_panel : full_panel, rows, columns,
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
memory::desc packed_desc(const WeightType& type, std::int64_t columns) {
  if (strip_arithmetic(type)) {
    const auto tag = type.format.dtype() == DType::f32 ? memory::format_tag::BA16a64b
                                                       : memory::format_tag::BA16a64b2a;
    return {{type.in, columns}, dnnl_type(type.format.dtype()), tag};
  }
  constexpr std::int64_t typical_rows = 16;
  const memory::desc source({typical_rows, type.in}, dnnl_type(type.format.dtype()),
                            memory::format_tag::ab);
  const memory::desc weights({type.in, columns}, dnnl_type(type.format.dtype()),
                             memory::format_tag::any);
  const memory::desc destination({typical_rows, columns}, memory::data_type::f32,
                                 memory::format_tag::ab);
  return dnnl::matmul::primitive_desc({source, weights, destination}, cpu_engine()).weights_desc();
}

/// A panel as it lies in W [out, in]: its columns one behind the other.
memory::desc plain_desc(const WeightType& type, std::int64_t columns) {
  return {{type.in, columns}, dnnl_type(type.format.dtype()), memory::format_tag::ba};
}

/// oneDNN's own exceptions as ours, with the shape in them. What it makes runs on one thread of its
/// own, wherever it is made: a pool's threads each call it.
template <typename Work>
auto with_onednn(const WeightType& type, Work&& work) {
  omp_set_num_threads(1);
  try {
    return work();
  } catch (const dnnl::error& error) {
    throw Error("oneDNN cannot multiply by a weight [{}, {}] in {}: {}; try --dtype f32", type.out,
                type.in, to_string(type.format.dtype()), error.what());
  }
}

}  // namespace

PlainLayout::PlainLayout(const WeightType& type) : type_(type), impl_(std::make_unique<Impl>()) {
  columns_ = choose_panel_columns(type.out);
  num_panels_ = (type.out + columns_ - 1) / columns_;
  with_onednn(type, [&] {
    const std::lock_guard creation(creation_mutex());
    const std::int64_t last_columns = panel_columns(num_panels_ - 1);
    impl_->full_panel = packed_desc(type, columns_);
    impl_->last_panel = packed_desc(type, last_columns);
    const auto packing = [](const memory::desc& plain, const memory::desc& packed) {
      return dnnl::reorder({cpu_engine(), plain, cpu_engine(), packed});
    };
    if (strip_arithmetic(type)) return;  // pack_strip() packs
    impl_->pack_full = packing(plain_desc(type, columns_), impl_->full_panel);
    impl_->pack_last = packing(plain_desc(type, last_columns), impl_->last_panel);
  });
  const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
  panel_bytes_ = aligned(impl_->full_panel.get_size());
  size_bytes_ = panel_offset_bytes(num_panels_ - 1) + aligned(impl_->last_panel.get_size());
}

PlainLayout::~PlainLayout() = default;

const PlainLayout& PlainLayout::get(const WeightType& type) {
  static std::mutex mutex;
  static std::map<std::tuple<std::int64_t, std::int64_t, DType>, std::unique_ptr<PlainLayout>>
      layouts;
  const std::lock_guard lock(mutex);
  std::unique_ptr<PlainLayout>& entry = layouts[{type.in, type.out, type.format.dtype()}];
  if (!entry) entry = std::make_unique<PlainLayout>(type);
  return *entry;
}

std::int64_t PlainLayout::panel_columns(std::int64_t panel) const {
  return std::min(columns_, type_.out - first_column(panel));
}

bool PlainLayout::pack_panel(std::int64_t panel, const void* rows, std::byte* packed) const {
  const std::int64_t columns = panel_columns(panel);
  if (const auto arithmetic = strip_arithmetic(type_)) {
    std::byte* to = packed + panel_offset_bytes(panel);
    bool finite = true;
    for (std::int64_t first = 0; first < columns; first += strip_columns) {
      const StripValues values =
          pack_strip({.dtype = type_.format.dtype(),
                      .rows = advance(rows, first * type_.in, type_.format.dtype()),
                      .columns = std::min(strip_columns, columns - first),
                      .depth = type_.in},
                     to, *arithmetic);
      to += strip_bytes(type_.in, type_.format.dtype());
      finite = finite && values == StripValues::finite;
    }
    return finite;
  }
  with_onednn(type_, [&] {
    const bool is_last = panel == num_panels_ - 1;
    memory from(plain_desc(type_, panel_columns(panel)), cpu_engine(), const_cast<void*>(rows));
    memory to(is_last ? impl_->last_panel : impl_->full_panel, cpu_engine(),
              packed + panel_offset_bytes(panel));
    dnnl::stream stream(cpu_engine());
    (is_last ? impl_->pack_last : impl_->pack_full).execute(stream, from, to);
    stream.wait();
  });
  return simd::find_not_finite(rows, columns * type_.in, type_.format.dtype()) < 0;
}

namespace {

PanelBlocks blocks_of(const WeightType& type, const memory::desc& desc) {
  const dnnl_memory_desc_t& data = desc.data;
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  if (data.format_kind != dnnl_blocked || blocking.inner_nblks > PanelBlocks::max_inner ||
      data.offset0 != 0 || data.extra.flags != dnnl_memory_extra_flag_none) {
    throw Error(
        "oneDNN packs a weight [{}, {}] in {} in a way of its own, which a GPU cannot read; "
        "expected "
        "blocks: keep this weight's sublayer on the CPU, or try another --dtype",
        type.out, type.in, to_string(type.format.dtype()));
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

PackedBlocks PlainLayout::blocks() const {
  return {.in = type_.in,
          .out = type_.out,
          .dtype = type_.format.dtype(),
          .num_panels = num_panels_,
          .panel_columns = columns_,
          .panel_elements =
              static_cast<std::int64_t>(panel_bytes_ / sluice::size_bytes(type_.format.dtype())),
          .full = blocks_of(type_, impl_->full_panel),
          .last = blocks_of(type_, impl_->last_panel)};
}

namespace {

/// Strips of a job, as long as each thread has jobs: where rows must be widened, or multiply faster
/// than the last-level cache gives them, it is done once for several.
std::int64_t strips_of_a_job(Bf16Arithmetic arithmetic, std::int64_t columns,
                             std::int64_t row_blocks, int num_threads) {
  if (arithmetic != Bf16Arithmetic::portable && arithmetic != Bf16Arithmetic::amx) return 1;
  return std::clamp<std::int64_t>(columns / strip_columns * row_blocks / (4 * num_threads), 1, 4);
}

/// Strips by our own kernel, or panels by the compiled GEMMs for full and last panels and blocks of
/// rows.
class PlainProduct final : public Product {
 public:
  PlainProduct(const ThreadPool& pool, const PlainLayout& layout, const ProductRows& rows)
      : PlainProduct(layout, rows, Cut(pool, layout, rows)) {}

  std::int64_t tile_stride(const Cell& cell) const override {
    return strips_ ? block_columns() : cell.num_columns;
  }

  void run(const Cell& cell, const std::byte* packed, float* tile) const override {
    const WeightType& type = layout_.type();
    const DType dtype = type.format.dtype();
    const void* rows = advance(rows_.x, cell.first_row * rows_.stride, dtype);
    if (!strips_) {
      const std::int64_t panel = cell.first_column / block_columns();
      return with_onednn(type, [&] {
        gemm_of(cell)->run(rows, packed + layout_.panel_offset_bytes(panel), tile);
      });
    }
    // Panels are whole strips, but for the last one, so all strips lie one behind the other.
    const std::int64_t first_strip = cell.first_column / strip_columns;
    const bool is_f32 = dtype == DType::f32;
    strip_gemm({.dtype = dtype,
                .rows = cell.num_rows,
                .depth = type.in,
                .a = is_f32 ? nullptr : static_cast<const std::uint16_t*>(rows),
                .wide_a = is_f32 ? static_cast<const float*>(rows) : nullptr,
                .a_stride = rows_.stride,
                .b = packed + static_cast<std::size_t>(first_strip) * strip_bytes(type.in, dtype),
                .strips = (cell.num_columns + strip_columns - 1) / strip_columns,
                .c = tile,
                .c_stride = block_columns(),
                .source = StripSource::memory,
                .arithmetic = *strips_,
                .schedule = schedule_});
  }

 private:
  /// How large its cells are: as wide as a panel, or as some strips where our own kernel computes.
  struct Cut {
    Cut(const ThreadPool& pool, const PlainLayout& layout, const ProductRows& rows)
        : strips(strip_arithmetic(layout.type())),
          block_rows(onednn_block_rows),
          block_columns(layout.panel_columns(0)) {
      if (!strips) return;
      const WeightType& type = layout.type();
      if (rows.groups.empty())
        schedule = gemm_schedule_of({.in = type.in,
                                     .out = type.out,
                                     .dtype = type.format.dtype(),
                                     .threads = pool.num_threads(),
                                     .groups = pool.num_groups()},
                                    rows.rows);
      block_rows = schedule.rows > 0 ? schedule.rows : strip_block_rows(*strips);
      if (schedule.strips == 0)
        schedule.strips = strips_of_a_job(*strips, type.out, count_row_blocks(rows, block_rows),
                                          pool.num_threads());
      block_columns = strip_columns * schedule.strips;
    }
    std::optional<Bf16Arithmetic> strips;
    GemmSchedule schedule;
    std::int64_t block_rows;
    std::int64_t block_columns;
  };

  PlainProduct(const PlainLayout& layout, const ProductRows& rows, const Cut& cut)
      : Product(rows, layout.type().out, cut.block_rows, cut.block_columns),
        layout_(layout),
        rows_(rows),
        strips_(cut.strips),
        schedule_(cut.schedule.strip) {
    if (strips_) return;
    const std::int64_t last_panel = layout.num_panels() - 1;
    const auto add = [&](std::int64_t num_rows, std::int64_t panel) {
      if (find_gemm(num_rows, panel == last_panel) != nullptr) return;
      gemms_.push_back({num_rows, panel == last_panel,
                        &layout.impl().gemm(layout.type(), num_rows, layout.panel_columns(panel),
                                            panel == last_panel, rows.stride)});
    };
    const RowRange all{0, rows.rows};
    for (const RowRange& range : rows.groups.empty() ? std::span(&all, 1) : rows.groups) {
      for (const std::int64_t panel : {std::int64_t{0}, last_panel}) {
        add(std::min(range.count, cut.block_rows), panel);
        add((range.count - 1) % cut.block_rows + 1, panel);
      }
    }
  }

  Gemm* find_gemm(std::int64_t num_rows, bool of_last_panel) const {
    const auto found = std::find_if(gemms_.begin(), gemms_.end(), [&](const MadeGemm& made) {
      return made.num_rows == num_rows && made.of_last_panel == of_last_panel;
    });
    return found == gemms_.end() ? nullptr : found->gemm;
  }
  Gemm* gemm_of(const Cell& cell) const {
    return find_gemm(cell.num_rows, cell.first_column + cell.num_columns == out());
  }

  const PlainLayout& layout_;
  ProductRows rows_;
  std::optional<Bf16Arithmetic> strips_;  ///< our own kernel's
  StripSchedule schedule_;                ///< likewise
  struct MadeGemm {
    std::int64_t num_rows;
    bool of_last_panel;
    Gemm* gemm;
  };
  std::vector<MadeGemm> gemms_;  ///< of each number of rows in a cell
};

/// As oneDNN's fast kernels take them: it multiplies rows that do not lie dense by its reference
/// kernel, a hundred times slower than copying them first. The copy is this thread's until its
/// next.
ProductRows rows_of(ThreadPool& pool, const WeightType& type, const ProductRows& rows) {
  if (rows.stride == type.in || strip_arithmetic(type)) return rows;
  thread_local Workspace copies;
  const std::size_t row_bytes = static_cast<std::size_t>(type.in) * size_bytes(rows.dtype);
  std::byte* dense = copies.reserve(static_cast<std::size_t>(rows.rows) * row_bytes);
  pool.run(rows.rows, [&](std::int64_t row) {
    std::memcpy(dense + static_cast<std::size_t>(row) * row_bytes,
                advance(rows.x, row * rows.stride, rows.dtype), row_bytes);
  });
  ProductRows copied = rows;
  copied.x = dense;
  copied.stride = type.in;
  return copied;
}

class PlainPacking final : public WeightPacking {
 public:
  std::size_t size_of(const WeightType& type) const override {
    return PlainLayout::get(type).size_bytes();
  }
  std::int64_t num_panels(const WeightType& type) const override {
    return PlainLayout::get(type).num_panels();
  }
  std::int64_t panel_columns(const WeightType& type) const override {
    return PlainLayout::get(type).panel_columns(0);
  }
  std::unique_ptr<Product> product(ThreadPool& pool, const WeightType& type,
                                   const ProductRows& rows) const override {
    if (rows.dtype != type.format.dtype())
      throw Error("a weight in {} multiplies rows in {}; expected the same type",
                  to_string(type.format), to_string(rows.dtype));
    return with_onednn(type, [&]() -> std::unique_ptr<Product> {
      return std::make_unique<PlainProduct>(pool, PlainLayout::get(type),
                                            rows_of(pool, type, rows));
    });
  }
};

}  // namespace

std::span<const StripKernel> gemm_kernels(const WeightType& type) {
  const std::optional<Bf16Arithmetic> arithmetic = strip_arithmetic(type);
  return arithmetic ? strip_kernels(type.format.dtype(), *arithmetic)
                    : std::span<const StripKernel>();
}

GemmSchedule own_gemm_schedule(const WeightType& type, std::int64_t rows, int num_threads) {
  const Bf16Arithmetic arithmetic = strip_arithmetic(type).value();
  const StripSchedule strip = own_strip_schedule(rows, arithmetic);
  const std::int64_t tile_rows = strip.tile.rows;
  const std::int64_t block_rows = strip_block_rows(arithmetic);
  const std::int64_t row_blocks = (rows + block_rows - 1) / block_rows;
  return {.strip = strip,
          .rows = std::min(block_rows, (rows + tile_rows - 1) / tile_rows * tile_rows),
          .strips = strips_of_a_job(arithmetic, type.out, row_blocks, num_threads)};
}

const WeightPacking& plain_packing() {
  static const PlainPacking packing;
  return packing;
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
