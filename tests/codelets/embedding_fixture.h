#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codelets/embedding/embedding.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

struct EmbeddingShape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t embed_size;
  std::int64_t head_dim;  ///< 0: no rotary embedding
  DType table_dtype;
  bool learned_positions;
};

inline std::ostream& operator<<(std::ostream& out, const EmbeddingShape& shape) {
  return out << shape.name;
}

class EmbeddingFixture : public ::testing::TestWithParam<std::tuple<DType, EmbeddingShape>> {
 protected:
  static constexpr std::int64_t vocab_size = 131;
  static constexpr std::int64_t position_offset = 2;

  EmbeddingFixture() : random_(21) {
    const auto& [dtype, shape] = GetParam();
    args_.shape.dtype = dtype;
    args_.shape.hidden_size = shape.hidden_size;
    args_.shape.head_dim = shape.head_dim;
    args_.shape.rope = shape.head_dim > 0;
    args_.rope_attention_factor = 1.25F;
    args_.vocab_size = vocab_size;
    args_.embed_size = shape.embed_size;
    args_.table_dtype = shape.table_dtype;
    args_.position_dtype = shape.table_dtype;
    args_.position_offset = position_offset;
    args_.learned_positions = shape.learned_positions;
    args_.position_rows = 120 + position_offset;
    args_.project_in = shape.embed_size != shape.hidden_size;

    const std::vector<Part> parts = {{0, 7}, {113, 1}, {5, 1}, {30, 40}, {0, 1}, {64, 3}};
    batch_ = make_batch(random_, parts, vocab_size);
    args_.tag.num_tokens = batch_.num_rows();
    table_ = make_operand(random_.floats(vocab_size * shape.embed_size), shape.table_dtype);
    if (args_.learned_positions) {
      positions_ = make_operand(random_.floats((120 + position_offset) * shape.hidden_size),
                                shape.table_dtype);
    }
    if (args_.project_in) {
      project_in_ = make_weight(random_, shape.hidden_size, shape.embed_size, dtype);
      args_.projection = project_in_.type;
    }
    for (std::int64_t i = 0; i < shape.head_dim / 2; ++i) {
      frequencies_.push_back(static_cast<float>(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim))));
    }
    // Some rows take the token that their slot drew last.
    auto* rows = const_cast<BatchRow*>(batch_.view().rows().data());
    slot_tokens_ = {3, 77, 130, 0, 9, 1};
    rows[7].token = -2;
    rows[8].token = -3;
    x_.resize(static_cast<std::size_t>(batch_.num_rows() * shape.hidden_size));
    rope_.resize(static_cast<std::size_t>(batch_.num_rows() * shape.head_dim));
  }

  EmbeddingOperands operands() {
    return {.args = &args_,
            .batch = batch_.view(),
            .slot_tokens = slot_tokens_.data(),
            .table = table_.data(),
            .positions = args_.learned_positions ? positions_.data() : nullptr,
            .project_in = project_in_.weight(),
            .frequencies = args_.shape.rope ? frequencies_.data() : nullptr,
            .x = x_.data(),
            .rope = args_.shape.rope ? rope_.data() : nullptr};
  }

  Random random_;
  EmbeddingArgs args_;
  RaggedBatch batch_;
  Operand table_, positions_;
  PackedWeight project_in_;
  std::vector<float> frequencies_;
  std::vector<std::int32_t> slot_tokens_;
  std::vector<float> x_, rope_;
};

inline auto embedding_cases() {
  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(
          EmbeddingShape{"rope_72_table_bf16", 72, 72, 24, DType::bf16, false},
          EmbeddingShape{"rope_200_table_f32", 200, 200, 128, DType::f32, false},
          EmbeddingShape{"learned_63_table_f16", 63, 63, 0, DType::f16, true},
          EmbeddingShape{"learned_200_table_bf16", 200, 200, 0, DType::bf16, true},
          EmbeddingShape{"projected_72_from_63_table_bf16", 72, 63, 0, DType::bf16, true},
          EmbeddingShape{"projected_72_from_64_table_bf16", 72, 64, 0, DType::bf16, true},
          EmbeddingShape{"projected_63_from_129_table_f16", 63, 129, 0, DType::f16, true},
          EmbeddingShape{"projected_200_from_5_table_f32", 200, 5, 28, DType::f32, false}));
}

template <typename ParamInfo>
std::string embedding_name(const ParamInfo& case_info) {
  return name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
}

}  // namespace sluice::test
