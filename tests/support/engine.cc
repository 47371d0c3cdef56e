#include "tests/support/engine.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/cpu.h"
#include "engine/run/graph_executor.h"
#include "tests/support/pages.h"

namespace sluice::test {

namespace {

std::unique_ptr<Runtime>& instance() {
  static std::unique_ptr<Runtime> only;
  return only;
}

int wanted_threads(int threads) {
  return threads > 0 ? threads : default_num_threads(read_cpu_topology());
}

}  // namespace

Runtime& runtime(int threads) {
  const int wanted = wanted_threads(threads);
  if (!instance() || instance()->num_threads() != wanted) runtime_in_groups(wanted, std::nullopt);
  return *instance();
}

Runtime& runtime_in_groups(int threads, const std::optional<PhaseGroups>& groups) {
  instance().reset();
  const std::vector<int> available = read_cpu_topology().cores;
  std::vector<int> cores;
  for (int i = 0; i < threads; ++i)
    cores.push_back(available[static_cast<std::size_t>(i) % available.size()]);
  instance() = std::make_unique<Runtime>(RuntimeOptions{.cores = cores, .groups = groups});
  return *instance();
}

TestModel::TestModel(const std::string& folder, DType dtype, int threads)
    : TestModel(open_model(folder), dtype, threads) {}

TestModel::TestModel(Model model, DType dtype, int threads) : model_(std::move(model)) {
  loaded_ = std::make_unique<LoadedModel>(model_, dtype, runtime(threads).setup_pool());
}

std::vector<float> TestModel::logits(std::span<const std::int32_t> tokens,
                                     std::vector<std::int64_t> chunks, AttentionForm attention,
                                     Fusion fusion) {
  if (chunks.empty()) chunks = {static_cast<std::int64_t>(tokens.size())};
  const std::int64_t pages = KvCache::pages_for(static_cast<std::int64_t>(tokens.size()));
  KvCache kv(loaded_->shape(), loaded_->config().num_layers, pages + 3);
  const std::vector<std::int32_t> table = test::pages(2, pages);  // not at the slab's beginning
  DecoderGraph graph(*loaded_, {&kv, 1},
                     {.num_slots = 1, .attention = attention, .fusion = fusion});
  std::vector<PendingIteration> pending;  // all submitted before any is waited for
  std::int64_t done = 0;
  for (const std::int64_t chunk : chunks) {
    BatchPart part;
    part.phase = chunk > 1 ? Phase::prefill : Phase::decode;
    part.batch.add(
        {.slot = 0,
         .context = static_cast<std::int32_t>(done),
         .fresh = done == 0,
         .tokens = tokens.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(chunk)),
         .pages = table,
         .sampling = {}},
        BatchBuilder::LogitRows::all);
    pending.push_back(graph.submit(part, DecoderGraph::Logits::keep));
    done += chunk;
  }
  std::vector<float> result;
  for (const PendingIteration& iteration : pending) {
    const std::vector<float> part = iteration.logits();
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

std::vector<float> TestModel::ragged_logits(std::span<const std::int32_t> tokens,
                                            const std::vector<std::size_t>& lengths) {
  const std::int64_t pages = KvCache::pages_for(static_cast<std::int64_t>(tokens.size()));
  const auto num_sequences = static_cast<std::int32_t>(lengths.size());
  KvCache kv(loaded_->shape(), loaded_->config().num_layers, pages * num_sequences);
  DecoderGraph graph(*loaded_, {&kv, 1}, {.num_slots = num_sequences});
  std::vector<std::vector<std::int32_t>> tables;
  tables.reserve(lengths.size());
  for (std::int32_t i = 0; i < num_sequences; ++i)
    tables.push_back(test::pages(i * static_cast<std::int32_t>(pages), pages));
  BatchPart first;
  BatchPart second;
  first.phase = Phase::prefill;
  second.phase = Phase::decode;
  for (std::int32_t i = 0; i < num_sequences; ++i) {
    const std::size_t last = lengths.at(static_cast<std::size_t>(i)) - 1;
    const auto add = [&](BatchPart& part, std::size_t begin, std::size_t count) {
      part.batch.add({.slot = i,
                      .context = static_cast<std::int32_t>(begin),
                      .fresh = begin == 0,
                      .tokens = tokens.subspan(begin, count),
                      .pages = tables.at(static_cast<std::size_t>(i)),
                      .sampling = {}},
                     BatchBuilder::LogitRows::all);
    };
    if (last > 0) add(first, 0, last);
    add(second, last, 1);
  }
  const PendingIteration all_but_last = graph.submit(first, DecoderGraph::Logits::keep);
  const PendingIteration lasts = graph.submit(second, DecoderGraph::Logits::keep);
  const std::vector<float> first_rows = all_but_last.logits();
  const std::vector<float> last_rows = lasts.logits();
  const std::ptrdiff_t width = loaded_->config().vocab_size;
  std::vector<float> result;
  auto next = first_rows.begin();
  auto next_last = last_rows.begin();
  for (const std::size_t length : lengths) {
    const auto end = next + static_cast<std::ptrdiff_t>(length - 1) * width;
    result.insert(result.end(), std::exchange(next, end), end);
    const auto end_of_last = next_last + width;
    result.insert(result.end(), std::exchange(next_last, end_of_last), end_of_last);
  }
  return result;
}

std::vector<std::vector<std::int32_t>> TestModel::generate(
    const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t num_tokens,
    std::int64_t max_batch, const SamplingParams& sampling, AttentionForm attention,
    std::int64_t prefill_chunk_tokens) {
  std::vector<Request> requests;
  std::int64_t longest = 1;
  for (const auto& prompt : prompts) {
    Request request;
    request.index = static_cast<std::int64_t>(requests.size());
    request.prompt_tokens = prompt;
    request.max_new_tokens = num_tokens;
    request.ignore_eos = true;
    request.sampling = sampling;
    longest = std::max(longest, kv_tokens(request, loaded_->config()));
    requests.push_back(std::move(request));
  }
  KvCache kv(loaded_->shape(), loaded_->config().num_layers,
             KvCache::pages_for(longest) * max_batch);
  GraphExecutor executor(*loaded_, {&kv, 1}, {.num_slots = max_batch, .attention = attention});
  KvPool pool(kv.num_pages());
  Engine engine(loaded_->config(), {&pool, 1}, executor,
                {.max_sequences = max_batch, .prefill_chunk_tokens = prefill_chunk_tokens});
  std::vector<std::vector<std::int32_t>> outputs(prompts.size());
  RequestList source(std::move(requests));
  const std::atomic<bool> never{false};
  engine.run(source,
             {.on_finished =
                  [&](Completion completion) {
                    outputs[static_cast<std::size_t>(completion.request->index)] =
                        std::move(completion.token_ids);
                  }},
             never);
  return outputs;
}

}  // namespace sluice::test
