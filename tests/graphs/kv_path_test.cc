// Which way KV takes when sublayers 1 to 3 do not all run beside the slab: the tasks that there
// are, what they access, and that the numbers are the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <ostream>
#include <span>
#include <string>
#include <thread>

#include "base/cpu.h"
#include "codelets/runtime/disk_node.h"
#include "codelets/runtime/gpu.h"
#include "graphs/decoder_graph.h"
#include "graphs/loaded_model.h"
#include "models/model.h"
#include "schedulers/look_ahead.h"
#include "tests/support/golden.h"
#include "tests/support/pages.h"
#include "tests/support/quantized_model.h"

namespace sluice {
namespace {

/// A task as it was submitted.
struct Submitted {
  TaskTag tag;
  std::vector<Access> accesses;

  /// How it accesses `handle`; STARPU_NONE when it does not.
  starpu_data_access_mode mode(const DataHandle& handle) const {
    const auto found = std::find_if(accesses.begin(), accesses.end(), [&](const Access& access) {
      return access.handle == handle.get();
    });
    return found == accesses.end() ? STARPU_NONE : found->mode;
  }
  bool holds(Sublayer sublayer) const {
    if (tag.sublayer == Sublayer::attention)
      return sublayer == Sublayer::qk || sublayer == Sublayer::sv;
    return tag.sublayer <= sublayer && sublayer <= tag.last_sublayer;
  }
  bool attends() const { return holds(Sublayer::qk) || holds(Sublayer::sv); }
};

std::vector<Submitted>& submitted_tasks() {
  static std::vector<Submitted> tasks;
  return tasks;
}
std::vector<Sublayer>& executed_sublayers() {
  static std::vector<Sublayer> sublayers;
  return sublayers;
}

std::optional<TaskTag> tag_of(const starpu_task* task) {
  if (task->cl == nullptr || task->cl_arg_size < sizeof(TaskTag)) return std::nullopt;
  TaskTag tag;
  std::memcpy(&tag, task->cl_arg, sizeof(tag));
  return tag;
}

void on_submission(starpu_task* task) {
  if (const std::optional<TaskTag> tag = tag_of(task)) {
    Submitted& submitted = submitted_tasks().emplace_back(Submitted{*tag, {}});
    for (unsigned i = 0; i < STARPU_TASK_GET_NBUFFERS(task); ++i)
      submitted.accesses.push_back(
          {STARPU_TASK_GET_HANDLE(task, i), STARPU_TASK_GET_MODE(task, i)});
  }
  LookAhead::submitted(task);
}

void after_execution(starpu_task* task, unsigned context) {
  if (const std::optional<TaskTag> tag = tag_of(task))
    executed_sublayers().push_back(tag->sublayer);
  LookAhead::executed(task, context);
}

std::uint64_t bytes_from(const char* variable) {
  const char* mib = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe)
  return mib == nullptr ? 0 : static_cast<std::uint64_t>(std::stoi(mib)) << 20;
}
/// Memory of a stand-in accelerator to run the GPU's tasks on; 0: the one CPU worker runs them all.
std::uint64_t stand_in_bytes() { return bytes_from("SLUICE_TEST_STAND_IN_MIB"); }
/// The same of a GPU, which need not be a real one.
std::uint64_t gpu_bytes() { return bytes_from("SLUICE_TEST_GPU_MIB"); }

/// For KV that lives on a disk; from before StarPU starts.
DiskNode& disk() {
  static DiskNode node(std::uint64_t{64} << 20);
  return node;
}

/// StarPU with one worker on each device and a disk, on the scheduler that policies share.
Runtime& runtime() {
  static starpu_sched_policy scheduler = [] {
    starpu_sched_policy made = look_ahead_scheduler("recording", "writes down what it sees");
    made.submit_hook = on_submission;
    made.post_exec_hook = after_execution;
    return made;
  }();
  static Runtime instance = [] {
    set_staging({.host_bytes = std::uint64_t{1} << 20});
    disk();
    return Runtime({.cores = read_cpu_topology().cores,
                    .scheduler = &scheduler,
                    .stand_in_bytes = stand_in_bytes(),
                    .gpu_bytes = gpu_bytes()});
  }();
  static const bool attached = [] {
    disk().attach();
    return true;
  }();
  static_cast<void>(attached);
  return instance;
}

/// Where a layer runs and how it is cut.
struct Form {
  Placement placement{Device::cpu};
  Tier home = Tier::ddr;
  AttentionForm attention = AttentionForm::fused;
  Fusion fusion = Fusion::stages;

