#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/batching/engine.h"
#include "graphs/decoder_graph.h"
#include "graphs/loaded_model.h"
#include "models/model.h"

namespace sluice::test {

/// The process's StarPU, started at first use with `threads` threads (0: one a core) and restarted
/// when another number is asked for. They are cut up as the last runtime_in_groups() said.
Runtime& runtime(int threads = 0);
/// The same with so many threads, cut up in this way: runtime() of as many threads is this one,
/// too.
Runtime& runtime_in_groups(int threads, const std::optional<PhaseGroups>& groups);

/// A model ready to run in a test.
class TestModel {
 public:
  TestModel(const std::string& folder, DType dtype, int threads = 0);
  TestModel(Model model, DType dtype, int threads = 0);

  const LoadedModel& loaded() const { return *loaded_; }

  /// Logits of every token of `tokens` [tokens, vocab], fed in chunks of the given sizes (all at
  /// once when empty).
  std::vector<float> logits(std::span<const std::int32_t> tokens,
                            std::vector<std::int64_t> chunks = {},
                            AttentionForm attention = AttentionForm::fused,
                            Fusion fusion = Fusion::stages);

  /// The same of several sequences at once, each of which is the first `lengths[i]` of `tokens`: in
  /// one iteration all but their last tokens, in a second one these. [sum of lengths, vocab], one
  /// sequence after the other.
  std::vector<float> ragged_logits(std::span<const std::int32_t> tokens,
                                   const std::vector<std::size_t>& lengths);

  /// Tokens that each prompt is continued with, `max_batch` prompts at a time.
  std::vector<std::vector<std::int32_t>> generate(
      const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t num_tokens,
      std::int64_t max_batch, const SamplingParams& sampling = {},
      AttentionForm attention = AttentionForm::fused, std::int64_t prefill_chunk_tokens = 2048);

 private:
  Model model_;
  std::unique_ptr<LoadedModel> loaded_;
};

}  // namespace sluice::test
