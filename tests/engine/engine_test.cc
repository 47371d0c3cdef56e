// The engine on the embedded model, in f32, where batching changes no token.
#include "engine/batching/engine.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "engine/requests/detokenizer.h"
#include "engine/run/graph_executor.h"
#include "models/model.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

const std::vector<std::string> prompts = {"Once upon a time",
                                          "A small fox named Rusty lived in a deep forest.",
                                          "One night, Anna heard a strange noise. It came from",
                                          "Mia and Ben",
                                          "The",
                                          "Tom had a red kite. He loved to fly it, and one day",
                                          "Lily"};

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> instance = open_tokenizer(ModelFiles::open("tiny"));
  return *instance;
}

std::vector<Request> requests_of(const std::vector<std::string>& texts, std::int64_t max_tokens) {
  std::vector<Request> requests;
  for (const std::string& text : texts) {
    Request request;
    request.index = static_cast<std::int64_t>(requests.size());
    request.id = std::to_string(request.index);
    request.prompt = text;
    request.prompt_tokens = tokenizer().encode(text, Tokenizer::SpecialTokens::add);
    request.max_new_tokens = max_tokens;
    request.ignore_eos = true;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Request> one_request(std::int64_t max_tokens) {
  return requests_of({prompts[0]}, max_tokens);
}

/// What a run gave: completions by index, and the streamed text of each.
struct Outcome {
  std::map<std::int64_t, Completion> completions;
  std::map<std::int64_t, std::string> streamed;
  EngineStats stats;

  std::map<std::int64_t, std::vector<std::int32_t>> tokens() const {
    std::map<std::int64_t, std::vector<std::int32_t>> tokens;
    for (const auto& [index, completion] : completions) tokens[index] = completion.token_ids;
    return tokens;
  }
};

struct Setting {
  std::int64_t max_batch = 1;
  std::int64_t kv_pages = 0;  ///< 0: as many as the contract asks for
  std::vector<std::int32_t> eos_token_ids = {};
  std::int64_t prefill_chunk_tokens = 2048;
  std::int64_t interrupt_after_texts = -1;
};

/// The same request again and again, some at once.
class EndlessSource : public RequestSource {
 public:
  EndlessSource(Request request, std::int64_t at_once, std::int64_t count,
                const std::int64_t& finished)
      : request_(std::move(request)), at_once_(at_once), count_(count), finished_(finished) {}

  std::optional<Request> take(double /*now_s*/) override {
    if (ended() || taken_ - finished_ >= at_once_) return std::nullopt;
    request_.index = taken_++;
    request_.id = "request number " + std::to_string(request_.index);
    return request_;
  }
  std::optional<double> next_arrival_s() const override { return std::nullopt; }
  bool ended() const override { return taken_ == count_; }
  void wait(RunClock& /*clock*/) override {}

 private:
  Request request_;
  std::int64_t at_once_;
  std::int64_t count_;
  const std::int64_t& finished_;
  std::int64_t taken_ = 0;
};

class TinyModel {
 public:
  explicit TinyModel(int threads = 2) : model_("tiny", DType::f32, threads) {}

  Outcome run(const std::vector<Request>& requests, const Setting& setting = {}) {
    const ModelConfig& config = model_.loaded().config();
    std::int64_t longest = 1;
    for (const Request& request : requests) longest = std::max(longest, kv_tokens(request, config));
    const std::int64_t pages =
        setting.kv_pages > 0 ? setting.kv_pages : KvCache::pages_for(longest) * setting.max_batch;
    KvCache kv(model_.loaded().shape(), config.num_layers, pages);
    KvPool pool(pages);
    GraphExecutor executor(model_.loaded(), {&kv, 1}, {.num_slots = setting.max_batch});
    Engine engine(config, {&pool, 1}, executor,
                  {.max_sequences = setting.max_batch,
                   .prefill_chunk_tokens = setting.prefill_chunk_tokens,
                   .eos_token_ids = setting.eos_token_ids});
    Outcome outcome;
    std::atomic<bool> interrupt{setting.interrupt_after_texts == 0};
    std::int64_t texts = 0;
    Detokenizer detokenizer(
        &tokenizer(),
        [&](const Request& request, std::int64_t, const std::string& text) {
          EXPECT_EQ(find_invalid_utf8(text), std::nullopt);
          outcome.streamed[request.index] += text;
          if (++texts == setting.interrupt_after_texts) interrupt = true;
        },
        [&](Completion completion) {
          const std::int64_t index = completion.request->index;
          EXPECT_EQ(outcome.streamed[index], completion.text);
          EXPECT_TRUE(outcome.completions.emplace(index, std::move(completion)).second);
        });
    RequestList source(requests);
    outcome.stats = engine.run(source, detokenizer.events(), interrupt);
    EXPECT_EQ(pool.num_available(), pool.num_pages()) << "KV pages were not given back";
    return outcome;
  }

  const ModelConfig& config() const { return model_.loaded().config(); }

  /// Bytes that stay allocated for each request that is finished: the least over 100 of them
  /// against the least over 100 that finish 600 later. Between both, tasks in flight allocate and
  /// free.
  double bytes_left_by_a_request() {
    constexpr std::int64_t max_batch = 8;
    constexpr std::int64_t window = 100;
    constexpr std::int64_t first = 400;  // by then everything that is kept for reuse is there
    // So many that what the task system keeps in reserve is nothing beside them.
    constexpr std::int64_t last = first + 4000;
    const Request model_request = one_request(2).front();
    KvCache kv(model_.loaded().shape(), config().num_layers,
               KvCache::pages_for(kv_tokens(model_request, config())) * max_batch);
    KvPool pool(kv.num_pages());
    GraphExecutor executor(model_.loaded(), {&kv, 1}, {.num_slots = max_batch});
    Engine engine(config(), {&pool, 1}, executor, {.max_sequences = max_batch});
    std::int64_t finished = 0;
    std::size_t before = std::numeric_limits<std::size_t>::max();
    std::size_t after = before;
    EndlessSource source(model_request, 2 * max_batch, last + window + 2 * max_batch, finished);
    Detokenizer detokenizer(&tokenizer(), {}, [&](const Completion&) {
      ++finished;
      if (finished < first || finished >= last + window) return;
      const std::size_t bytes = allocated_bytes();
      if (finished < first + window) before = std::min(before, bytes);
      if (finished >= last) after = std::min(after, bytes);
    });
    engine.run(source, detokenizer.events(), std::atomic<bool>{false});
    return (static_cast<double>(after) - static_cast<double>(before)) / (last - first);
  }

 private:
  static std::size_t allocated_bytes() {
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
  }

  test::TestModel model_;
};

class EngineTest : public ::testing::Test, protected TinyModel {};

TEST_F(EngineTest, EndsAfterTheTokensAskedFor) {
  for (const std::int64_t count : {1, 2, 20}) {
    const Completion done = run(one_request(count)).completions.at(0);
    EXPECT_EQ(done.token_ids.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(done.finish_reason, FinishReason::length);
    EXPECT_EQ(done.text, tokenizer().decode(done.token_ids));
  }
}

TEST_F(EngineTest, CountsTokens) {
  const std::vector<Request> requests = requests_of(prompts, 9);
  std::int64_t prompt_tokens = 0;
  for (const Request& request : requests) {
    prompt_tokens += static_cast<std::int64_t>(request.prompt_tokens.size());
  }
  const Outcome outcome = run(requests, {.max_batch = 3});
  EXPECT_EQ(outcome.stats.prompt_tokens, prompt_tokens);
  EXPECT_EQ(outcome.stats.generated_tokens, 9 * static_cast<std::int64_t>(prompts.size()));
  EXPECT_GT(outcome.stats.wall_s, 0);
  for (const auto& [index, completion] : outcome.completions) {
    EXPECT_GT(completion.time_to_first_token_s(), 0) << index;
    EXPECT_GT(completion.time_per_output_token_s(), 0) << index;
  }
}

// A server runs for weeks.
TEST_F(EngineTest, FinishedRequestsLeaveNothingInMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator does not count";
#endif
  EXPECT_LT(bytes_left_by_a_request(), 8);
}

TEST_F(EngineTest, NoRequestsGiveNothing) { EXPECT_TRUE(run({}).completions.empty()); }

TEST_F(EngineTest, MoreRequestsThanPlacesGiveTheSame) {
  const std::vector<Request> requests = requests_of(prompts, 24);
  const auto alone = run(requests, {.max_batch = 1}).tokens();
  ASSERT_EQ(alone.size(), prompts.size());
  for (const std::int64_t batch : {2, 3, 7, 16}) {
    EXPECT_EQ(run(requests, {.max_batch = batch}).tokens(), alone) << batch;
  }
  EXPECT_EQ(run(requests, {.max_batch = 3, .prefill_chunk_tokens = 16}).tokens(), alone);
}

TEST_F(EngineTest, RequestsOfDifferentLengthsMakeWayForOthers) {
  std::vector<Request> requests = requests_of(prompts, 1);
  for (Request& request : requests) request.max_new_tokens = 1 + 5 * request.index;
  const Outcome outcome = run(requests, {.max_batch = 2});
  for (const auto& [index, completion] : outcome.completions) {
    EXPECT_EQ(completion.token_ids.size(), static_cast<std::size_t>(1 + 5 * index));
  }
  EXPECT_EQ(outcome.tokens(), run(requests, {.max_batch = 7}).tokens());
}

TEST_F(EngineTest, RequestThatFindsNoPagesWaits) {
  const std::vector<Request> requests = requests_of(prompts, 24);
  const auto alone = run(requests).tokens();
  std::int64_t longest = 1;
  for (const Request& request : requests) longest = std::max(longest, kv_tokens(request, config()));
  const std::int64_t one = KvCache::pages_for(longest);
  for (const std::int64_t pages : {one, one + 1, 2 * one}) {
    EXPECT_EQ(run(requests, {.max_batch = 7, .kv_pages = pages}).tokens(), alone) << pages;
  }
}

TEST_F(EngineTest, FullContextEndsWithLength) {
  std::vector<Request> requests = one_request(100);
  std::vector<std::int32_t>& tokens = requests[0].prompt_tokens;
  for (const std::int64_t room : {12, 1, 0}) {
    tokens.resize(static_cast<std::size_t>(config().max_positions - room), tokens.back());
    const Completion done = run(requests).completions.at(0);
    EXPECT_EQ(done.token_ids.size(), static_cast<std::size_t>(room + 1));
    EXPECT_EQ(done.finish_reason, FinishReason::length);
  }
}

TEST_F(EngineTest, EndOfSequenceTokenStops) {
  std::vector<Request> requests = one_request(20);
  const std::vector<std::int32_t> tokens = run(requests).completions.at(0).token_ids;
  const std::int32_t eos = tokens[7];
  const auto first = std::find(tokens.begin(), tokens.end(), eos);
  const Setting setting = {.eos_token_ids = {eos}};

  EXPECT_EQ(run(requests, setting).completions.at(0).token_ids, tokens);  // ignored

  requests[0].ignore_eos = false;
  const Completion stopped = run(requests, setting).completions.at(0);
  EXPECT_EQ(stopped.token_ids, std::vector<std::int32_t>(tokens.begin(), first));
  EXPECT_EQ(stopped.finish_reason, FinishReason::stop);
}

TEST_F(EngineTest, EachOfSeveralEndOfSequenceTokensStops) {
  std::vector<Request> requests = one_request(20);
  const std::vector<std::int32_t> tokens = run(requests).completions.at(0).token_ids;
  const std::int32_t eos = tokens[7];
  const auto first = std::find(tokens.begin(), tokens.end(), eos);
  std::vector<std::int32_t> never;  // drawn
  for (std::int32_t id = 0; never.size() < 2; ++id) {
    if (std::find(tokens.begin(), tokens.end(), id) == tokens.end()) never.push_back(id);
  }
  requests[0].ignore_eos = false;
  const std::vector<std::vector<std::int32_t>> lists = {
      {eos, never[0]}, {never[0], eos}, {never[0], never[1], eos}, {never[0], eos, never[1]}};
  for (const auto& list : lists) {
    const Completion stopped = run(requests, {.eos_token_ids = list}).completions.at(0);
    EXPECT_EQ(stopped.token_ids, std::vector<std::int32_t>(tokens.begin(), first));
    EXPECT_EQ(stopped.finish_reason, FinishReason::stop);
  }
}

TEST_F(EngineTest, NoEndOfSequenceTokenIsDrawnBeforeTheMinimum) {
  std::vector<Request> requests = requests_of(prompts, 24);
  const auto whole = run(requests, {.max_batch = 7}).tokens();
  const Setting setting = {.max_batch = 3, .eos_token_ids = {whole.at(0)[9], whole.at(1)[4]}};
  for (Request& request : requests) request.ignore_eos = false;
  EXPECT_LT(run(requests, setting).completions.at(1).token_ids.size(), 5U);
  for (const std::int64_t minimum : {6, 15, 24}) {
    for (Request& request : requests) request.min_new_tokens = minimum;
    for (const auto& [index, completion] : run(requests, setting).completions) {
      const auto& ids = completion.token_ids;
      EXPECT_GE(ids.size(), static_cast<std::size_t>(minimum)) << index;
      for (const std::int32_t eos : setting.eos_token_ids)
        EXPECT_EQ(std::find(ids.begin(), ids.end(), eos), ids.end()) << index;
    }
  }
  for (Request& request : requests) request.ignore_eos = true;  // then nothing is held off
  EXPECT_EQ(run(requests, setting).tokens(), whole);
}

TEST_F(EngineTest, StopTextEndsOneSequenceOnly) {
  std::vector<Request> requests = requests_of(prompts, 24);
  const Outcome whole = run(requests, {.max_batch = 7});
  const std::string& text = whole.completions.at(2).text;
  const std::string stop = text.substr(text.size() / 2, 6);
  requests[2].stop = {stop};
  for (const std::int64_t batch : {1, 7}) {
    const Outcome outcome = run(requests, {.max_batch = batch});
    const Completion& stopped = outcome.completions.at(2);
    EXPECT_EQ(stopped.text, text.substr(0, text.find(stop)));
    EXPECT_EQ(stopped.finish_reason, FinishReason::stop);
    EXPECT_LT(stopped.token_ids.size(), 24U);
    EXPECT_EQ(outcome.completions.at(1).token_ids, whole.completions.at(1).token_ids);
    EXPECT_EQ(outcome.completions.at(6).token_ids, whole.completions.at(6).token_ids);
  }
}

TEST_F(EngineTest, InterruptEndsWhatRuns) {
  const std::vector<Request> requests = requests_of(prompts, 400);
  const auto whole = run(one_request(400)).completions.at(0).token_ids;
  const Outcome outcome = run(requests, {.max_batch = 2, .interrupt_after_texts = 30});
  EXPECT_EQ(outcome.completions.size(), 2U);  // the others had not begun
  for (const auto& [index, completion] : outcome.completions) {
    EXPECT_EQ(completion.finish_reason, FinishReason::interrupted);
    EXPECT_LT(completion.token_ids.size(), 30U);
    EXPECT_EQ(completion.text, tokenizer().decode(completion.token_ids));
  }
  const std::vector<std::int32_t>& begun = outcome.completions.at(0).token_ids;
  EXPECT_TRUE(std::equal(begun.begin(), begun.end(), whole.begin()));
}

TEST_F(EngineTest, InterruptKeepsWhatWasFinished) {
  std::vector<Request> requests = requests_of(prompts, 400);
  requests[1].max_new_tokens = 3;
  const Outcome outcome = run(requests, {.max_batch = 2, .interrupt_after_texts = 40});
  EXPECT_EQ(outcome.completions.at(1).finish_reason, FinishReason::length);
  EXPECT_EQ(outcome.completions.at(0).finish_reason, FinishReason::interrupted);
}

TEST_F(EngineTest, InterruptBeforeTheBeginningStartsNothing) {
  EXPECT_TRUE(run(one_request(5), {.interrupt_after_texts = 0}).completions.empty());
}

std::vector<Request> sampled_requests() {
  std::vector<Request> requests = requests_of(prompts, 24);
  for (Request& request : requests) {
    request.sampling = {.temperature = 1.2F,
                        .top_k = 200,
                        .top_p = 0.97F,
                        .min_p = 0.001F,
                        .repetition_penalty = 1.1F,
                        .seed = 0x123456789ABCULL + static_cast<std::uint64_t>(request.index)};
  }
  return requests;
}

TEST_F(EngineTest, SeedReproducesADraw) {
  std::vector<Request> requests = sampled_requests();
  const auto tokens = run(requests, {.max_batch = 7}).tokens();
  EXPECT_EQ(run(requests, {.max_batch = 7}).tokens(), tokens);
  for (Request& request : requests) request.sampling.seed ^= 1ULL << 40;
  EXPECT_NE(run(requests, {.max_batch = 7}).tokens(), tokens);
}

// So hot, all tokens are about equally likely: where a drawn id lies among them is the random
// number. Each step of a sequence must have one of its own.
TEST_F(EngineTest, DrawsOfASequenceFollowTheirDistribution) {
  constexpr std::size_t num_bins = 8;
  constexpr int num_draws = 200;
  for (const std::uint64_t seed : {0ULL, 0xfedcba9876543210ULL}) {
    std::vector<Request> requests = one_request(num_draws);
    requests[0].sampling = {.temperature = 10'000.0F, .seed = seed};
    const std::vector<std::int32_t> tokens = run(requests).completions.at(0).token_ids;
    ASSERT_EQ(tokens.size(), static_cast<std::size_t>(num_draws));
    std::array<double, num_bins> counts{};
    for (const std::int32_t token : tokens) {
      ++counts.at(static_cast<std::size_t>(token) * num_bins /
                  static_cast<std::size_t>(config().vocab_size));
    }
    constexpr double expected = static_cast<double>(num_draws) / num_bins;
    double chi_square = 0;
    for (const double count : counts)
      chi_square += (count - expected) * (count - expected) / expected;
    constexpr double degrees = num_bins - 1;
    EXPECT_LT(chi_square, degrees + 6 * std::sqrt(2 * degrees)) << "seed " << seed;
    EXPECT_GT(chi_square, 0.1) << "too even to be random";
  }
}

TEST_F(EngineTest, SampledTokensDependNeitherOnBatchNorOnOrder) {
  std::vector<Request> requests = sampled_requests();
  const auto alone = run(requests).tokens();
  EXPECT_NE(alone, run(requests_of(prompts, 24)).tokens());
  for (const std::int64_t batch : {2, 3, 7}) {
    EXPECT_EQ(run(requests, {.max_batch = batch}).tokens(), alone) << batch;
  }
  std::reverse(requests.begin(), requests.end());
  EXPECT_EQ(run(requests, {.max_batch = 3}).tokens(), alone);
  std::rotate(requests.begin(), requests.begin() + 3, requests.end());
  EXPECT_EQ(run(requests, {.max_batch = 2, .prefill_chunk_tokens = 17}).tokens(), alone);
}

TEST(EngineThreadsTest, SampledTokensDoNotDependOnThreads) {
  const std::vector<Request> requests = sampled_requests();
  const auto one = TinyModel(1).run(requests, {.max_batch = 3}).tokens();
  EXPECT_EQ(TinyModel(2).run(requests, {.max_batch = 3}).tokens(), one);
  EXPECT_EQ(TinyModel(3).run(requests, {.max_batch = 5}).tokens(), one);
}

}  // namespace
}  // namespace sluice
