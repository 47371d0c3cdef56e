#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/shape.h"

namespace sluice {

constexpr void put_element(float value, float* to) { *to = value; }
constexpr void put_element(float value, BFloat16* to) { *to = to_bf16(value); }
constexpr void put_element(BFloat16 value, BFloat16* to) { *to = value; }

/// Puts one token's k and v, `kv` [2 * kv_size], into its page; `token` is counted within the page.
template <typename From, typename To>
void store_kv(const DecoderShape& shape, std::int64_t token, const From* kv, To* page) {
  constexpr std::int64_t word = 4 / sizeof(To);  // shape.elements_per_word(), known to loops
  for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
    const From* k = kv + head * shape.head_dim;
    const From* v = k + shape.kv_size();
    To* k_to = page + shape.k_index(head, token, 0);
    To* v_to = page + shape.v_index(head, token, 0);
    std::int64_t i = 0;
    for (; i + word <= shape.head_dim; i += word, k_to += page_tokens * word) {
      for (std::int64_t of_word = 0; of_word < word; ++of_word)
        put_element(k[i + of_word], k_to + of_word);
    }
    for (; i < shape.head_dim; ++i, ++k_to) put_element(k[i], k_to);
    for (i = 0; i < shape.head_dim; ++i) put_element(v[i], v_to + i * word);
  }
}

/// The page of the slab in which a row's token lies.
constexpr std::byte* page_of(const DecoderShape& shape, const BatchView& batch, const BatchRow& row,
                             std::byte* slab) {
  const auto& sequence = batch.sequences()[static_cast<std::size_t>(row.sequence)];
  const std::int64_t page =
      batch.pages(sequence)[static_cast<std::size_t>(row.position / page_tokens)];
  return slab + static_cast<std::size_t>(page) * shape.page_bytes();
}

}  // namespace sluice
