#include <cstring>

#include "codelets/runtime/runtime.h"
#include "codelets/select_rows/select_rows.h"

namespace sluice {

void select_rows_cpu(const CpuContext& cpu, const SelectRowsOperands& operands) {
  const std::size_t row_bytes = operands.args->row_bytes;
  const std::span<const std::int32_t> rows = operands.batch.head_rows();
  cpu.pool.run(std::ssize(rows), [&](std::int64_t r) {
    const auto row = static_cast<std::size_t>(r);
    std::memcpy(operands.to + row * row_bytes,
                operands.from + static_cast<std::size_t>(rows[row]) * row_bytes, row_bytes);
  });
}

}  // namespace sluice
