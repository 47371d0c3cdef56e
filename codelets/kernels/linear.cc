#include "codelets/kernels/linear.h"

#include <dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <tuple>

#include "base/error.h"
#include "base/memory.h"

namespace sluice {
namespace {

using dnnl::memory;

/// Rows that one oneDNN call computes: enough to reuse a panel in cache, few enough that many calls
/// can be dealt out to threads.
constexpr std::int64_t block_rows = 64;

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

struct CallKey {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t row_stride;  ///< of dst, and of the operand where there is one
  std::int64_t operand_stride;
  DType dst_dtype;
  Epilogue epilogue;
  bool bias;
  auto operator<=>(const CallKey&) const = default;
};

/// A compiled GEMM, and for each thread the memory objects that it is called with.
class Gemm {
 public:
  Gemm(const LinearShape& shape, const memory::desc& weights, const CallKey& key)
      : primitive_(describe(shape, weights, key)) {
    const auto& description = primitive_.get_primitive_desc();
    dnnl::matmul::primitive_desc typed(const_cast<dnnl_primitive_desc_t>(description));
    scratch_ = typed.scratchpad_desc();
    weights_ = typed.weights_desc();
    source_ = typed.src_desc();
    destination_ = typed.dst_desc();
    bias_ = key.bias;
    columns_ = key.columns;
    operand_ = key.epilogue == Epilogue::multiply;
    operand_stride_ = key.operand_stride;
    rows_ = key.rows;
  }

  void run(const void* x, const std::byte* weights, const float* bias, const void* operand,
           void* dst) {
    Thread& thread = for_this_thread();
    const auto point = [](memory& object, const void* data) {
      dnnl_memory_set_data_handle(object.get(), const_cast<void*>(data));
    };
    std::array<dnnl_exec_arg_t, 6> arguments{};
    int count = 0;
    const auto pass = [&](int which, memory& object, const void* data) {
      point(object, data);
      arguments.at(static_cast<std::size_t>(count++)) = {which, object.get()};
    };
    pass(DNNL_ARG_SRC, thread.source, x);
    pass(DNNL_ARG_WEIGHTS, thread.weights, weights);
    pass(DNNL_ARG_DST, thread.destination, dst);
    if (scratch_.get_size() != 0)
      pass(DNNL_ARG_SCRATCHPAD, thread.scratch, thread.scratch_memory.data());
    if (bias_) pass(DNNL_ARG_BIAS, thread.bias, bias);
    if (operand_) pass(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, thread.operand, operand);
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
    memory source, weights, destination, bias, operand, scratch;
    Workspace scratch_memory_owner;
    std::span<std::byte> scratch_memory;
  };

  static dnnl::matmul describe(const LinearShape& shape, const memory::desc& weights,
                               const CallKey& key) {
    const memory::desc source({key.rows, shape.in}, dnnl_type(shape.dtype), memory::format_tag::ab);
    const memory::desc destination({key.rows, key.columns}, dnnl_type(key.dst_dtype),
                                   memory::dims{key.row_stride, 1});
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    attributes.set_post_ops(post_ops(key));
    if (!key.bias) {
      return dnnl::matmul(
          {dnnl::matmul::desc(source, weights, destination), attributes, cpu_engine()});
    }
    const memory::desc bias({1, key.columns}, memory::data_type::f32, memory::format_tag::ab);
    return dnnl::matmul(
        {dnnl::matmul::desc(source, weights, bias, destination), attributes, cpu_engine()});
  }

  static dnnl::post_ops post_ops(const CallKey& key) {
    dnnl::post_ops ops;
    switch (key.epilogue) {
      case Epilogue::store:
        break;
      case Epilogue::accumulate:
        ops.append_sum(1.0F);
        break;
      case Epilogue::relu:
        ops.append_eltwise(1.0F, dnnl::algorithm::eltwise_relu, 0.0F, 0.0F);
        break;
      case Epilogue::gelu:
        ops.append_eltwise(1.0F, dnnl::algorithm::eltwise_gelu_erf, 0.0F, 0.0F);
        break;
      case Epilogue::gelu_tanh:
        ops.append_eltwise(1.0F, dnnl::algorithm::eltwise_gelu_tanh, 0.0F, 0.0F);
        break;
      case Epilogue::silu:
        ops.append_eltwise(1.0F, dnnl::algorithm::eltwise_swish, 1.0F, 0.0F);
        break;
      case Epilogue::multiply:
        ops.append_binary(dnnl::algorithm::binary_mul, operand_desc(key));
        break;
    }
    return ops;
  }

