#include "codelets/cuda/device.h"
#include "codelets/kv_move/kv_move.h"

namespace sluice {
namespace {

/// A block a page.
template <typename Word>
__global__ void move_pages(const std::int32_t* pages, Word* slab, Word* moved,
                           std::int64_t page_words, bool gathers) {
  Word* page = slab + pages[blockIdx.x] * page_words;
  Word* piece = moved + blockIdx.x * page_words;
  const Word* from = gathers ? page : piece;
  Word* to = gathers ? piece : page;
  for (std::int64_t i = threadIdx.x; i < page_words; i += blockDim.x) to[i] = from[i];
}

template <typename Word>
void launch_move(const cuda::Context& gpu, const KvMoveOperands& operands) {
  const cuda::LaunchShape shape{.blocks = dim3(static_cast<unsigned>(operands.args->num_pages)),
                                .threads = dim3(256)};
  cuda::launch("move_pages", move_pages<Word>, shape, gpu.stream, operands.pages,
               reinterpret_cast<Word*>(operands.slab), reinterpret_cast<Word*>(operands.moved),
               static_cast<std::int64_t>(operands.args->page_bytes / sizeof(Word)),
               operands.args->step == KvMoveArgs::Step::gather);
}

}  // namespace

void kv_move_cuda(const cuda::Context& gpu, const KvMoveOperands& operands) {
  if (operands.args->page_bytes % sizeof(uint4) == 0) return launch_move<uint4>(gpu, operands);
  launch_move<std::uint16_t>(gpu, operands);
}

}  // namespace sluice
