#include "models/quantized/quantize_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace sluice {
namespace {

using Codes = WeightFormat::Codes;

constexpr int num_factors = 19;
/// Multiples of the plain scale that are tried: 1.15, 1.125 ... 0.7.
constexpr float factor(int index) { return static_cast<float>(46 - index) / 40.0F; }

/// The whole number nearest to a small one, ties to even.
float round_small(float value) {
  constexpr float shift = 12582912.0F;  // 1.5 * 2^23: no fractions are left beside it
  return (value + shift) - shift;
}

/// A scale as it is stored, its value, and the zero point that goes with it.
struct Choice {
  std::uint32_t bits = 0;
  float scale = 0;
  float zero = 0;
};

/// The values that share a scale, and what is known of their format.
class Group {
 public:
  Group(const WeightFormat& format, std::span<const float> values)
      : format_(format), values_(values) {
    for (const float value : values) {
      lowest_ = std::min(lowest_, value);
      highest_ = std::max(highest_, value);
    }
    extreme_ = highest_ > -lowest_ ? highest_ : lowest_;
    // Of two of equal magnitude the first counts.
    if (highest_ == -lowest_) {
      const auto first = std::find_if(values.begin(), values.end(), [&](float value) {
        return value == highest_ || value == lowest_;
      });
      extreme_ = first == values.end() ? 0.0F : *first;
    }
  }

  /// What the rule gives, times `by`.
  Choice choose(float by) const {
    Choice choice;
    choice.bits = to_scale(format_.scales, plain_scale() * by);
    choice.scale = scale_to_float(format_.scales, choice.bits);
    if (format_.has_zero_points) {
      const float zero = choice.scale == 0 ? 0.0F : (lowest_ * by) / -choice.scale;
      choice.zero = round_small(std::clamp(zero, 0.0F, last_code()));
    } else {
      choice.zero = static_cast<float>(default_zero_point(format_.codes));
    }
    return choice;
  }

  void encode(const Choice& choice, std::uint8_t* codes) const {
    const std::size_t count = values_.size();
    if (choice.scale == 0) {
      std::fill_n(codes, count, static_cast<std::uint8_t>(choice.zero));
    } else if (format_.codes == Codes::fp8) {
      for (std::size_t i = 0; i < count; ++i) codes[i] = to_fp8(values_[i] / choice.scale);
    } else {
      const float low = -choice.zero;
      const float high = last_code() - choice.zero;
      for (std::size_t i = 0; i < count; ++i) {
        const float value = std::clamp(values_[i] / choice.scale, low, high);
        codes[i] =
            static_cast<std::uint8_t>(static_cast<std::int32_t>(round_small(value) + choice.zero));
      }
    }
  }

  /// The squared error of a choice.
  double error(const Choice& choice) const {
    if (choice.scale == 0) {
      return sum_errors(choice.scale, [](float /*value*/) { return 0.0F; });
    }
    const float scale = choice.scale;
    if (format_.codes == Codes::fp8)
      return sum_errors(scale, [=](float value) { return fp8_to_float(to_fp8(value / scale)); });
    const float low = -choice.zero;
    const float high = last_code() - choice.zero;
    return sum_errors(
        scale, [=](float value) { return round_small(std::clamp(value / scale, low, high)); });
  }

 private:
  /// Summed in eight lanes, so that it has the same bits on every CPU: each difference is rounded
  /// to a float, whose square a double holds exactly.
  template <typename CodeValue>
  double sum_errors(float scale, CodeValue code_value) const {
    constexpr std::size_t num_lanes = 8;
    std::array<double, num_lanes> lanes = {};
    const auto add = [&](std::size_t i, std::size_t lane) {
      const double near = double{code_value(values_[i])} * double{scale};
      const auto difference = static_cast<float>(double{values_[i]} - near);
      lanes[lane] += double{difference} * double{difference};
    };
    const std::size_t whole = values_.size() / num_lanes * num_lanes;
    for (std::size_t first = 0; first < whole; first += num_lanes) {
      for (std::size_t k = 0; k < num_lanes; ++k) add(first + k, k);
    }
    for (std::size_t i = whole; i < values_.size(); ++i) add(i, i - whole);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }
  float last_code() const { return format_.codes == Codes::int4 ? 15.0F : 255.0F; }
  float plain_scale() const {
    if (format_.codes == Codes::fp8) return std::abs(extreme_) / 448.0F;
    if (format_.has_zero_points) return (highest_ - lowest_) / last_code();
    return format_.codes == Codes::int4 ? extreme_ / -8.0F : std::abs(extreme_) / 127.0F;
  }

