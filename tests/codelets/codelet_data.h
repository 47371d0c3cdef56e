#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/architecture.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "codelets/kernels/simd.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/shape.h"
#include "codelets/weights/weight.h"

namespace sluice {
struct CpuContext;
}

namespace sluice::test {

/// A pool of so many threads, on the machine's cores in turn; made once a size.
ThreadPool& pool_of(int threads);
/// What the codelets run with when they are called as plain functions: three threads.
CpuContext cpu();

/// Deterministic random numbers, the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits();
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// In [0, count).
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(count));
  }
  /// `count` values in [-scale, scale).
  std::vector<float> floats(std::int64_t count, double scale = 1.0);
  /// 0 .. count - 1 in random order.
  std::vector<std::int32_t> permutation(std::int64_t count);

 private:
  std::uint64_t state_;
};

/// bf16 bits, and the same values as floats.
struct Numbers {
  std::vector<std::uint16_t> bits;
  std::vector<float> values;

  Numbers(Random& random, std::int64_t count) {
    for (const float value : random.floats(count, 2.0)) {
      const BFloat16 rounded = to_bf16(value);
      bits.push_back(rounded.bits);
      values.push_back(to_float(rounded));
    }
  }
};

/// Values as a codelet reads them (f32, bf16 or f16), and the same values as floats, for references
/// that take those: both see what the rounding left.
struct Operand {
  std::vector<float> values;
  std::vector<std::byte> memory;
  DType dtype = DType::f32;
  const std::byte* data() const { return memory.data(); }
};
Operand make_operand(std::vector<float> values, DType dtype);
/// Elements of f32 or bf16 memory.
std::vector<float> to_floats(const void* data, std::int64_t count, DType dtype);
template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

inline std::span<const std::byte> memory_of(const Buffer& buffer) {
  return {buffer.data(), buffer.size()};
}

/// Of a weight [out, in] in f32 or bf16.
constexpr WeightType plain_type(std::int64_t in, std::int64_t out, DType dtype) {
  return {in, out, WeightFormat::plain(dtype)};
}
/// A weight [out, in], plain and packed for the CPU.
struct PackedWeight {
  WeightType type;
  Operand plain;
  Buffer packed;
  /// Where it is packed; nothing of one that was not made.
  Weight weight() const { return {type, packed.data()}; }
};
PackedWeight make_weight(Random& random, std::int64_t out, std::int64_t in, DType dtype);
/// `plain` [out, in] as PlainLayout wants it.
Buffer pack(const Operand& plain, std::int64_t out, std::int64_t in);

/// Which of the small vectors of a layer there are.
struct VectorChoice {
  bool norm_weight = true;
  bool norm_bias = false;
  bool linear_bias = false;
  bool head_norms = false;
};
/// A layer's vectors, with gaps between them, and where they lie.
struct LayerVectors {
  VectorLayout layout;
  std::vector<float> values;
};
LayerVectors make_vectors(Random& random, const DecoderShape& shape, const VectorChoice& choice);

/// One sequence of a ragged batch.
struct Part {
  std::int32_t context = 0;
  std::int32_t new_tokens = 1;
};
/// A batch over a shuffled page table; two pages of the slab belong to nobody.
struct RaggedBatch {
  std::vector<Part> parts;
  std::vector<std::int32_t> words;
  std::int64_t num_pages = 0;
  BatchView view() const { return BatchView(words.data()); }
  std::int64_t num_rows() const { return view().num_rows(); }
};
RaggedBatch make_batch(Random& random, const std::vector<Part>& parts, std::int64_t vocab_size,
                       BatchBuilder::LogitRows logits = BatchBuilder::LogitRows::last);

/// How far a result may lie from the reference: |result - reference| <= of_value |reference| +
/// of_largest max |reference|.
struct Tolerance {
  double of_value = 0;
  double of_largest = 0;
};
/// What a codelet does to its GEMM's input: uses it as it comes, or computes it (a norm, a
/// projection) and rounds it to the shape's dtype.
enum class GemmInput : std::uint8_t { exact, rounded };
/// The one statement of what is close enough. f32 arithmetic: 1e-5 of the largest, for sums of up
/// to a few thousand products (eps 6e-8, errors that grow as the square root of their number). A
/// result stored as bf16 is off by half its last place, at most 2^-8 of itself. An input rounded to
/// bf16 puts each product off by up to 2^-8 of itself; the errors are independent, so the sum's
/// stays within 2^-8 of the largest.
Tolerance tolerance(DType dtype, GemmInput input, DType stored_as);

/// Checks every element, and names the worst one.
void expect_close(const std::vector<float>& result, const std::vector<double>& reference,
                  const Tolerance& tolerance);

std::string to_string(NormKind kind);
/// "f32" and "bf16", for the names of parameterised tests.
std::string name_of(DType dtype);

}  // namespace sluice::test
