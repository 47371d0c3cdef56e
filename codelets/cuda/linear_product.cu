#include <cuda_fp16.h>

#include <algorithm>

#include "codelets/cuda/blas.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_finish.h"
#include "codelets/cuda/linear_product.h"
#include "codelets/cuda/neighbours.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/kernels/quantized/strip.h"

namespace sluice::cuda {
namespace {

/// Rounded to nearest even; what is too large becomes the largest half.
__device__ std::uint16_t to_half(float value) {
  constexpr float largest = 65504.0F;
  if (value > largest) value = largest;
  if (value < -largest) value = -largest;
  return __half_as_ushort(__float2half_rn(value));
}
__device__ std::uint16_t half_of_bf16(std::uint16_t bits) {
  return to_half(to_float(BFloat16{bits}));
}

/// An element as it lies in memory, or bf16 on its way to f16.
template <typename T>
__device__ T convert(T bits, bool to_f16) {
  if constexpr (sizeof(T) == 2) {
    if (to_f16) return half_of_bf16(bits);
  }
  return bits;
}

constexpr int square = 32;
constexpr int square_rows = 8;  ///< of threads

/// W [columns, stride] row-major from `first_column` on, zero beyond `in` and `out`, through
/// squares in shared memory: the packed side has neighbouring columns together, the plain side
/// neighbouring inputs. `stride` is at least `in`.
template <typename T>
__global__ void unpack_blocks(PackedBlocks blocks, const T* packed, std::int64_t first_column,
                              std::int64_t columns, T* plain, std::int64_t stride, bool to_f16) {
  __shared__ T values[square][square + 1];
  const std::int64_t k = std::int64_t{blockIdx.x} * square;
  const std::int64_t column = std::int64_t{blockIdx.y} * square;
  for (int i = static_cast<int>(threadIdx.y); i < square; i += square_rows) {
    const std::int64_t from = first_column + column + threadIdx.x;
    values[i][threadIdx.x] = k + i < blocks.in && from < blocks.out
                                 ? convert(packed[blocks.offset(k + i, from)], to_f16)
                                 : T{0};
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < square; i += square_rows) {
    if (column + i < columns && k + threadIdx.x < stride) {
      plain[(column + i) * stride + k + threadIdx.x] = values[threadIdx.x][i];
    }
  }
}

constexpr int piece_pairs = 64;  ///< of depth
constexpr int block_threads = 256;

/// The same for strips: one block takes 64 columns and 128 deep, in 16-byte loads, and writes lines
/// of 128 bytes. `stride` is at most the strips' depth.
__global__ void unpack_strips(const std::byte* packed, std::int64_t depth, std::int64_t first_strip,
                              std::uint32_t* plain, std::int64_t stride, bool to_f16) {
  __shared__ std::uint32_t words[strip_columns][piece_pairs + 1];
  constexpr int line_words = static_cast<int>(strip_columns) / 4;
  const std::int64_t pairs = depth / 2;
  const std::int64_t first_pair = std::int64_t{blockIdx.x} * piece_pairs;
  const std::int64_t strip = blockIdx.y;
  const Words* from = reinterpret_cast<const Words*>(packed) +
                      ((first_strip + strip) * pairs + first_pair) * line_words;
  for (int i = static_cast<int>(threadIdx.x); i < piece_pairs * line_words; i += block_threads) {
    const int pair = i / line_words;
    if (first_pair + pair >= pairs) break;
    const Words of_columns = load_streamed(from + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t word = of_columns.word[j];
      if (to_f16) {
        word = half_of_bf16(static_cast<std::uint16_t>(word)) |
               std::uint32_t{half_of_bf16(static_cast<std::uint16_t>(word >> 16))} << 16;
      }
      words[i % line_words * 4 + j][pair] = word;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < strip_columns * piece_pairs; i += block_threads) {
    const int pair = i % piece_pairs;
    const int column = i / piece_pairs;
    if (2 * (first_pair + pair) < stride) {
      plain[(strip * strip_columns + column) * (stride / 2) + first_pair + pair] =
          words[column][pair];
    }
  }
}

/// A number as the product's type has it.
__device__ void put_number(float value, bool /*to_f16*/, float* to) { *to = value; }
__device__ void put_number(float value, bool to_f16, std::uint16_t* to) {
  const std::uint16_t bits = to_bf16(value).bits;
  *to = to_f16 ? half_of_bf16(bits) : bits;
}

constexpr int unpacked_words = 4;  ///< of depth, eight inputs each, that a block takes

/// Strips of codes from `first_strip` on into rows of `stride` <= the strips' depth, zero from `in`
/// on. One thread for eight inputs of a column.
template <typename T>
__global__ void unpack_codes(quantized::StripLayout layout, WeightFormat format,
                             const std::byte* packed, std::int64_t in, std::int64_t first_strip,
                             T* plain, std::int64_t stride, bool to_f16) {
  const std::int64_t first = 8 * (std::int64_t{blockIdx.x} * unpacked_words + threadIdx.y);
  if (first >= stride) return;
  const std::int64_t column = threadIdx.x;
  const std::int64_t strip = blockIdx.y;
  const std::byte* from = packed + (first_strip + strip) * layout.size_bytes();
  const std::int64_t group = first / layout.group();
  const std::byte* codes =
      from + group * layout.group_bytes() + layout.code_bytes(first - group * layout.group());
  const auto scale_size = static_cast<std::int64_t>(size_bytes(format.scales));
  const std::byte* scale_at = from + layout.scales_offset(group) + column * scale_size;
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < scale_size; ++i)
    bits |= static_cast<std::uint32_t>(scale_at[i]) << (8 * i);
  const float scale = scale_to_float(format.scales, bits);
  const std::int32_t zero_point =
      format.has_zero_points
          ? static_cast<std::int32_t>(from[layout.zero_points_offset(group) + column])
          : default_zero_point(format.codes);
  const bool narrow = format.bits_per_code() == 4;
  T* to = plain + (strip * strip_columns + column) * stride + first;
  for (int i = 0; i < 8; ++i) {
    // Inputs 0 to 3 are low nibbles, or a word of bytes; 4 to 7 high ones, or the next word.
    const std::int64_t word = narrow ? 0 : i / 4 * strip_columns * 4;
    const auto byte = static_cast<std::uint8_t>(codes[word + column * 4 + i % 4]);
    const auto code = static_cast<std::uint8_t>(narrow ? (byte >> (i / 4 * 4)) & 15 : byte);
    const float value =
        first + i < in ? quantized::dequantize(format, code, zero_point, scale) : 0.0F;
    put_number(value, to_f16, to + i);
  }
}

/// x [rows, in] into rows `stride` apart, zero behind them; bf16 may become f16.
template <typename T>
__global__ void copy_rows(const T* x, std::int64_t x_stride, std::int64_t rows, std::int64_t in,
                          T* copy, std::int64_t stride, bool to_f16) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * stride) return;
  const std::int64_t k = i % stride;
  copy[i] = k < in ? convert(x[i / stride * x_stride + k], to_f16) : T{0};
}

