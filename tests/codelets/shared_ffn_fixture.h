#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "codelets/shared_ffn/shared_ffn.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

struct SharedFfnShape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t shared_size;
  bool gated;
};

inline std::ostream& operator<<(std::ostream& out, const SharedFfnShape& shape) {
  return out << shape.name;
}

class SharedFfnFixture : public ::testing::TestWithParam<std::tuple<DType, SharedFfnShape>> {
 protected:
  static constexpr std::int64_t most_rows = 66;

  SharedFfnFixture() : random_(113) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.ffn_size = 3;  // an expert's, which is none of its business
    shape.gated_ffn = from.gated;
    if (from.gated) gate_ = make_weight(random_, from.shared_size, from.hidden_size, dtype);
    fc1_ = make_weight(random_, from.shared_size, from.hidden_size, dtype);
    fc2_ = make_weight(random_, from.hidden_size, from.shared_size, dtype);
    args_.gate = gate_.type;
    args_.fc1 = fc1_.type;
    args_.fc2 = fc2_.type;
    residual_ = random_.floats(most_rows * from.hidden_size, 3.0);
  }

  void set_rows(std::int64_t rows) {
    const std::int64_t hidden = args_.shape.hidden_size;
    const std::size_t element = size_bytes(args_.shape.dtype);
    const auto row_bytes =
        static_cast<std::size_t>(activation_stride(hidden, args_.shape.dtype)) * element;
    args_.tag.num_tokens = rows;
    x_.assign(residual_.begin(), residual_.begin() + rows * hidden);
    const Operand input = make_operand(random_.floats(rows * hidden, 2.0), args_.shape.dtype);
    normed_values_.assign(input.values.begin(), input.values.end());
    normed_.assign(static_cast<std::size_t>(rows) * row_bytes, std::byte{0});
    const std::size_t of_row = static_cast<std::size_t>(hidden) * element;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
      std::memcpy(normed_.data() + r * row_bytes, input.data() + r * of_row, of_row);
  }

  SharedFfnOperands operands() {
    return {.args = &args_,
            .normed = normed_.data(),
            .gate = gate_.weight(),
            .fc1 = fc1_.weight(),
            .fc2 = fc2_.weight(),
            .x = x_.data()};
  }

  std::vector<double> expected() const {
    std::vector<double> x(x_.begin(), x_.end());
    shared_ffn_reference(
        args_, normed_values_.data(),
        {gate_.plain.values.data(), fc1_.plain.values.data(), fc2_.plain.values.data()}, x.data());
    return x;
  }

  /// What lies between the two products is rounded.
  Tolerance close_enough() const {
    return tolerance(args_.shape.dtype, GemmInput::rounded, DType::f32);
  }

  Random random_;
  SharedFfnArgs args_;
  PackedWeight gate_, fc1_, fc2_;
  std::vector<double> normed_values_;
  std::vector<std::byte> normed_;
  std::vector<float> residual_, x_;
};

inline auto shared_ffn_cases() {
  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(SharedFfnShape{"hidden_64_shared_72", 64, 72, true},
                        SharedFfnShape{"hidden_63_shared_101", 63, 101, true},
                        SharedFfnShape{"hidden_200_shared_1000_plain", 200, 1000, false}));
}

template <typename ParamInfo>
std::string shared_ffn_name(const ParamInfo& case_info) {
  return name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
}

}  // namespace sluice::test
