#include "models/quantized/stored_parts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace sluice {
namespace {

using Scales = WeightFormat::Scales;

Scales scale_type(std::string_view dtype) {
  if (dtype == "F16") return Scales::f16;
  if (dtype == "BF16") return Scales::bf16;
  if (dtype == "U8") return Scales::e8m0;
  return Scales::f32;
}

}  // namespace

StoredTensor PartFinder::need(std::string_view part) const {
  auto found = find(part);
  if (!found) {
    throw Error("{}: tensor {} is missing; config.json asks for it (quant_method {})",
                checkpoint_.path(), quote(weight_.part(part)), quote(config_.method));
  }
  return *std::move(found);
}

void PartFinder::refuse_plain() const {
  const auto plain = find(".weight");
  if (!plain) return;
  throw Error("{}: tensor {} is there both plain and quantised ({}); remove one of them",
              plain->file, quote(plain->name), config_.method);
}

void PartFinder::check_type(const StoredTensor& part,
                            std::span<const std::string_view> types) const {
  if (std::find(types.begin(), types.end(), part.dtype) != types.end()) return;
  throw Error("{}: tensor {} is of type {}, expected {} of {}", part.file, quote(part.name),
              quote(part.dtype), fmt::join(types, ", "), config_.method);
}

void PartFinder::check_shape(const StoredTensor& part,
                             const std::vector<std::int64_t>& expected) const {
  if (part.shape == expected) return;
  throw Error(
      "{}: tensor {} has shape {}, expected {} for a weight of {} as quantization_config has it "
      "({})",
      part.file, quote(part.name), shape_text(part.shape), shape_text(expected),
      shape_text(weight_.shape), config_.method);
}

void PartFinder::check_group(const WeightFormat& format) const {
  const std::int64_t in = weight_.shape[1];
  if (format.group == 0 || in % format.group == 0) return;
  throw Error(
      "{}: {} has {} inputs, which groups of {} (quantization_config's group_size) do not divide; "
      "get the model with a group_size that does, or with this tensor left plain",
      checkpoint_.path(), quote(weight_.part(".weight")), in, format.group);
}

StoredScales::StoredScales(const StoredTensor& tensor, Order order, std::int64_t num_rows,
                           std::int64_t num_groups)
    : data_(tensor.data),
      type_(scale_type(tensor.dtype)),
      order_(order),
      num_rows_(num_rows),
      num_groups_(num_groups) {}

std::uint32_t StoredScales::at(std::int64_t index) const {
  if (type_ == Scales::e8m0) return static_cast<std::uint8_t>(data_[index]);
  if (type_ == Scales::f32) {
    std::uint32_t bits;
    std::memcpy(&bits, data_.data() + index * 4, sizeof bits);
    return bits;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data_.data() + index * 2, sizeof bits);
  return bits;
}

void StoredScales::read(std::int64_t first_row, std::int64_t rows, std::vector<std::uint32_t>& out,
                        std::int64_t step) const {
  if (step == 1 && order_ == Order::rows && size_bytes(type_) == 2) {  // the most
    const std::byte* from = data_.data() + first_row * num_groups_ * 2;
    for (std::size_t i = 0; i < out.size(); ++i) {
      std::uint16_t bits;
      std::memcpy(&bits, from + 2 * i, sizeof bits);
      out[i] = bits;
    }
    return;
  }
  const auto index = [&](std::int64_t row, std::int64_t group) {
    switch (order_) {
      case Order::rows:
        return row * num_groups_ + group;
      case Order::blocks:
        return row / block_rows * num_groups_ + group;
      case Order::columns:
        return group * num_rows_ + row;
      case Order::one:
        break;
    }
    return std::int64_t{0};
  };
  auto* to = out.data();
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = first_row + i * step;
    for (std::int64_t group = 0; group < num_groups_; ++group) *to++ = at(index(row, group));
  }
}

std::uint8_t StoredZeroPoints::at(std::int64_t row, std::int64_t group) const {
  if (order_ == Order::signed_bytes) {
    const auto byte = static_cast<std::uint8_t>(data_[row * num_groups_ + group]);
    return static_cast<std::uint8_t>(byte + default_zero_point(codes_));
  }
  const int bits = codes_ == WeightFormat::Codes::int4 ? 4 : 8;
  const std::int64_t in_word = 32 / bits;
  const std::int64_t num_words = (num_rows_ + in_word - 1) / in_word;
  const std::int64_t of_row = row / in_word;
  const std::int64_t index =
      order_ == Order::row_words ? of_row * num_groups_ + group : group * num_words + of_row;
  std::uint32_t word;
  std::memcpy(&word, data_.data() + 4 * index, sizeof word);
  const std::int64_t place = order_ == Order::awq_words ? awq_place[row % 8] : row % in_word;
  return static_cast<std::uint8_t>((word + added_) >> (place * bits) & ((1U << bits) - 1));
}

bool StoredZeroPoints::are_default() const {
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    for (std::int64_t group = 0; group < num_groups_; ++group) {
      if (at(row, group) != default_zero_point(codes_)) return false;
    }
  }
  return true;
}

void StoredZeroPoints::read(std::int64_t first_row, std::int64_t rows,
                            std::vector<std::uint8_t>& out) const {
  auto* to = out.data();
  for (std::int64_t row = first_row; row < first_row + rows; ++row) {
    for (std::int64_t group = 0; group < num_groups_; ++group) *to++ = at(row, group);
  }
}

ColumnParts find_column_parts(const PartFinder& parts, const WeightName& weight,
                              const WeightFormat& format, StoredZeroPoints::Order order) {
  const std::int64_t out = weight.shape[0];
  const std::int64_t num_groups = format.num_groups(weight.shape[1]);
  StoredTensor scales = parts.need(".scales");
  parts.check_type(scales, scale_types);
  parts.check_shape(scales, {num_groups, out});
  StoredTensor zeros = parts.need(".qzeros");
  parts.check_type(zeros, {"I32"});
  parts.check_shape(zeros, {num_groups, out * format.bits_per_code() / 32});
  const StoredScales of_columns(scales, StoredScales::Order::columns, out, num_groups);
  const StoredZeroPoints zero_points(zeros, order, format.codes, out, num_groups);
  return {std::move(scales), std::move(zeros), of_columns, zero_points};
}

void unpack_nibbles(const std::byte* from, std::int64_t count, std::uint8_t* out) {
  for (std::int64_t i = 0; i < count / 2; ++i) {
    out[2 * i] = static_cast<std::uint8_t>(from[i] & std::byte{15});
    out[2 * i + 1] = static_cast<std::uint8_t>(from[i] >> 4);
  }
  if (count % 2 != 0) out[count - 1] = static_cast<std::uint8_t>(from[count / 2] & std::byte{15});
}

}  // namespace sluice
