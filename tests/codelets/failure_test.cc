// A kernel that fails: the run is poisoned, later tasks do nothing, and who waits is told why.
#include "codelets/runtime/failure.h"

#include <gtest/gtest.h>

#include "codelets/embedding/embedding.h"
#include "codelets/residual/residual.h"
#include "tests/codelets/codelet_data.h"
#include "tests/support/engine.h"
#include "tests/support/golden.h"
#include "tests/support/pages.h"

namespace sluice {
namespace {

class FailureTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(run_failure().happened()); }
  void TearDown() override { run_failure().clear(); }
};

std::string reason() {
  try {
    run_failure().rethrow();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(FailureTest, KeepsTheFirstReasonUntilCleared) {
  Failure failure;
  EXPECT_FALSE(failure.happened());
  EXPECT_NO_THROW(failure.rethrow());
  failure.record("first {}");
  failure.record("second");
  EXPECT_TRUE(failure.happened());
  try {
    failure.rethrow();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "first {}");
  }
  failure.clear();
  EXPECT_FALSE(failure.happened());
  EXPECT_NO_THROW(failure.rethrow());
}

TEST_F(FailureTest, LaterTasksDoNothing) {
  test::runtime();
  test::Random random(1);
  // An embedding that fails: token 9 of a vocabulary of 4.
  EmbeddingArgs embedding;
  embedding.shape.dtype = DType::f32;
  embedding.shape.hidden_size = embedding.embed_size = 8;
  embedding.shape.rope = false;
  embedding.vocab_size = 4;
  embedding.table_dtype = DType::f32;
  embedding.tag.layer = 3;
  embedding.tag.num_tokens = 5;
  const test::RaggedBatch batch = test::make_batch(random, {{0, 5}}, 1);
  const_cast<BatchRow&>(batch.view().rows()[3]).token = 9;
  const std::vector<std::int32_t> slot_tokens = {0};
  const std::vector<float> table = random.floats(4 * 8);
  // FC2 over what the embedding should have written.
  ResidualArgs fc2;
  fc2.shape.dtype = DType::f32;
  fc2.shape.hidden_size = fc2.shape.ffn_size = 8;
  fc2.tag.num_tokens = 5;
  fc2.tag.sublayer = fc2.tag.last_sublayer = Sublayer::fc2;
  const std::vector<float> h = random.floats(5 * 8);
  const std::vector<float> vectors(1);
  const test::PackedWeight weight = test::make_weight(random, 8, 8, DType::f32);
  fc2.weight = weight.type;
  std::vector<float> x(5 * 8, 1.0F);
  std::vector<float> other(5 * 8, 1.0F);
  const auto run = [&] {
    const DataHandle none;
    const DataHandle to_x = DataHandle::of_memory(x.data(), 4 * x.size());
    const DataHandle to_other = DataHandle::of_memory(other.data(), 4 * other.size());
    const DataHandle words = DataHandle::of_memory(batch.words.data(), 4 * batch.words.size());
    const DataHandle drawn = DataHandle::of_memory(slot_tokens.data(), 4);
    const DataHandle rows = DataHandle::of_memory(table.data(), 4 * table.size());
    const DataHandle hidden = DataHandle::of_memory(h.data(), 4 * h.size());
    const DataHandle small = DataHandle::of_memory(vectors.data(), 4);
    const DataHandle packed = DataHandle::of_memory(weight.packed.data(), weight.packed.size());
    submit_embedding(embedding, {words, drawn, rows, none, none, none, to_x, none});
    submit_residual(fc2, {hidden, small, packed, to_x});
    starpu_task_wait_for_all();
    submit_residual(fc2,
                    {hidden, small, packed, to_other});  // has nothing to do with the failed task
  };

  run();
  EXPECT_TRUE(run_failure().happened());
  EXPECT_EQ(reason(),
            "embedding_f32 of layer 3 with 5 tokens failed: token id 9 is outside of the "
            "vocabulary of 4");
  EXPECT_EQ(other, std::vector<float>(other.size(), 1.0F));

  run_failure().clear();
  const_cast<BatchRow&>(batch.view().rows()[3]).token = 3;
  run();
  EXPECT_FALSE(run_failure().happened());
  EXPECT_NE(other, std::vector<float>(other.size(), 1.0F)) << "runs again when cleared";
}

TEST_F(FailureTest, WaitingForTokensThrowsTheCodeletsName) {
  test::TestModel model(test::golden_folder("llama-3-gqa"), DType::f32);
  KvCache kv(model.loaded().shape(), model.loaded().config().num_layers, 4);
  const std::vector<std::int32_t> pages = test::pages(0, 1);
  DecoderGraph graph(model.loaded(), {&kv, 1}, {.num_slots = 1});
  const auto submit = [&](const std::vector<std::int32_t>& tokens) {
    BatchPart part;
    part.phase = Phase::prefill;
    part.batch.add({.fresh = true, .tokens = tokens, .pages = pages, .sampling = {}},
                   BatchBuilder::LogitRows::last);
    return graph.submit(part, DecoderGraph::Logits::keep);
  };
  const std::vector<std::int32_t> good = {1, 2, 3};
  const std::vector<std::int32_t> expected = submit(good).tokens();

  const auto vocab = static_cast<std::int32_t>(model.loaded().config().vocab_size);
  const PendingIteration failing = submit({1, vocab, 2});
  const PendingIteration after = submit(good);
  for (const PendingIteration* iteration : {&failing, &after}) {
    try {
      const auto tokens = iteration->tokens();
      FAIL() << "tokens came out of a failed run";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("embedding_f32"), std::string::npos) << what;
      EXPECT_NE(what.find("token id " + std::to_string(vocab)), std::string::npos) << what;
    }
    EXPECT_THROW(iteration->logits(), Error);
  }
  run_failure().clear();
  EXPECT_EQ(submit(good).tokens(), expected);
}

}  // namespace
}  // namespace sluice
