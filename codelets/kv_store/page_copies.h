#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codelets/runtime/batch.h"

namespace sluice {

constexpr std::int64_t pages_of(std::int64_t num_tokens) {
  return (num_tokens + page_tokens - 1) / page_tokens;
}

/// Pages that hold a sequence's tokens, new ones included.
constexpr std::int64_t pages_in_use(const BatchSequence& sequence) {
  return pages_of(std::int64_t{sequence.context} + sequence.num_rows);
}

/// Memory for copies of some of a batch's pages, and a batch like the given one but for its pages,
/// which are numbered anew from 0 in the order in which it names them. Pages that are not among
/// them become page 0, which nobody is to read through them. The memory is its thread's, which has
/// one of these at a time: taken anew, its pages would cost as much as what is put there.
class PageCopies {
 public:
  enum class Pages : std::uint8_t {
    in_use,         ///< all that hold tokens
    of_new_tokens,  ///< those that new tokens go to
  };
  PageCopies(const BatchView& given, Pages which, std::size_t page_bytes);
  ~PageCopies() = default;
  PageCopies(const PageCopies&) = delete;
  PageCopies& operator=(const PageCopies&) = delete;

  /// As long as this lives.
  BatchView batch() const { return BatchView(words_.data()); }
  std::byte* memory() const { return memory_; }

 private:
  std::vector<std::int32_t> words_;
  std::byte* memory_;
};

}  // namespace sluice