  std::string to_string() const {
    return fmt::format("{}, KV in {}, {}, {}", placement.to_string(), sluice::to_string(home),
                       attention == AttentionForm::fused ? "fused" : "split",
                       fusion == Fusion::stages ? "stages" : "no stages");
  }
};

std::vector<Form> all_forms() {
  std::vector<Form> forms;
  for (unsigned bits = 0; bits < num_placements; ++bits) {
    for (const Tier home : {Tier::ddr, Tier::hbm, Tier::disk}) {
      for (const AttentionForm attention : {AttentionForm::fused, AttentionForm::split}) {
        for (const Fusion fusion : {Fusion::stages, Fusion::sublayers})
          forms.push_back({Placement::from_bits(bits), home, attention, fusion});
      }
    }
  }
  return forms;
}

/// Experts run whole.
Placement possible(const ModelConfig& config, Placement placement) {
  if (config.num_experts > 0) placement[Sublayer::fc2] = placement[Sublayer::fc1];
  return placement;
}

std::vector<Form> all_forms(const ModelConfig& config) {
  std::vector<Form> forms = all_forms();
  std::erase_if(
      forms, [&](const Form& form) { return form.placement != possible(config, form.placement); });
  return forms;
}

/// Whether the sequences share one KV cache, or each has its own, so that it attends as a part.
enum class Cohorts : std::uint8_t { one, two };

/// A prompt in two pieces, a second one beside the second piece, and two decode steps of both.
/// Logits of all rows, but of the second pieces only those of the last ones.
class TwoSequences {
 public:
  /// Placements and homes of each layer; of the second sequence, if it is a part of its own.
  struct Layers {
    std::vector<Placement> placements;
    std::vector<Tier> homes;
  };
  using Readers = std::vector<std::optional<Device>>;
  TwoSequences(const LoadedModel& model, const std::vector<Layers>& cohorts,
               AttentionForm attention, Fusion fusion,
               LastLayer last_layer = LastLayer::drawing_rows, const Readers& weight_readers = {})
      : num_tokens_(static_cast<int>(std::min<std::int64_t>(97, model.config().vocab_size))),
        layers_(cohorts) {
    caches_.reserve(cohorts.size());
    const std::size_t slab_bytes = 9 * model.shape().page_bytes();
    file_.emplace(disk(), std::filesystem::temp_directory_path(),
                  KvFile::size_of(slab_bytes, cohorts.size() * cohorts.front().homes.size()));
    for (const Layers& layers : cohorts) {
      caches_.emplace_back(
          model.shape(), model.config().num_layers, 9, layers.homes,
          KvPlaces{.cxl_nodes = {}, .ddr_nodes = {}, .ddr_shares = {}, .file = &*file_});
    }
    graph_.emplace(model, caches_,
                   DecoderGraph::Options{.num_slots = 2,
                                         .attention = attention,
                                         .fusion = fusion,
                                         .last_layer = last_layer,
                                         .weight_readers = weight_readers});
    std::vector<std::int32_t> next(caches_.size(), 2);  // not at the slab's beginning
    for (std::size_t slot = 0; slot < pages_.size(); ++slot) {
      std::int32_t& first = next.at(cohort_of(slot));
      pages_.at(slot) = test::pages(first, num_pages);
      first += num_pages;
    }
  }
  TwoSequences(const LoadedModel& model, const Form& form, Cohorts cohorts = Cohorts::one,
               LastLayer last_layer = LastLayer::drawing_rows)
      : TwoSequences(model,
                     std::vector<Layers>(cohorts == Cohorts::one ? 1 : 2,
                                         {layers(model, form.placement), layers(model, form.home)}),
                     form.attention, form.fusion, last_layer) {}

  /// One element for each layer.
  template <typename T>
  static std::vector<T> layers(const LoadedModel& model, const T& value) {
    return std::vector<T>(static_cast<std::size_t>(model.config().num_layers), value);
  }

  static constexpr int num_iterations = 4;
  /// The first has no cached tokens, all others have some.
  PendingIteration submit(int iteration) {
    SubBatch sub_batch;
    if (iteration == 0) add(sub_batch, 0, 0, 21, first_logits);
    if (iteration == 1) {
      add(sub_batch, 0, 21, 20, BatchBuilder::LogitRows::last);
      add(sub_batch, 1, 0, 9, BatchBuilder::LogitRows::last);
    }
    if (iteration >= 2) {
      add(sub_batch, 0, 41 + iteration - 2, 1);
      add(sub_batch, 1, 9 + iteration - 2, 1);
    }
    return std::move(graph_->submit(std::vector{sub_batch}, DecoderGraph::Logits::keep).front());
  }

  std::vector<float> logits() {
    std::vector<PendingIteration> pending;  // all submitted before any is waited for
    pending.reserve(num_iterations);
    for (int i = 0; i < num_iterations; ++i) pending.push_back(submit(i));
    std::vector<float> all;
    for (const PendingIteration& iteration : pending) {
      const std::vector<float> part = iteration.logits();
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  /// Of the first iteration.
  BatchBuilder::LogitRows first_logits = BatchBuilder::LogitRows::all;

  const DataHandle& slab(std::int64_t layer, std::size_t cohort = 0) const {
    return caches_.at(cohort).slab(layer);
  }

 private:
  static constexpr std::int64_t num_pages = 3;

  std::size_t cohort_of(std::size_t slot) const { return std::min(slot, layers_.size() - 1); }

  void add(SubBatch& sub_batch, std::int32_t slot, int context, int count,
           BatchBuilder::LogitRows logits = BatchBuilder::LogitRows::all) {
    const std::size_t cohort = cohort_of(static_cast<std::size_t>(slot));
    if (sub_batch.parts.empty() || sub_batch.parts.back().cohort != cohort)
      sub_batch.parts.emplace_back();
    BatchPart& part = sub_batch.parts.back();
    part.cohort = cohort;
    part.placements = layers_.at(cohort).placements;
    part.phase = count > 1 ? Phase::prefill : Phase::decode;
    std::vector<std::int32_t> tokens;
    tokens.reserve(static_cast<std::size_t>(count));
    // A GPU's rounding may draw another token: there the tokens are given.
    const bool as_drawn = part.phase == Phase::decode && gpu_bytes() == 0;
    for (int i = 0; i < count; ++i)
      tokens.push_back(as_drawn ? -(slot + 1) : (37 * slot + 11 * (context + i)) % num_tokens_);
    part.batch.add({.slot = slot,
                    .context = context,
                    .fresh = context == 0,
                    .tokens = tokens,
                    .pages = pages_.at(static_cast<std::size_t>(slot)),
                    // The second one's next tokens are of those seen before, as far as they count.
                    .sampling = {.repetition_penalty = slot == 1 ? 0.01F : 1.0F}},
                   logits);
  }

  int num_tokens_;  ///< that prompts are made of
  std::vector<Layers> layers_;
  std::optional<KvFile> file_;
  std::vector<KvCache> caches_;
  std::optional<DecoderGraph> graph_;
  std::array<std::vector<std::int32_t>, 2> pages_;
};

/// The weights of a model whose heads get sinks: in layer l that of head h is l + h / 2 - 1.
class WithSinks final : public WeightSource {
 public:
  explicit WithSinks(const Model& model)
      : weights_(model.weights), sinks_(static_cast<std::size_t>(model.config.num_layers)) {
    for (std::size_t layer = 0; layer < sinks_.size(); ++layer) {
      for (std::int64_t head = 0; head < model.config.num_heads; ++head)
        sinks_[layer].push_back(static_cast<float>(layer) + 0.5F * static_cast<float>(head) - 1);
    }
  }
  TensorView tensor(TensorId id) const override {
    if (id.role != TensorRole::attention_sinks) return weights_->tensor(id);
    const std::vector<float>& sinks = sinks_.at(static_cast<std::size_t>(id.layer));
    return {.name = "sinks",
            .file = "this test",
            .dtype = DType::f32,
            .shape = {static_cast<std::int64_t>(sinks.size())},
            .data = std::as_bytes(std::span(sinks))};
  }

 private:
  std::shared_ptr<const WeightSource> weights_;
  std::vector<std::vector<float>> sinks_;
};

constexpr const char* windows_and_sinks = "mistral-layer-types with sinks";

/// A golden model, perhaps with sinks, or one in 4 bits.
LoadedModel load(const std::string& name, DType dtype) {
  static const test::QuantizedModel quantized("int4-g32", "int8-g64");
  if (name == windows_and_sinks) {
    Model model = open_model(test::golden_folder("mistral-layer-types"));
    model.config.attention_sinks = true;
    model.weights = std::make_shared<WithSinks>(model);
    return {model, dtype, runtime().setup_pool()};
  }
  const Model model = open_model(name == "int4" ? quantized.path() : test::golden_folder(name));
  return {model, dtype, runtime().setup_pool()};
}

struct Case {
  const char* model;
  DType dtype;
};

std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.model << " " << to_string(of.dtype);
}

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double products = 0;
  double squares_a = 0;
  double squares_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    products += static_cast<double>(a[i]) * b[i];
    squares_a += static_cast<double>(a[i]) * a[i];
    squares_b += static_cast<double>(b[i]) * b[i];
  }
  return products / std::sqrt(squares_a * squares_b);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

/// Logits against others of the same model: the same bits; on a GPU, whose sums have another order,
/// the same up to rounding.
class Same {
 public:
  explicit Same(const LoadedModel& model, const Case& of)
      : dtype_(of.dtype), vocab_(static_cast<std::size_t>(model.config().vocab_size)) {
    if (gpu_bytes() == 0 || dtype_ == DType::f32) return;
    const LoadedModel exact = load(of.model, DType::f32);
    bf16_noise_ = largest_difference(TwoSequences(model, Form{}).logits(),
                                     TwoSequences(exact, Form{}).logits());
  }

