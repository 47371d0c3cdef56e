// Presence and frequency penalties through whole iterations, against the logits of the same run.
#include <gtest/gtest.h>

#include <map>

#include "graphs/decoder_graph.h"
#include "tests/support/engine.h"
#include "tests/support/golden.h"
#include "tests/support/pages.h"

namespace sluice {
namespace {

/// The largest of the logits after the penalties, by their definition.
std::int32_t best(std::span<const float> logits, const SamplingRow& row,
                  const std::map<std::int32_t, int>& counts) {
  std::int32_t found = 0;
  double highest = -1e30;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const auto token = static_cast<std::int32_t>(i);
    double value = logits[i];
    if (const auto entry = counts.find(token); entry != counts.end()) {
      value -= static_cast<double>(row.frequency_penalty) * entry->second;
      value -= static_cast<double>(row.presence_penalty);
    }
    if (value > highest) {
      highest = value;
      found = token;
    }
  }
  return found;
}

class OutputPenaltyTest : public ::testing::TestWithParam<DType> {};

TEST_P(OutputPenaltyTest, CountsWhatEachSequenceHasDrawn) {
  const test::TestModel model(test::golden_folder("llama-3-gqa"), GetParam());
  const LoadedModel& loaded = model.loaded();
  const auto vocab = static_cast<std::size_t>(loaded.config().vocab_size);
  KvCache kv(loaded.shape(), loaded.config().num_layers, 4);
  DecoderGraph graph(loaded, {&kv, 1}, {.num_slots = 2});
  const std::vector<std::int32_t> prompt = {1, 2, 3, 4, 5};
  // What was drawn is favoured, less each time: other tokens take turns.
  const std::vector<SamplingRow> rows = {{},
                                         {.presence_penalty = -6.0F, .frequency_penalty = 1.5F}};
  std::vector<std::vector<std::int32_t>> pages;
  for (std::size_t s = 0; s < rows.size(); ++s)
    pages.push_back(test::pages(static_cast<std::int32_t>(2 * s), 2));
  std::vector<PendingIteration> pending;
  constexpr std::int32_t num_iterations = 24;
  for (std::int32_t i = 0; i < num_iterations; ++i) {
    BatchPart part;
    part.phase = i < 2 ? Phase::prefill : Phase::decode;
    for (std::int32_t s = 0; s <= std::min(i, 1); ++s) {  // the second begins one later
      const std::int32_t step = i - s;
      const std::int32_t drawn = -(s + 1);
      const std::int32_t prompt_tokens = static_cast<std::int32_t>(prompt.size());
      part.batch.add({.slot = s,
                      .context = step == 0 ? 0 : prompt_tokens + step - 1,
                      .fresh = step == 0,
                      .tokens = step == 0 ? std::span(prompt) : std::span(&drawn, 1),
                      .pages = pages[static_cast<std::size_t>(s)],
                      .sampling = rows[static_cast<std::size_t>(s)],
                      .prompt_tokens = prompt_tokens},
                     BatchBuilder::LogitRows::last);
    }
    pending.push_back(graph.submit(part, DecoderGraph::Logits::keep));
  }
  std::vector<std::map<std::int32_t, int>> counts(rows.size());
  int changed = 0;
  for (const PendingIteration& iteration : pending) {
    const std::vector<std::int32_t> tokens = iteration.tokens();
    const std::vector<float> logits = iteration.logits();
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      const std::span row = std::span(logits).subspan(s * vocab, vocab);
      EXPECT_EQ(tokens[s], best(row, rows[s], counts[s]));
      if (tokens[s] != best(row, rows[0], counts[s])) ++changed;
      ++counts[s][tokens[s]];
    }
  }
  EXPECT_GT(changed, 3) << "the penalties were for nothing";
}

INSTANTIATE_TEST_SUITE_P(Types, OutputPenaltyTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(to_string(type.param)); });

}  // namespace
}  // namespace sluice