/// How many rows are computed: piece by piece of the weight's columns, each unpacked, multiplied
/// and finished. Blas gets aligned rows and depths.
struct ProductPlan {
  DType dtype;         ///< of the product's operands
  std::int64_t depth;  ///< `in`, padded
  std::int64_t piece_columns;
  bool copies_x;
  bool straight;  ///< Blas writes dst
  WorkspaceLayout layout;
  std::size_t x = 0, y = 0, gate_y = 0;
  std::size_t weight = 0;  ///< of a gated pair, of one after the other

  ProductPlan(const Context& gpu, const LinearJob& job)
      : dtype(job.blocks.dtype == DType::bf16 && gpu.compute_capability < 80 ? DType::f16
                                                                             : job.blocks.dtype),
        depth(round_up(job.blocks.in, alignment)),
        piece_columns(choose_piece(job)),
        copies_x(dtype != job.blocks.dtype || depth != job.blocks.in || !is_aligned(job.x) ||
                 job.x_stride % alignment != 0),
        straight(is_straight(job)) {
    const auto elements = [](std::int64_t count, DType type) {
      return count * static_cast<std::int64_t>(size_bytes(type));
    };
    if (copies_x) x = layout.place<std::byte>(elements(job.rows * depth, dtype));
    weight = layout.place<std::byte>(elements(piece_columns * depth, dtype));
    if (!straight) y = layout.place<float>(job.rows * piece_columns);
    if (job.output.gated) gate_y = layout.place<float>(job.rows * piece_columns);
  }