  void expect(const std::vector<float>& found, const std::vector<float>& expected,
              const std::string& what) const {
    if (gpu_bytes() == 0) {
      ASSERT_EQ(found, expected) << what;
      return;
    }
    ASSERT_EQ(found.size(), expected.size()) << what;
    if (dtype_ == DType::bf16) {
      ASSERT_GE(cosine(found, expected), 0.9999) << what;
      for (std::size_t row = 0; row < found.size(); row += vocab_) {
        const auto of_found = std::span(found).subspan(row, vocab_);
        const auto of_expected = std::span(expected).subspan(row, vocab_);
        // Each of two tokens that change places may have moved as far as bf16 moves them on the
        // CPU.
        ASSERT_LE(of_expected[best(of_expected)] - of_expected[best(of_found)], 2 * bf16_noise_)
            << what << ", row " << row / vocab_;
      }
      return;
    }
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], 1e-4 * (1 + std::abs(expected[i]))) << what << ", " << i;
  }

 private:
  static std::size_t best(std::span<const float> logits) {
    return static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
  }

  DType dtype_;
  std::size_t vocab_;
  double bf16_noise_ = 0;
};

/// Every form gives what all sublayers on the CPU give.
void expect_the_plain_bits(const LoadedModel& model, const Case& of, Cohorts cohorts) {
  const Same same(model, of);
  const std::vector<float> fused = TwoSequences(model, Form{}).logits();
  const std::vector<float> split =
      TwoSequences(model, Form{.attention = AttentionForm::split}).logits();
  for (const Form& form : all_forms(model.config())) {
    // Where sublayers 2 and 3 part, the scores are stored, and summed in another order.
    const bool parts = form.attention == AttentionForm::split ||
                       form.placement[Sublayer::qk] != form.placement[Sublayer::sv];
    same.expect(TwoSequences(model, form, cohorts).logits(), parts ? split : fused,
                form.to_string());
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class KvPathBitsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (gpu_bytes() > 0 && find_first_gpu().devices.empty())
      GTEST_SKIP() << "no GPU: CUDA sees none";
  }
};

TEST_P(KvPathBitsTest, EveryWayGivesTheSameBits) {
  const LoadedModel model = load(GetParam().model, GetParam().dtype);
  expect_the_plain_bits(model, GetParam(), Cohorts::one);
  if (stand_in_bytes() + gpu_bytes() == 0) return;
  const AcceleratorUse use = runtime().accelerator_use();
  EXPECT_GT(use.to_bytes, model.weight_bytes());
  EXPECT_GT(use.from_bytes, 0U);
  EXPECT_LE(use.peak_bytes, stand_in_bytes() + gpu_bytes());
}

TEST_P(KvPathBitsTest, LayersMayDifferInHomeAndPlacement) {
  const LoadedModel model = load(GetParam().model, GetParam().dtype);
  std::vector<Placement> placements =
      TwoSequences::layers(model, possible(model.config(), *Placement::parse("011010")));
  std::vector<Tier> homes = TwoSequences::layers(model, Tier::hbm);
  placements.front() = *Placement::parse("000111");
  homes.front() = Tier::ddr;
  const std::vector<float> expected = TwoSequences(model, Form{}).logits();
  Same(model, GetParam())
      .expect(
          TwoSequences(model, {{placements, homes}}, AttentionForm::fused, Fusion::stages).logits(),
          expected, "layers differ");
}

TEST_P(KvPathBitsTest, AttentionInPartsGivesTheSameBits) {
  const LoadedModel model = load(GetParam().model, GetParam().dtype);
  expect_the_plain_bits(model, GetParam(), Cohorts::two);
}

/// NEO's sub-batch 0: the first request's KV in HBM, the second one's in DDR.
std::vector<TwoSequences::Layers> neo_layers(const LoadedModel& model, const char* second) {
  const auto on = [&](const Placement& placement) {
    return TwoSequences::layers(model, possible(model.config(), placement));
  };
  return {{on(Placement(Device::gpu)), TwoSequences::layers(model, Tier::hbm)},
          {on(*Placement::parse(second)), TwoSequences::layers(model, Tier::ddr)}};
}

TEST_P(KvPathBitsTest, PartsMayDifferInHomeAndPlacement) {
  const LoadedModel model = load(GetParam().model, GetParam().dtype);
  const std::vector<float> expected = TwoSequences(model, Form{}).logits();
  const Same same(model, GetParam());
  for (const char* second : {"011000", "000000", "111111"}) {
    TwoSequences run(model, neo_layers(model, second), AttentionForm::fused, Fusion::stages);
    same.expect(run.logits(), expected, second);
  }
}

