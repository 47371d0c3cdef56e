#include "codelets/experts/experts.h"

#include <array>

#include "base/error.h"
#include "codelets/runtime/codelet.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
namespace {

void run(const CpuContext& cpu, const ExpertsArgs& args, Buffers buffers) {
  ExpertsOperands operands{.args = &args};
  operands.normed = buffers.take<std::byte>();
  operands.routing = buffers.take<ExpertChoice>();
  std::array<const std::byte*, most_chunks> chunks{};
  for (std::int32_t i = 0; i < args.chunks.count(); ++i)
    chunks.at(static_cast<std::size_t>(i)) = buffers.take<std::byte>();
  operands.chunks = chunks.data();
  operands.sum = buffers.take<float>();
  experts_cpu(cpu, operands);
}

}  // namespace

void submit_experts(const ExpertsArgs& args, const ExpertsHandles& handles) {
  if (args.tag.device == Device::gpu && runs_cuda_kernels()) {
    throw Error(
        "layer {}: experts do not run on a GPU yet; place sublayers 5 and 6 on the CPU, as "
        "--policy lia --policy-option prefill=000011 --policy-option decode=000011 does",
        args.tag.layer);
  }
  static const auto codelet = Codelet<ExpertsArgs>::with_cpu<run>("experts");
  AccessList accesses{reads(handles.normed), reads(handles.routing)};
  for (const DataHandle& chunk : handles.chunks) accesses.add(reads(chunk));
  accesses.add(writes(handles.sum));
  codelet.submit(args.shape.dtype, args, accesses, args.layout.fc1.format);
}

}  // namespace sluice
