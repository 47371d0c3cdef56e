#include "codelets/select_rows/select_rows.h"

#include "codelets/runtime/codelet.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

struct Run {
  template <typename Context>
  void operator()(const Context& context, const SelectRowsArgs& args, Buffers buffers) const {
    SelectRowsOperands operands{.args = &args};
    operands.batch = BatchView(buffers.take<void>());
    operands.from = buffers.take<std::byte>();
    operands.to = buffers.take<std::byte>();
    if constexpr (is_gpu<Context>) {
      gpu_kernels().select_rows(context, operands);
    } else {
      select_rows_cpu(context, operands);
    }
  }
};

}  // namespace

void submit_select_rows(const SelectRowsArgs& args, const SelectRowsHandles& handles, DType dtype) {
  static const auto codelet = Codelet<SelectRowsArgs>::with_all<Run>("select_rows");
  codelet.submit(dtype, args, {reads(handles.batch), reads(handles.from), writes(handles.to)});
}

}  // namespace sluice