/// All layers on `device`, which reads weights and KV where they live.
TwoSequences in_place(const LoadedModel& model, Device device,
                      AttentionForm attention = AttentionForm::fused,
                      Fusion fusion = Fusion::layers) {
  const Tier home = device == Device::gpu ? Tier::hbm : Tier::ddr;
  return {model,
          {{TwoSequences::layers(model, possible(model.config(), Placement(device))),
            TwoSequences::layers(model, home)}},
          attention,
          fusion,
          LastLayer::drawing_rows,
          TwoSequences::layers<std::optional<Device>>(model, device)};
}

TEST_P(KvPathBitsTest, LayersOfOneTaskGiveTheSameBits) {
  const LoadedModel model = load(GetParam().model, GetParam().dtype);
  const std::vector<float> expected = TwoSequences(model, Form{}).logits();
  const Same same(model, GetParam());
  const std::int64_t before = runtime().graph_use().launched;
  // Again and again, at some of the same addresses: of a few tasks CUDA graphs are made.
  for (int round = 0; round < 8; ++round) {
    for (const Device device : {Device::cpu, Device::gpu})
      same.expect(in_place(model, device).logits(), expected, std::string(to_string(device)));
  }
  const std::int64_t launched = runtime().graph_use().launched - before;
  EXPECT_TRUE(gpu_bytes() == 0 || launched > 0);
}

INSTANTIATE_TEST_SUITE_P(
    Models, KvPathBitsTest,
    ::testing::Values(Case{"llama-3-gqa", DType::f32}, Case{"llama-3-gqa", DType::bf16},
                      Case{"mistral-window", DType::f32}, Case{"mistral-window", DType::bf16},
                      Case{"mistral-layer-types", DType::f32}, Case{"llama-2-mha", DType::f32},
                      Case{"opt-pre", DType::f32}, Case{"int4", DType::f32},
                      Case{"mixtral", DType::f32}, Case{"glm4-moe", DType::f32},
                      Case{windows_and_sinks, DType::f32}),
    [](const auto& of) {
      std::string name = of.param.model;
      std::erase(name, '-');
      std::replace(name.begin(), name.end(), ' ', '_');
      return name + "_" + std::string(to_string(of.param.dtype));
    });

/// The tasks of one layer of one iteration, in order.
std::vector<Submitted> tasks_of_layer(TwoSequences& run, int iteration, std::int64_t layer) {
  submitted_tasks().clear();
  run.submit(iteration).tokens();
  std::vector<Submitted> tasks;
  for (const Submitted& task : submitted_tasks()) {
    if (task.tag.layer == layer) tasks.push_back(task);
  }
  return tasks;
}

TEST(KvPathTasksTest, OnlyTheHomeWritesTheSlabAndOthersReadWhatIsCached) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  for (const Form& form : all_forms()) {
    const std::optional<Device> home = reader_of(form.home);
    TwoSequences run(model, form);
    for (int iteration = 0; iteration < TwoSequences::num_iterations; ++iteration) {
      int writers = 0;
      int gathers = 0;
      // The second piece of a prompt brings its own pages to where all of its attention is.
      const Device attends_on = form.placement[Sublayer::qk];
      const bool brings_pages = iteration == 1 && form.home != Tier::disk && attends_on != home &&
                                form.placement[Sublayer::sv] == attends_on;
      for (const Submitted& task : tasks_of_layer(run, iteration, 1)) {
        const starpu_data_access_mode mode = task.mode(run.slab(1));
        const std::string what =
            fmt::format("{}, iteration {}, {} to {}", form.to_string(), iteration,
                        to_string(task.tag.sublayer), to_string(task.tag.last_sublayer));
        if (mode == STARPU_RW) ++writers;
        if (task.tag.sublayer == Sublayer::kv_move && mode == STARPU_R) ++gathers;
        if (form.home == Tier::disk && task.tag.sublayer == Sublayer::kv_store) {
          EXPECT_EQ(task.tag.device, Device::cpu) << what;
        } else if (task.tag.device == home) {
          EXPECT_TRUE(!task.attends() || mode != STARPU_NONE) << what;
        } else {
          const bool reads = task.attends() && iteration > 0 && !brings_pages;
          EXPECT_EQ(mode, reads ? STARPU_R : STARPU_NONE) << what;
        }
      }
      EXPECT_EQ(writers, 1) << form.to_string() << ", iteration " << iteration;
      EXPECT_EQ(gathers, brings_pages ? 1 : 0) << form.to_string() << ", iteration " << iteration;
    }
  }
}

TEST(KvPathTasksTest, OnlyWithSinksTheSoftmaxReadsTheLayersVectors) {
  for (const char* name : {"mistral-layer-types", windows_and_sinks}) {
    const LoadedModel model = load(name, DType::f32);
    const bool has_sinks = model.config().attention_sinks;
    for (const Form& form : all_forms()) {
      TwoSequences run(model, form);
      for (const Submitted& task : tasks_of_layer(run, 0, 1)) {
        if (task.tag.sublayer == Sublayer::kv_store) continue;
        const bool others = task.holds(Sublayer::qkv) || task.holds(Sublayer::out_proj) ||
                            task.holds(Sublayer::fc1) || task.holds(Sublayer::fc2);
        const bool reads = others || (has_sinks && task.holds(Sublayer::sv));
        EXPECT_EQ(task.mode(model.layers()[1].vectors), reads ? STARPU_R : STARPU_NONE)
            << form.to_string() << ", " << to_string(task.tag.sublayer);
      }
    }
  }
}

TEST(KvPathTasksTest, SinksChangeTheLogits) {
  const LoadedModel plain = load("mistral-layer-types", DType::f32);
  const LoadedModel with_sinks = load(windows_and_sinks, DType::f32);
  for (const AttentionForm attention : {AttentionForm::fused, AttentionForm::split}) {
    const Form form{.attention = attention};
    EXPECT_GT(largest_difference(TwoSequences(plain, form).logits(),
                                 TwoSequences(with_sinks, form).logits()),
              0.1);
  }
}

