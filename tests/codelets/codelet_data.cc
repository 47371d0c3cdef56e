#include "tests/codelets/codelet_data.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>

#include "base/cpu.h"
#include "codelets/kernels/linear.h"
#include "codelets/runtime/runtime.h"
#include "codelets/weights/plain.h"

namespace sluice::test {

ThreadPool& pool_of(int threads) {
  static std::map<int, std::unique_ptr<ThreadPool>> pools;
  std::unique_ptr<ThreadPool>& pool = pools[threads];
  if (!pool) {
    const auto one_openmp_thread = [] { omp_set_num_threads(1); };
    one_openmp_thread();
    const std::vector<int> available = read_cpu_topology().cores;
    std::vector<int> cores(static_cast<std::size_t>(threads));
    for (std::size_t i = 0; i < cores.size(); ++i) cores[i] = available[i % available.size()];
    pool = std::make_unique<ThreadPool>(cores, one_openmp_thread);
  }
  return *pool;
}

CpuContext cpu() {
  static Workspace workspace;
  return {pool_of(3), workspace};
}

std::uint64_t Random::bits() {  // splitmix64
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::vector<float> Random::floats(std::int64_t count, double scale) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>((2 * uniform() - 1) * scale);
  return values;
}

std::vector<std::int32_t> Random::permutation(std::int64_t count) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = count - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(below(i + 1))]);
  }
  return order;
}

namespace {

/// A float that half can hold: 11 bits of mantissa, nothing below the normal halves.
std::uint16_t to_half_bits(float value) {
  int exponent = 0;
  const double fraction = std::frexp(std::abs(static_cast<double>(value)), &exponent);
  if (exponent <= -14) return 0;
  auto mantissa = static_cast<std::uint32_t>(std::lrint(std::ldexp(fraction, 11)));
  const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
  return static_cast<std::uint16_t>(sign + (static_cast<std::uint32_t>(exponent + 14) << 10) +
                                    mantissa - 1024U);
}

}  // namespace

Operand make_operand(std::vector<float> values, DType dtype) {
  Operand operand{std::move(values), {}, dtype};
  operand.memory.resize(operand.values.size() * size_bytes(dtype));
  for (std::size_t i = 0; i < operand.values.size(); ++i) {
    float& value = operand.values[i];
    if (dtype == DType::f32) {
      std::memcpy(operand.memory.data() + 4 * i, &value, 4);
      continue;
    }
    const std::uint16_t bits = dtype == DType::bf16 ? to_bf16(value).bits : to_half_bits(value);
    value = dtype == DType::bf16 ? to_float(BFloat16{bits}) : half_to_float(bits);
    std::memcpy(operand.memory.data() + 2 * i, &bits, 2);
  }
  return operand;
}

std::vector<float> to_floats(const void* data, std::int64_t count, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32) {
      values[i] = static_cast<const float*>(data)[i];
    } else {
      values[i] = to_float(static_cast<const BFloat16*>(data)[i]);
    }
  }
  return values;
}

Buffer pack(const Operand& plain, std::int64_t out, std::int64_t in) {
  const PlainLayout& layout = PlainLayout::get(plain_type(in, out, plain.dtype));
  Buffer packed(layout.size_bytes());
  for (std::int64_t panel = 0; panel < layout.num_panels(); ++panel) {
    const auto first = static_cast<std::size_t>(layout.first_column(panel) * in);
    layout.pack_panel(panel, plain.data() + first * size_bytes(plain.dtype), packed.data());
  }
  return packed;
}

PackedWeight make_weight(Random& random, std::int64_t out, std::int64_t in, DType dtype) {
  PackedWeight weight;
  weight.type = plain_type(in, out, dtype);
  const double scale = 1.7 / std::sqrt(static_cast<double>(in));  // outputs of about unit size
  weight.plain = make_operand(random.floats(out * in, scale), dtype);
  weight.packed = pack(weight.plain, out, in);
  return weight;
}

