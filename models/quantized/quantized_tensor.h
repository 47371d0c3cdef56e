#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/weight_format.h"
#include "models/safetensors.h"

namespace sluice {

/// Rows of a quantised weight in one form, whatever the checkpoint's. W's value is
/// code_value(codes, code, zero point) * scale, and of fp8 fp8_to_float(code) * scale.
struct CodedRows {
  std::vector<std::uint8_t> codes;        ///< [rows][in], one a byte
  std::vector<std::uint32_t> scales;      ///< [rows][groups], the bits of the format's scale type
  std::vector<std::uint8_t> zero_points;  ///< [rows][groups]; empty without has_zero_points

  /// Sizes for so many rows of this format; values are left as they are.
  void resize(const WeightFormat& format, std::int64_t rows, std::int64_t in);
  /// Gives rows of a format without zero points those that it means, so that they fit a
  /// common_format() that has them.
  void add_zero_points(WeightFormat::Codes of_codes);
};

/// `rows` rows as floats, out [rows][in]: scale * value, rounded once.
void dequantize(const WeightFormat& format, std::int64_t in, const CodedRows& coded,
                std::span<float> out);

/// A quantised weight W [out, in] of a checkpoint. Valid as long as its WeightSource.
class QuantizedTensor {
 public:
  virtual ~QuantizedTensor() = default;
  QuantizedTensor(const QuantizedTensor&) = delete;
  QuantizedTensor& operator=(const QuantizedTensor&) = delete;

  /// Rows [first_row, first_row + rows). Safe to call from several threads. Throws Error: rows that
  /// are not there, a scale that is NaN or infinite (tensor, row and group are named).
  void read(std::int64_t first_row, std::int64_t rows, CodedRows& out) const;

  const std::string& name() const { return name_; }  ///< in the checkpoint: "...q_proj.weight"
  const std::string& file() const { return file_; }  ///< that has its codes
  const WeightFormat& format() const { return format_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }  ///< [out, in]
  std::int64_t num_rows() const { return shape_[0]; }
  std::int64_t in() const { return shape_[1]; }
  std::int64_t num_groups() const { return format_.num_groups(in()); }
  /// What it consists of in the checkpoint, codes first.
  const std::vector<StoredTensor>& parts() const { return parts_; }

 protected:
  QuantizedTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
                  std::vector<StoredTensor> parts);

 private:
  /// Fills all of `out`, which has its size. Rows are in range.
  virtual void read_rows(std::int64_t first_row, std::int64_t rows, CodedRows& out) const = 0;
  void check_scales(std::int64_t first_row, std::int64_t rows,
                    const std::vector<std::uint32_t>& scales) const;

  std::string name_;
  std::string file_;
  WeightFormat format_;
  std::vector<std::int64_t> shape_;
  std::vector<StoredTensor> parts_;
};

}  // namespace sluice
