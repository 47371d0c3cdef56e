#include "base/weight_format.h"

#include <array>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using Codes = WeightFormat::Codes;
using Scales = WeightFormat::Scales;

constexpr std::array groups = {0, 32, 64, 128};

[[noreturn]] void fail(std::string_view text) {
  throw Error(
      "{} is no format of weights; expected f32, bf16, int4-gN or int8-gN with a scale for N = 32, "
      "64 or 128 inputs (0: for all of a row; a z behind it: with zero points), mxfp4, fp8-b128 or "
      "fp8-row",
      quote(text));
}

}  // namespace

std::string to_string(const WeightFormat& format) {
  switch (format.codes) {
    case Codes::f32:
      return "f32";
    case Codes::bf16:
      return "bf16";
    case Codes::fp4:
      return "mxfp4";
    case Codes::fp8:
      return format.group == 0 ? "fp8-row" : fmt::format("fp8-b{}", format.group);
    default:
      return fmt::format("int{}-g{}{}", format.bits_per_code(), format.group,
                         format.has_zero_points ? "z" : "");
  }
}

WeightFormat parse_weight_format(std::string_view text) {
  if (text == "f32") return WeightFormat::plain(DType::f32);
  if (text == "bf16") return WeightFormat::plain(DType::bf16);
  if (text == "mxfp4") return {.codes = Codes::fp4, .scales = Scales::e8m0, .group = 32};
  if (text == "fp8-b128")
    return {.codes = Codes::fp8, .scales = Scales::f32, .group_rows = 128, .group = 128};
  if (text == "fp8-row") return {.codes = Codes::fp8, .scales = Scales::f32};
  WeightFormat format{.scales = Scales::f16};
  std::string_view rest = text;
  if (rest.starts_with("int4-g")) {
    format.codes = Codes::int4;
  } else if (rest.starts_with("int8-g")) {
    format.codes = Codes::int8;
  } else {
    fail(text);
  }
  rest.remove_prefix(6);
  if (rest.ends_with('z')) {
    format.has_zero_points = true;
    rest.remove_suffix(1);
  }
  for (const int group : groups) {
    if (rest != std::to_string(group)) continue;
    format.group = static_cast<std::uint16_t>(group);
    return format;
  }
  fail(text);
}

}  // namespace sluice
