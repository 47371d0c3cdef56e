#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "codelets/kernels/packed_blocks.h"
#include "codelets/kernels/strip_gemm.h"
#include "codelets/weights/gemm_schedules.h"
#include "codelets/weights/weight_packing.h"

namespace sluice {

/// The CPU's layout of a weight in f32 or bf16: panels of output columns, each as oneDNN packs it
/// on some CPU, one behind the other. It depends on the type and the CPU only, never on the number
/// of threads or rows.
class PlainLayout {
 public:
  /// Made once a type; the reference stays valid.
  static const PlainLayout& get(const WeightType& type);

  const WeightType& type() const { return type_; }
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
  /// row-major in the format's type; `packed` is the start of the whole packed weight. Returns
  /// whether all of them are finite.
  bool pack_panel(std::int64_t panel, const void* rows, std::byte* packed) const;

  /// Where each element lies. Throws Error when oneDNN chose a layout that is not made of blocks.
  PackedBlocks blocks() const;

  struct Impl;
  Impl& impl() const { return *impl_; }

  explicit PlainLayout(const WeightType& type);
  ~PlainLayout();
  PlainLayout(const PlainLayout&) = delete;
  PlainLayout& operator=(const PlainLayout&) = delete;

 private:
  WeightType type_;
  std::int64_t columns_ = 0;
  std::int64_t num_panels_ = 0;
  std::size_t panel_bytes_ = 0;
  std::size_t size_bytes_ = 0;
  std::unique_ptr<Impl> impl_;
};

/// The micro-kernels that products by a weight in f32 or bf16 may choose from; none where oneDNN
/// computes them.
std::span<const StripKernel> gemm_kernels(const WeightType& type);

/// What a product by such a weight, which has gemm_kernels(), takes where it follows no schedule:
/// all but how memory is fetched.
GemmSchedule own_gemm_schedule(const WeightType& type, std::int64_t rows, int num_threads);

/// Weights in f32 and bf16, by oneDNN and by our own strips.
const WeightPacking& plain_packing();

/// The instruction set that oneDNN uses on this CPU, e.g. "AVX-512 with bfloat16".
const char* onednn_isa_name();
/// "2.6.3"
std::string onednn_version();

}  // namespace sluice
