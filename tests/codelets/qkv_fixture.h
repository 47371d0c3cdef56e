#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codelets/qkv/qkv.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

struct QkvShape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  bool rope;
  NormKind norm;
  NormPlace norm_place;
  VectorChoice vectors;
  std::int64_t rotary_dim = 0;
};

inline std::ostream& operator<<(std::ostream& out, const QkvShape& shape) {
  return out << shape.name;
}

/// What an untouched element of the slab holds; exact in bf16.
constexpr float untouched = -96.0F;

class QkvFixture : public ::testing::TestWithParam<std::tuple<DType, QkvShape>> {
 protected:
  QkvFixture() : random_(31) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.num_heads = from.num_heads;
    shape.num_kv_heads = from.num_kv_heads;
    shape.head_dim = from.head_dim;
    shape.rope = from.rope;
    shape.rotary_dim = from.rotary_dim;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    vectors_ = make_vectors(random_, shape, from.vectors);
    args_.vectors = vectors_.layout;
    weight_ = make_weight(random_, shape.qkv_size(), shape.hidden_size, dtype);
    args_.weight = weight_.type;
    set_batch({{0, 20}, {37, 1}, {16, 1}, {15, 18}, {0, 1}, {200, 30}});
  }

  void set_batch(const std::vector<Part>& parts) {
    const DecoderShape& shape = args_.shape;
    batch_ = make_batch(random_, parts, 9);
    args_.tag.num_tokens = batch_.num_rows();
    x_ = random_.floats(batch_.num_rows() * shape.hidden_size, 3.0);
    rope_.clear();
    for (std::int64_t r = 0; shape.rope && r < batch_.num_rows(); ++r) {
      for (const bool is_cos : {true, false}) {
        for (std::int64_t i = 0; i < shape.rotated_dims() / 2; ++i) {
          const double angle = 0.1 * static_cast<double>(r) + 0.3 * static_cast<double>(i);
          rope_.push_back(static_cast<float>(is_cos ? std::cos(angle) : std::sin(angle)));
        }
      }
    }
    const auto elements = static_cast<std::size_t>(batch_.num_pages * shape.page_elements());
    slab_ = make_operand(std::vector<float>(elements, untouched), shape.dtype).memory;
    q_.resize(static_cast<std::size_t>(batch_.num_rows() * shape.q_size()) *
              size_bytes(shape.dtype));
  }

  QkvOperands operands() {
    return {.args = &args_,
            .batch = batch_.view(),
            .x = x_.data(),
            .rope = args_.shape.rope ? rope_.data() : nullptr,
            .vectors = vectors_.values.data(),
            .weight = weight_.weight(),
            .q = q_.data(),
            .slab = slab_.data()};
  }

  /// q, k and v of every row [rows, qkv_size], k and v from where the page table says they are;
  /// checks that the rest of the slab is as it was.
  std::vector<float> gather() {
    const DecoderShape& shape = args_.shape;
    const BatchView batch = batch_.view();
    const std::vector<float> q =
        to_floats(q_.data(), batch.num_rows() * shape.q_size(), shape.dtype);
    const std::int64_t elements = batch_.num_pages * shape.page_elements();
    std::vector<float> slab = to_floats(slab_.data(), elements, shape.dtype);
    std::vector<float> result;
    for (std::int64_t r = 0; r < batch.num_rows(); ++r) {
      result.insert(result.end(), q.begin() + r * shape.q_size(),
                    q.begin() + (r + 1) * shape.q_size());
      const BatchRow& row = batch.rows()[static_cast<std::size_t>(r)];
      const auto pages = batch.pages(batch.sequences()[static_cast<std::size_t>(row.sequence)]);
      const std::int64_t page = pages[static_cast<std::size_t>(row.position / page_tokens)];
      for (const std::int64_t half : {0, 1}) {
        for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
          for (std::int64_t i = 0; i < shape.head_dim; ++i) {
            const std::int64_t token = row.position % page_tokens;
            const std::int64_t at =
                page * shape.page_elements() +
                (half == 0 ? shape.k_index(head, token, i) : shape.v_index(head, token, i));
            result.push_back(std::exchange(slab[static_cast<std::size_t>(at)], untouched));
          }
        }
      }
    }
    EXPECT_EQ(slab, std::vector<float>(slab.size(), untouched)) << "someone else's KV was written";
    return result;
  }

  Random random_;
  QkvArgs args_;
  LayerVectors vectors_;
  RaggedBatch batch_;
  std::vector<float> x_, rope_;
  PackedWeight weight_;
  std::vector<std::byte> slab_, q_;
};

inline auto qkv_cases() {
  constexpr auto layer_norm = NormKind::layer_norm;
  constexpr auto rms_norm = NormKind::rms_norm;
  constexpr auto pre = NormPlace::pre;
  constexpr auto post = NormPlace::post;
  constexpr VectorChoice weight_only{.norm_weight = true};
  constexpr VectorChoice all_vectors{.norm_weight = true, .norm_bias = true, .linear_bias = true};
  constexpr VectorChoice no_vectors{.norm_weight = false};
  constexpr VectorChoice head_norms{.norm_weight = true, .head_norms = true};
  constexpr VectorChoice all_and_head_norms{
      .norm_weight = true, .norm_bias = true, .linear_bias = true, .head_norms = true};
  constexpr VectorChoice biases_only{.norm_weight = false, .linear_bias = true};

  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(
          QkvShape{"hidden_63_head_9", 63, 7, 7, 9, false, layer_norm, pre, all_vectors},
          QkvShape{"hidden_72_head_24_group_3", 72, 3, 1, 24, true, rms_norm, pre, weight_only},
          QkvShape{"hidden_72_head_28_group_3_biases", 72, 6, 2, 28, true, rms_norm, pre,
                   all_vectors},
          QkvShape{"hidden_200_head_64_group_4", 200, 4, 1, 64, true, rms_norm, pre, no_vectors},
          QkvShape{"hidden_200_head_80_post", 200, 2, 2, 80, false, layer_norm, post, all_vectors},
          QkvShape{"hidden_63_head_128_group_7", 63, 7, 1, 128, true, rms_norm, pre, biases_only},
          QkvShape{"hidden_72_head_128_group_2_head_norms", 72, 2, 1, 128, true, rms_norm, pre,
                   head_norms},
          QkvShape{"hidden_72_head_64_group_3_head_norms_no_rope", 72, 3, 1, 64, false, rms_norm,
                   pre, head_norms},
          QkvShape{"hidden_63_head_28_group_3_head_norms_biases", 63, 6, 2, 28, true, rms_norm, pre,
                   all_and_head_norms},
          QkvShape{"hidden_72_head_64_half_rotates_head_norms", 72, 4, 2, 64, true, rms_norm, pre,
                   head_norms, 32},
          QkvShape{"hidden_72_head_20_six_rotate", 72, 4, 1, 20, true, rms_norm, pre, weight_only,
                   6},
          QkvShape{"hidden_63_head_24_half_rotates_biases", 63, 6, 2, 24, true, rms_norm, pre,
                   all_and_head_norms, 12},
          QkvShape{"hidden_63_head_9_head_norms", 63, 5, 5, 9, false, layer_norm, pre,
                   all_and_head_norms},
          QkvShape{"hidden_200_head_9_post_no_affine", 200, 4, 4, 9, false, layer_norm, post,
                   no_vectors}));
}

template <typename ParamInfo>
std::string qkv_name(const ParamInfo& case_info) {
  return name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
}

}  // namespace sluice::test