/// The first sublayers of a layer's tasks, in order.
std::vector<Sublayer> order_of(const LoadedModel& model, const char* placement, Tier home,
                               Fusion fusion = Fusion::stages) {
  TwoSequences run(model,
                   {.placement = *Placement::parse(placement), .home = home, .fusion = fusion});
  std::vector<Sublayer> order;
  for (const Submitted& task : tasks_of_layer(run, 0, 0)) {
    order.push_back(task.tag.sublayer);
    if (task.tag.sublayer == Sublayer::kv_store) {
      EXPECT_EQ(task.tag.device, home == Tier::hbm ? Device::gpu : Device::cpu) << placement;
    }
  }
  return order;
}

TEST(KvPathTasksTest, StoresBehindTheLastAttentionThatIsAway) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  using Order = std::vector<Sublayer>;
  const auto qkv = Sublayer::qkv;
  const auto store = Sublayer::kv_store;
  // All at home: no store.
  EXPECT_EQ(order_of(model, "111111", Tier::ddr), Order({qkv}));
  EXPECT_EQ(order_of(model, "000000", Tier::hbm), Order({qkv}));
  EXPECT_EQ(order_of(model, "111000", Tier::ddr), Order({qkv, Sublayer::out_proj}));
  // No attention at home.
  EXPECT_EQ(order_of(model, "000000", Tier::ddr), Order({qkv, store}));
  EXPECT_EQ(order_of(model, "111111", Tier::hbm), Order({qkv, store}));
  EXPECT_EQ(order_of(model, "100111", Tier::ddr),
            Order({qkv, Sublayer::attention, store, Sublayer::out_proj}));
  // A disk is no device's home.
  EXPECT_EQ(order_of(model, "111111", Tier::disk), Order({qkv, store}));
  EXPECT_EQ(order_of(model, "011000", Tier::disk),
            Order({qkv, Sublayer::attention, store, Sublayer::out_proj}));
  // Sublayer 1 alone is away.
  EXPECT_EQ(order_of(model, "011000", Tier::ddr),
            Order({qkv, store, Sublayer::attention, Sublayer::out_proj}));
  EXPECT_EQ(order_of(model, "001111", Tier::ddr), Order({qkv, store, Sublayer::sv}));
  EXPECT_EQ(order_of(model, "010111", Tier::ddr, Fusion::sublayers),
            Order({qkv, store, Sublayer::qk, Sublayer::sv, Sublayer::out_proj, Sublayer::fc1,
                   Sublayer::fc2}));
  // Sublayer 1 and some attention are at home: sublayer 1 stores.
  EXPECT_EQ(order_of(model, "110111", Tier::ddr), Order({qkv, Sublayer::sv, Sublayer::out_proj}));
}

/// What NEO's two kinds of requests run in one layer, decoding: "sublayer device".
TEST(KvPathTasksTest, PartsAttendBesideEachOther) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  TwoSequences run(model, neo_layers(model, "011000"), AttentionForm::fused, Fusion::stages);
  for (int iteration = 0; iteration < 2; ++iteration) run.submit(iteration).tokens();
  std::vector<std::string> found;
  std::vector<Submitted> attention;
  for (const Submitted& task : tasks_of_layer(run, 2, 1)) {
    found.push_back(fmt::format("{} {} {}", to_string(task.tag.sublayer),
                                task.tag.device == Device::gpu ? "gpu" : "cpu",
                                task.tag.num_tokens));
    if (task.tag.sublayer == Sublayer::attention) attention.push_back(task);
    // Each slab is touched on its own device only.
    const Device home = task.mode(run.slab(1, 0)) != STARPU_NONE ? Device::gpu : Device::cpu;
    const bool touches =
        task.mode(run.slab(1, 0)) != STARPU_NONE || task.mode(run.slab(1, 1)) != STARPU_NONE;
    EXPECT_TRUE(!touches || task.tag.device == home) << found.back();
  }
  EXPECT_EQ(found, std::vector<std::string>({"qkv gpu 2", "kv_store gpu 1", "attention gpu 1",
                                             "kv_store cpu 1", "attention cpu 1",
                                             "attention_join gpu 2", "out_proj gpu 2"}));
  ASSERT_EQ(attention.size(), 2U);
  for (const Access& access : attention[0].accesses) {
    for (const Access& other : attention[1].accesses) EXPECT_NE(access.handle, other.handle);
  }
}

/// The tasks of an iteration's layers: "first to last sublayer, layers, rows".
std::vector<std::string> tasks_of(TwoSequences& run, int iteration) {
  submitted_tasks().clear();
  run.submit(iteration).tokens();
  std::vector<std::string> found;
  for (const Submitted& task : submitted_tasks()) {
    if (task.tag.layer < 0) continue;
    found.push_back(fmt::format("{}-{}, {}, {}", static_cast<int>(task.tag.sublayer),
                                static_cast<int>(task.tag.last_sublayer), layers_of(task.tag),
                                task.tag.num_tokens));
  }
  return found;
}

TEST(LayerRunTasksTest, LayersThatNothingComesToAreOneTask) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  ASSERT_EQ(model.config().num_layers, 2);
  using Tasks = std::vector<std::string>;
  for (const Device device : {Device::cpu, Device::gpu}) {
    TwoSequences run = in_place(model, device);
    EXPECT_EQ(tasks_of(run, 0), Tasks({"1-6, layers 0 to 1, 21"}));
    // In the last layer rows are dropped, by tasks of their own.
    EXPECT_EQ(tasks_of(run, 1), Tasks({"1-6, layer 0, 29", "1-3, layer 1, 29", "12-12, layer 1, 29",
                                       "12-12, layer 1, 29", "4-6, layer 1, 2"}));
    EXPECT_EQ(tasks_of(run, 2), Tasks({"1-6, layers 0 to 1, 2"}));
  }
  TwoSequences split = in_place(model, Device::cpu, AttentionForm::split);
  EXPECT_EQ(tasks_of(split, 0), Tasks({"1-2, layer 0, 21", "3-6, layer 0, 21", "1-2, layer 1, 21",
                                       "3-6, layer 1, 21"}));
  TwoSequences apart = in_place(model, Device::cpu, AttentionForm::fused, Fusion::stages);
  EXPECT_EQ(tasks_of(apart, 0), Tasks({"1-6, layer 0, 21", "1-6, layer 1, 21"}));
  TwoSequences plain(model, Form{});
  EXPECT_EQ(tasks_of(plain, 0), Tasks({"1-6, layer 0, 21", "1-6, layer 1, 21"}));
}