  static memory::desc operand_desc(const CallKey& key) {
    return {{key.rows, key.columns}, memory::data_type::f32, memory::dims{key.operand_stride, 1}};
  }

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
    made->destination = memory(destination_, engine, nullptr);
    if (bias_) {
      made->bias =
          memory({{1, columns_}, memory::data_type::f32, memory::format_tag::ab}, engine, nullptr);
    }
    if (operand_) {
      made->operand =
          memory({{rows_, columns_}, memory::data_type::f32, memory::dims{operand_stride_, 1}},
                 engine, nullptr);
    }
    made->scratch = memory(scratch_, engine, nullptr);
    made->scratch_memory = {made->scratch_memory_owner.reserve(scratch_.get_size()),
                            scratch_.get_size()};
    Thread& result = *made;
    const std::lock_guard lock(owned_mutex_);
    owned_.push_back(std::move(made));
    threads_[index].store(&result, std::memory_order_release);
    return result;
  }

  dnnl::matmul primitive_;
  memory::desc source_, weights_, destination_, scratch_;
  std::int64_t rows_ = 0;
  std::int64_t columns_ = 0;
  std::int64_t operand_stride_ = 0;
  bool bias_ = false;
  bool operand_ = false;
  std::array<std::atomic<Thread*>, ThreadPool::max_threads> threads_{};
  std::mutex owned_mutex_;
  std::vector<std::unique_ptr<Thread>> owned_;
};

}  // namespace

struct PackedLayout::Impl {
  memory::desc full_panel;  ///< [in, columns]
  memory::desc last_panel;  ///< [in, columns of the last panel]

  Gemm& gemm(const LinearShape& shape, const CallKey& key, bool is_last_panel) {
    {
      const std::shared_lock lock(mutex);
      if (const auto found = gemms.find(key); found != gemms.end()) return *found->second;
    }
    const std::lock_guard lock(mutex);
    std::unique_ptr<Gemm>& entry = gemms[key];
    if (!entry) entry = std::make_unique<Gemm>(shape, is_last_panel ? last_panel : full_panel, key);
    return *entry;
  }

 private:
  std::shared_mutex mutex;
  std::map<CallKey, std::unique_ptr<Gemm>> gemms;
};

