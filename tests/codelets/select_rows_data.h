#pragma once

#include <cstring>
#include <vector>

#include "codelets/select_rows/select_rows.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

/// A ragged batch, a row of bytes for each of its tokens, and those that are to be kept.
struct SelectRowsData {
  SelectRowsArgs args;
  RaggedBatch batch;
  std::vector<std::byte> rows;

  SelectRowsData(std::size_t row_bytes, BatchBuilder::LogitRows logits) {
    Random random(91);
    batch = make_batch(random, {{0, 30}, {5, 1}, {9, 3}, {0, 1}, {33, 35}}, 9, logits);
    args.row_bytes = row_bytes;
    args.tag.num_tokens = batch.num_rows();
    args.tag.num_logit_rows = batch.view().num_logit_rows();
    for (const float value : random.floats(batch.num_rows() * static_cast<std::int64_t>(row_bytes)))
      rows.push_back(static_cast<std::byte>(static_cast<int>(1000 * value) & 255));
  }
  /// The last rows of the five sequences, as the batch was written down; or all.
  std::vector<std::byte> expected() const {
    if (args.tag.num_logit_rows == args.tag.num_tokens) return rows;
    std::vector<std::byte> kept;
    for (const std::size_t row : {29, 30, 33, 34, 69}) {
      const auto first = rows.begin() + static_cast<std::ptrdiff_t>(row * args.row_bytes);
      kept.insert(kept.end(), first, first + static_cast<std::ptrdiff_t>(args.row_bytes));
    }
    return kept;
  }
};

}  // namespace sluice::test