/// 15 is the router, 17 the join: tasks of their own only where the experts are elsewhere, or in
/// more chunks than a stage takes.
TEST(LayerRunTasksTest, NeighboursOfExpertsAreOneStage) {
  const LoadedModel model = load("mixtral", DType::f32);
  using Tasks = std::vector<std::string>;
  TwoSequences in_one = in_place(model, Device::cpu);
  EXPECT_EQ(tasks_of(in_one, 0), Tasks({"1-6, layers 0 to 1, 21"}));
  const auto of_first_layer = [&](const char* placement, Fusion fusion) {
    TwoSequences run(model, {.placement = *Placement::parse(placement), .fusion = fusion});
    Tasks tasks = tasks_of(run, 0);
    std::erase_if(
        tasks, [](const std::string& task) { return task.find("layer 0") == std::string::npos; });
    return tasks;
  };
  EXPECT_EQ(of_first_layer("111111", Fusion::stages), Tasks({"1-6, layer 0, 21"}));
  EXPECT_EQ(
      of_first_layer("000011", Fusion::stages),
      Tasks({"1-4, layer 0, 21", "10-10, layer 0, 21", "5-6, layer 0, 21", "17-17, layer 0, 21"}));
  EXPECT_EQ(of_first_layer("111011", Fusion::stages),
            Tasks({"1-3, layer 0, 21", "4-4, layer 0, 21", "15-15, layer 0, 21", "5-6, layer 0, 21",
                   "17-17, layer 0, 21"}));
  EXPECT_EQ(of_first_layer("111111", Fusion::sublayers),
            Tasks({"1-1, layer 0, 21", "7-7, layer 0, 21", "4-4, layer 0, 21", "15-15, layer 0, 21",
                   "5-6, layer 0, 21", "17-17, layer 0, 21"}));
}

/// The first layer has one FFN, the other two experts: no task has both. 16 is the FFN that all
/// rows go through, a task where the experts are one.
TEST(LayerRunTasksTest, SharedExpertsStandBehindTheRouter) {
  const LoadedModel model = load("glm4-moe", DType::f32);
  using Tasks = std::vector<std::string>;
  TwoSequences in_one = in_place(model, Device::cpu);
  EXPECT_EQ(tasks_of(in_one, 0), Tasks({"1-6, layer 0, 21", "1-6, layers 1 to 2, 21"}));
  const auto of_layer_1 = [&](const char* placement, Fusion fusion) {
    TwoSequences run(model, {.placement = *Placement::parse(placement), .fusion = fusion});
    Tasks tasks = tasks_of(run, 0);
    std::erase_if(
        tasks, [](const std::string& task) { return task.find("layer 1") == std::string::npos; });
    return tasks;
  };
  EXPECT_EQ(of_layer_1("111111", Fusion::stages), Tasks({"1-6, layer 1, 21"}));
  EXPECT_EQ(of_layer_1("000011", Fusion::stages),
            Tasks({"1-4, layer 1, 21", "10-10, layer 1, 21", "16-16, layer 1, 21",
                   "5-6, layer 1, 21", "17-17, layer 1, 21"}));
  EXPECT_EQ(of_layer_1("111111", Fusion::sublayers),
            Tasks({"1-1, layer 1, 21", "7-7, layer 1, 21", "4-4, layer 1, 21", "15-15, layer 1, 21",
                   "16-16, layer 1, 21", "5-6, layer 1, 21", "17-17, layer 1, 21"}));
}

/// A golden model in f32 whose chunks have so many experts; `hot` ones in every layer.
LoadedModel load_cut(const char* name, std::size_t experts_of_chunk,
                     const std::vector<std::int32_t>& hot = {}) {
  const Model files = open_model(test::golden_folder(name));
  const PackedWeights packed(files.config, DType::f32);
  WeightHomes homes;
  homes.chunk_bytes =
      experts_of_chunk * ExpertLayout::of(packed.layers.back(), packed.mixture).size_bytes();
  if (!hot.empty()) homes.hot_experts.assign(packed.layers.size(), hot);
  return {files, DType::f32, runtime().setup_pool(), {}, homes};
}

/// Where sublayers 2 and 3 part, the scores are stored, and summed in another order.
bool keeps_bits(const ModelConfig& config, const Placement& placement) {
  return placement == possible(config, placement) &&
         placement[Sublayer::qk] == placement[Sublayer::sv];
}

class ExpertChunksBitsTest : public ::testing::TestWithParam<const char*> {};

/// On whichever device each sublayer is.
TEST_P(ExpertChunksBitsTest, AnyCutAndPlacementGivesTheSameBits) {
  const LoadedModel whole = load(GetParam(), DType::f32);
  const std::vector<float> expected = TwoSequences(whole, Form{}).logits();
  const Same same(whole, {GetParam(), DType::f32});
  for (const std::size_t experts : {1, 3}) {
    const LoadedModel cut = load_cut(GetParam(), experts);
    const auto num_experts = static_cast<std::size_t>(cut.config().num_experts);
    ASSERT_EQ(cut.layers().back().experts.chunks.size(), (num_experts + experts - 1) / experts);
    for (unsigned bits = 0; bits < num_placements; ++bits) {
      const Placement placement = Placement::from_bits(bits);
      if (!keeps_bits(cut.config(), placement)) continue;
      same.expect(TwoSequences(cut, {.placement = placement}).logits(), expected,
                  placement.to_string());
      if (HasFatalFailure()) return;
    }
  }
}

