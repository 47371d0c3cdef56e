#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/quantized/quantized_tensor.h"
#include "models/quantized/stored_parts.h"

namespace sluice {

/// A weight whose codes lie row by row.
class RowsTensor : public QuantizedTensor {
 public:
  enum class Form : std::uint8_t {
    nibbles,       ///< two codes a byte, the first in its low half
    bytes,         ///< as ours
    signed_bytes,  ///< two's complement, where ours begin at the lowest value
  };

  /// Which of the stored rows are the weight's: every step-th from the first on.
  struct Rows {
    std::int64_t first = 0;
    std::int64_t step = 1;
  };

  /// A row begins every `row_bytes`; what lies behind its codes is padding.
  RowsTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
             std::vector<StoredTensor> parts, Form form, std::int64_t row_bytes,
             StoredScales scales, std::optional<StoredZeroPoints> zero_points = std::nullopt);
  /// Some of the rows that are stored, without zero points.
  RowsTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
             std::vector<StoredTensor> parts, Form form, std::int64_t row_bytes,
             StoredScales scales, Rows stored_rows);

 private:
  void read_rows(std::int64_t first_row, std::int64_t rows, CodedRows& out) const override;

  Form form_;
  std::int64_t row_bytes_;
  Rows stored_rows_;
  StoredScales scales_;
  std::optional<StoredZeroPoints> zero_points_;
};

}  // namespace sluice
