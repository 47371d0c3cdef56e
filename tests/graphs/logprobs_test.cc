// Logprobs of drawn tokens and of prompts, through whole iterations: against the logits of the same
// run, and the tasks that there are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "codelets/runtime/gpu.h"
#include "graphs/decoder_graph.h"
#include "graphs/loaded_model.h"
#include "models/model.h"
#include "schedulers/look_ahead.h"
#include "tests/support/golden.h"
#include "tests/support/pages.h"

namespace sluice {
namespace {

/// "sublayer rows" of each task outside of the layers, as submitted.
std::vector<std::string>& submitted() {
  static std::vector<std::string> tasks;
  return tasks;
}

void on_submission(starpu_task* task) {
  if (task->cl != nullptr && task->cl_arg_size >= sizeof(TaskTag)) {
    TaskTag tag;
    std::memcpy(&tag, task->cl_arg, sizeof(tag));
    if (tag.layer < 0)
      submitted().push_back(fmt::format("{} {}", to_string(tag.sublayer), tag.num_tokens));
  }
  LookAhead::submitted(task);
}

std::uint64_t bytes_from(const char* variable) {
  const char* mib = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return mib == nullptr ? 0 : static_cast<std::uint64_t>(std::stoi(mib)) << 20;
}
/// Memory of a stand-in accelerator or of a GPU, which need not be a real one, to run the LM head
/// and what comes behind it on; 0: there is none.
std::uint64_t stand_in_bytes() { return bytes_from("SLUICE_TEST_STAND_IN_MIB"); }
std::uint64_t gpu_bytes() { return bytes_from("SLUICE_TEST_GPU_MIB"); }
Device head_device() { return stand_in_bytes() + gpu_bytes() > 0 ? Device::gpu : Device::cpu; }

Runtime& runtime() {
  static starpu_sched_policy scheduler = [] {
    starpu_sched_policy made = look_ahead_scheduler("recording", "writes down what it sees");
    made.submit_hook = on_submission;
    return made;
  }();
  static Runtime instance({.cores = read_cpu_topology().cores,
                           .scheduler = &scheduler,
                           .stand_in_bytes = stand_in_bytes(),
                           .gpu_bytes = gpu_bytes()});
  return instance;
}

LoadedModel load(DType dtype) {
  return {open_model(test::golden_folder("llama-3-gqa")), dtype, runtime().setup_pool()};
}

/// What the first sequence asks for; the second one asks for nothing.
struct Asked {
  std::int32_t logprobs = no_logprobs;
  std::int32_t prompt_logprobs = no_logprobs;
};

using Rows = BatchBuilder::LogitRows;

/// A prompt in two pieces, a second one beside the second piece, and two decode steps of both. The
/// sequences' KV is in two caches: each attends as a part.
class TwoSequences {
 public:
  static constexpr int prompt_tokens = 40;
  static constexpr int first_piece = 21;
  static constexpr int num_iterations = 4;

  TwoSequences(const LoadedModel& model, const Asked& asked,
               LastLayer last_layer = LastLayer::drawing_rows)
      : asked_(asked) {
    for (std::size_t slot = 0; slot < pages_.size(); ++slot) {
      caches_.emplace_back(model.shape(), model.config().num_layers, 3);
      pages_.at(slot) = test::pages(0, 3);
    }
    graph_.emplace(model, caches_,
                   DecoderGraph::Options{.num_slots = 2,
                                         .last_layer = last_layer,
                                         .head_device = head_device(),
                                         .logit_block_rows = 12});
  }

  static std::vector<std::int32_t> prompt() {
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < prompt_tokens; ++i) tokens.push_back((11 * i + 5) % 97);
    return tokens;
  }

  PendingIteration submit(int iteration, DecoderGraph::Logits logits, Rows rows) {
    SubBatch sub_batch;
    const std::vector<std::int32_t> all = prompt();
    const std::span tokens(all);
    if (iteration == 0) {
      add(sub_batch, 0, 0, tokens.first(first_piece), tokens[first_piece],
          rows == Rows::all ? Rows::all : Rows::none);
    } else if (iteration == 1) {
      add(sub_batch, 0, first_piece, tokens.subspan(first_piece), -1, rows);
      add(sub_batch, 1, 0, tokens.subspan(3, 9), -1, rows);
    } else {
      for (std::int32_t slot : {0, 1}) {
        const std::int32_t drawn = -(slot + 1);
        add(sub_batch, slot, (slot == 0 ? prompt_tokens : 9) + iteration - 2, {&drawn, 1}, -1,
            Rows::last);
      }
    }
    return std::move(graph_->submit(std::vector{sub_batch}, logits).front());
  }