  GemmEpilogue epilogue(const LinearJob& job) const {
    if (!straight) return GemmEpilogue::store;
    switch (job.output.epilogue) {
      case Epilogue::accumulate:
        return GemmEpilogue::accumulate;
      case Epilogue::relu:
        return GemmEpilogue::relu;
      default:
        return GemmEpilogue::store;
    }
  }
  /// Blas may add the bias; otherwise a kernel of ours does, after it.
  bool may_add_bias(const LinearJob& job) const {
    return job.output.bias != nullptr && dtype != DType::f32 && job.output.dtype == DType::f32 &&
           is_aligned(job.output.bias);
  }

 private:
  static constexpr std::int64_t alignment = 8;  ///< elements, 16 bytes at least

  /// Columns whose weight, and whose product, stay within some tens of megabytes: whole strips. As
  /// many as Blas needs to give every multiprocessor some, even where these make more of a weight
  /// that is deep, and no remainder of a few beyond.
  static std::int64_t choose_piece(const LinearJob& job) {
    const std::int64_t column_bytes =
        job.blocks.in * static_cast<std::int64_t>(size_bytes(job.blocks.dtype));
    const std::int64_t of_weight =
        std::max(piece_weight_bytes / column_bytes,
                 std::min(enough_piece_columns, most_piece_weight_bytes / column_bytes));
    const std::int64_t most = std::min(of_weight, piece_product_bytes / (4 * job.rows));
    const std::int64_t whole = most > enough_piece_columns ? enough_piece_columns : strip_columns;
    return std::clamp(most / whole * whole, strip_columns, round_up(job.blocks.out, strip_columns));
  }

  bool is_straight(const LinearJob& job) const {
    const LinearOutput& to = job.output;
    if (to.gated || job.blocks.out % alignment != 0 || to.stride % alignment != 0 ||
        !is_aligned(to.dst)) {
      return false;
    }
    if (to.dtype == DType::f32) {
      return to.epilogue == Epilogue::store || to.epilogue == Epilogue::accumulate;
    }
    // cuBLASLt's GELU may be of a fast tanh, some bf16 places off.
    return to.dtype == dtype && to.bias == nullptr &&
           (to.epilogue == Epilogue::store || to.epilogue == Epilogue::relu);
  }
};

class Product {
 public:
  Product(const Context& gpu, const LinearJob& job, std::byte* scratch)
      : gpu_(gpu), job_(job), plan_(gpu, job), scratch_(scratch) {}

  void run() const {
    if (plan_.copies_x) {
      if (plan_.dtype == DType::f32) {
        copy<float>();
      } else {
        copy<std::uint16_t>();
      }
    }
    const std::int64_t out = job_.blocks.out;
    for (std::int64_t first = 0; first < out; first += plan_.piece_columns) {
      run_piece(first, std::min(plan_.piece_columns, out - first));
    }
  }

 private:
  bool to_f16() const { return plan_.dtype == DType::f16 && job_.blocks.dtype == DType::bf16; }

  template <typename T>
  void copy() const {
    constexpr unsigned threads = 256;
    launch("copy_rows", copy_rows<T>,
           {.blocks = dim3(static_cast<unsigned>(divide_up(job_.rows * plan_.depth, threads))),
            .threads = dim3(threads)},
           gpu_.stream, static_cast<const T*>(job_.x), job_.x_stride, job_.rows, job_.blocks.in,
           reinterpret_cast<T*>(scratch_ + plan_.x), plan_.depth, to_f16());
  }