  const WeightFormat& format_;
  std::span<const float> values_;
  float lowest_ = 0;   ///< of these and 0
  float highest_ = 0;  ///< likewise
  float extreme_ = 0;  ///< the one of largest magnitude, with its sign
};

Choice best_choice(const Group& group, ScaleSearch search) {
  Choice best = group.choose(1.0F);
  if (search == ScaleSearch::none) return best;
  double least = group.error(best);
  for (int index = 0; index < num_factors && least > 0; ++index) {
    const Choice choice = group.choose(factor(index));
    if (!std::isfinite(choice.scale)) continue;
    const double error = group.error(choice);
    if (error >= least) continue;
    least = error;
    best = choice;
  }
  return best;
}

void check_values(std::int64_t in, std::span<const float> rows, std::int64_t first_row) {
  const auto bad =
      std::find_if(rows.begin(), rows.end(), [](float value) { return !std::isfinite(value); });
  if (bad == rows.end()) return;
  const std::int64_t at = bad - rows.begin();
  throw Error("row {}, input {} is {}, expected a finite number", first_row + at / in, at % in,
              *bad);
}

}  // namespace

void check_quantizes_to(const WeightFormat& format) {
  const bool is_int = format.codes == Codes::int4 || format.codes == Codes::int8;
  if (is_int || format.codes == Codes::fp8) return;
  throw Error("weights are not quantised to {}; expected int4-gN, int8-gN, fp8-b128 or fp8-row",
              to_string(format));
}

void quantize_rows(const WeightFormat& format, std::int64_t in, std::span<const float> rows,
                   ScaleSearch search, CodedRows& out, std::int64_t first_row) {
  check_quantizes_to(format);
  check_values(in, rows, first_row);
  const std::int64_t num_rows = static_cast<std::int64_t>(rows.size()) / in;
  const std::int64_t num_groups = format.num_groups(in);
  const std::int64_t group_size = format.group == 0 ? in : format.group;
  out.resize(format, num_rows, in);
  std::vector<float> values;
  std::vector<std::uint8_t> codes;
  for (std::int64_t row = 0; row < num_rows; row += format.group_rows) {
    const std::int64_t last_row = std::min(num_rows, row + format.group_rows);
    for (std::int64_t g = 0; g < num_groups; ++g) {
      const std::int64_t first = g * group_size;
      const std::int64_t width = std::min(group_size, in - first);
      values.clear();
      for (std::int64_t r = row; r < last_row; ++r) {
        const auto from = rows.begin() + r * in + first;
        values.insert(values.end(), from, from + width);
      }
      const Group group(format, values);
      const Choice choice = best_choice(group, search);
      if (!std::isfinite(choice.scale)) {
        throw Error(
            "row {}, group {}: its values need a scale beyond what type {} holds; leave this "
            "weight plain",
            first_row + row, g, to_string(format.scales));
      }
      codes.resize(values.size());
      group.encode(choice, codes.data());
      for (std::int64_t r = row; r < last_row; ++r) {
        std::copy_n(codes.begin() + (r - row) * width, width, out.codes.begin() + r * in + first);
        const auto of_group = static_cast<std::size_t>(r * num_groups + g);
        out.scales[of_group] = choice.bits;
        if (format.has_zero_points)
          out.zero_points[of_group] = static_cast<std::uint8_t>(choice.zero);
      }
    }
  }
}

double squared_error(const WeightFormat& format, std::int64_t in, std::span<const float> rows,
                     const CodedRows& coded) {
  std::vector<float> values(rows.size());
  dequantize(format, in, coded, values);
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double difference = double{rows[i]} - double{values[i]};
    sum += difference * difference;
  }
  return sum;
}

}  // namespace sluice
