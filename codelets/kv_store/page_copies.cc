#include "codelets/kv_store/page_copies.h"

#include <algorithm>

#include "base/memory.h"

namespace sluice {

PageCopies::PageCopies(const BatchView& given, Pages which, std::size_t page_bytes)
    : words_(given.words().begin(), given.words().end()) {
  const BatchView batch(words_.data());
  std::int32_t* pages = words_.data() + (batch.pages().data() - words_.data());
  std::fill(pages, pages + batch.num_pages(), 0);
  std::int32_t next = 0;
  for (const BatchSequence& sequence : batch.sequences()) {
    const std::int64_t first = which == Pages::in_use ? 0 : sequence.context / page_tokens;
    for (std::int64_t i = first; i < pages_in_use(sequence); ++i)
      pages[sequence.first_page + i] = next++;
  }
  thread_local Workspace workspace;
  memory_ = workspace.reserve(static_cast<std::size_t>(next) * page_bytes);
}

}  // namespace sluice