LayerVectors make_vectors(Random& random, const DecoderShape& shape, const VectorChoice& choice) {
  LayerVectors vectors;
  std::int64_t next = 3;
  const auto place = [&](bool present, std::int64_t& offset, std::int64_t count) {
    if (!present) return;
    offset = next;
    next += count + 1;
  };
  VectorLayout& layout = vectors.layout;
  place(choice.norm_weight, layout.attention_norm_weight, shape.hidden_size);
  place(choice.norm_bias, layout.attention_norm_bias, shape.hidden_size);
  place(choice.linear_bias, layout.qkv_bias, shape.qkv_size());
  place(choice.linear_bias, layout.out_bias, shape.hidden_size);
  place(choice.norm_weight, layout.ffn_norm_weight, shape.hidden_size);
  place(choice.norm_bias, layout.ffn_norm_bias, shape.hidden_size);
  place(choice.linear_bias && !shape.gated_ffn, layout.fc1_bias, shape.ffn_size);
  place(choice.linear_bias, layout.fc2_bias, shape.hidden_size);
  place(choice.head_norms, layout.q_norm_weight, shape.head_dim);
  place(choice.head_norms, layout.k_norm_weight, shape.head_dim);
  layout.num_elements = next;
  vectors.values = random.floats(next);
  return vectors;
}

RaggedBatch make_batch(Random& random, const std::vector<Part>& parts, std::int64_t vocab_size,
                       BatchBuilder::LogitRows logits) {
  RaggedBatch batch;
  batch.parts = parts;
  const auto pages_for = [](const Part& part) {
    return (part.context + part.new_tokens + page_tokens - 1) / page_tokens;
  };
  batch.num_pages = 2;
  for (const Part& part : parts) batch.num_pages += pages_for(part);
  const std::vector<std::int32_t> pages = random.permutation(batch.num_pages);

  BatchBuilder builder;
  std::size_t next = 0;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(parts[s].new_tokens));
    for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random.below(vocab_size));
    const auto count = static_cast<std::size_t>(pages_for(parts[s]));
    builder.add({.slot = static_cast<std::int32_t>(s),
                 .context = parts[s].context,
                 .fresh = parts[s].context == 0,
                 .tokens = tokens,
                 .pages = std::span(pages).subspan(next, count),
                 .sampling = {}},
                logits);
    next += count;
  }
  batch.words = builder.build();
  return batch;
}

Tolerance tolerance(DType dtype, GemmInput input, DType stored_as) {
  Tolerance result{.of_value = 0, .of_largest = 1e-5};
  if (stored_as == DType::bf16) result.of_value = 0x1p-8;
  if (dtype == DType::bf16 && input == GemmInput::rounded) result.of_largest += 0x1p-8;
  return result;
}

void expect_close(const std::vector<float>& result, const std::vector<double>& reference,
                  const Tolerance& tolerance) {
  ASSERT_EQ(result.size(), reference.size());
  ASSERT_FALSE(reference.empty());
  double largest = 0;
  for (const double value : reference) {
    ASSERT_TRUE(std::isfinite(value)) << "the reference itself is not finite";
    largest = std::max(largest, std::abs(value));
  }
  double worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double allowed =
        tolerance.of_value * std::abs(reference[i]) + tolerance.of_largest * largest;
    const double off = std::abs(static_cast<double>(result[i]) - reference[i]);
    const double ratio = off == 0 ? 0 : off / allowed;
    if (!(ratio <= worst)) {  // a NaN is the worst of all
      worst = ratio;
      at = i;
      if (std::isnan(ratio)) break;
    }
  }
  EXPECT_LE(worst, 1.0) << "element " << at << " of " << result.size() << " is " << result[at]
                        << ", the reference is " << reference[at] << ", the largest is " << largest;
}

std::string to_string(NormKind kind) {
  return kind == NormKind::layer_norm ? "layer_norm" : "rms_norm";
}

std::string name_of(DType dtype) { return std::string(sluice::to_string(dtype)); }

}  // namespace sluice::test