 private:
  void add(SubBatch& sub_batch, std::int32_t slot, int context,
           std::span<const std::int32_t> tokens, std::int32_t next_token, Rows rows) {
    const auto place = static_cast<std::size_t>(slot);
    BatchPart& part = sub_batch.parts.emplace_back();
    part.cohort = place;
    part.phase = tokens.size() > 1 ? Phase::prefill : Phase::decode;
    const bool scores = slot == 0 && part.phase == Phase::prefill;
    part.batch.add({.slot = slot,
                    .context = context,
                    .fresh = context == 0,
                    .tokens = tokens,
                    .pages = pages_.at(place),
                    .sampling = {},
                    .logprobs = slot == 0 ? asked_.logprobs : no_logprobs,
                    .prompt_logprobs = scores ? asked_.prompt_logprobs : no_logprobs,
                    .next_token = next_token},
                   rows);
  }

  Asked asked_;
  std::vector<KvCache> caches_;
  std::optional<DecoderGraph> graph_;
  std::array<std::vector<std::int32_t>, 2> pages_;
};

class LogprobsGraphTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (gpu_bytes() > 0 && find_first_gpu().devices.empty())
      GTEST_SKIP() << "no GPU: CUDA sees none";
  }
  /// How far a logprob may lie from that of logits that were computed beside other rows: a product
  /// of few rows adds up in another order, on a GPU of any number.
  static double tolerance() {
    if (GetParam() == DType::f32) return gpu_bytes() > 0 ? 1e-4 : 1e-5;
    return 1e-3;
  }
};

/// The token's logprob and the likeliest ones' in these logits. Likely tokens whose logits lie
/// within the tolerance may have changed places.
void expect_logprobs(const TokenLogprobs& found, std::span<const float> logits, std::int32_t token,
                     std::int32_t count, double tolerance) {
  const std::vector<ReferenceLogprob> expected = logprobs_reference(logits, token, count);
  EXPECT_EQ(found.token.token, token);
  EXPECT_NEAR(found.token.logprob, expected[0].logprob, tolerance);
  ASSERT_EQ(found.likeliest.size(), static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < found.likeliest.size(); ++i) {
    const TokenLogprob& likely = found.likeliest[i];
    EXPECT_NEAR(likely.logprob, expected[i + 1].logprob, tolerance) << i;
    EXPECT_NEAR(likely.logprob, logprobs_reference(logits, likely.token, 0)[0].logprob, tolerance)
        << i;
  }
}

TEST_P(LogprobsGraphTest, DrawnTokensHaveThoseOfTheirLogits) {
  const LoadedModel model = load(GetParam());
  const auto vocab = static_cast<std::size_t>(model.config().vocab_size);
  TwoSequences run(model, {.logprobs = 20});
  std::vector<PendingIteration> pending;  // all submitted before any is waited for
  for (int i = 0; i < TwoSequences::num_iterations; ++i)
    pending.push_back(run.submit(i, DecoderGraph::Logits::keep, Rows::last));
  EXPECT_EQ(pending[0].logprobs().size(), 1U);
  EXPECT_FALSE(pending[0].logprobs()[0]) << "nothing was drawn";
  for (std::size_t i = 1; i < pending.size(); ++i) {
    const std::vector<float> logits = pending[i].logits();
    const auto found = pending[i].logprobs();
    ASSERT_EQ(found.size(), 2U);
    ASSERT_TRUE(found[0]);
    EXPECT_FALSE(found[1]) << "it did not ask";
    expect_logprobs(*found[0], std::span(logits).first(vocab), pending[i].tokens()[0], 20, 1e-5);
    EXPECT_EQ(found[0]->likeliest[0].token, found[0]->token.token) << "it is greedy";
    EXPECT_TRUE(pending[i].prompt_logprobs()[0].empty());
  }
}

