#include <cstring>

#include "codelets/kv_move/kv_move.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void kv_move_cpu(const CpuContext& cpu, const KvMoveOperands& operands) {
  const std::size_t page_bytes = operands.args->page_bytes;
  const bool gathers = operands.args->step == KvMoveArgs::Step::gather;
  cpu.pool.run(operands.args->num_pages, [&](std::int64_t i) {
    std::byte* page = operands.slab + static_cast<std::size_t>(operands.pages[i]) * page_bytes;
    std::byte* moved = operands.moved + static_cast<std::size_t>(i) * page_bytes;
    std::memcpy(gathers ? moved : page, gathers ? page : moved, page_bytes);
  });
}

}  // namespace sluice
