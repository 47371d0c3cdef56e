#pragma once

#include <cstddef>

#include "base/dtype.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/handle_ref.h"
#include "perfmodels/task.h"

namespace sluice {

struct CpuContext;
namespace cuda {
struct Context;
}

/// Argument of the codelet that keeps the rows which the LM head computes, in its order.
struct SelectRowsArgs {
  TaskTag tag;
  std::size_t row_bytes = 0;  ///< even
};

/// to[r] = from[row r of the batch's head_rows()].
struct SelectRowsOperands {
  const SelectRowsArgs* args = nullptr;
  BatchView batch{nullptr};
  const std::byte* from = nullptr;  ///< the batch's rows
  std::byte* to = nullptr;          ///< its head rows; no memory of `from`
};
void select_rows_cpu(const CpuContext& cpu, const SelectRowsOperands& operands);
/// All pointers are device memory; the tag's num_logit_rows are the head rows.
void select_rows_cuda(const cuda::Context& gpu, const SelectRowsOperands& operands);

struct SelectRowsHandles {
  HandleRef batch;
  HandleRef from;
  HandleRef to;
};
void submit_select_rows(const SelectRowsArgs& args, const SelectRowsHandles& handles, DType dtype);

}  // namespace sluice