TEST_P(LogprobsGraphTest, PromptsHaveThoseOfTheirRowsHoweverTheyAreCut) {
  const LoadedModel model = load(GetParam());
  const auto vocab = static_cast<std::size_t>(model.config().vocab_size);
  const std::vector<std::int32_t> prompt = TwoSequences::prompt();
  std::vector<float> logits;  // of all rows of the first sequence, one behind the other
  std::vector<std::int32_t> drawn;
  TwoSequences plain(model, {});
  for (int i = 0; i < 2; ++i) {
    const PendingIteration iteration = plain.submit(i, DecoderGraph::Logits::keep, Rows::all);
    const std::vector<float> of_both = iteration.logits();
    const std::size_t rows = i == 0 ? TwoSequences::first_piece
                                    : TwoSequences::prompt_tokens - TwoSequences::first_piece;
    logits.insert(logits.end(), of_both.begin(),
                  of_both.begin() + static_cast<std::ptrdiff_t>(rows * vocab));
    drawn = iteration.tokens();
  }
  for (const LastLayer last_layer : {LastLayer::drawing_rows, LastLayer::all_rows}) {
    for (const Rows rows : {Rows::last, Rows::all}) {
      TwoSequences run(model, {.logprobs = 1, .prompt_logprobs = 5}, last_layer);
      std::vector<PendingIteration> pending;
      for (int i = 0; i < 2; ++i)
        pending.push_back(run.submit(i, DecoderGraph::Logits::drop, rows));
      std::vector<TokenLogprobs> found;
      for (const PendingIteration& iteration : pending) {
        const auto of_sequences = iteration.prompt_logprobs();
        found.insert(found.end(), of_sequences[0].begin(), of_sequences[0].end());
        for (std::size_t s = 1; s < of_sequences.size(); ++s)
          EXPECT_TRUE(of_sequences[s].empty()) << "it did not ask";
      }
      ASSERT_EQ(found.size(), prompt.size() - 1);
      for (std::size_t r = 0; r < found.size(); ++r) {
        SCOPED_TRACE(r);
        expect_logprobs(found[r], std::span(logits).subspan(r * vocab, vocab), prompt[r + 1], 5,
                        tolerance());
      }
      EXPECT_EQ(pending[1].tokens(), drawn);
      expect_logprobs(*pending[1].logprobs()[0], std::span(logits).last(vocab), drawn[0], 1,
                      tolerance());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LogprobsGraphTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& type) { return std::string(to_string(type.param)); });

/// Tasks outside of the layers in the iterations from `first` on, the embedding's left out.
std::vector<std::string> tasks_of(const LoadedModel& model, const Asked& asked, int first,
                                  int last) {
  TwoSequences run(model, asked);
  std::vector<PendingIteration> pending;
  for (int i = 0; i <= last; ++i) {
    if (i == first) submitted().clear();
    pending.push_back(run.submit(i, DecoderGraph::Logits::drop, Rows::last));
  }
  std::vector<std::string> tasks = submitted();
  std::erase_if(tasks, [](const std::string& task) { return task.starts_with("embedding"); });
  return tasks;
}

TEST(LogprobsTasksTest, ThereAreSomeWhereASequenceAsks) {
  if (gpu_bytes() > 0 && find_first_gpu().devices.empty()) GTEST_SKIP() << "no GPU: CUDA sees none";
  const LoadedModel model = load(DType::f32);
  using Tasks = std::vector<std::string>;
  EXPECT_EQ(tasks_of(model, {}, 0, 2),
            Tasks({"sampling 21", "lm_head 2", "sampling 2", "lm_head 2", "sampling 2"}));
  EXPECT_EQ(tasks_of(model, {.logprobs = 0}, 0, 2),
            Tasks({"sampling 21", "lm_head 2", "sampling 2", "logprobs 2", "lm_head 2",
                   "sampling 2", "logprobs 2"}));
  // All 21 rows of the first piece have a token behind them, 18 of the second's 19. What is drawn
  // does not wait for them.
  EXPECT_EQ(tasks_of(model, {.prompt_logprobs = 3}, 0, 0),
            Tasks({"sampling 21", "lm_head 11", "logprobs 11", "lm_head 10", "logprobs 10"}));
  EXPECT_EQ(tasks_of(model, {.logprobs = 0, .prompt_logprobs = 3}, 1, 2),
            Tasks({"lm_head 2", "sampling 20", "logprobs 20", "lm_head 9", "logprobs 9",
                   "lm_head 9", "logprobs 9", "lm_head 2", "sampling 2", "logprobs 2"}));
}

}  // namespace
}  // namespace sluice
