#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "codelets/kernels/packed_blocks.h"
#include "codelets/kernels/simd.h"

namespace sluice {

/// A linear map y = x W^T with W [out, in]; `dtype` (f32 or bf16) is that of x and W.
struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  DType dtype = DType::bf16;
  bool operator==(const LinearShape&) const = default;
};

/// The CPU's layout of a weight: panels of output columns, each as oneDNN packs it on some CPU,
/// one behind the other. It depends on the shape and the CPU only, never on
/// the number of threads or rows.
class PackedLayout {
 public:
  /// Made once a shape; the reference stays valid.
  static const PackedLayout& get(const LinearShape& shape);

  const LinearShape& shape() const { return shape_; }
  std::int64_t num_panels() const { return num_panels_; }
  /// Output columns of one panel (the last may have fewer).
  std::int64_t panel_columns(std::int64_t panel) const;
  std::int64_t first_column(std::int64_t panel) const { return panel * columns_; }
  std::size_t panel_offset_bytes(std::int64_t panel) const {
    return static_cast<std::size_t>(panel) * panel_bytes_;
  }
  /// Size of the whole packed weight.
  std::size_t size_bytes() const { return size_bytes_; }

  /// Packs rows [first_column(panel), +panel_columns(panel)) of W. `rows` [panel_columns, in]
  /// row-major in `shape().dtype`; `packed` is the start of the whole packed weight. Returns
  /// whether all of them are finite.
  bool pack_panel(std::int64_t panel, const void* rows, std::byte* packed) const;

  /// Where each element lies. Throws Error when oneDNN chose a layout that is not made of blocks.
  PackedBlocks blocks() const;

  struct Impl;
  Impl& impl() const { return *impl_; }

  explicit PackedLayout(const LinearShape& shape);
  ~PackedLayout();
  PackedLayout(const PackedLayout&) = delete;
  PackedLayout& operator=(const PackedLayout&) = delete;

 private:
  LinearShape shape_;
  std::int64_t columns_ = 0;
  std::int64_t num_panels_ = 0;
  std::size_t panel_bytes_ = 0;
  std::size_t size_bytes_ = 0;
  std::unique_ptr<Impl> impl_;
};

/// One call of linear(): dst = epilogue(x W^T + bias).
struct LinearCall {
  const PackedLayout* layout = nullptr;
  const std::byte* packed = nullptr;
  const void* x = nullptr;  ///< [rows, in], the layout's dtype
  std::int64_t rows = 0;
  std::int64_t x_stride = 0;    ///< elements between rows of x; 0: in
  const float* bias = nullptr;  ///< [out], or null
  Epilogue epilogue = Epilogue::store;
  void* dst = nullptr;  ///< [rows, out]
  DType dst_dtype = DType::f32;
  std::int64_t dst_stride = 0;  ///< elements between rows of dst; 0: out
};

/// A row's result is the same bits whatever the other rows, their number and the number of threads.
/// Throws Error when oneDNN refuses.
void linear(ThreadPool& pool, const LinearCall& call);

/// The gated FFN's first half: dst = activation(x Wg^T + bg) * (x Wu^T + bu), both of one shape.
/// `activation` is one of relu, gelu, gelu_tanh, silu.
struct GatedLinearCall {
  const PackedLayout* layout = nullptr;
  const std::byte* packed_gate = nullptr;
  const std::byte* packed_up = nullptr;
  const void* x = nullptr;  ///< [rows, in]
  std::int64_t rows = 0;
  std::int64_t x_stride = 0;         ///< elements between rows of x; 0: in
  const float* gate_bias = nullptr;  ///< [out], or null
  const float* up_bias = nullptr;    ///< [out], or null
  Epilogue activation = Epilogue::silu;
  void* dst = nullptr;          ///< [rows, out], the layout's dtype
  std::int64_t dst_stride = 0;  ///< elements between rows of dst; 0: out
};
void gated_linear(ThreadPool& pool, const GatedLinearCall& call);

/// The instruction set that oneDNN uses on this CPU, e.g. "AVX-512 with bfloat16".
const char* onednn_isa_name();
/// "2.6.3"
std::string onednn_version();

}  // namespace sluice
