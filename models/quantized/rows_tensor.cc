#include "models/quantized/rows_tensor.h"

#include <cstring>
#include <utility>

namespace sluice {

RowsTensor::RowsTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
                       std::vector<StoredTensor> parts, Form form, std::int64_t row_bytes,
                       StoredScales scales, std::optional<StoredZeroPoints> zero_points)
    : QuantizedTensor(std::move(name), format, std::move(shape), std::move(parts)),
      form_(form),
      row_bytes_(row_bytes),
      scales_(scales),
      zero_points_(zero_points) {}

RowsTensor::RowsTensor(std::string name, WeightFormat format, std::vector<std::int64_t> shape,
                       std::vector<StoredTensor> parts, Form form, std::int64_t row_bytes,
                       StoredScales scales, Rows stored_rows)
    : RowsTensor(std::move(name), format, std::move(shape), std::move(parts), form, row_bytes,
                 scales) {
  stored_rows_ = stored_rows;
}

void RowsTensor::read_rows(std::int64_t first_row, std::int64_t rows, CodedRows& out) const {
  const std::int64_t stored_row = stored_rows_.first + first_row * stored_rows_.step;
  const std::byte* from = parts().front().data.data() + stored_row * row_bytes_;
  std::uint8_t* to = out.codes.data();
  for (std::int64_t row = 0; row < rows;
       ++row, from += stored_rows_.step * row_bytes_, to += in()) {
    if (form_ == Form::nibbles) {
      unpack_nibbles(from, in(), to);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(in()));
    }
  }
  if (form_ == Form::signed_bytes) {
    for (std::uint8_t& code : out.codes) code = static_cast<std::uint8_t>(code ^ 0x80U);
  }
  scales_.read(stored_row, rows, out.scales, stored_rows_.step);
  if (format().has_zero_points) zero_points_->read(first_row, rows, out.zero_points);
}

}  // namespace sluice
