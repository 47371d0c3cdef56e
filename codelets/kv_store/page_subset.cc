#include "codelets/kv_store/page_subset.h"

#include <algorithm>

namespace sluice {

PageSubset::PageSubset(const BatchView& given, Pages which)
    : words_(given.words().begin(), given.words().end()) {
  const BatchView batch(words_.data());
  std::int32_t* pages = words_.data() + (batch.pages().data() - words_.data());
  std::fill(pages, pages + batch.num_pages(), 0);
  for (const BatchSequence& sequence : batch.sequences()) {
    const std::int64_t first = which == Pages::in_use ? 0 : sequence.context / page_tokens;
    for (std::int64_t i = first; i < pages_in_use(sequence); ++i)
      pages[sequence.first_page + i] = static_cast<std::int32_t>(num_pages_++);
  }
}

}  // namespace sluice