  void run_piece(std::int64_t first, std::int64_t columns) const {
    const LinearOutput to = job_.output.from_column(first);
    unpack(job_.weight, job_.format, job_.blocks, first, columns);
    // What is padded beyond the last column is computed too, in scratch memory only.
    const std::int64_t computed = plan_.straight ? columns : round_up(columns, 8);
    Gemm gemm{.rows = job_.rows,
              .in = plan_.depth,
              .out = computed,
              .dtype = plan_.dtype,
              .x = plan_.copies_x ? scratch_ + plan_.x : job_.x,
              .x_stride = plan_.copies_x ? plan_.depth : job_.x_stride,
              .weight = scratch_ + plan_.weight,
              .weight_stride = plan_.depth,
              .epilogue = plan_.epilogue(job_)};
    if (plan_.straight) {
      gemm.y = to.dst;
      gemm.y_dtype = to.dtype;
      gemm.y_stride = to.stride;
      if (plan_.may_add_bias(job_)) gemm.bias = to.bias;
      if (gpu_.blas->multiply(gemm, gpu_.stream) || to.bias == nullptr) return;
      LinearOutput add_bias = to;
      add_bias.epilogue = Epilogue::store;
      finish_linear(gpu_, {static_cast<const float*>(to.dst), nullptr, 1, 0, to.stride}, add_bias,
                    job_.rows, columns);
      return;
    }
    auto* y = reinterpret_cast<float*>(scratch_ + plan_.y);
    auto* gate_y = reinterpret_cast<float*>(scratch_ + plan_.gate_y);
    gemm.y = y;
    gemm.y_stride = plan_.piece_columns;
    gpu_.blas->multiply(gemm, gpu_.stream);
    if (job_.output.gated) {
      unpack(job_.gate, job_.gate_format, job_.gate_blocks, first, columns);
      gemm.y = gate_y;
      gpu_.blas->multiply(gemm, gpu_.stream);
    }
    finish_linear(gpu_, {y, gate_y, 1, 0, plan_.piece_columns}, to, job_.rows, columns);
  }

  /// `columns` columns of a packed weight from `first` on, a multiple of 64, into rows of
  /// plan_.depth; up to a multiple of 64 of them.
  void unpack(const std::byte* packed, const WeightFormat& format, const PackedBlocks& blocks,
              std::int64_t first, std::int64_t columns) const {
    const std::int64_t strips = divide_up(columns, strip_columns);
    std::byte* plain = scratch_ + plan_.weight;
    if (!format.is_plain()) {
      if (plan_.dtype == DType::f32) {
        unpack_codes_of<float>(packed, format, first, strips, plain);
      } else {
        unpack_codes_of<std::uint16_t>(packed, format, first, strips, plain);
      }
    } else if (blocks.is_strips()) {
      const std::int64_t depth = round_up(blocks.in, step_depth);
      launch("unpack_strips", unpack_strips,
             {.blocks = dim3(static_cast<unsigned>(divide_up(depth, 2 * piece_pairs)),
                             static_cast<unsigned>(strips)),
              .threads = dim3(block_threads)},
             gpu_.stream, packed, depth, first / strip_columns,
             reinterpret_cast<std::uint32_t*>(plain), plan_.depth, to_f16());
    } else if (plan_.dtype == DType::f32) {
      unpack_any<float>(packed, blocks, first, strips, plain);
    } else {
      unpack_any<std::uint16_t>(packed, blocks, first, strips, plain);
    }
  }

  template <typename T>
  void unpack_codes_of(const std::byte* packed, const WeightFormat& format, std::int64_t first,
                       std::int64_t strips, std::byte* plain) const {
    const quantized::StripLayout layout(format, job_.blocks.in);
    launch("unpack_codes", unpack_codes<T>,
           {.blocks = dim3(static_cast<unsigned>(divide_up(plan_.depth, 8 * unpacked_words)),
                           static_cast<unsigned>(strips)),
            .threads = dim3(static_cast<unsigned>(strip_columns), unpacked_words)},
           gpu_.stream, layout, format, packed, job_.blocks.in, first / strip_columns,
           reinterpret_cast<T*>(plain), plan_.depth, to_f16());
  }

  template <typename T>
  void unpack_any(const std::byte* packed, const PackedBlocks& blocks, std::int64_t first,
                  std::int64_t strips, std::byte* plain) const {
    const std::int64_t columns = strips * strip_columns;
    launch("unpack_blocks", unpack_blocks<T>,
           {.blocks = dim3(static_cast<unsigned>(divide_up(plan_.depth, square)),
                           static_cast<unsigned>(divide_up(columns, square))),
            .threads = dim3(square, square_rows)},
           gpu_.stream, blocks, reinterpret_cast<const T*>(packed), first, columns,
           reinterpret_cast<T*>(plain), plan_.depth, to_f16());
  }

  const Context& gpu_;
  const LinearJob& job_;
  ProductPlan plan_;
  std::byte* scratch_;
};
}  // namespace

std::size_t product_scratch_bytes(const Context& gpu, const LinearJob& job) {
  return ProductPlan(gpu, job).layout.bytes();
}

void run_product(const Context& gpu, const LinearJob& job, std::byte* scratch) {
  Product(gpu, job, scratch).run();
}

}  // namespace sluice::cuda
