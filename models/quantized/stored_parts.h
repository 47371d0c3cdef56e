#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "models/quantized/method.h"

namespace sluice {

/// Finds the parts of one weight and checks them. Every complaint names the part's file.
class PartFinder {
 public:
  PartFinder(const QuantizationConfig& config, const Checkpoint& checkpoint,
             const WeightName& weight)
      : config_(config), checkpoint_(checkpoint), weight_(weight) {}

  /// ".weight_packed" and so on.
  std::optional<StoredTensor> find(std::string_view part) const {
    return checkpoint_.find_stored(weight_.part(part));
  }
  /// Throws Error where it is missing.
  StoredTensor need(std::string_view part) const;
  /// Throws Error where a plain ".weight" stands beside the codes.
  void refuse_plain() const;

  /// Throws Error for another type or shape.
  void check_type(const StoredTensor& part, std::span<const std::string_view> types) const;
  void check_type(const StoredTensor& part, std::initializer_list<std::string_view> types) const {
    check_type(part, std::span(types.begin(), types.size()));
  }
  void check_shape(const StoredTensor& part, const std::vector<std::int64_t>& expected) const;
  /// Throws Error where the group does not divide the inputs.
  void check_group(const WeightFormat& format) const;

 private:
  const QuantizationConfig& config_;
  const Checkpoint& checkpoint_;
  const WeightName& weight_;
};

/// Scales as a checkpoint has them: f16, bf16, f32 or exponents, in one of four orders.
class StoredScales {
 public:
  enum class Order : std::uint8_t {
    rows,     ///< [out, groups]
    blocks,   ///< [out / 128, groups]: of 128 rows
    columns,  ///< [groups, out]
    one,      ///< of the whole tensor
  };

  StoredScales(const StoredTensor& tensor, Order order, std::int64_t num_rows,
               std::int64_t num_groups);
  WeightFormat::Scales type() const { return type_; }
  /// Of every step-th row; out [rows][groups].
  void read(std::int64_t first_row, std::int64_t rows, std::vector<std::uint32_t>& out,
            std::int64_t step = 1) const;

 private:
  std::uint32_t at(std::int64_t index) const;

  std::span<const std::byte> data_;
  WeightFormat::Scales type_;
  Order order_;
  std::int64_t num_rows_;
  std::int64_t num_groups_;
};

inline constexpr std::array<std::string_view, 3> scale_types = {"F16", "BF16", "F32"};
inline constexpr std::int64_t block_rows = 128;

/// Zero points of 4 or 8 bits as a checkpoint has them, read one by one: they are few.
class StoredZeroPoints {
 public:
  enum class Order : std::uint8_t {
    row_words,     ///< [out * bits / 32, groups]: words of neighbouring rows
    signed_bytes,  ///< [out, groups]: bytes, 0 for the middle code
    column_words,  ///< [groups, out * bits / 32]
    awq_words,     ///< the same in AWQ's order within a word
  };

  StoredZeroPoints(const StoredTensor& tensor, Order order, WeightFormat::Codes codes,
                   std::int64_t num_rows, std::int64_t num_groups)
      : data_(tensor.data),
        order_(order),
        codes_(codes),
        num_rows_(num_rows),
        num_groups_(num_groups) {}

  /// What is stored is one less than what is meant: words had so much taken away, as a whole, so
  /// that a zero point of 0 borrows from its neighbour (as gptqmodel has it).
  void add_one() { added_ = codes_ == WeightFormat::Codes::int4 ? 0x11111111U : 0x01010101U; }
  /// Whether all are the symmetric one. Reads them all.
  bool are_default() const;
  /// out [rows][groups]
  void read(std::int64_t first_row, std::int64_t rows, std::vector<std::uint8_t>& out) const;

 private:
  std::uint8_t at(std::int64_t row, std::int64_t group) const;

  std::span<const std::byte> data_;
  Order order_;
  WeightFormat::Codes codes_;
  std::int64_t num_rows_;
  std::int64_t num_groups_;
  std::uint32_t added_ = 0;  ///< to every word
};

/// Scales and zero points of a weight whose words hold neighbouring outputs: ".scales" [groups,
/// out],
/// ".qzeros" [groups, out * bits / 32].
struct ColumnParts {
  StoredTensor scales_tensor;
  StoredTensor zeros_tensor;
  StoredScales scales;
  StoredZeroPoints zero_points;
};
/// Throws Error where one is missing, or of another type or shape.
ColumnParts find_column_parts(const PartFinder& parts, const WeightName& weight,
                              const WeightFormat& format, StoredZeroPoints::Order order);

/// The 4-bit code that AWQ's words have for column 0 to 7 of 8: how many stand below it.
inline constexpr std::uint8_t awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/// Codes of 4 bits, the first in a byte's low half: `count` of them.
void unpack_nibbles(const std::byte* from, std::int64_t count, std::uint8_t* out);

}  // namespace sluice