/// With a fixed list of hot experts, which are summed apart. On the CPU alone these are bits.
TEST_P(ExpertChunksBitsTest, WithHotOnesTooWhichAreFixed) {
  const std::vector<float> plain = TwoSequences(load(GetParam(), DType::f32), Form{}).logits();
  const LoadedModel whole = load_cut(GetParam(), 100, {3, 1});
  const std::vector<float> expected = TwoSequences(whole, Form{}).logits();
  ASSERT_EQ(expected.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i)
    ASSERT_NEAR(expected[i], plain[i], 1e-4 * (1 + std::abs(plain[i]))) << i;
  const Same same(whole, {GetParam(), DType::f32});
  const LoadedModel cut = load_cut(GetParam(), 1, {1, 3});
  for (const LoadedModel* model : {&whole, &cut}) {
    for (unsigned bits = 0; bits < num_placements; ++bits) {
      const Placement placement = Placement::from_bits(bits);
      if (!keeps_bits(model->config(), placement)) continue;
      same.expect(TwoSequences(*model, {.placement = placement}).logits(), expected,
                  placement.to_string());
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertChunksBitsTest, ::testing::Values("mixtral", "qwen3-moe"),
                         [](const auto& of) {
                           std::string name = of.param;
                           std::erase(name, '-');
                           return name;
                         });

/// So that a chunk that streams may go as soon as its task has ended.
TEST(ExpertChunksTasksTest, OnAGpuEachIsOneTasksAlone) {
  const LoadedModel model = load_cut("mixtral", 1);
  const std::vector<DataHandle>& chunks = model.layers().front().experts.chunks;
  ASSERT_EQ(chunks.size(), 4U);
  for (const char* placement : {"111100", "000000", "000011"}) {
    SCOPED_TRACE(placement);
    TwoSequences run(model, {.placement = *Placement::parse(placement)});
    std::vector<Submitted> tasks = tasks_of_layer(run, 0, 0);
    std::erase_if(tasks, [](const Submitted& task) { return task.tag.sublayer != Sublayer::fc1; });
    if (placement == std::string("000011")) {
      ASSERT_EQ(tasks.size(), 1U);
      EXPECT_EQ(tasks[0].tag.num_experts, 0);
      continue;
    }
    ASSERT_EQ(tasks.size(), 4U);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      EXPECT_EQ(tasks[i].tag.num_experts, 1);
      EXPECT_EQ(tasks[i].tag.device, Device::gpu);
      for (std::size_t j = 0; j < chunks.size(); ++j)
        EXPECT_EQ(tasks[i].mode(chunks[j]), i == j ? STARPU_R : STARPU_NONE);
      EXPECT_EQ(tasks[i].accesses.back().mode, i == 0 ? STARPU_W : STARPU_RW);
      EXPECT_EQ(tasks[i].accesses.back().handle, tasks[0].accesses.back().handle);
    }
  }
}

/// Of 4 experts 1 and 3 are hot, each a chunk; the CPU computes the others.
TEST(ExpertChunksTasksTest, HotOnesRunBesideTheOthers) {
  const LoadedModel model = load_cut("mixtral", 1, {1, 3});
  const std::vector<DataHandle>& chunks = model.layers().front().experts.chunks;
  ASSERT_EQ(chunks.size(), 4U);
  for (const char* placement : {"000011", "111111", "000000"}) {
    SCOPED_TRACE(placement);
    TwoSequences run(model, {.placement = *Placement::parse(placement)});
    std::vector<Submitted> tasks = tasks_of_layer(run, 0, 0);
    const Submitted join = tasks.back();
    EXPECT_EQ(join.tag.sublayer, Sublayer::expert_join);
    std::erase_if(tasks, [](const Submitted& task) { return task.tag.sublayer != Sublayer::fc1; });
    const bool all_on_gpu = placement == std::string("000000");
    ASSERT_EQ(tasks.size(), all_on_gpu ? 4U : 3U);
    const starpu_data_handle_t hot_sum = tasks.front().accesses.back().handle;
    const starpu_data_handle_t sum = tasks.back().accesses.back().handle;
    EXPECT_NE(hot_sum, sum);
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const bool is_hot = i < 2;
      const bool on_gpu = is_hot || all_on_gpu;
      EXPECT_EQ(tasks[i].tag.device, on_gpu ? Device::gpu : Device::cpu);
      EXPECT_EQ(tasks[i].tag.num_experts, on_gpu ? 1 : 2);
      EXPECT_EQ(tasks[i].accesses.back().handle, is_hot ? hot_sum : sum);
      EXPECT_EQ(tasks[i].accesses.back().mode, i % 2 == 0 ? STARPU_W : STARPU_RW);
      EXPECT_EQ(tasks[i].mode(model.layers().front().experts.places), STARPU_R);
      for (std::size_t j = 0; j < chunks.size(); ++j) {
        const bool reads = on_gpu ? i == j : j >= 2;
        EXPECT_EQ(tasks[i].mode(chunks[j]), reads ? STARPU_R : STARPU_NONE) << i << ", " << j;
      }
    }
    for (const starpu_data_handle_t read : {sum, hot_sum}) {
      EXPECT_TRUE(std::any_of(
          join.accesses.begin(), join.accesses.end(),
          [&](const Access& access) { return access.handle == read && access.mode == STARPU_R; }));
    }
  }
}

/// One sum, which the hot ones write.
TEST(ExpertChunksTasksTest, AllMayBeHot) {
  const std::vector<float> plain = TwoSequences(load("mixtral", DType::f32), Form{}).logits();
  const LoadedModel model = load_cut("mixtral", 3, {0, 1, 2, 3});
  const std::vector<float> hot =
      TwoSequences(model, {.placement = *Placement::parse("000011")}).logits();
  Same(model, {"mixtral", DType::f32}).expect(hot, plain, "all are hot");
}

TEST(ExpertChunksTasksTest, HotOnesThatThereAreNotAreRefused) {
  const ModelConfig config = open_model(test::golden_folder("mixtral")).config;
  const auto problem_of = [&](const HotExpertLists& hot) -> std::string {
    try {
      check_hot_experts(config, hot);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem_of({{}, {3, 0}}), "");
  EXPECT_EQ(problem_of({{}, {3, 0, 3}}), "layer 1's hot experts name 3 twice, expected each once");
  EXPECT_EQ(problem_of({{4}}),
            "layer 0's hot experts name 4, expected numbers below 4, its experts");
  EXPECT_EQ(problem_of({{-1}}),
            "layer 0's hot experts name -1, expected numbers below 4, its experts");
  EXPECT_EQ(problem_of({{}, {}, {}}), "hot experts of 3 layers are given, the model has 2");
  EXPECT_THROW(load_cut("mixtral", 1, {7}), Error);
}

TEST(ExpertPlacementTest, HalvesOfAnFfnOnTwoDevicesAreRefused) {
  const LoadedModel model = load("mixtral", DType::f32);
  for (const char* placement : {"111101", "000001", "000010"}) {
    try {
      TwoSequences(model, {.placement = *Placement::parse(placement)}).logits();
      FAIL() << placement;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("p5 and p6"), std::string::npos) << error.what();
    }
  }
}

