#pragma once

#include <limits>
#include <vector>

#include "codelets/attention/attention.h"
#include "tests/codelets/attention_cases.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

/// Random q and KV of a ragged batch. Tokens that no row may see are NaN: reading one shows.
struct AttentionData {
  AttentionData(const AttentionShape& from, DType dtype, const std::vector<Part>& parts)
      : AttentionData(decoder_shape(from, dtype), parts, from.sinks) {}

  AttentionData(const DecoderShape& shape, const std::vector<Part>& parts,
                Sinks sinks = Sinks::none) {
    Random random(41);
    args.shape = shape;
    batch = make_batch(random, parts, 9);
    q = make_operand(random.floats(batch.num_rows() * shape.q_size(), 2.0), shape.dtype);
    std::vector<float> kv(static_cast<std::size_t>(batch.num_pages * shape.page_elements()));
    for (std::int64_t page = 0; page < batch.num_pages; ++page) {
      for (std::int64_t token = 0; token < page_tokens; ++token) {
        for_each_element(page, token,
                         [&](std::size_t at) { kv[at] = std::numeric_limits<float>::quiet_NaN(); });
      }
    }
    for (const BatchSequence& sequence : batch.view().sequences()) {
      const std::int64_t first =
          simd::first_visible_token(sequence.context, shape.sliding_window_tokens);
      for (std::int64_t token = first; token < sequence.context + sequence.num_rows; ++token) {
        fill_token(random, batch.view().pages(sequence), token, kv);
      }
    }
    slab = make_operand(std::move(kv), shape.dtype);
    out.resize(static_cast<std::size_t>(batch.num_rows() * out_stride()) * size_bytes(shape.dtype));
    if (sinks == Sinks::all) set_sinks(random.floats(shape.num_heads, 4.0));
  }

  /// Of each head, among other vectors.
  void set_sinks(const std::vector<float>& sinks) {
    args.vectors.attention_sinks = 3;
    vectors.assign(3, std::numeric_limits<float>::quiet_NaN());
    vectors.insert(vectors.end(), sinks.begin(), sinks.end());
  }

  AttentionOperands operands() {
    return {.args = &args,
            .batch = batch.view(),
            .q = q.data(),
            .slab = slab.data(),
            .out = out.data(),
            .vectors = vectors.data()};
  }
  std::size_t num_outputs() const {
    return static_cast<std::size_t>(batch.num_rows() * args.shape.q_size());
  }
  std::size_t num_scores() const {
    std::int64_t columns = 0;
    for (const BatchRow& row : batch.view().rows()) {
      columns += row.position + 1 -
                 simd::first_visible_token(row.position, args.shape.sliding_window_tokens);
    }
    return static_cast<std::size_t>(columns * args.shape.num_heads);
  }
  std::vector<float> outputs() const {
    std::vector<float> result;
    for (std::int64_t r = 0; r < batch.num_rows(); ++r) {
      const auto at = static_cast<std::size_t>(r * out_stride()) * size_bytes(args.shape.dtype);
      const std::vector<float> row =
          to_floats(out.data() + at, args.shape.q_size(), args.shape.dtype);
      result.insert(result.end(), row.begin(), row.end());
    }
    return result;
  }
  std::int64_t out_stride() const {
    return activation_stride(args.shape.q_size(), args.shape.dtype);
  }
  Tolerance tolerance() const {
    return test::tolerance(args.shape.dtype, GemmInput::exact, args.shape.dtype);
  }

  AttentionArgs args;
  RaggedBatch batch;
  Operand q, slab;
  std::vector<float> vectors;  ///< empty without sinks
  std::vector<std::byte> out;

 private:
  void fill_token(Random& random, std::span<const std::int32_t> pages, std::int64_t token,
                  std::vector<float>& kv) const {
    const std::int64_t page = pages[static_cast<std::size_t>(token / page_tokens)];
    for_each_element(page, token % page_tokens,
                     [&](std::size_t at) { kv[at] = random.floats(1, 2.0)[0]; });
  }

  /// Where the keys and values of one token lie in the slab.
  template <typename Use>
  void for_each_element(std::int64_t page, std::int64_t token, Use&& use) const {
    const DecoderShape& shape = args.shape;
    for (std::int64_t head = 0; head < shape.num_kv_heads; ++head) {
      for (std::int64_t i = 0; i < shape.head_dim; ++i) {
        use(static_cast<std::size_t>(page * shape.page_elements() + shape.k_index(head, token, i)));
        use(static_cast<std::size_t>(page * shape.page_elements() + shape.v_index(head, token, i)));
      }
    }
  }
};

}  // namespace sluice::test
