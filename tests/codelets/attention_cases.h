#pragma once

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <vector>

#include "codelets/runtime/shape.h"
#include "tests/codelets/codelet_data.h"

// What attention is tested with, on every device.
namespace sluice::test {

/// Whether every head has a sink.
enum class Sinks : std::uint8_t { none, all };

struct AttentionShape {
  const char* name;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t window;
  Sinks sinks = Sinks::none;
};

inline std::ostream& operator<<(std::ostream& out, const AttentionShape& shape) {
  return out << shape.name;
}

inline const std::vector<AttentionShape> attention_shapes = {
    {"head_9_group_1", 3, 3, 9, 0},
    {"head_24_group_3_window_24", 6, 2, 24, 24},
    {"head_28_group_4", 4, 1, 28, 0},
    {"head_64_group_7_window_7", 7, 1, 64, 7},
    {"head_80_group_1_window_1", 2, 2, 80, 1},
    {"head_128_group_3", 3, 1, 128, 0},
    {"head_9_group_1_sinks", 3, 3, 9, 0, Sinks::all},
    {"head_24_group_3_window_24_sinks", 6, 2, 24, 24, Sinks::all},
    {"head_64_group_8_sinks", 16, 2, 64, 0, Sinks::all}};

inline DecoderShape decoder_shape(const AttentionShape& from, DType dtype) {
  DecoderShape shape;
  shape.dtype = dtype;
  shape.num_heads = from.num_heads;
  shape.num_kv_heads = from.num_kv_heads;
  shape.head_dim = from.head_dim;
  shape.sliding_window_tokens = from.window;
  return shape;
}

/// Prompts from one token to 200, rows that continue one, and decode rows, in no order.
inline const std::vector<Part> ragged_attention = {
    {0, 17},  {1, 1}, {199, 1}, {0, 1},  {40, 35}, {15, 1},  {16, 1}, {31, 33},
    {0, 100}, {6, 2}, {127, 1}, {23, 1}, {24, 1},  {0, 200}, {47, 1}, {99, 20}};

/// Decode rows whose context is read in several chunks, up to its very end; the last chunk of some
/// has a token or two.
inline const std::vector<Part> long_attention = {{256, 1}, {272, 1},  {639, 1},  {640, 1},
                                                 {657, 1}, {1025, 2}, {2049, 1}, {3, 1}};

/// Small, so that long contexts are cheap; the window is no multiple of a page.
inline const std::vector<AttentionShape> small_attention_shapes = {
    {"head_16_group_2", 4, 2, 16, 0},
    {"head_8_group_1_window_500", 2, 2, 8, 500},
    {"head_16_group_2_sinks", 4, 2, 16, 0, Sinks::all}};

/// Takes the keys and values of the new tokens out of the slab, as sublayer 1 passes them on; what
/// stays there in their place is NaN.
inline std::vector<std::byte> take_new_kv(const DecoderShape& shape, const BatchView& batch,
                                          std::vector<std::byte>& slab) {
  const std::size_t element = size_bytes(shape.dtype);
  std::vector<std::byte> new_kv;
  for (const BatchRow& row : batch.rows()) {
    const auto pages = batch.pages(batch.sequences()[static_cast<std::size_t>(row.sequence)]);
    const std::int64_t page = pages[static_cast<std::size_t>(row.position / page_tokens)];
    const std::int64_t token = row.position % page_tokens;
    for (std::int64_t i = 0; i < 2 * shape.kv_size(); ++i) {
      const std::int64_t head = i % shape.kv_size() / shape.head_dim;
      const std::int64_t dim = i % shape.head_dim;
      const std::int64_t at =
          page * shape.page_elements() +
          (i < shape.kv_size() ? shape.k_index(head, token, dim) : shape.v_index(head, token, dim));
      const auto first = slab.begin() + at * static_cast<std::int64_t>(element);
      new_kv.insert(new_kv.end(), first, first + static_cast<std::int64_t>(element));
      std::fill_n(first, element, std::byte{0xff});
    }
  }
  return new_kv;
}

}  // namespace sluice::test