/// A layer's tasks: "first sublayer device rows".
std::vector<std::string> rows_in_layer(TwoSequences& run, int iteration, std::int64_t layer) {
  std::vector<std::string> found;
  for (const Submitted& task : tasks_of_layer(run, iteration, layer)) {
    found.push_back(fmt::format("{} {} {}", to_string(task.tag.sublayer),
                                to_string(task.tag.device), task.tag.num_tokens));
  }
  return found;
}

TEST(DroppedRowsTest, OnlyTheLastLayerDropsThemBeforeSublayer4) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  const std::int64_t last = model.config().num_layers - 1;
  using Rows = std::vector<std::string>;
  for (const Cohorts cohorts : {Cohorts::one, Cohorts::two}) {
    TwoSequences run(model, {.placement = *Placement::parse("011001")}, cohorts);
    run.submit(0).tokens();
    const Rows found = rows_in_layer(run, 1, last);
    ASSERT_GE(found.size(), 4U);
    // Attention's output is copied where it was written or joined, x where the layer before left
    // it.
    const std::string attended = cohorts == Cohorts::one ? "cpu" : "gpu";
    EXPECT_EQ(Rows(found.end() - 4, found.end()),
              Rows({"select_rows " + attended + " 29", "select_rows cpu 29", "out_proj gpu 2",
                    "fc2 cpu 2"}));
    TwoSequences other(model, {.placement = *Placement::parse("011001")}, cohorts);
    other.submit(0).tokens();
    EXPECT_EQ(rows_in_layer(other, 1, last - 1).back(), "fc2 cpu 29");
  }
  TwoSequences fused(model, Form());
  EXPECT_EQ(rows_in_layer(fused, 0, last), Rows({"qkv cpu 21"}));  // all draw
  EXPECT_EQ(rows_in_layer(fused, 1, last),
            Rows({"qkv cpu 29", "select_rows cpu 29", "select_rows cpu 29", "out_proj cpu 2"}));
  EXPECT_EQ(rows_in_layer(fused, 2, last), Rows({"qkv cpu 2"}));
}

TEST(DroppedRowsTest, WithoutAnyThatDrawTheLastLayerEndsWithAttention) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  TwoSequences run(model, {.placement = *Placement::parse("011000")});
  run.first_logits = BatchBuilder::LogitRows::none;
  EXPECT_EQ(rows_in_layer(run, 0, model.config().num_layers - 1),
            std::vector<std::string>({"qkv gpu 21", "kv_store cpu 21", "attention cpu 21"}));
}

TEST(DroppedRowsTest, NoLogitDependsOnThem) {
  for (const std::string& name : test::golden_cases()) {
    const LoadedModel model = load(name, DType::f32);
    for (const Cohorts cohorts : {Cohorts::one, Cohorts::two}) {
      const std::vector<float> dropped = TwoSequences(model, Form(), cohorts).logits();
      const std::vector<float> all =
          TwoSequences(model, Form(), cohorts, LastLayer::all_rows).logits();
      ASSERT_EQ(dropped.size(), all.size());
      float largest = 0;
      for (const float logit : all) largest = std::max(largest, std::abs(logit));
      for (std::size_t i = 0; i < all.size(); ++i)
        ASSERT_NEAR(dropped[i], all[i], 1e-5F * largest) << name << ", logit " << i;
    }
  }
}

TEST(KvPathTasksTest, HomesAreOneALayer) {
  const LoadedModel model = load("llama-3-gqa", DType::f32);
  EXPECT_THROW(KvCache(model.shape(), 2, 1, {Tier::ddr}), Error);
}

struct TagOnly {
  TaskTag tag;
};
void run_failing(const CpuContext& /*cpu*/, const TagOnly& /*args*/, Buffers /*buffers*/) {
  throw Error("it was meant to fail");
}

TEST(StandInTest, AKernelThatFailsThereIsReportedHere) {
  if (stand_in_bytes() == 0) GTEST_SKIP() << "no stand-in accelerator: SLUICE_TEST_STAND_IN_MIB";
  runtime();
  static const auto codelet = Codelet<TagOnly>::with_cpu<run_failing>("failing");
  TagOnly args;
  args.tag.layer = 3;
  args.tag.device = Device::gpu;
  codelet.submit(DType::f32, args, {});
  starpu_task_wait_for_all();
  ASSERT_TRUE(run_failure().happened());
  try {
    run_failure().rethrow();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a task of layer 3 with 0 tokens failed: it was meant to fail");
  }
  run_failure().clear();
}

std::atomic<bool> worker_is_held{false};
std::atomic<bool> worker_may_go{false};

/// The embedding holds the only worker until it may go; what is submitted meanwhile queues up.
void run_tag(const CpuContext& /*cpu*/, const TagOnly& args, Buffers /*buffers*/) {
  if (args.tag.sublayer != Sublayer::embedding) return;
  worker_is_held = true;
  while (!worker_may_go) std::this_thread::yield();
}

TEST(LookAheadOrderTest, StoringKvComesBetweenSublayers3And4) {
  runtime();
  static const auto codelet = Codelet<TagOnly>::with_cpu<run_tag>("tag_only");
  const std::vector<Sublayer> expected = {
      Sublayer::embedding, Sublayer::qkv,      Sublayer::attention,
      Sublayer::sv,        Sublayer::kv_store, Sublayer::out_proj,
      Sublayer::fc2,       Sublayer::lm_head,  Sublayer::sampling};
  starpu_task_wait_for_all();
  executed_sublayers().clear();
  const auto submit = [&](Sublayer sublayer) {
    TagOnly args;
    args.tag.layer = 5;
    args.tag.sublayer = args.tag.last_sublayer = sublayer;
    codelet.submit(DType::f32, args, {});
  };
  submit(Sublayer::embedding);
  while (!worker_is_held) std::this_thread::yield();
  std::for_each(expected.rbegin(), expected.rend() - 1, submit);
  worker_may_go = true;
  starpu_task_wait_for_all();
  EXPECT_EQ(executed_sublayers(), expected);
}

}  // namespace
}  // namespace sluice