namespace {

/// The layout oneDNN likes best for a weight panel. One layout serves every number of rows.
memory::desc packed_desc(const LinearShape& shape, std::int64_t columns) {
  constexpr std::int64_t typical_rows = 16;
  const memory::desc source({typical_rows, shape.in}, dnnl_type(shape.dtype),
                            memory::format_tag::ab);
  const memory::desc weights({shape.in, columns}, dnnl_type(shape.dtype), memory::format_tag::any);
  const memory::desc destination({typical_rows, columns}, memory::data_type::f32,
                                 memory::format_tag::ab);
  return dnnl::matmul::primitive_desc({source, weights, destination}, cpu_engine()).weights_desc();
}

/// oneDNN's own exceptions as ours, with the shape in them.
template <typename Work>
auto with_onednn(const LinearShape& shape, Work&& work) {
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
    impl_->full_panel = packed_desc(shape, columns_);
    impl_->last_panel = packed_desc(shape, panel_columns(num_panels_ - 1));
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

void PackedLayout::pack_panel(std::int64_t panel, const void* rows, std::byte* packed) const {
  with_onednn(shape_, [&] {
    const std::int64_t columns = panel_columns(panel);
    const memory::desc plain({shape_.in, columns}, dnnl_type(shape_.dtype), memory::format_tag::ba);
    memory from(plain, cpu_engine(), const_cast<void*>(rows));
    memory to(panel == num_panels_ - 1 ? impl_->last_panel : impl_->full_panel, cpu_engine(),
              packed + panel_offset_bytes(panel));
    dnnl::stream stream(cpu_engine());
    dnnl::reorder(from, to).execute(stream, from, to);
    stream.wait();
  });
}

namespace {

/// The grid of (panel, block of rows) that a call is cut into; each cell is one job.
struct Grid {
  const PackedLayout& layout;
  std::int64_t rows;
  std::int64_t num_blocks() const { return (rows + block_rows - 1) / block_rows; }
  std::int64_t num_jobs() const { return layout.num_panels() * num_blocks(); }

  struct Cell {
    std::int64_t panel, first_row, num_rows, first_column, num_columns;
  };
  Cell cell(std::int64_t job) const {
    const std::int64_t panel = job / num_blocks();
    const std::int64_t first_row = job % num_blocks() * block_rows;
    return {panel, first_row, std::min(block_rows, rows - first_row), layout.first_column(panel),
            layout.panel_columns(panel)};
  }
};

/// The compiled GEMMs of a call: for full and last panels, for full and last blocks of rows.
class GemmSet {
 public:
  GemmSet(const Grid& grid, CallKey key) : grid_(grid), compact_(key.row_stride == 0) {
    for (const bool last_panel : {false, true}) {
      for (const bool last_block : {false, true}) {
        const std::int64_t panel = last_panel ? grid.layout.num_panels() - 1 : 0;
        const std::int64_t block = last_block ? grid.num_blocks() - 1 : 0;
        const Grid::Cell cell = grid.cell(panel * grid.num_blocks() + block);
        key.rows = cell.num_rows;
        key.columns = cell.num_columns;
        if (compact_) key.row_stride = cell.num_columns;
        if (key.epilogue == Epilogue::multiply) key.operand_stride = cell.num_columns;
        const bool is_last = panel == grid.layout.num_panels() - 1;
        gemms_[last_panel ? 1 : 0][last_block ? 1 : 0] =
            &const_cast<PackedLayout::Impl&>(grid.layout.impl())
                 .gemm(grid.layout.shape(), key, is_last);
      }
    }
  }
  Gemm& operator[](const Grid::Cell& cell) const {
    const bool last_panel = cell.panel == grid_.layout.num_panels() - 1;
    const bool last_block = cell.first_row + cell.num_rows == grid_.rows;
    return *gemms_[last_panel ? 1 : 0][last_block ? 1 : 0];
  }

 private:
  const Grid& grid_;
  bool compact_;  ///< dst is a scratch tile, not a matrix of the full width
  std::array<std::array<Gemm*, 2>, 2> gemms_{};
};

const std::byte* advance(const void* base, std::int64_t elements, DType dtype) {
  return static_cast<const std::byte*>(base) +
         static_cast<std::size_t>(elements) * size_bytes(dtype);
}

}  // namespace

void linear(ThreadPool& pool, const LinearCall& call) {
  if (call.rows == 0) return;
  const PackedLayout& layout = *call.layout;
  const LinearShape& shape = layout.shape();
  with_onednn(shape, [&] {
    const Grid grid{layout, call.rows};
    const GemmSet gemms(grid, {.rows = 0,
                               .columns = 0,
                               .row_stride = shape.out,
                               .operand_stride = 0,
                               .dst_dtype = call.dst_dtype,
                               .epilogue = call.epilogue,
                               .bias = call.bias != nullptr});
    pool.run(grid.num_jobs(), [&](std::int64_t job) {
      const Grid::Cell cell = grid.cell(job);
      gemms[cell].run(
          advance(call.x, cell.first_row * shape.in, shape.dtype),
          call.packed + layout.panel_offset_bytes(cell.panel),
          call.bias == nullptr ? nullptr : call.bias + cell.first_column, nullptr,
          const_cast<std::byte*>(
              advance(call.dst, cell.first_row * shape.out + cell.first_column, call.dst_dtype)));
    });
  });
}

void gated_linear(ThreadPool& pool, const GatedLinearCall& call) {
  if (call.rows == 0) return;
  const PackedLayout& layout = *call.layout;
  const LinearShape& shape = layout.shape();
  with_onednn(shape, [&] {
    const Grid grid{layout, call.rows};
    CallKey key{.rows = 0,
                .columns = 0,
                .row_stride = 0,
                .operand_stride = 0,
                .dst_dtype = DType::f32,
                .epilogue = call.activation,
                .bias = false};
    const GemmSet gates(grid, key);
    key.row_stride = shape.out;
    key.dst_dtype = shape.dtype;
    key.epilogue = Epilogue::multiply;
    const GemmSet ups(grid, key);
    pool.run(grid.num_jobs(), [&](std::int64_t job) {
      thread_local Workspace gate_tile;
      const Grid::Cell cell = grid.cell(job);
      const std::size_t offset = layout.panel_offset_bytes(cell.panel);
      const std::byte* x = advance(call.x, cell.first_row * shape.in, shape.dtype);
      std::byte* gate = gate_tile.reserve(
          static_cast<std::size_t>(cell.num_rows * cell.num_columns) * sizeof(float));
      gates[cell].run(x, call.packed_gate + offset, nullptr, nullptr, gate);
      ups[cell].run(x, call.packed_up + offset, nullptr, gate,
                    const_cast<std::byte*>(advance(
                        call.dst, cell.first_row * shape.out + cell.first_column, shape.dtype)));
    });
  });
}

const char* onednn_isa_name() {
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      return "SSE4.1";
    case dnnl_cpu_isa_avx:
      return "AVX";
    case dnnl_cpu_isa_avx2:
      return "AVX2";
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

bool onednn_has_fast_bf16() {
  const dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
  return (isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

}  // namespace sluice
